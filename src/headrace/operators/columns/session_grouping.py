"""Rows or parts into sessions, one row of parts for each, without Python per row.

Every row is a session from its time until the gap has passed; parts are sessions already. They are sorted by key and
start. A session begins where the key changes, or where a start is after all ends before it of the same key.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.operators.columns.aggregates import END, PANE, Aggregates
from headrace.operators.columns.grouping import Grouping
from headrace.operators.columns.panes import Gaps, TimePieces, Times

_SESSION = "_session"


class SessionGrouping(Grouping):
    """Groups by key and session. Sessions that touch are one, as `TimeWindow.intersects` has it."""

    def __init__(self, aggregates: Aggregates, gap: int, *, raw: bool) -> None:
        super().__init__(aggregates, raw=raw)
        self._gap = gap

    def columns_of(self, batch: pa.RecordBatch, panes: Any, times: pa.Array | None) -> pa.RecordBatch:
        """`panes` are the times of the rows."""
        return super().columns_of(batch, panes, times).append_column(END, pa.array(panes + self._gap))

    def group(self, table: pa.Table) -> pa.Table:
        """One row for each key and session."""
        return self.sessions_of(table)[0]

    def sessions_of(self, table: pa.Table) -> tuple[pa.Table, Times]:
        """One row for each key and session with the columns of `schema`; and for each row the number of its session."""
        table = table.combine_chunks()
        keys = [table.column(key) for key in self._aggregates.keys]
        starts, ends = table.column(PANE).to_numpy(), table.column(END).to_numpy()
        codes = _codes(keys)
        order = np.lexsort((starts, codes))
        codes, starts, ends = codes[order], starts[order], _latest(codes[order], ends[order])
        begins = np.ones(len(order), bool)
        begins[1:] = (codes[1:] != codes[:-1]) | (starts[1:] > ends[:-1])
        first = np.flatnonzero(begins)
        last = np.append(first[1:], len(order)) - 1
        numbers = np.empty(len(order), np.int64)
        numbers[order] = np.cumsum(begins) - 1
        grouped = self.aggregate(table.append_column(_SESSION, pa.array(numbers)), [_SESSION])
        made = grouped.column(_SESSION).to_numpy()
        owners = pa.array(order[first][made])
        columns = [key.take(owners) for key in keys]
        columns += [pa.array(starts[first][made]), pa.array(ends[last][made])]
        places = np.empty(len(made), np.int64)
        places[made] = np.arange(len(made))
        return pa.table([*columns, *self.parts_of(grouped)], names=self.schema.names), places[numbers]


def grouping_of(aggregates: Aggregates, pieces: TimePieces | None, *, raw: bool) -> Grouping:
    """What groups rows by these pieces of time, if there are any."""
    if isinstance(pieces, Gaps):
        return SessionGrouping(aggregates, pieces.gap, raw=raw)
    return Grouping(aggregates, raw=raw)


def _codes(keys: list[pa.ChunkedArray]) -> Times:
    """A number for each row, the same for the same key."""
    codes: Times = np.zeros(len(keys[0]), np.int64)
    for place, column in enumerate(keys):
        encoded = pc.dictionary_encode(column.combine_chunks(), null_encoding="encode")
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.combine_chunks()
        codes = codes * len(encoded.dictionary) + encoded.indices.to_numpy()
        if place:
            # As small as they can be, so that any number of fields has room.
            codes = np.unique(codes, return_inverse=True)[1].reshape(-1)
    return codes


def _latest(codes: Times, ends: Times) -> Times:
    """The latest end so far of the same key, for rows sorted by key."""
    if ((ends[1:] >= ends[:-1]) | (codes[1:] != codes[:-1])).all():
        return ends
    # Ranks instead of times: multiplied by the number of keys they stay within 64 bits.
    times, ranks = np.unique(ends, return_inverse=True)
    ranked = np.maximum.accumulate(codes * len(times) + ranks.reshape(-1))
    return times[ranked % len(times)]  # type: ignore[no-any-return]
