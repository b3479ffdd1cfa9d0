"""`map_batches`: a function from a batch of Arrow columns to one or more batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import TypeMismatchError
from headrace.operators.base import failure_in
from headrace.operators.columns.batches import ColumnInput, shown
from headrace.operators.stateless import FunctionOperator
from headrace.types.columns import schema_of
from headrace.types.information import TypeInformation


class MapBatchesOperator(ColumnInput, FunctionOperator):
    """Calls the function with each batch and passes on what it gives, as columns of the declared type."""

    METHOD = "map_batches"

    def __init__(
        self, function: Any, input_type: TypeInformation, output_type: TypeInformation, timestamp_field: str | None
    ) -> None:
        super().__init__(function)
        self.expect(input_type)
        schema = schema_of(output_type)
        assert schema is not None, "checked where the program says map_batches()"
        self._output_schema = schema
        self._timestamp_field = timestamp_field

    def take_batch(self, batch: pa.RecordBatch, times: pa.Array | None) -> None:
        try:
            parts = [fitting(part, self._output_schema) for part in _parts(self._call(batch))]
            made = [part for part in parts if part.num_rows]
            their_times = self._times_of(made, batch.num_rows, times)
        except Exception as error:
            raise failure_in(self, shown(batch), error) from error
        for part, part_times in zip(made, their_times, strict=True):
            self.outputs.emit_columns(part, part_times)

    def _times_of(self, made: list[pa.RecordBatch], taken: int, times: pa.Array | None) -> list[pa.Array | None]:
        """The timestamps of each part.

        From the named field; else, if there are as many rows as before, row by row those of the records that came
        in; else the largest of them for all, which no watermark has passed unless it had passed them all.
        """
        if self._timestamp_field is not None:
            return [_times_in(part, self._timestamp_field) for part in made]
        if times is None:
            return [None] * len(made)
        if sum(part.num_rows for part in made) != taken:
            latest = pc.max(times).as_py()
            return [pa.repeat(pa.scalar(latest, pa.int64()), part.num_rows) for part in made]
        cut, start = [], 0
        for part in made:
            cut.append(times.slice(start, part.num_rows))
            start += part.num_rows
        return cut


def _parts(result: Any) -> Iterator[pa.RecordBatch]:
    if result is None:
        return
    if isinstance(result, pa.RecordBatch):
        yield result
    elif isinstance(result, pa.Table):
        yield from result.combine_chunks().to_batches()
    elif isinstance(result, Iterable) and not isinstance(result, str | bytes | dict) and not hasattr(result, "columns"):
        for part in result:
            if not isinstance(part, pa.RecordBatch | pa.Table):
                raise TypeMismatchError(_refusal(part, "an iterable of"))
            yield from _parts(part)
    else:
        raise TypeMismatchError(_refusal(result, ""))


def _refusal(given: Any, what: str) -> str:
    kind = f"{type(given).__module__}.{type(given).__qualname__}"
    hint = " A pandas DataFrame becomes one by pa.RecordBatch.from_pandas(frame)." if kind.startswith("pandas") else ""
    return (
        f"The function of map_batches() returned {what + ' ' if what else ''}{kind}; wanted a pyarrow.RecordBatch, a "
        f"pyarrow.Table, an iterable of them, or None.{hint}"
    )


def fitting(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with exactly these columns in this order; TypeMismatchError if it has others, or of another kind."""
    if batch.schema.equals(schema):
        return batch
    names = batch.schema.names
    if sorted(names) != sorted(schema.names):
        raise TypeMismatchError(
            f"The function of map_batches() gave the columns {', '.join(names)}, but the declared output has "
            f"{', '.join(schema.names)}. Give it an output_type with the columns it makes, or select() the others away."
        )
    return pa.RecordBatch.from_arrays([_cast(batch.column(field.name), field) for field in schema], schema=schema)


def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
    if column.type.equals(field.type):
        return column
    try:
        if _kind(column.type) in _TAKES.get(_kind(field.type), (_kind(field.type),)):
            return column.cast(field.type)
        reason = "that is another kind of value"
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        reason = str(error)
    raise TypeMismatchError(
        f'The function of map_batches() gave column "{field.name}" as {column.type}, but the declared output has it '
        f"as {field.type}: {reason}. Cast it in the function, or declare another output_type."
    )


_TAKES = {"float": ("float", "int", "null"), "int": ("int", "null"), "text": ("text", "null")}
"""Kinds that become another one without a change of meaning. Values that do not fit are refused by Arrow."""


def _kind(arrow: pa.DataType) -> str:
    if pa.types.is_dictionary(arrow):
        return _kind(arrow.value_type)
    if pa.types.is_integer(arrow):
        return "int"
    if pa.types.is_floating(arrow):
        return "float"
    if pa.types.is_string(arrow) or pa.types.is_large_string(arrow) or pa.types.is_string_view(arrow):
        return "text"
    return str(arrow).partition("<")[0].partition("[")[0]


def _times_in(part: pa.RecordBatch, field: str) -> pa.Array:
    column = part.column(field)
    if column.null_count:
        raise TypeMismatchError(
            f'Column "{field}" holds the timestamps of what map_batches() gives, and one of them is null. '
            "Give every row a time in milliseconds since 1970."
        )
    return column
