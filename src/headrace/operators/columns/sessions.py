"""Sessions of event time with a fixed gap, over columns.

A batch is cut into sessions by Arrow and numpy; only these meet the sessions of their key that state holds, one Python
step for each. State and timers are those of every operator with sessions (`operators.windows.merging`).

A batch is taken as a whole, not row by row. So a row that is behind the watermark is late only if neither the sessions
in state nor the other rows of its batch keep its session alive.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from headrace.operators.columns.aggregates import END, PANE
from headrace.operators.columns.grouping import keys_and_accumulators
from headrace.operators.columns.panes import Gaps, Times
from headrace.operators.columns.session_grouping import SessionGrouping
from headrace.operators.columns.windowed import FOLDED_ROWS, WindowedColumns
from headrace.operators.windows.merging import pack_places, unpack_places
from headrace.operators.windows.sessions import SessionWindowOperator
from headrace.operators.windows.windows import decode_bounds, encode_bounds

Again = dict[tuple[Any, bytes], bytes]
"""Sessions that have fired already and have changed since: (key, namespace) and where the contents lie."""


class ColumnSessionOperator(WindowedColumns, SessionWindowOperator):
    """Sessions of one gap."""

    _pieces: Gaps
    _grouping: SessionGrouping

    # Rows

    def take_batch(self, batch: pa.RecordBatch, times: pa.Array | None) -> None:
        rows, moments = batch, None
        if self._raw:
            moments = self._pieces.times_of(self, batch, times)
            batch = self._grouping.columns_of(batch, moments, None)
        ends = batch.column(END).to_numpy()
        if int(ends.min()) - 1 <= self.current_watermark:
            self._take_behind(rows, moments, batch, ends)
            return
        self._wait_for_fold(batch)
        if self._buffer.rows >= FOLDED_ROWS:
            self._fold()

    def _wait_for_fold(self, batch: pa.RecordBatch) -> None:
        self._buffer.add(batch, int(batch.column(PANE).to_numpy().min()))

    def _take_behind(self, rows: pa.RecordBatch, times: Times | None, batch: pa.RecordBatch, ends: Times) -> None:
        """Take a batch in which sessions begin that would be due already, or over.

        Those that would be over come last: by then state holds every session that could keep them alive.
        """
        over = ends - 1 <= self._horizon()
        kept = batch.filter(pa.array(~over))
        if kept.num_rows:
            self._wait_for_fold(kept)
        self._fold()
        if not over.any():
            return
        table, numbers = self._grouping.sessions_of(pa.Table.from_batches([batch.filter(pa.array(over))]))
        dead = self._fold_sessions(table)
        if dead.any():
            late = np.zeros(len(over), bool)
            late[np.flatnonzero(over)] = dead[numbers]
            self._miss_all(rows, times, late)

    def _fold(self) -> None:
        if self._buffer.rows:
            self._fold_sessions(self._grouping.group(self._buffer.take()))

    def _fold_sessions(self, table: pa.Table) -> Times:
        """Fold the sessions of a batch into those of state; true for each that is over and joins none that lives."""
        keys, accumulators = keys_and_accumulators(table, self._aggregates)
        starts, ends = table.column(PANE).to_pylist(), table.column(END).to_pylist()
        context, contents, fold = self._keys, self._contents, self._contents.state.fold
        dead = np.zeros(len(keys), bool)
        again: Again = {}
        for number, accumulator in enumerate(accumulators):
            context.key = key = keys[number]
            joined = self._join(starts[number], ends[number], again)
            if joined is None:
                dead[number] = True
                continue
            namespace, place, last = joined
            contents.enter(place)
            fold(accumulator)
            if last <= self.current_watermark:
                again[key, namespace] = place
        for (context.key, namespace), place in again.items():
            contents.enter(place)
            self._give(context.key, namespace, contents.state.get())
        self._results.flush()
        return dead

    def _join(self, start: int, end: int, again: Again) -> tuple[bytes, bytes, int] | None:
        """Merge a new session with those of the current key that it touches; None if nothing of them is alive.

        Gives its bounds as bytes, where its contents lie and its last timestamp.
        """
        saved, key = self._state.value(), self._keys.key
        parts = [] if saved is None else unpack_places(saved)
        touched = []
        for at in range(0, len(parts), 2):
            first, limit = decode_bounds(parts[at])
            if first <= end and start <= limit:
                touched.append((first, limit, at))
        if not touched:
            if end - 1 <= self._horizon():
                return None
            place = encode_bounds(start, end)
            self._state.update(pack_places([*parts, place, place]))
            self._register(end - 1, key, place)
            return place, place, end - 1
        touched.sort()
        start, end = min(start, touched[0][0]), max(end, touched[-1][1])
        namespace, place = encode_bounds(start, end), parts[touched[0][2] + 1]
        if parts[touched[0][2]] == namespace:
            return namespace, place, end - 1
        for _, limit, at in touched:
            self._drop_timers(limit - 1, parts[at])
            again.pop((key, parts[at]), None)
        if len(touched) > 1:
            self._contents.merge(place, [parts[at + 1] for _, _, at in touched[1:]])
        gone = {at for _, _, at in touched}
        left = [part for at in range(0, len(parts), 2) if at not in gone for part in parts[at : at + 2]]
        self._state.update(pack_places([*left, namespace, place]))
        self._register(end - 1, key, namespace)
        return namespace, place, end - 1

    # Time

    def watermark(self, time_ms: int) -> None:
        self.deliver_rows()
        earliest = self._buffer.earliest
        if earliest is not None and self._pieces.last_of(earliest) <= time_ms:
            due = self._event.peek()
            # Else no session fires: neither one of those that wait nor one in state that they would make longer.
            if earliest + self._pieces.gap - 1 <= time_ms or (due is not None and due <= time_ms):
                self._fold()
        super().watermark(time_ms)

    def _advance_event_time(self, time_ms: int) -> None:
        pop, context, contents = self._event.pop_due, self._keys, self._contents
        while (timer := pop(time_ms)) is not None:
            due, context.key, namespace = timer
            saved = self._state.value()
            parts = [] if saved is None else unpack_places(saved)
            at = next((at for at in range(0, len(parts), 2) if parts[at] == namespace), None)
            if at is None:
                continue
            last = decode_bounds(namespace)[1] - 1
            contents.enter(parts[at + 1])
            if due == last:
                self._give(context.key, namespace, contents.state.get())
            if due == self._last_of_life(last):
                contents.clear()
                del parts[at : at + 2]
                self._state.update(pack_places(parts) if parts else None)
        self._results.flush()

    def _give(self, key: Any, namespace: bytes, accumulator: tuple[Any, ...]) -> None:
        start, end = decode_bounds(namespace)
        self._results.add([key], [accumulator], [end - 1], start)
