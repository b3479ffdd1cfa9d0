"""A source that gives what a test tells it to give, when it tells it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from headrace.connectors.queue_enumerator import QueueEnumerator
from headrace.connectors.source import (
    EnumeratorContext,
    PollStatus,
    ReaderContext,
    Source,
    SourceBatch,
    SourceReader,
    SplitEnumerator,
)
from headrace.types.information import TypeInformation, TypeLike, type_of


class ManualSplit(msgspec.Struct):
    """All values, from the one at `position` on."""

    position: int

    @property
    def split_id(self) -> str:
        return "manual"


class ManualSource(Source[ManualSplit]):
    """For a `JobHarness`: lives in the test's own process, and keeps what it gave so that it can be read again.

    One reader gets everything; any others are idle until `end`.
    """

    split_type = ManualSplit

    def __init__(self, type_info: TypeLike | None = None) -> None:
        self.type_info = None if type_info is None else type_of(type_info)
        self.values: list[Any] = []
        self.timestamps: list[int | None] = []
        self.ended = False
        self.wakers: list[Callable[[], None]] = []
        self._lock = threading.Lock()

    @property
    def produced_type(self) -> TypeInformation | None:
        return self.type_info

    def emit(self, *values: Any, timestamp: int | None = None) -> None:
        """Values that the job reads when it runs next."""
        if self.type_info is not None:
            for value in values:
                self.type_info.check(value, "ManualSource.emit()")
        self.values.extend(values)
        self.timestamps.extend([timestamp] * len(values))
        self._wake()

    def end(self) -> None:
        """There will be no more."""
        self.ended = True
        self._wake()

    def _wake(self) -> None:
        for wake in self.wakers:
            wake()

    def create_enumerator(self, context: EnumeratorContext, restored: bytes | None) -> SplitEnumerator[ManualSplit]:
        return QueueEnumerator(context, ManualSplit, first=lambda: [ManualSplit(0)], restored=restored)

    def create_reader(self, context: ReaderContext) -> SourceReader[ManualSplit]:
        return _ManualReader(self, context.wake)

    def __deepcopy__(self, memo: Any) -> ManualSource:
        return self  # the test holds it

    def describe(self) -> str:
        return "values from a test"


class _ManualReader(SourceReader[ManualSplit]):
    def __init__(self, source: ManualSource, wake: Callable[[], None]) -> None:
        self._source = source
        self._wake = wake
        self._split: ManualSplit | None = None
        self._no_more = False
        source.wakers.append(wake)

    def add_splits(self, splits: Sequence[ManualSplit]) -> None:
        [self._split] = splits

    def no_more_splits(self) -> None:
        self._no_more = True

    def poll(self, limit: int) -> SourceBatch | PollStatus:
        source, split = self._source, self._split
        if split is None:
            return PollStatus.ENDED if self._no_more and source.ended else self._idle_or_asking()
        values = source.values[split.position : split.position + limit]
        times: Iterable[int | None] = source.timestamps[split.position : split.position + limit]
        if not values:
            if source.ended:
                self._split = None
                return self._idle_or_asking()
            return PollStatus.IDLE
        # Records with and without a timestamp do not share a batch.
        kind = next(iter(times)) is None
        same = next((i for i, t in enumerate(times) if (t is None) is not kind), len(values))
        split.position += same
        stamps = None if kind else [t for t in list(times)[:same] if t is not None]
        return SourceBatch(split.split_id, values=values[:same], timestamps=stamps)

    def _idle_or_asking(self) -> PollStatus:
        if self._no_more:
            return PollStatus.ENDED if self._source.ended else PollStatus.IDLE
        return PollStatus.NEEDS_SPLIT

    def snapshot(self) -> list[ManualSplit]:
        return [] if self._split is None else [ManualSplit(self._split.position)]

    def close(self) -> None:
        if self._wake in self._source.wakers:
            self._source.wakers.remove(self._wake)
