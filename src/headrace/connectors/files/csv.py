"""CSV: rows of a declared type, with or without a line of names on top."""

from __future__ import annotations

import csv
import datetime
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, BinaryIO

from headrace.connectors.files.formats import FileCursor, FileFormat, Problems, open_unchanged
from headrace.connectors.files.lines import LineCursor
from headrace.connectors.files.split import FileSplit
from headrace.errors import ConfigurationError, RecordError
from headrace.types.information import BasicType, RowType, TypeInformation

_FLAGS = {"true": True, "1": True, "false": False, "0": False}


def _flag(text: str) -> bool:
    try:
        return _FLAGS[text.strip().lower()]
    except KeyError:
        raise ValueError(f"{text!r} is neither true nor false") from None


_CONVERTERS: dict[str, Callable[[str], Any]] = {
    "STRING": str,
    "CHAR": str,
    "BYTE": int,
    "SHORT": int,
    "INT": int,
    "LONG": int,
    "BIG_INT": int,
    "FLOAT": float,
    "DOUBLE": float,
    "BIG_DEC": Decimal,
    "BOOLEAN": _flag,
    "INSTANT": datetime.datetime.fromisoformat,
    "SQL_TIMESTAMP": datetime.datetime.fromisoformat,
    "SQL_DATE": datetime.date.fromisoformat,
    "SQL_TIME": datetime.time.fromisoformat,
}
_WHOLE = {"BYTE", "SHORT", "INT", "LONG"}
MAX_RECORD_LINES = 101
_NEED_A_CHECK = {"CHAR", "BYTE", "SHORT", "INT", "LONG", "FLOAT", "INSTANT", "SQL_TIMESTAMP", "SQL_TIME"}


@dataclass(frozen=True, slots=True)
class CsvDialect:
    """How fields are written."""

    delimiter: str = ","
    quote: str = '"'
    header: bool = True
    """The first line of every file names the columns: they are then found by name, whatever their order."""


class CsvFormat(FileFormat):
    """Rows of `type_info`, which must be a row of basic types.

    An empty field is None, but in a STRING it is the empty string. A quoted field may hold line ends, up to 100 of
    them. Columns that the type does not name are left out where there is a header; without one, the fields must be
    those of the type.
    """

    name = "CSV"

    def __init__(self, type_info: TypeInformation, dialect: CsvDialect) -> None:
        for setting, mark in (("delimiter", dialect.delimiter), ("quote", dialect.quote)):
            if len(mark) != 1 or not mark.isascii() or mark in "\r\n" or dialect.delimiter == dialect.quote:
                raise ConfigurationError(f"CSV has {setting}={mark!r}. Give one ASCII character, another for each.")
        if not isinstance(type_info, RowType):
            raise ConfigurationError(f"CSV cannot be read as {type_info}. Give Types.ROW_NAMED([names], [types]).")
        for name, field in zip(type_info.names, type_info.types, strict=True):
            if not isinstance(field, BasicType) or field.name not in _CONVERTERS:
                raise ConfigurationError(
                    f'CSV field "{name}" cannot be read as {field}. Declare it STRING and convert it in a map function.'
                )
        self.type_info = type_info
        self.dialect = dialect

    def produced_type(self, paths: Sequence[str]) -> TypeInformation:
        return self.type_info

    def open(self, split: FileSplit, problems: Problems) -> FileCursor | None:
        file = open_unchanged(split, problems)
        return None if file is None else _CsvCursor(split, file, problems, self.type_info, self.dialect)


def _complete_record(dialect: CsvDialect) -> re.Pattern[bytes]:
    """Matches a record in which every quoted field is closed. A quote means nothing but at the start of a field."""
    d, q = re.escape(dialect.delimiter.encode()), re.escape(dialect.quote.encode())
    # Possessive (`*+`), so that a long field without an end is found out in one pass.
    field = rb"(?:%(q)b(?:[^%(q)b]|%(q)b%(q)b)*+%(q)b[^%(d)b]*+|[^%(q)b%(d)b][^%(d)b]*+|)" % {b"q": q, b"d": d}
    return re.compile(rb"%(f)b(?:%(d)b%(f)b)*+" % {b"f": field, b"d": d}, re.DOTALL)


