"""Combining before the exchange: parts of the rows that one task has, so that only parts travel.

What waits here is never part of a snapshot: it leaves before the barrier. It leaves before a watermark too that could
close a window of it, before the stream falls idle and at the end, so that no window is closed without it. A row that
is behind the watermark already leaves at once: the task that owns its key decides whether it is late.
"""

from __future__ import annotations

import pyarrow as pa

from headrace.operators.columns.aggregates import Aggregates
from headrace.operators.columns.batches import ColumnInput
from headrace.operators.columns.grouping import PaneBuffer
from headrace.operators.columns.panes import TimePieces
from headrace.operators.columns.session_grouping import grouping_of
from headrace.types.information import TypeInformation

COMBINED_ROWS = 131_072
"""So many rows are grouped at once, if nothing asks for them before."""
POOR = 0.6
"""With more groups than this for each row, grouping costs more than it saves."""
SKIPPED = 16
"""After a poor result, so many times rows go on as they are before grouping is tried again."""


class CombineOperator(ColumnInput):
    """Without a key and without state: the rows' parts, grouped where that makes them fewer."""

    def __init__(self, aggregates: Aggregates, panes: TimePieces | None, input_type: TypeInformation) -> None:
        super().__init__()
        self.expect(input_type)
        self._grouping = grouping_of(aggregates, panes, raw=True)
        self._panes = panes
        self._buffer = PaneBuffer()
        self._skip = 0

    def take_batch(self, batch: pa.RecordBatch, times: pa.Array | None) -> None:
        if self._panes is None:
            self._buffer.add(self._grouping.columns_of(batch, None, times), None)
        else:
            panes = self._panes.starts(self._panes.times_of(self, batch, times))
            earliest = int(panes.min())
            self._buffer.add(self._grouping.columns_of(batch, panes, times), earliest)
            if self._panes.last_of(earliest) <= self.current_watermark:
                self.flush()
                return
        if self._buffer.rows >= COMBINED_ROWS:
            self.flush()

    def flush(self) -> None:
        """Send all that waits."""
        if not self._buffer.rows:
            return
        table = self._buffer.take()
        if self._skip or self._grouping.may_overflow(table):
            self._skip = max(0, self._skip - 1)
            parts = self._grouping.ungrouped(table)
        else:
            parts = self._grouping.group(table)
            if parts.num_rows > POOR * table.num_rows:
                self._skip = SKIPPED
        for batch in parts.to_batches(max_chunksize=COMBINED_ROWS):
            self.outputs.emit_columns(batch, None)

    def watermark(self, time_ms: int) -> None:
        self.deliver_rows()
        earliest = self._buffer.earliest
        if earliest is None or self._panes is None or self._panes.last_of(earliest) <= time_ms:
            self.flush()
        super().watermark(time_ms)

    def idle(self, is_idle: bool) -> None:
        self.deliver_rows()
        self.flush()
        super().idle(is_idle)

    def end_input(self) -> None:
        self.deliver_rows()
        self.flush()
        super().end_input()

    def prepare_snapshot(self, checkpoint_id: int) -> None:
        super().prepare_snapshot(checkpoint_id)
        self.flush()
