"""Reads files in a task, one at a time."""

from __future__ import annotations

from headrace.connectors.files.formats import FileCursor, FileFormat, Problems
from headrace.connectors.files.split import FileSplit
from headrace.connectors.source import SourceBatch
from headrace.connectors.split_queue import SplitQueueReader


class FileReader(SplitQueueReader[FileSplit]):
    """Records skipped, files skipped and changed files read on are counted by `Problems`."""

    def __init__(self, file_format: FileFormat, problems: Problems) -> None:
        super().__init__()
        self._format = file_format
        self._problems = problems
        self._cursor: FileCursor | None = None

    def close(self) -> None:
        super().close()
        self._problems.close()

    def _close_split(self) -> None:
        if self._cursor is not None:
            self._cursor.close()
            self._cursor = None

    def _read(self, split: FileSplit, limit: int) -> SourceBatch | None:
        if self._cursor is None:
            self._cursor = self._format.open(split, self._problems)
        return None if self._cursor is None else self._cursor.read(limit)
