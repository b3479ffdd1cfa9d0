"""Reads files in a task, one at a time."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

import msgspec

from headrace.connectors.files.formats import FileCursor, FileFormat, Problem, Problems
from headrace.connectors.files.split import FileSplit
from headrace.connectors.source import PollStatus, SourceBatch, SourceReader

TRIES_PER_POLL = 8


class FileReader(SourceReader[FileSplit]):
    """`counts` says what was left out so far: records skipped, files skipped, changed files read on."""

    def __init__(self, file_format: FileFormat, problems: Problems) -> None:
        self._format = file_format
        self._problems = problems
        self._splits: deque[FileSplit] = deque()
        self._cursor: FileCursor | None = None
        self._no_more = False

    @property
    def counts(self) -> dict[Problem, int]:
        return dict(self._problems.counts)

    def add_splits(self, splits: Sequence[FileSplit]) -> None:
        self._splits.extend(msgspec.structs.replace(split) for split in splits)

    def no_more_splits(self) -> None:
        self._no_more = True

    def poll(self, limit: int) -> SourceBatch | PollStatus:
        # Empty files and skipped records are passed over, but not for long: barriers want to be served too.
        for _ in range(TRIES_PER_POLL):
            if not self._splits:
                return PollStatus.ENDED if self._no_more else PollStatus.NEEDS_SPLIT
            if self._cursor is None:
                self._cursor = self._format.open(self._splits[0], self._problems)
            batch = None if self._cursor is None else self._cursor.read(limit)
            if batch is None:
                self._finish_file()
            elif batch.columns is not None or batch.values:
                return batch
        return PollStatus.IDLE

    def idle_until(self) -> float | None:
        return time.monotonic()

    def snapshot(self) -> list[FileSplit]:
        return [msgspec.structs.replace(split) for split in self._splits]

    def close(self) -> None:
        if self._cursor is not None:
            self._cursor.close()
            self._cursor = None

    def _finish_file(self) -> None:
        self.close()
        self._splits.popleft()
