"""Rows or parts, by key and pane, into one row of parts for each, by Arrow's hash aggregation: no Python per row.

Tables wait in a `PaneBuffer` until there are many rows: grouping many at once leaves few groups, and only groups cost
Python.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.operators.columns.aggregates import PANE, TIMESTAMP, Aggregates, Part, part_name
from headrace.state.keys import stored_form
from headrace.types.columns import batch_to_columns, schema_of

_EXACT_SUM = pa.decimal128(38, 0)
_LARGEST = 2**63 - 1
SMALL_TABLE = 2_048


class PaneBuffer:
    """Tables that wait to be grouped, and the earliest pane among them."""

    __slots__ = ("earliest", "rows", "tables")

    def __init__(self) -> None:
        self.tables: list[pa.RecordBatch] = []
        self.rows = 0
        self.earliest: int | None = None
        """Start of the earliest pane; None where rows have no panes, or there are none."""

    def add(self, table: pa.RecordBatch, earliest: int | None) -> None:
        self.tables.append(table)
        self.rows += table.num_rows
        if earliest is not None and (self.earliest is None or earliest < self.earliest):
            self.earliest = earliest

    def take(self) -> pa.Table:
        taken = pa.Table.from_batches(self.tables)
        if len(self.tables) * SMALL_TABLE > self.rows:
            # Arrow takes its time for each piece: 370 ns a row in pieces of 32, 40 in pieces of 2,048.
            taken = taken.combine_chunks()
        self.tables, self.rows, self.earliest = [], 0, None
        return taken


class Grouping:
    """Groups rows of the stream (`raw`) or rows of parts that another task has made."""

    def __init__(self, aggregates: Aggregates, *, raw: bool) -> None:
        self._aggregates = aggregates
        self._raw = raw
        schema = schema_of(aggregates.travelling_type)
        assert schema is not None
        self.schema: pa.Schema = schema
        """Of what comes out."""
        self._by = aggregates.by
        self._calls = [_call(part, i, raw=raw) for i, part in enumerate(aggregates.parts)]
        self._sums = [part_name(i) for i, part in enumerate(aggregates.parts) if part.is_whole_sum]

    def columns_of(self, batch: pa.RecordBatch, panes: Any, times: pa.Array | None) -> pa.RecordBatch:
        """What grouping needs of rows of the stream: keys, panes (numpy, None without) and a column for each part."""
        columns = [batch.column(key) for key in self._aggregates.keys]
        names = list(self._aggregates.keys)
        if panes is not None:
            columns.append(pa.array(panes))
            names.append(PANE)
        for i, part in enumerate(self._aggregates.parts):
            if part.function == "rows":
                continue
            if part.field == TIMESTAMP:
                columns.append(pa.nulls(batch.num_rows, pa.int64()) if times is None else times)
            else:
                columns.append(batch.column(part.field))
            names.append(part_name(i))
        return pa.RecordBatch.from_arrays(columns, names=names)

    def group(self, table: pa.Table) -> pa.Table:
        """One row for each key and pane, with the columns of `schema`; sums that may need over 64 bits are decimals."""
        grouped = self.aggregate(table, self._by)
        columns = [grouped.column(name) for name in self._by]
        return pa.table([*columns, *self.parts_of(grouped)], names=self.schema.names)

    def aggregate(self, table: pa.Table, by: list[str]) -> pa.Table:
        """One row for each group, in the order of their first rows: the columns of `by`, and parts."""
        table = self._with_exact_sums(table)
        return table.group_by(by, use_threads=False).aggregate([(column, f) for column, f, _ in self._calls])

    def parts_of(self, grouped: pa.Table) -> list[Any]:
        """The parts of what `aggregate` gave, in their order."""
        return [grouped.column(made) for _, _, made in self._calls]

    def _with_exact_sums(self, table: pa.Table) -> pa.Table:
        for name in self._sums:
            if may_overflow(table.column(name)):
                place = table.schema.get_field_index(name)
                table = table.set_column(place, name, table.column(name).cast(_EXACT_SUM))
        return table

    def may_overflow(self, table: pa.Table) -> bool:
        """Whether some sum of whole numbers might not fit 64 bits."""
        return any(may_overflow(table.column(name)) for name in self._sums)

    def ungrouped(self, table: pa.Table) -> pa.Table:
        """Rows of the stream as parts, one for one: where hardly any two rows share a key and pane."""
        assert self._raw
        ones = pa.array(np.ones(table.num_rows, np.int64))
        columns: list[Any] = [table.column(name) for name in self._by]
        for i, part in enumerate(self._aggregates.parts):
            if part.function == "rows":
                columns.append(ones)
                continue
            column = table.column(part_name(i))
            if part.function == "count":
                column = pc.is_valid(column)
            columns.append(column.cast(part.type.arrow_type))
        return pa.table(columns, schema=self.schema)


def _call(part: Part, number: int, *, raw: bool) -> tuple[Any, str, str]:
    """(columns, function, the name that Arrow gives the result)."""
    column = part_name(number)
    if not raw:
        function = {"rows": "sum", "count": "sum"}.get(part.function, part.function)
        return column, function, f"{column}_{function}"
    if part.function == "rows":
        return [], "count_all", "count_all"
    return column, part.function, f"{column}_{part.function}"


def may_overflow(column: pa.ChunkedArray) -> bool:
    """Whether the sum of this many values of this size might not fit 64 bits."""
    extremes = pc.min_max(column).as_py()
    if extremes["min"] is None:
        return False
    return bool(max(abs(extremes["min"]), abs(extremes["max"])) * len(column) > _LARGEST)


def keys_and_accumulators(table: pa.Table, aggregates: Aggregates) -> tuple[list[Any], list[tuple[Any, ...]]]:
    """Keys in stored form and accumulators of a grouped table, row by row."""
    [batch] = table.combine_chunks().to_batches()
    columns = batch_to_columns(batch)
    count = len(aggregates.keys)
    parts = columns[-len(aggregates.parts) :]
    for i, arrow in enumerate(batch.schema.types[-len(parts) :]):
        if pa.types.is_decimal(arrow):
            parts[i] = [None if total is None else int(total) for total in parts[i]]
    keys = columns[0] if aggregates.single_key else list(map(stored_form, zip(*columns[:count], strict=True)))
    return keys, list(zip(*parts, strict=True))
