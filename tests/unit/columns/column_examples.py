"""Sales with a shop, an amount and a price, and what windows over them mean, written down without columns."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from headrace import Row, SlidingEventTimeWindows, TumblingEventTimeWindows, Types, WindowAssigner
from headrace.types.columns import rows_to_batch, schema_of

SALE = Types.ROW_NAMED(["shop", "amount", "price"], [str, int, float])

WANTED: dict[str, Any] = {
    "total": ("amount", "sum"),
    "least": ("amount", "min"),
    "most": ("amount", "max"),
    "mean": ("amount", "avg"),
    "sold": ("amount", "count"),
    "takings": ("price", "sum"),
    "sales": "count",
}
"""Prices are multiples of 1/4, whose sums are exact in any order."""


def sale(shop: str, amount: int | None, price: float | None = 0.25) -> Row:
    return Row(shop=shop, amount=amount, price=price)


def batch_of(rows: Iterable[Row]) -> pa.RecordBatch:
    return rows_to_batch(SALE, list(rows), schema_of(SALE))


def aggregated(rows: list[Row]) -> tuple[Any, ...]:
    """What `WANTED` is of these rows, as SQL has it."""
    amounts = [row.amount for row in rows if row.amount is not None]
    prices = [row.price for row in rows if row.price is not None]
    total = sum(amounts) if amounts else None
    mean = None if total is None else total / len(amounts)
    takings = sum(prices) if prices else None
    least, most = min(amounts, default=None), max(amounts, default=None)
    return total, least, most, mean, len(amounts), takings, len(rows)


@dataclass
class WindowModel:
    """A list of rows for each key and window that is alive."""

    assigner: WindowAssigner
    lateness: int = 0
    watermark: int = -(2**63)
    windows: dict[tuple[str, int, int], list[Row]] = field(default_factory=dict)
    fired: list[tuple[Any, ...]] = field(default_factory=list)
    late: list[Row] = field(default_factory=list)

    def take(self, batch: list[tuple[Row, int]]) -> None:
        """Rows that come together. A window that has fired does so again, once for each key."""
        again: dict[tuple[str, int, int], None] = {}
        for row, time in batch:
            alive = False
            for start, end in self._assigned(time):
                if end - 1 + self.lateness > self.watermark:
                    alive = True
                    window = (row.shop, start, end)
                    self.windows.setdefault(window, []).append(row)
                    if end - 1 <= self.watermark:
                        again[window] = None
            if not alive and time + self.lateness <= self.watermark:
                self.late.append(row)
        for window in again:
            self._fire(window)

    def advance(self, time: int) -> None:
        before, self.watermark = self.watermark, max(self.watermark, time)
        for window in list(self.windows):
            last = window[2] - 1
            if before < last <= self.watermark:
                self._fire(window)
            if last + self.lateness <= self.watermark:
                del self.windows[window]

    def _fire(self, window: tuple[str, int, int]) -> None:
        self.fired.append((*window, *aggregated(self.windows[window])))

    def _assigned(self, time: int) -> list[tuple[int, int]]:
        match self.assigner:
            case TumblingEventTimeWindows(size=size, offset=offset):
                slide = size
            case SlidingEventTimeWindows(size=size, slide=slide, offset=offset):
                pass
        return [(s, s + size) for s in range(offset - 20 * slide, 300, slide) if s <= time < s + size]


@dataclass
class SessionModel:
    """For each key the sessions that are alive: [start, end, rows]."""

    gap: int
    lateness: int = 0
    watermark: int = -(2**63)
    sessions: dict[str, list[tuple[int, int, list[Row]]]] = field(default_factory=dict)
    fired: list[tuple[Any, ...]] = field(default_factory=list)
    late: list[Row] = field(default_factory=list)

    def take(self, batch: list[tuple[Row, int]]) -> None:
        """Rows that come together: they are cut into sessions with those that are alive, and then looked at."""
        for shop in sorted({row.shop for row, _ in batch}):
            new = [(time, time + self.gap, [row]) for row, time in batch if row.shop == shop]
            before = self.sessions.get(shop, [])
            alive = []
            for start, end, rows in self._merged([*before, *new]):
                if end - 1 + self.lateness <= self.watermark:
                    self.late += rows
                    continue
                alive.append((start, end, rows))
                is_new = all(len(rows) > len(old[2]) for old in before if start <= old[0] < end)
                if is_new and end - 1 <= self.watermark:
                    self._fire(shop, start, end, rows)
            self.sessions[shop] = alive

    def advance(self, time: int) -> None:
        before, self.watermark = self.watermark, max(self.watermark, time)
        for shop, sessions in self.sessions.items():
            for start, end, rows in sessions:
                if before < end - 1 <= self.watermark:
                    self._fire(shop, start, end, rows)
            self.sessions[shop] = [s for s in sessions if s[1] - 1 + self.lateness > self.watermark]

    def _fire(self, shop: str, start: int, end: int, rows: list[Row]) -> None:
        self.fired.append((shop, start, end, *aggregated(rows)))

    def _merged(self, sessions: list[tuple[int, int, list[Row]]]) -> list[tuple[int, int, list[Row]]]:
        found: list[tuple[int, int, list[Row]]] = []
        for start, end, rows in sorted(sessions, key=lambda session: session[0]):
            if found and start <= found[-1][1]:
                first, last, others = found.pop()
                start, end, rows = first, max(last, end), others + rows
            found.append((start, end, rows))
        return found
