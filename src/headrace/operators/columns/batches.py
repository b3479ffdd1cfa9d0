"""The base of operators that take batches of Arrow columns, and how batches are shown in errors.

Columns come from another task as a `ColumnBlock`, or from the operator before in the same task by `process_columns`. A
batch is processed as a whole: a barrier never falls inside it, and with unaligned checkpoints it is either before
the snapshot or, whole, among the cells in flight.

Where the operator before makes single records, they are gathered until there are many, until a few milliseconds have
passed, or until a watermark, a barrier or the end comes, whatever is first. So nothing gathered is ever part of a
snapshot, and no record is overtaken by a watermark.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import pyarrow as pa

from headrace.errors import JobDefinitionError
from headrace.operators.base import Attention, Block, ColumnBlock, Operator, failure_in
from headrace.types.columns import rows_to_batch, schema_of
from headrace.types.information import TypeInformation

GATHERED_ROWS = 4_096
GATHER_MS = 5
"""As long as a cell waits for company before it leaves a task."""


class ColumnInput(Operator):
    """Takes all records as batches. A mixin: it stands before the class that says what else the operator is."""

    _input_type: TypeInformation
    _input_schema: pa.Schema
    _rows: list[Any]
    _row_times: list[int]
    _rows_due_ms = 0

    def expect(self, input_type: TypeInformation) -> None:
        """Say what the records are; called by the constructor."""
        schema = schema_of(input_type)
        if schema is None:
            raise JobDefinitionError(f"Records of type {input_type} have no columns.")
        self._input_type = input_type
        self._input_schema = schema
        self._rows = []
        self._row_times = []

    @abstractmethod
    def take_batch(self, batch: pa.RecordBatch, times: pa.Array | None) -> None:
        """One record or more, with their timestamps (int64, without nulls) if they have any."""

    # Where batches come from

    def takes_columns(self, number: int) -> bool:
        return True

    def process_columns(self, batch: pa.RecordBatch, timestamps: pa.Array | None) -> bool:
        if batch.num_rows:
            self.deliver_rows()
            self.take_batch(batch, timestamps)
        return True

    def process_block(self, block: Block, attention: Attention) -> None:
        self.deliver_rows()
        if isinstance(block, ColumnBlock):
            if block.batch.num_rows:
                self.take_batch(block.batch, block.times)
            return
        at, block.position = block.position, len(block.values)
        times = block.timestamps
        self._take_rows(block.values[at:], None if times is None else times[at:])

    def process(self, value: Any, timestamp: int | None) -> None:
        if self._rows and (timestamp is None) is bool(self._row_times):
            self.deliver_rows()
        if not self._rows:
            self._rows_due_ms = self.context.now_ms() + GATHER_MS
        self._rows.append(value)
        if timestamp is not None:
            self._row_times.append(timestamp)
        if len(self._rows) >= GATHERED_ROWS:
            self.deliver_rows()

    def deliver_rows(self) -> None:
        """Make a batch of the records gathered so far, if there are any."""
        if self._rows:
            rows, times = self._rows, self._row_times
            self._rows, self._row_times = [], []
            self._take_rows(rows, times or None)

    def _take_rows(self, rows: list[Any], times: list[int] | None) -> None:
        if not rows:
            return
        try:
            batch = rows_to_batch(self._input_type, rows, self._input_schema)
        except Exception as error:
            raise failure_in(self, _Shown(f"(one of {len(rows)} records)"), error) from error
        self.take_batch(batch, None if times is None else pa.array(times, pa.int64()))

    # What gathered records must not wait for

    def watermark(self, time_ms: int) -> None:
        self.deliver_rows()
        super().watermark(time_ms)

    def idle(self, is_idle: bool) -> None:
        self.deliver_rows()
        super().idle(is_idle)

    def end_input(self) -> None:
        self.deliver_rows()
        super().end_input()

    def prepare_snapshot(self, checkpoint_id: int) -> None:
        self.deliver_rows()
        super().prepare_snapshot(checkpoint_id)

    def next_processing_time(self) -> int | None:
        due = super().next_processing_time()
        if not self._rows:
            return due
        return self._rows_due_ms if due is None else min(due, self._rows_due_ms)

    def processing_time(self, now_ms: int) -> None:
        if self._rows and now_ms >= self._rows_due_ms:
            self.deliver_rows()
        super().processing_time(now_ms)


class _Shown:
    """A text that stands for a record in an error, without quotes."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def shown(batch: pa.RecordBatch) -> Any:
    """How an error describes a batch: its size and its first row."""
    return _Shown(f"(a batch of {batch.num_rows} rows, the first of them {batch.slice(0, 1).to_pylist()[0]!r})")
