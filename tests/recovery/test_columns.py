"""Operators on columns through the loss of a worker: every window and every total comes out once, and is exact."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from ledger import Ledger, LedgerSink, LedgerSource

from headrace import EventTimeSessionWindows, SlidingEventTimeWindows, Types, WatermarkStrategy

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

SIZE, SLIDE = 40, 20
BUSY, GAP = 6, 3
"""Of ten numbers the first few make a session, and then nothing comes for longer than the gap."""
ENTRY = Types.ROW_NAMED(["key", "number"], [int, int])
DOUBLED = Types.ROW_NAMED(["key", "twice"], [int, int])


def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
    twice = pc.multiply(batch.column("number"), 2)
    return pa.RecordBatch.from_arrays([batch.column("key"), twice], names=["key", "twice"])


def expected(ledger: Ledger) -> Counter[tuple[Any, ...]]:
    """Every line, from the size of the ledger alone."""
    lines: Counter[tuple[Any, ...]] = Counter()
    for key in range(ledger.keys):
        for start in range(SLIDE - SIZE, ledger.length + 1, SLIDE):
            inside = range(max(start, 1), min(start + SIZE, ledger.length + 1))
            if inside:
                lines["window", key, start, 2 * sum(inside), len(inside)] += 1
        lines["total", key, ledger.length * (ledger.length + 1), ledger.length] += 1
        for start in range(0, ledger.length + 1, 10):
            inside = range(max(start, 1), min(start + BUSY, ledger.length + 1))
            if inside:
                lines["session", key, inside[0], inside[-1] + GAP, 2 * sum(inside)] += 1
    return lines


@pytest.mark.parametrize(("backend", "mode"), [("heap", "aligned"), ("rocksdb", "unaligned")])
def test_windows_and_totals_over_columns_are_exact_through_a_crash(
    bench: Any, faults: Any, start: Any, backend: str, mode: str
) -> None:
    faults.plan("before_ack=kill@2#2.1")
    ledger = Ledger(keys=12, length=200, rate=4_000).holding_for(faults)
    sink = LedgerSink(bench.directory / "out")
    env = bench.env(backend=backend, mode=mode, interval=50)
    records = env.from_source(LedgerSource(ledger), WatermarkStrategy.for_monotonous_timestamps(), "ledger").uid("src")
    entries = records.map(lambda record: record, output_type=ENTRY).uid("entries")
    doubles = entries.rebalance().map_batches(doubled, DOUBLED).uid("doubled")
    keyed = doubles.key_by("key")
    wanted: dict[str, Any] = {"total": ("twice", "sum"), "n": "count"}
    windows = keyed.window(SlidingEventTimeWindows.of(SIZE, SLIDE)).aggregate_columns(wanted).uid("windows")
    totals = keyed.aggregate_columns(wanted, emit="end").uid("totals")
    busy = doubles.filter(lambda row: row.twice // 2 % 10 < BUSY).uid("busy").key_by("key")
    by_session = busy.window(EventTimeSessionWindows.with_gap(GAP)).allowed_lateness(5)
    sessions = by_session.aggregate_columns(wanted).uid("sessions")
    lines = windows.map(lambda row: ("window", row.key, row.window_start, row.total, row.n)).uid("window lines")
    lines = lines.union(
        totals.map(lambda row: ("total", row.key, row.total, row.n)).uid("total lines"),
        sessions.map(lambda row: ("session", row.key, row.window_start, row.window_end, row.total)).uid(
            "session lines"
        ),
    )
    lines.sink_to(sink).uid("out")

    start(env).finish()

    assert len(faults.happened) == 1
    found, wanted_lines = Counter(sink.lines()), expected(ledger)
    assert (wanted_lines - found, found - wanted_lines) == (Counter(), Counter())
