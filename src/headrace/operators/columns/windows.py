"""Tumbling and sliding windows of event time over columns.

State, timers and the saved watermark are those of every other window operator: an accumulator for each key and window,
folded with the parts of all rows that came between two looks. Rows wait in memory until a window of theirs may close, a
barrier comes or there are many; before the barrier all are in state.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.operators.columns.aggregates import PANE, Aggregates, MergeParts, part_name
from headrace.operators.columns.batches import ColumnInput
from headrace.operators.columns.grouping import Grouping, PaneBuffer, keys_and_accumulators
from headrace.operators.columns.panes import Panes, Times
from headrace.operators.columns.results import MOST_RESULTS, Results
from headrace.operators.functions import OutputTag
from headrace.operators.windows.assigners import WindowAssigner
from headrace.operators.windows.calls import PassOn
from headrace.operators.windows.contents import STATE_NAME, FoldedContents
from headrace.operators.windows.operator import WindowOperator
from headrace.operators.windows.triggers import EventTimeTrigger
from headrace.operators.windows.windows import decode_bounds
from headrace.state.folding import FoldingReducingDescriptor
from headrace.types.columns import batch_to_values
from headrace.types.information import TypeInformation

FOLDED_ROWS = 262_144
"""So many rows wait at most."""


class ColumnWindowOperator(ColumnInput, WindowOperator):
    """Takes rows of the stream (`raw`), or rows of parts that `CombineOperator` has made of them."""

    _contents: FoldedContents

    def __init__(
        self,
        aggregates: Aggregates,
        assigner: WindowAssigner,
        panes: Panes,
        input_type: TypeInformation,
        late_tag: OutputTag | None,
        *,
        raw: bool,
    ) -> None:
        merge = MergeParts(aggregates.parts)
        contents = FoldedContents(FoldingReducingDescriptor(STATE_NAME, merge, aggregates.accumulator_type))
        super().__init__(assigner, EventTimeTrigger(), contents, PassOn(), merge, 0, late_tag)
        self.expect(input_type)
        self._aggregates = aggregates
        self._panes = panes
        self._raw = raw
        self._grouping = Grouping(aggregates, raw=raw)
        self._buffer = PaneBuffer()
        self._results = Results(aggregates, self)

    # Rows

    def take_batch(self, batch: pa.RecordBatch, times: pa.Array | None) -> None:
        panes = self._panes
        moments = panes.times_of(self, batch, times) if self._raw else batch.column(PANE).to_numpy()
        if panes.have_gaps or int(moments.min()) <= self.current_watermark:
            kept = self._sort_out(batch, moments)
            if kept is not None:
                batch, moments = batch.filter(kept), moments[kept.to_numpy(zero_copy_only=False)]
                if not batch.num_rows:
                    return
        if self._raw:
            moments = panes.starts(moments)
            batch = self._grouping.columns_of(batch, moments, None)
        self._buffer.add(batch, int(moments.min()))
        if self._buffer.rows >= FOLDED_ROWS:
            self._fold()

    def _sort_out(self, batch: pa.RecordBatch, moments: Times) -> pa.Array | None:
        """Which rows go into a window, None for all; the others are counted or sent to the side if they are late."""
        alive, covered = self._panes.alive(moments, self.current_watermark)
        kept = alive & covered
        if kept.all():
            return None
        late = ~kept & (moments <= self.current_watermark)
        if late.any():
            self._miss_all(batch, moments, late)
        return pa.array(kept)

    def _miss_all(self, batch: pa.RecordBatch, moments: Times, late: Any) -> None:
        places = pa.array(np.flatnonzero(late))
        if not self._raw:
            self._late.inc(pc.sum(batch.column(part_name(0)).take(places)).as_py())
        elif self._late_tag is None:
            self._late.inc(len(places))
        else:
            rows = batch_to_values(self._input_type, batch.take(places))
            for row, time in zip(rows, moments[late].tolist(), strict=True):
                self.outputs.side(self._late_tag.tag_id, row, time)

    def _fold(self) -> None:
        """Group what waits and fold it into state."""
        if not self._buffer.rows:
            return
        table = self._grouping.group(self._buffer.take())
        if table.num_rows > 1:
            table = table.sort_by(PANE)
        keys, accumulators = keys_and_accumulators(table, self._aggregates)
        panes = table.column(PANE).to_numpy()
        ends = [*np.flatnonzero(np.diff(panes)) + 1, len(panes)]
        start = 0
        for end in ends:
            for namespace, last in self._panes.open_windows(int(panes[start]), self.current_watermark):
                self._fold_pane(namespace, last, keys[start:end], accumulators[start:end])
            start = int(end)

    def _fold_pane(self, namespace: bytes, last: int, keys: list[Any], accumulators: list[tuple[Any, ...]]) -> None:
        context, register = self._keys, self._event.register
        self._contents.enter(namespace)
        fold = self._contents.state.fold
        for key, accumulator in zip(keys, accumulators, strict=True):
            context.key = key
            if fold(accumulator):
                register(last, key, namespace)

    # Time

    def watermark(self, time_ms: int) -> None:
        self.deliver_rows()
        earliest = self._buffer.earliest
        # By the watermark under which they came: what was not late then goes into its windows.
        if earliest is not None and self._panes.last_of(earliest) <= time_ms:
            self._fold()
        super().watermark(time_ms)

    def _advance_event_time(self, time_ms: int) -> None:
        pop, context, take = self._event.pop_due, self._keys, self._contents.state.take
        entered = b""
        keys: list[Any] = []
        accumulators: list[tuple[Any, ...]] = []
        while (timer := pop(time_ms)) is not None:
            _, context.key, namespace = timer
            if namespace != entered or len(keys) >= MOST_RESULTS:
                self._deliver(entered, keys, accumulators)
                keys, accumulators, entered = [], [], namespace
                self._contents.enter(namespace)
            accumulator = take()
            if accumulator is not None:
                keys.append(context.key)
                accumulators.append(accumulator)
        self._deliver(entered, keys, accumulators)
        self._results.flush()

    def _deliver(self, namespace: bytes, keys: list[Any], accumulators: list[tuple[Any, ...]]) -> None:
        if keys:
            start, end = decode_bounds(namespace)
            self._results.add(keys, accumulators, [end - 1] * len(keys), start)

    def prepare_snapshot(self, checkpoint_id: int) -> None:
        super().prepare_snapshot(checkpoint_id)
        self._fold()
