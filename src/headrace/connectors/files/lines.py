"""Reading files by lines: the position is a byte offset, so that a replay seeks instead of counting."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, BinaryIO

from headrace.connectors.files.formats import FileCursor, FileFormat, Problems, open_unchanged
from headrace.connectors.files.split import FileSplit
from headrace.connectors.source import SourceBatch
from headrace.errors import ConfigurationError, RecordError
from headrace.types.information import TypeInformation, Types

CHUNK = 256 * 1024
MAX_LINE = 64 * 1024 * 1024


class LineCursor(FileCursor):
    """Gives whole lines to `parse`, without their line ends; a last line without one counts too."""

    def __init__(self, split: FileSplit, file: BinaryIO, problems: Problems) -> None:
        self.split = split
        self.problems = problems
        self._file = file
        file.seek(split.offset)
        self._left = split.size - split.offset
        self._ahead: list[bytes] = []
        self._taken = 0
        self._tail = b""

    @abstractmethod
    def parse(self, lines: list[bytes], first_line: int) -> list[Any]:
        """Records of these lines, of which the first is line `first_line`, counted from 1.

        Where a record goes on behind them, more lines are taken with `take` and added to `lines`: they count as read.
        """

    def read(self, limit: int) -> SourceBatch | None:
        lines = self.take(limit)
        if not lines:
            return None
        values = self.parse(lines, self.split.position + 1)
        self.split.position += len(lines)
        # The last line of a file may lack its line end, which is counted here for every line.
        self.split.offset = min(self.split.offset + sum(map(len, lines)) + len(lines), self.split.size)
        return SourceBatch(self.split.split_id, values=values)

    def take(self, limit: int) -> list[bytes]:
        """Up to `limit` of the lines read ahead; none at the end of the file only."""
        while self._taken == len(self._ahead) and (self._left or self._tail):
            self._read_ahead()
        lines = self._ahead[self._taken : self._taken + limit]
        self._taken += len(lines)
        return lines

    def close(self) -> None:
        self._file.close()

    def _read_ahead(self) -> None:
        # Twice as much each time while one line goes on, so that a long line is not copied again and again.
        chunk = self._file.read(min(self._left, max(CHUNK, len(self._tail))))
        if not chunk and self._left:
            raise RecordError(
                f"{self.split.path} ends {self._left} bytes early: it was truncated while it was read. "
                "Write new rows into new files."
            )
        self._left -= len(chunk)
        lines = (self._tail + chunk).split(b"\n")
        self._tail = lines.pop()
        if not self._left and self._tail:
            lines.append(self._tail)
            self._tail = b""
        if len(self._tail) > MAX_LINE:
            raise RecordError(
                f"{self.split.path}, at byte {self.split.offset}: a line is longer than {MAX_LINE} bytes. "
                "Is this a file of lines? Read Parquet with FileSource.parquet."
            )
        self._ahead, self._taken = lines, 0


class TextLineFormat(FileFormat):
    """Each line is a string, without its line end (`\\n` or `\\r\\n`)."""

    name = "text lines"

    def __init__(self, charset: str = "UTF-8") -> None:
        try:
            fits = "\n".encode(charset) == b"\n"
        except LookupError:
            fits = False
        if not fits:
            raise ConfigurationError(
                f"Charset {charset!r} is unknown, or its line end is not the byte 10. "
                "Use UTF-8, Latin-1 or another of the kind."
            )
        self.charset = charset

    def produced_type(self, paths: Sequence[str]) -> TypeInformation:
        return Types.STRING()

    def open(self, split: FileSplit, problems: Problems) -> FileCursor | None:
        file = open_unchanged(split, problems)
        return None if file is None else _TextCursor(split, file, problems, self.charset)


class _TextCursor(LineCursor):
    def __init__(self, split: FileSplit, file: BinaryIO, problems: Problems, charset: str) -> None:
        super().__init__(split, file, problems)
        self._charset = charset

    def parse(self, lines: list[bytes], first_line: int) -> list[Any]:
        joined = b"\n".join(lines)
        if b"\r" not in joined:
            try:
                return joined.decode(self._charset).split("\n")
            except UnicodeDecodeError:
                pass  # one of them is bad: find out which
        values = []
        for number, line in enumerate(lines, first_line):
            try:
                values.append(line.removesuffix(b"\r").decode(self._charset))
            except UnicodeDecodeError as error:
                self.problems.bad_record(self.split.path, number, line, f"not {self._charset} ({error.reason})")
        return values
