"""Windows in the making through a crash and two changes of width: every window fires, once, with all it should hold."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from checkpoints import opened, published, timers_in
from ledger import Ledger, LedgerSink, LedgerSource

from headrace import (
    AggregateFunction,
    EventTimeSessionWindows,
    ProcessWindowFunction,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
)

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

TUMBLING, SIZE, SLIDE, PERIOD, VISIT, GAP = 50, 40, 20, 30, 18, 5
MIDDLE = 105


class SumAndCount(AggregateFunction):
    def create_accumulator(self) -> tuple[int, int]:
        return 0, 0

    def add(self, value: Any, accumulator: tuple[int, int]) -> tuple[int, int]:
        return accumulator[0] + value[1], accumulator[1] + 1

    def get_result(self, accumulator: tuple[int, int]) -> tuple[int, int]:
        return accumulator

    def merge(self, acc1: tuple[int, int], acc2: tuple[int, int]) -> tuple[int, int]:
        return acc1[0] + acc2[0], acc1[1] + acc2[1]


class Numbered(ProcessWindowFunction):
    """Gives the sum of the window, and how many windows of the key fired before."""

    def process(self, key: Any, context: Any, elements: Any) -> Any:
        fired = context.global_state().get_state(ValueStateDescriptor("fired", int))
        fired.update((fired.value() or 0) + 1)
        yield "sliding", key, context.window().start, sum(number for _, number in elements), fired.value()


def total(kind: str) -> Any:
    return lambda key, window, totals: [(kind, key, window.start, window.end, *totals[0])]


def expected(ledger: Ledger) -> Counter[tuple[Any, ...]]:
    """Every line, from the size of the ledger alone."""
    numbers = range(1, ledger.length + 1)
    lines: Counter[tuple[Any, ...]] = Counter()
    for key in range(ledger.keys):
        for start in range(0, ledger.length + 1, TUMBLING):
            inside = [n for n in numbers if start <= n < start + TUMBLING]
            lines["tumbling", key, start, start + TUMBLING, sum(inside), len(inside)] += bool(inside)
        count = 0
        for start in range(SLIDE - SIZE, ledger.length + 1, SLIDE):
            inside = [n for n in numbers if start <= n < start + SIZE]
            count += bool(inside)
            lines["sliding", key, start, sum(inside), count] += bool(inside)
        for start in range(0, ledger.length + 1, PERIOD):
            inside = [n for n in numbers if start <= n < start + VISIT]
            if inside:
                lines["session", key, inside[0], inside[-1] + GAP, sum(inside), len(inside)] += 1
    return +lines


@pytest.mark.parametrize(("backend", "mode"), [("heap", "aligned"), ("rocksdb", "unaligned")])
def test_windows_fire_once_through_a_crash_and_two_changes_of_width(
    bench: Any, faults: Any, start: Any, backend: str, mode: str
) -> None:
    go = bench.directory / "go"
    ledger = Ledger(length=300, rate=3_000, faults=3, fault_log=str(go))
    sink = LedgerSink(bench.directory / "out")
    pair = Types.TUPLE([Types.LONG(), Types.LONG()])

    def launch(parallelism: int, ledger: Ledger = ledger) -> Any:
        env = bench.env(parallelism=parallelism, backend=backend, mode=mode, interval=50)
        event_time = WatermarkStrategy.for_monotonous_timestamps()
        records = env.from_source(LedgerSource(ledger), event_time, "ledger").uid("src")
        keyed = records.key_by(lambda r: r[0])
        tumbling = (
            keyed.window(TumblingEventTimeWindows.of(TUMBLING))
            .aggregate(SumAndCount(), total("tumbling"), accumulator_type=pair)
            .uid("tumbling")
        )
        sliding = keyed.window(SlidingEventTimeWindows.of(SIZE, SLIDE)).process(Numbered()).uid("sliding")
        sessions = (
            records.filter(lambda r: r[1] % PERIOD < VISIT)
            .uid("visits")
            .key_by(lambda r: r[0])
            .window(EventTimeSessionWindows.with_gap(GAP))
            .aggregate(SumAndCount(), total("session"))
            .uid("sessions")
        )
        tumbling.union(sliding, sessions).sink_to(sink).uid("sink")
        return start(env)

    # It stands at a number at which windows of all three kinds are open.
    first = launch(2, replace(ledger, reserve=ledger.length - MIDDLE))
    first.wait_until_read(ledger.keys * MIDDLE)
    first.suspend()
    if backend == "heap":
        saved = opened(bench, int(published(bench)[-1].name[4:]))
        assert timers_in(saved, "tumbling") >= ledger.keys
        assert timers_in(saved, "sessions") >= ledger.keys

    faults.plan("before_ack=kill@2#1.2")
    second = launch(3)
    second.wait_for("restarting")
    again = second.wait_for("running", lambda running: running["attempt"] == 3)
    second.wait_for("checkpoint", lambda checkpoint: checkpoint["checkpoint_id"] > again["restored"] + 1)
    second.suspend()

    go.mkdir()
    for mark in "abc":
        (go / mark).touch()
    launch(2).finish()

    assert len(faults.happened) == 1
    found, wanted = Counter(sink.lines()), expected(ledger)
    assert (wanted - found, found - wanted) == (Counter(), Counter())
