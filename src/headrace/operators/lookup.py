"""Lookup join: each record with the rows of a table that does not change while the job runs.

The table travels to the tasks with the operator, as Arrow columns or as the rows themselves, and each task builds an
index of it in `open`. It is no state: after a restart it is what the program says then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from headrace.operators.base import failure_in
from headrace.operators.stateless import FunctionOperator
from headrace.state.keys import stored_form
from headrace.types.rows import row_class


class LookupTable(Protocol):
    """The rows of a table, on their way to the tasks."""

    def rows(self) -> Sequence[Any]:
        """All rows. Called once in every task."""


@dataclass(frozen=True)
class RowsTable:
    """Rows as the program gave them."""

    given: tuple[Any, ...]

    def rows(self) -> Sequence[Any]:
        return self.given


@dataclass(frozen=True)
class ColumnsTable:
    """Rows as Arrow columns, which is what travels least; they come out as rows with these names."""

    data: bytes
    """An Arrow stream, so that the table pickles in one piece."""

    @classmethod
    def of(cls, table: pa.Table) -> ColumnsTable:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        return cls(sink.getvalue().to_pybytes())

    def rows(self) -> Sequence[Any]:
        table = pa.ipc.open_stream(self.data).read_all()
        make = row_class(tuple(table.schema.names))
        columns = [column.to_pylist() for column in table.columns]
        return [make(*values) for values in zip(*columns, strict=True)] if columns else []


class LookupJoinOperator(FunctionOperator):
    """Calls `function(record, row)` for each row with the record's key; with None if `outer` and there is none."""

    METHOD = "join"

    def __init__(
        self,
        function: Any,
        table: LookupTable,
        key: Callable[[Any], Any],
        table_key: Callable[[Any], Any],
        *,
        outer: bool = False,
    ) -> None:
        super().__init__(function)
        self._table = table
        self._key = key
        self._table_key = table_key
        self._index: dict[Any, list[Any]] = {}
        self._otherwise: list[Any] = [None] if outer else []

    def open(self) -> None:
        for row in self._table.rows():
            try:
                key = self._table_key(row)
                if key is not None:
                    self._index.setdefault(stored_form(key), []).append(row)
            except Exception as error:
                raise failure_in(self, row, error) from error
        super().open()

    def process(self, value: Any, timestamp: int | None) -> None:
        call, emit = self._call, self.emit
        try:
            key = self._key(value)
            # As in SQL, a key that is not known equals none.
            rows = self._otherwise if key is None else self._index.get(stored_form(key), self._otherwise)
            for row in rows:
                emit(call(value, row), timestamp)
        except Exception as error:
            raise failure_in(self, value, error) from error