class _CsvCursor(LineCursor):
    def __init__(
        self, split: FileSplit, file: BinaryIO, problems: Problems, row_type: RowType, dialect: CsvDialect
    ) -> None:
        self._row_type = row_type
        self._dialect = dialect
        self._quote = dialect.quote.encode()
        self._make = row_type.make()
        basics = [field for field in row_type.types if isinstance(field, BasicType)]
        self._converters = [(_CONVERTERS[b.name], b, b.name in _NEED_A_CHECK, b.name == "STRING") for b in basics]
        self._complete = _complete_record(dialect)
        self._width: int | None = None
        self._picked = list(range(len(row_type.names)))
        if dialect.header:
            # Also when reading goes on in the middle of the file: the header says which column is which.
            top = FileSplit(split.path, split.size, split.mtime_ns)
            super().__init__(top, file, problems)
            first = self.take(1)
            self._picked, self._width = self._find_columns(self._fields(first[0]))
            if split.offset == 0:
                split.position, split.offset = 1, min(len(first[0]) + 1, split.size)
        else:
            self._width = len(row_type.names)
        super().__init__(split, file, problems)

    def parse(self, lines: list[bytes], first_line: int) -> list[Any]:
        try:
            return self._parse_columns(lines)
        except (ValueError, ArithmeticError):
            return self._parse_records(lines, first_line)

    def _parse_columns(self, lines: list[bytes]) -> list[Any]:
        """All lines at once, several times faster; raises ValueError if anything about them is out of the ordinary."""
        joined = b"\n".join(lines)
        if self._quote in joined or b"\r" in joined:
            raise ValueError("not a record a line")
        delimiter = self._dialect.delimiter
        columns = list(zip(*(line.split(delimiter) for line in joined.decode().split("\n")), strict=True))
        if len(columns) != self._width:
            raise ValueError("another number of fields")
        converted: list[Sequence[Any]] = []
        for at, (convert, field, checked, is_text) in zip(self._picked, self._converters, strict=True):
            if is_text:
                converted.append(columns[at])
                continue
            column = [convert(text) if text else None for text in columns[at]]
            if checked and any(map(field.misfit, _extremes(column, field))):
                raise ValueError("a value that does not fit")
            converted.append(column)
        return list(map(self._make, zip(*converted, strict=True)))

    def _parse_records(self, lines: list[bytes], first_line: int) -> list[Any]:
        values: list[Any] = []
        start = 0
        while start < len(lines):
            end = self._record_end(lines, start)
            record = b"\n".join(lines[start:end])
            if record.strip():
                try:
                    fields = self._fields(record)
                except (ValueError, csv.Error) as error:
                    self.problems.bad_record(self.split.path, first_line + start, record, str(error))
                    end = start + 1  # lines that a stray quote had joined to it may be whole by themselves
                else:
                    self._add_row(values, fields, first_line + start, record)
            start = end
        return values

    def _record_end(self, lines: list[bytes], start: int) -> int:
        """Behind the last line of the record that begins at `start`; takes further lines as it needs them."""
        if self._quote not in lines[start]:
            return start + 1
        for end in range(start + 1, start + MAX_RECORD_LINES + 1):
            if self._complete.fullmatch(b"\n".join(lines[start:end])):
                return end
            if end == len(lines):
                more = self.take(1)
                if not more:
                    break
                lines += more
        return start + 1

    def _fields(self, record: bytes) -> list[str]:
        text = record.removesuffix(b"\r").decode()
        if self._quote not in record:
            fields = text.split(self._dialect.delimiter)
        else:
            lines = io.StringIO(text, newline="")
            reader = csv.reader(lines, delimiter=self._dialect.delimiter, quotechar=self._dialect.quote, strict=True)
            fields = next(reader, [])
        if self._width is not None and len(fields) != self._width:
            raise ValueError(f"{len(fields)} fields instead of {self._width}")
        return fields

    def _add_row(self, values: list[Any], fields: list[str], line: int, record: bytes) -> None:
        try:
            values.append(self._row(fields))
        except (ValueError, ArithmeticError) as error:
            self.problems.bad_record(self.split.path, line, record, str(error))

    def _row(self, fields: list[str]) -> Any:
        values: list[Any] = []
        for at, name, (convert, field, checked, is_text) in zip(
            self._picked, self._row_type.names, self._converters, strict=True
        ):
            text = fields[at]
            if is_text:
                values.append(text)
                continue
            try:
                value = convert(text) if text else None
            except (ValueError, ArithmeticError):
                raise ValueError(f'field "{name}": {text!r} is no {field}') from None
            if checked and (reason := field.misfit(value)) is not None:
                raise ValueError(f'field "{name}": {reason}')
            values.append(value)
        return self._make(values)

    def _find_columns(self, header: list[str]) -> tuple[list[int], int]:
        missing = [name for name in self._row_type.names if name not in header]
        if missing:
            raise RecordError(
                f"{self.split.path}: the header names {', '.join(header)}, but the declared row also has "
                f"{', '.join(missing)}. Correct type_info, or set header=False if the file has no header."
            )
        return [header.index(name) for name in self._row_type.names], len(header)


def _extremes(column: list[Any], field: BasicType) -> Sequence[Any]:
    """Values that fit only if all of the column do."""
    if field.name not in _WHOLE:
        return column
    present = [value for value in column if value is not None]
    return (min(present), max(present)) if present else ()
