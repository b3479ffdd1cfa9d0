"""Records that a function cannot handle: they fail the job, or lie in the dead letters, each once; none vanishes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from ledger import Ledger, LedgerSink, LedgerSource

from headrace import (
    OutputTag,
    ProcessFunction,
    StreamExecutionEnvironment,
    Time,
    TumblingEventTimeWindows,
    WatermarkStrategy,
)
from headrace.operators.metrics import reading
from headrace.testing import JobHarness, ManualSource, OperatorHarness

DEAD = OutputTag("dead letters")
LATE = OutputTag("late")
FUTURE = OutputTag("from the future")
YEAR_9999 = 253_370_764_800_000


def to_text(record: tuple[int, int]) -> str:
    """A record as a line; every 17th number of every third key arrives damaged, each in one of three ways."""
    key, number = record
    line = json.dumps({"key": key, "number": number})
    if key % 3 or number % 17:
        return line
    return (line[:-3], json.dumps({"key": key}), json.dumps([key, number]))[number % 3] + " " * key


class Parse(ProcessFunction):
    """Numbers from lines; what is none goes aside as it came, and is counted."""

    def open(self, runtime_context: Any) -> None:
        self._dead = runtime_context.get_metrics_group().counter("deadLetters")

    def process_element(self, value: str, ctx: Any) -> Iterator[Any]:
        try:
            fields = json.loads(value)
            parsed = ("number", int(fields["key"]), int(fields["number"]))
        except (ValueError, KeyError, TypeError):
            self._dead.inc()
            yield DEAD, ("dead", value)
        else:
            yield parsed


@pytest.mark.spark
@pytest.mark.timeout(400)
def test_what_a_function_cannot_handle_is_in_the_dead_letters_once_through_crashes(
    bench: Any, faults: Any, start: Any
) -> None:
    faults.plan("record=kill@10#1.0", "before_ack=kill@3#1.1", "before_sink_commit=kill@2#1.0")
    ledger = Ledger(length=300, rate=3_000).holding_for(faults)
    good, dead = LedgerSink(bench.directory / "good"), LedgerSink(bench.directory / "dead")
    env = bench.env(interval=50)
    records = env.from_source(LedgerSource(ledger), WatermarkStrategy.no_watermarks(), "ledger").uid("src")
    parsed = records.map(to_text).uid("text").rebalance().process(Parse()).uid("parse")
    parsed.sink_to(good).uid("good")
    parsed.get_side_output(DEAD).sink_to(dead).uid("dead")

    start(env).finish()

    everything = [(key, number) for key in range(ledger.keys) for number in range(1, ledger.length + 1)]
    bad = [record for record in everything if record[0] % 3 == 0 and record[1] % 17 == 0]
    assert len(faults.happened) == faults.planned
    assert Counter(dead.lines()) == Counter(("dead", to_text(record)) for record in bad)
    assert Counter(good.lines()) == Counter(("number", *record) for record in set(everything) - set(bad))


def test_dead_letters_are_counted() -> None:
    lines = [to_text((3, number)) for number in range(1, 101)]
    with OperatorHarness(Parse()) as harness:
        harness.process_all(lines)
        (operator,) = harness.operators
        assert reading(operator.context.metrics["deadLetters"]) == 5
        assert len(harness.take()) == 95
        assert len(harness.side_output(DEAD)) == 5


class Plausible(ProcessFunction):
    """Sets times aside that nobody should believe."""

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield value if value[1] < YEAR_9999 else (FUTURE, value)


def sums(env: StreamExecutionEnvironment, source: ManualSource, *, guarded: bool) -> Any:
    """Values by key and ten seconds, late ones told apart; `guarded`: before times count they are looked at."""
    readings = env.from_source(source, WatermarkStrategy.no_watermarks(), "readings").uid("readings")
    if guarded:
        readings = readings.process(Plausible()).uid("plausible")
    by_time = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda reading, _: reading[1])
    timed = readings.assign_timestamps_and_watermarks(by_time)
    windows = timed.key_by(lambda reading: reading[0]).window(TumblingEventTimeWindows.of(Time.seconds(10)))
    return windows.side_output_late_data(LATE).reduce(lambda a, b: (a[0], a[1], a[2] + b[2])).uid("sums")


@pytest.mark.parametrize("guarded", [True, False], ids=["set aside", "believed"])
def test_a_time_from_the_far_future_makes_others_late_but_none_of_them_vanishes(guarded: bool) -> None:
    before = [("a", 1_000, 1), ("b", 2_000, 2)]
    astray = ("x", YEAR_9999, 100)
    after = [("a", 3_000, 4), ("b", 4_000, 8), ("c", 12_000, 16)]

    def collected(output: str) -> list[Any]:
        env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
        source = ManualSource()
        stream = sums(env, source, guarded=guarded)
        with JobHarness(stream if output == "sums" else stream.get_side_output(LATE)) as job:
            source.emit(*before)
            job.run()
            source.emit(astray)
            job.advance(Time.seconds(1))  # generators speak by the clock
            job.checkpoint()
            job.crash()
            source.emit(*after)
            source.end()
            return sorted((key, value) for key, _, value in job.run_to_end())

    if guarded:
        assert collected("late") == []
        assert collected("sums") == [("a", 5), ("b", 10), ("c", 16)]
    else:
        assert collected("late") == [("a", 4), ("b", 8), ("c", 16)]
        assert collected("sums") == [("a", 1), ("b", 2), ("x", 100)]
