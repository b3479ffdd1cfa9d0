"""A source of whole numbers, for tests, demos and as a clock."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headrace.connectors.pace import Pace, check_rate
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
from headrace.errors import ConfigurationError
from headrace.types.information import TypeInformation, Types


class SequenceSplit(msgspec.Struct):
    """The numbers from `position` to `end`, both included, of a share that began at `start`."""

    start: int
    end: int
    position: int

    @property
    def split_id(self) -> str:
        return f"{self.start}-{self.end}"


class NumberSequenceSource(Source[SequenceSplit]):
    """The whole numbers from `start` to `end`, both included, each exactly once, as LONG.

    Within a split the numbers ascend; between splits there is no order. `rate` limits all readers together,
    in numbers per second.
    """

    split_type = SequenceSplit

    def __init__(self, start: int, end: int, *, rate: float | None = None) -> None:
        if start > end:
            raise ConfigurationError(f"NumberSequenceSource({start}, {end}) is empty: let start be at most end.")
        check_rate(rate, "NumberSequenceSource")
        self.start = start
        self.end = end
        self.rate = rate

    @property
    def produced_type(self) -> TypeInformation:
        return Types.LONG()

    def create_enumerator(self, context: EnumeratorContext, restored: bytes | None) -> SplitEnumerator[SequenceSplit]:
        return QueueEnumerator(
            context,
            SequenceSplit,
            first=lambda: [SequenceSplit(self.start, self.end, self.start)],
            restored=restored,
            widen=_halve_until,
        )

    def create_reader(self, context: ReaderContext) -> SourceReader[SequenceSplit]:
        return _SequenceReader(Pace(None if self.rate is None else self.rate / context.parallelism))

    def describe(self) -> str:
        return f"numbers {self.start} to {self.end}" + ("" if self.rate is None else f" at {self.rate:g}/s")


def _halve_until(splits: list[SequenceSplit], wanted: int) -> list[SequenceSplit]:
    """Halve the longest splits until there are `wanted`, or until each holds a single number."""
    while splits and len(splits) < wanted:
        longest = max(splits, key=lambda s: s.end - s.position)
        if longest.end <= longest.position:
            break
        middle = (longest.position + longest.end) // 2
        splits.remove(longest)
        splits.append(SequenceSplit(longest.position, middle, longest.position))
        splits.append(SequenceSplit(middle + 1, longest.end, middle + 1))
    return splits


class _SequenceReader(SourceReader[SequenceSplit]):
    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._splits: list[SequenceSplit] = []
        self._no_more = False

    def add_splits(self, splits: Sequence[SequenceSplit]) -> None:
        self._splits.extend(splits)

    def no_more_splits(self) -> None:
        self._no_more = True

    def poll(self, limit: int) -> SourceBatch | PollStatus:
        if not self._splits:
            return PollStatus.ENDED if self._no_more else PollStatus.NEEDS_SPLIT
        count = self._pace.due(limit)
        if count == 0:
            return PollStatus.IDLE
        split = self._splits[0]
        after = min(split.position + count, split.end + 1)
        values = list(range(split.position, after))
        split.position = after
        if after > split.end:
            self._splits.pop(0)
        self._pace.emitted(len(values))
        return SourceBatch(split.split_id, values=values)

    def idle_until(self) -> float | None:
        return self._pace.next_due()

    def snapshot(self) -> list[SequenceSplit]:
        return [msgspec.structs.replace(split) for split in self._splits]
