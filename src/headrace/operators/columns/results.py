"""Results of an aggregation on their way out: accumulators become rows, column by column."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from headrace.operators.base import Operator, failure_in
from headrace.operators.columns.aggregates import Aggregates
from headrace.state.keys import raw_key
from headrace.types.columns import schema_of

MOST_RESULTS = 16_384


class Results:
    """Collects accumulators that are due and emits them as batches of result rows."""

    def __init__(self, aggregates: Aggregates, operator: Operator) -> None:
        self._aggregates = aggregates
        self._operator = operator
        self._schema = schema_of(aggregates.result_type)
        self._keys: list[Any] = []
        self._accumulators: list[tuple[Any, ...]] = []
        self._starts: list[int] = []
        self._times: list[int | None] = []

    def add(
        self, keys: list[Any], accumulators: list[tuple[Any, ...]], times: list[int | None], start: int | None = None
    ) -> None:
        """Results of one window, which begins at `start` and ends just after `times`; or of none."""
        self._keys += keys
        self._accumulators += accumulators
        self._times += times
        if start is not None:
            self._starts += [start] * len(keys)
        if len(self._keys) >= MOST_RESULTS:
            self.flush()

    def flush(self) -> None:
        """Emit what was added."""
        if not self._keys:
            return
        keys, accumulators, starts, times = self._keys, self._accumulators, self._starts, self._times
        self._keys, self._accumulators, self._starts, self._times = [], [], [], []
        try:
            batch = self._batch(keys, accumulators, starts, times)
        except Exception as error:
            raise failure_in(self._operator, raw_key(keys[0]), error) from error
        with_times = None not in times
        self._operator.outputs.emit_columns(batch, pa.array(times, pa.int64()) if with_times else None)

    def _batch(
        self, keys: list[Any], accumulators: list[tuple[Any, ...]], starts: list[int], times: list[int | None]
    ) -> pa.RecordBatch:
        aggregates = self._aggregates
        key_columns: list[Any] = [keys] if aggregates.single_key else list(zip(*map(raw_key, keys), strict=True))
        columns = [
            pa.array(column, kind.arrow_type) for column, kind in zip(key_columns, aggregates.key_types, strict=True)
        ]
        if starts:
            columns.append(pa.array(starts, pa.int64()))
            columns.append(pa.array([time + 1 for time in times if time is not None], pa.int64()))
        parts = list(zip(*accumulators, strict=True))
        columns += [output.column(parts) for output in aggregates.outputs]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)
