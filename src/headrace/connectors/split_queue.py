"""What readers share that take their splits one at a time, each to its end."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections import deque
from collections.abc import Sequence
from copy import copy

from headrace.connectors.source import PollStatus, SourceBatch, SourceReader, SplitT

TRIES_PER_POLL = 8


class SplitQueueReader(SourceReader[SplitT]):
    """Keeps its splits in order; a subclass opens and reads the first, and moves its position on."""

    def __init__(self) -> None:
        self._splits: deque[SplitT] = deque()
        self._no_more = False

    @abstractmethod
    def _read(self, split: SplitT, limit: int) -> SourceBatch | None:
        """The next records of the first split, which is opened if it is not; None at its end, before it is closed."""

    @abstractmethod
    def _close_split(self) -> None:
        """Close what is open of the first split, if anything is. Called when it has ended, and at the end."""

    def add_splits(self, splits: Sequence[SplitT]) -> None:
        self._splits.extend(copy(split) for split in splits)

    def no_more_splits(self) -> None:
        self._no_more = True

    def poll(self, limit: int) -> SourceBatch | PollStatus:
        # Ended splits and skipped records are passed over, but not for long: barriers want to be served too.
        for _ in range(TRIES_PER_POLL):
            if not self._splits:
                return PollStatus.ENDED if self._no_more else PollStatus.NEEDS_SPLIT
            batch = self._read(self._splits[0], limit)
            if batch is None:
                self._close_split()
                self._splits.popleft()
            elif batch.columns is not None or batch.values:
                return batch
        return PollStatus.IDLE

    def idle_until(self) -> float | None:
        return time.monotonic()

    def snapshot(self) -> list[SplitT]:
        return [copy(split) for split in self._splits]

    def close(self) -> None:
        self._close_split()
