"""Parquet: Arrow columns straight from the file, row group by row group.

The position counts rows. Row groups that lie before it are not decoded again; within its own group, rows before it are
decoded once and cut off. Batches are slices of what was decoded, without a copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.connectors.files.formats import FileCursor, FileFormat, Problems, open_unchanged
from headrace.connectors.files.listing import list_files
from headrace.connectors.files.split import FileSplit
from headrace.connectors.source import SourceBatch
from headrace.errors import ConfigurationError, RecordError
from headrace.types.columns import schema_of
from headrace.types.information import RowType, TypeInformation, Types, type_of

DECODED_AT_ONCE = 65_536


class ParquetFormat(FileFormat):
    """Rows as in the first file found, or these `columns` of it in this order; all files must have them alike.

    Without `columns`, a file with further columns is refused: they would be lost silently. `type_info` takes the
    place of the look into the first file where there is none yet, as in a watched folder that is still empty.
    """

    name = "Parquet"

    def __init__(self, columns: Sequence[str] | None = None, type_info: TypeInformation | None = None) -> None:
        if type_info is not None and not isinstance(type_info, RowType):
            raise ConfigurationError(f"Parquet cannot be read as {type_info}. Give Types.ROW_NAMED([names], [types]).")
        self.columns = None if columns is None else list(columns)
        self.row_type = type_info

    def produced_type(self, paths: Sequence[str]) -> TypeInformation:
        if self.row_type is None:
            files = list_files(paths)
            if not files:
                raise ConfigurationError(
                    f"There is no Parquet file in {', '.join(paths)} to take the row type from. "
                    "Put one there, or give type_info=Types.ROW_NAMED([names], [types])."
                )
            first = next(iter(files))
            try:
                schema = pq.read_schema(first)
            except (pa.ArrowException, OSError) as error:
                raise ConfigurationError(
                    f"{first} is no readable Parquet file: {error}. Remove or repair it."
                ) from error
            self.row_type = row_type_of(schema, self.columns, first)
        return self.row_type

    def open(self, split: FileSplit, problems: Problems) -> FileCursor | None:
        file = open_unchanged(split, problems)
        if file is None:
            return None
        file.close()  # Arrow opens it by itself: its readers do not need Python then
        try:
            parquet = pq.ParquetFile(split.path)
        except (pa.ArrowException, OSError) as error:
            problems.bad_file(split.path, f"it is no readable Parquet file: {error}")
            return None
        assert self.row_type is not None, "produced_type is asked when the source is built"
        refusal = _refusal(parquet.schema_arrow, self.row_type, self.columns, split.path)
        if refusal is not None:
            parquet.close()
            raise RecordError(refusal)
        return _ParquetCursor(split, parquet, self.row_type)


class _ParquetCursor(FileCursor):
    def __init__(self, split: FileSplit, parquet: pq.ParquetFile, row_type: RowType) -> None:
        self._split = split
        self._parquet = parquet
        self._schema = schema_of(row_type)
        self._names = list(row_type.names)
        self._batches = self._decode(split.position)
        self._current: pa.RecordBatch | None = None
        self._taken = 0

    def read(self, limit: int) -> SourceBatch | None:
        while self._current is None or self._taken == self._current.num_rows:
            self._current, self._taken = self._next(), 0
            if self._current is None:
                return None
        columns = self._current.slice(self._taken, limit)
        self._taken += columns.num_rows
        self._split.position += columns.num_rows
        return SourceBatch(self._split.split_id, columns=columns)

    def close(self) -> None:
        self._parquet.close()

    def _next(self) -> pa.RecordBatch | None:
        try:
            return next(self._batches, None)
        except (pa.ArrowException, OSError) as error:
            raise RecordError(
                f"{self._split.path} cannot be decoded after row {self._split.position}: {error}. "
                "Replace the file by a whole one under a new name."
            ) from error

    def _decode(self, position: int) -> Iterator[pa.RecordBatch]:
        metadata = self._parquet.metadata
        ends = list(accumulate(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)))
        groups = [i for i, end in enumerate(ends) if end > position]
        if not groups:
            return
        skip = position - (ends[groups[0] - 1] if groups[0] else 0)
        # No threads of Arrow's own: every task has a core to itself, and all tasks decode at once.
        batches = self._parquet.iter_batches(DECODED_AT_ONCE, row_groups=groups, columns=self._names, use_threads=False)
        for batch in batches:
            if skip >= batch.num_rows:
                skip -= batch.num_rows
                continue
            rest = batch.slice(skip).select(self._names)
            skip = 0
            yield rest if rest.schema.equals(self._schema) else rest.cast(self._schema)


def row_type_of(schema: pa.Schema, columns: Sequence[str] | None, path: str) -> RowType:
    """The row type of a Parquet file, or of some of its columns."""
    names = schema.names if columns is None else list(columns)
    missing = [name for name in names if name not in schema.names]
    if missing:
        raise ConfigurationError(f"{path} has no column {', '.join(missing)}, only {', '.join(schema.names)}.")
    types = []
    for name in names:
        type_info = type_of_arrow(schema.field(name).type)
        if type_info is None:
            raise ConfigurationError(
                f'{path}: column "{name}" of type {schema.field(name).type} has no row type. '
                "Leave it out with columns=[…], or convert it when the file is written."
            )
        types.append(type_info)
    return RowType(tuple(names), tuple(types))


def _refusal(schema: pa.Schema, wanted: RowType, columns: Sequence[str] | None, path: str) -> str | None:
    remedy = "All files of a source must have the same columns: read the others with a source of their own."
    for name, type_info in zip(wanted.names, wanted.types, strict=True):
        if name not in schema.names:
            return f'{path} has no column "{name}", only {", ".join(schema.names)}. {remedy}'
        found = type_of_arrow(schema.field(name).type)
        if found != type_info:
            return f'{path}: column "{name}" is {schema.field(name).type}, but {type_info} is expected. {remedy}'
    further = [name for name in schema.names if name not in wanted.names]
    if further and columns is None:
        return f"{path} has the further columns {', '.join(further)}. {remedy} Or name those to read with columns=[…]."
    return None


_BASIC: dict[pa.DataType, TypeInformation] = {
    pa.string(): Types.STRING(),
    pa.large_string(): Types.STRING(),
    pa.string_view(): Types.STRING(),
    pa.bool_(): Types.BOOLEAN(),
    pa.int8(): Types.BYTE(),
    pa.int16(): Types.SHORT(),
    pa.int32(): Types.INT(),
    pa.int64(): Types.LONG(),
    # Unsigned numbers take the next wider type, which holds all of them.
    pa.uint8(): Types.SHORT(),
    pa.uint16(): Types.INT(),
    pa.uint32(): Types.LONG(),
    pa.float16(): Types.FLOAT(),
    pa.float32(): Types.FLOAT(),
    pa.float64(): Types.DOUBLE(),
    pa.binary(): Types.PRIMITIVE_ARRAY(Types.BYTE()),
    pa.large_binary(): Types.PRIMITIVE_ARRAY(Types.BYTE()),
    pa.date32(): Types.SQL_DATE(),
}


def type_of_arrow(arrow: pa.DataType) -> TypeInformation | None:
    """The type whose values an Arrow column holds; None if there is none."""
    if arrow in _BASIC:
        return _BASIC[arrow]
    if pa.types.is_dictionary(arrow):
        return type_of_arrow(arrow.value_type)
    if pa.types.is_timestamp(arrow):
        return Types.INSTANT() if arrow.tz else Types.SQL_TIMESTAMP()
    if pa.types.is_time(arrow):
        return Types.SQL_TIME()
    if pa.types.is_list(arrow) or pa.types.is_large_list(arrow):
        element = type_of_arrow(arrow.value_type)
        return None if element is None else Types.LIST(element)
    if pa.types.is_map(arrow):
        key, value = type_of_arrow(arrow.key_type), type_of_arrow(arrow.item_type)
        return None if key is None or value is None else Types.MAP(key, value)
    if pa.types.is_struct(arrow):
        fields = [type_of_arrow(field.type) for field in arrow]
        if any(field is None for field in fields):
            return None
        return Types.ROW_NAMED([f.name for f in arrow], [type_of(f) for f in fields if f is not None])
    return None
