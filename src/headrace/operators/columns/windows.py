"""Tumbling and sliding windows of event time over columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from headrace.operators.columns.aggregates import PANE
from headrace.operators.columns.grouping import keys_and_accumulators
from headrace.operators.columns.panes import Panes, Times
from headrace.operators.columns.results import MOST_RESULTS
from headrace.operators.columns.windowed import FOLDED_ROWS, WindowedColumns
from headrace.operators.windows.windows import decode_bounds

Again = dict[bytes, dict[Any, None]]
"""Keys of windows that have fired already and have changed since, by the windows' namespaces."""


class ColumnWindowOperator(WindowedColumns):
    """Windows of one size, which begin at fixed times."""

    _pieces: Panes

    # Rows

    def take_batch(self, batch: pa.RecordBatch, times: pa.Array | None) -> None:
        panes = self._pieces
        moments = panes.times_of(self, batch, times) if self._raw else batch.column(PANE).to_numpy()
        earliest = int(moments.min())
        if panes.have_gaps or earliest <= self._horizon():
            kept = self._sort_out(batch, moments)
            if kept is not None:
                batch, moments = batch.filter(kept), moments[kept.to_numpy(zero_copy_only=False)]
                if not batch.num_rows:
                    return
        if self._raw:
            moments = panes.starts(moments)
            batch = self._grouping.columns_of(batch, moments, None)
        if self._lateness and earliest <= self.current_watermark:
            batch, moments = self._take_behind(batch, moments)
            if not batch.num_rows:
                return
        self._buffer.add(batch, int(moments.min()))
        if self._buffer.rows >= FOLDED_ROWS:
            self._fold()

    def _sort_out(self, batch: pa.RecordBatch, moments: Times) -> pa.Array | None:
        """Which rows go into a window, None for all; the others are counted or sent to the side if they are late."""
        horizon = self._horizon()
        alive, covered = self._pieces.alive(moments, horizon)
        kept = alive & covered
        if kept.all():
            return None
        late = ~kept & (moments <= horizon)
        if late.any():
            self._miss_all(batch, moments, late)
        return pa.array(kept)

    def _take_behind(self, batch: pa.RecordBatch, panes: Times) -> tuple[pa.RecordBatch, Times]:
        """Fold the rows of panes that the watermark has passed, and give the others.

        Rows that wait are of other panes, so a window that has fired holds all that came before.
        """
        behind = panes + (self._pieces.width - 1) <= self.current_watermark
        if not behind.any():
            return batch, panes
        again: Again = {}
        self._fold_table(pa.Table.from_batches([batch.filter(pa.array(behind))]), again)
        for namespace, keys in again.items():
            self._fire_again(namespace, list(keys))
        self._results.flush()
        return batch.filter(pa.array(~behind)), panes[~behind]

    def _fold(self) -> None:
        if self._buffer.rows:
            self._fold_table(self._buffer.take(), {})

    def _fold_table(self, rows: pa.Table, again: Again) -> None:
        """Fold rows into state. What changes in windows that have fired already is noted in `again`."""
        table = self._grouping.group(rows)
        if table.num_rows > 1:
            table = table.sort_by(PANE)
        keys, accumulators = keys_and_accumulators(table, self._aggregates)
        panes = table.column(PANE).to_numpy()
        ends = [*np.flatnonzero(np.diff(panes)) + 1, len(panes)]
        horizon = self._horizon()
        start = 0
        for end in ends:
            for namespace, last in self._pieces.open_windows(int(panes[start]), horizon):
                self._fold_pane(namespace, last, keys[start:end], accumulators[start:end])
                if last <= self.current_watermark:
                    again.setdefault(namespace, {}).update(dict.fromkeys(keys[start:end]))
            start = int(end)

    def _fold_pane(self, namespace: bytes, last: int, keys: list[Any], accumulators: list[tuple[Any, ...]]) -> None:
        context = self._keys
        register = self._register if self._lateness else self._event.register
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
        if earliest is not None and self._pieces.last_of(earliest) <= time_ms:
            self._fold()
        super().watermark(time_ms)

    def _advance_event_time(self, time_ms: int) -> None:
        pop, context, state = self._event.pop_due, self._keys, self._contents.state
        # A window ends as it fires, unless it goes on living for late rows: then there is a timer for its end.
        outlives = bool(self._lateness)
        take = state.get if outlives else state.take
        entered, last = b"", 0
        keys: list[Any] = []
        accumulators: list[tuple[Any, ...]] = []
        while (timer := pop(time_ms)) is not None:
            due, context.key, namespace = timer
            if namespace != entered or len(keys) >= MOST_RESULTS:
                self._deliver(entered, keys, accumulators)
                keys, accumulators, entered = [], [], namespace
                last = decode_bounds(namespace)[1] - 1
                self._contents.enter(namespace)
            if outlives and due != last:
                state.clear()
                continue
            accumulator = take()
            if accumulator is not None:
                keys.append(context.key)
                accumulators.append(accumulator)
        self._deliver(entered, keys, accumulators)
        self._results.flush()

    def _fire_again(self, namespace: bytes, keys: list[Any]) -> None:
        context, get = self._keys, self._contents.state.get
        self._contents.enter(namespace)
        accumulators = []
        for context.key in keys:
            accumulators.append(get())
        self._deliver(namespace, keys, accumulators)

    def _deliver(self, namespace: bytes, keys: list[Any], accumulators: list[tuple[Any, ...]]) -> None:
        if keys:
            start, end = decode_bounds(namespace)
            self._results.add(keys, accumulators, [end - 1] * len(keys), start)
