"""How records become bytes of an output file."""

from __future__ import annotations

import csv
import io
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, BinaryIO

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.errors import ConfigurationError, RecordError
from headrace.types.columns import rows_to_batch, schema_of
from headrace.types.information import RowType, TypeInformation
from headrace.types.rows import Row

PARQUET_ROW_GROUP = 100_000


class PartEncoder(ABC):
    """Encodes the records of one file into `out`. Made for each file, used by one thread."""

    @abstractmethod
    def write(self, values: Sequence[Any]) -> None:
        """Take these records."""

    @abstractmethod
    def finish(self) -> None:
        """Write what is still held back and what a complete file needs at its end. Called once, or never."""


class OutputFormat(ABC):
    """Makes an encoder for each file. Travels to the tasks, so it holds settings and opens nothing."""

    name: str
    suffix: str = ""
    """What file names end with, unless `OutputFileConfig` says otherwise."""

    @abstractmethod
    def start(self, out: BinaryIO) -> PartEncoder:
        """An encoder for a new, empty file."""


class Encoder(OutputFormat):
    """A row format: each record is encoded on its own. Extend it and give bytes with their line end."""

    name = "rows"

    @abstractmethod
    def encode(self, value: Any) -> bytes:
        """Bytes of one record."""

    def encode_batch(self, values: Sequence[Any]) -> bytes:
        return b"".join(map(self.encode, values))

    def header(self) -> bytes:
        """What every file begins with."""
        return b""

    def start(self, out: BinaryIO) -> PartEncoder:
        return _RowPart(self, out)

    @staticmethod
    def simple_string_encoder(charset_name: str = "UTF-8") -> Encoder:
        """`str(record)` and a line end."""
        return StringEncoder(charset_name)


class _RowPart(PartEncoder):
    def __init__(self, encoder: Encoder, out: BinaryIO) -> None:
        self._encoder = encoder
        self._out = out
        if header := encoder.header():
            out.write(header)

    def write(self, values: Sequence[Any]) -> None:
        self._out.write(self._encoder.encode_batch(values))

    def finish(self) -> None:
        pass


class StringEncoder(Encoder):
    name = "strings"

    def __init__(self, charset: str) -> None:
        self.charset = charset

    def encode(self, value: Any) -> bytes:
        return f"{value}\n".encode(self.charset)

    def encode_batch(self, values: Sequence[Any]) -> bytes:
        return "".join([f"{value}\n" for value in values]).encode(self.charset)


class JsonEncoder(Encoder):
    """One JSON value a line; rows become objects. JSON has no NaN and no infinity: they become null."""

    name = "JSON lines"
    suffix = ".jsonl"

    def encode(self, value: Any) -> bytes:
        return self.encode_batch((value,))

    def encode_batch(self, values: Sequence[Any]) -> bytes:
        plain = [plain_json(value) for value in values]
        try:
            return _json.encode_lines(plain)
        except (TypeError, ValueError, msgspec.MsgspecError) as error:
            raise RecordError(
                f"A record cannot be written as JSON: {error}. "
                "Turn it into a row or dict of plain values in a map function."
            ) from error


_SCALARS = frozenset((str, int, float, bool, type(None), bytes))
_json = msgspec.json.Encoder()


def plain_json(value: Any) -> Any:
    """Rows as dicts, also within rows, lists and dicts: msgspec would take them for tuples."""
    if isinstance(value, Row):
        fields = Row.as_dict(value)  # by the class: a field may be called as_dict
        return fields if _SCALARS.issuperset(map(type, value)) else {name: plain_json(v) for name, v in fields.items()}
    if isinstance(value, dict):
        return {key: plain_json(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain_json(element) for element in value]
    return value


class CsvEncoder(Encoder):
    """Rows, tuples and lists as CSV; with a row type, every file begins with the names of the fields."""

    name = "CSV"
    suffix = ".csv"

    def __init__(self, type_info: TypeInformation | None, delimiter: str, header: bool) -> None:
        if header and not isinstance(type_info, RowType):
            raise ConfigurationError("A CSV header needs names. Give type_info=Types.ROW_NAMED([names], [types]).")
        self._names = type_info.names if header and isinstance(type_info, RowType) else ()
        self._take_apart = type_info.take_apart() if isinstance(type_info, RowType) else None
        self._delimiter = delimiter

    def header(self) -> bytes:
        return self._csv([self._names]) if self._names else b""

    def encode(self, value: Any) -> bytes:
        return self.encode_batch((value,))

    def encode_batch(self, values: Sequence[Any]) -> bytes:
        if self._take_apart is not None:
            return self._csv([self._take_apart(value) for value in values])
        return self._csv([list(value) if isinstance(value, tuple | list | Row) else (value,) for value in values])

    def _csv(self, rows: Sequence[Sequence[Any]]) -> bytes:
        text = io.StringIO(newline="")
        csv.writer(text, delimiter=self._delimiter, lineterminator="\n").writerows(rows)
        return text.getvalue().encode()


class ParquetOutput(OutputFormat):
    """Parquet with columns of a row type, in row groups of 100,000."""

    name = "Parquet"
    suffix = ".parquet"

    def __init__(self, type_info: TypeInformation, compression: str) -> None:
        if not isinstance(type_info, RowType) or type_info.arrow_type is None:
            raise ConfigurationError(
                f"Parquet cannot hold {type_info}. Give Types.ROW_NAMED([names], [types]) of types that have columns."
            )
        self.type_info = type_info
        self.compression = compression

    def start(self, out: BinaryIO) -> PartEncoder:
        return _ParquetPart(self.type_info, self.compression, out)


class _ParquetPart(PartEncoder):
    def __init__(self, type_info: TypeInformation, compression: str, out: BinaryIO) -> None:
        self._type = type_info
        self._held: list[Any] = []
        self._schema = schema_of(type_info)
        self._writer = pq.ParquetWriter(pa.PythonFile(out, mode="w"), self._schema, compression=compression)

    def write(self, values: Sequence[Any]) -> None:
        self._held.extend(values)
        if len(self._held) >= PARQUET_ROW_GROUP:
            self._write_group()

    def finish(self) -> None:
        if self._held:
            self._write_group()
        self._writer.close()

    def _write_group(self) -> None:
        self._writer.write_batch(rows_to_batch(self._type, self._held, self._schema))
        self._held = []
