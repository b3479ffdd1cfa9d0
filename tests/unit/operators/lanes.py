"""A source with lanes that a test fills one by one, each a split with a watermark of its own."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import msgspec

from headrace.connectors.queue_enumerator import Dealing, QueueEnumerator
from headrace.connectors.source import PollStatus, Source, SourceBatch, SourceReader


class Lane(msgspec.Struct):
    name: str
    position: int = 0

    @property
    def split_id(self) -> str:
        return self.name


class Lanes(Source[Lane]):
    """The values are `(lane, time)`. A lane whose last time is None is over."""

    split_type = Lane

    def __init__(self, *names: str, per_poll: int = 1, pauses: bool = True) -> None:
        self.times: dict[str, list[int | None]] = {name: [] for name in names}
        self.per_poll = per_poll
        self.pauses = pauses
        self.read: list[tuple[str, int]] = []
        """What was handed out, in order."""
        self.readers: list[LanesReader] = []

    def fill(self, name: str, *times: int | None) -> None:
        self.times[name] += times
        for reader in self.readers:
            reader.wake()

    def end(self) -> None:
        for name in self.times:
            self.fill(name, None)

    def how_far(self, name: str) -> int:
        """The last time that was read of a lane; -1 if none was."""
        return max((time for lane, time in self.read if lane == name), default=-1)

    def create_enumerator(self, context: Any, restored: bytes | None) -> QueueEnumerator[Lane]:
        return QueueEnumerator(
            context,
            Lane,
            first=lambda: [Lane(name) for name in self.times],
            restored=restored,
            dealing=Dealing.ALL_AT_ONCE,
        )

    def create_reader(self, context: Any) -> LanesReader:
        reader = LanesReader(self, context.wake)
        self.readers.append(reader)
        return reader

    def __deepcopy__(self, memo: Any) -> Lanes:
        return self  # the test holds it


class LanesReader(SourceReader[Lane]):
    """Takes its lanes in turn, so many values at a time."""

    def __init__(self, source: Lanes, wake: Any) -> None:
        self._source = source
        self.wake = wake
        self.pauses_splits = source.pauses
        self._lanes: list[Lane] = []
        self._paused: AbstractSet[str] = frozenset()
        self._no_more = False

    def add_splits(self, splits: Sequence[Lane]) -> None:
        self._lanes += splits

    def no_more_splits(self) -> None:
        self._no_more = True

    def pause_splits(self, paused: AbstractSet[str]) -> None:
        self._paused = paused

    def poll(self, limit: int) -> SourceBatch | PollStatus:
        for lane in list(self._lanes):
            times = self._source.times[lane.name]
            due = times[lane.position : lane.position + self._source.per_poll]
            if due and due[0] is None:
                self._lanes.remove(lane)
            elif due and lane.name not in self._paused:
                taken = [time for time in due if time is not None]
                lane.position += len(taken)
                self._lanes.remove(lane)
                self._lanes.append(lane)
                values = [(lane.name, time) for time in taken]
                self._source.read += values
                return SourceBatch(lane.name, values=values, timestamps=taken)
        if self._lanes:
            return PollStatus.IDLE
        return PollStatus.ENDED if self._no_more else PollStatus.NEEDS_SPLIT

    def snapshot(self) -> list[Lane]:
        return [msgspec.structs.replace(lane) for lane in self._lanes]
