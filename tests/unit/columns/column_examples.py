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
    """A list of rows for each key and open window."""

    assigner: WindowAssigner
    watermark: int = -(2**63)
    windows: dict[tuple[str, int, int], list[Row]] = field(default_factory=dict)
    fired: list[tuple[Any, ...]] = field(default_factory=list)
    late: list[Row] = field(default_factory=list)

    def record(self, row: Row, time: int) -> None:
        alive = False
        for start, end in self._assigned(time):
            if end - 1 > self.watermark:
                alive = True
                self.windows.setdefault((row.shop, start, end), []).append(row)
        if not alive and time <= self.watermark:
            self.late.append(row)

    def advance(self, time: int) -> None:
        self.watermark = max(self.watermark, time)
        for shop, start, end in list(self.windows):
            if end - 1 <= self.watermark:
                self.fired.append((shop, start, end, *aggregated(self.windows.pop((shop, start, end)))))

    def _assigned(self, time: int) -> list[tuple[int, int]]:
        match self.assigner:
            case TumblingEventTimeWindows(size=size, offset=offset):
                slide = size
            case SlidingEventTimeWindows(size=size, slide=slide, offset=offset):
                pass
        return [(s, s + size) for s in range(offset - 20 * slide, 300, slide) if s <= time < s + size]
