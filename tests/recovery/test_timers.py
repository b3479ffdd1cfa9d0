"""Timers in flight through a crash and through a change of width: each fires, and fires once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from checkpoints import opened, published, timers_in
from ledger import Ledger, LedgerSink, LedgerSource, ledger_stream

from headrace import KeyedProcessFunction, TimeDomain, Types, ValueStateDescriptor, WatermarkStrategy

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


class Alarm(KeyedProcessFunction):
    """Sets a processing-time alarm with the first record of a key. It rings only once `release` is there; until
    then the timer sets its successor, so that there is one in flight all the time."""

    def __init__(self, release: str, rung: str) -> None:
        self._release = release
        self._rung = rung

    def open(self, runtime_context: Any) -> None:
        self._seen = runtime_context.get_state(ValueStateDescriptor("seen", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> None:
        if not self._seen.value():
            timers = ctx.timer_service()
            timers.register_processing_time_timer(timers.current_processing_time() + 30)
        self._seen.update((self._seen.value() or 0) + 1)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        assert ctx.time_domain() is TimeDomain.PROCESSING_TIME
        if not Path(self._release).exists():
            ctx.timer_service().register_processing_time_timer(ctx.timer_service().current_processing_time() + 30)
            return
        Path(self._rung, str(ctx.get_current_key())).touch()
        yield ("rang", ctx.get_current_key())


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_processing_time_timers_survive_a_crash_and_two_changes_of_width(
    bench: Any, faults: Any, start: Any, backend: str
) -> None:
    release, rung = bench.directory / "release", bench.directory / "rung"
    rung.mkdir()
    # The source ends only when every key's alarm has rung: timers pending at the end of input do not fire.
    ledger = Ledger(keys=24, length=50, reserve=10, faults=24, fault_log=str(rung))
    sink = LedgerSink(bench.directory / "out")

    def launch(parallelism: int) -> Any:
        env = bench.env(parallelism=parallelism, backend=backend, interval=50)
        event_time = WatermarkStrategy.for_monotonous_timestamps()
        records = env.from_source(LedgerSource(ledger), event_time, "ledger").uid("src")
        alarms = records.key_by(lambda r: r[0]).process(Alarm(str(release), str(rung))).uid("alarms")
        alarms.sink_to(sink).uid("sink")
        return start(env)

    first = launch(2)
    third = first.wait_for("checkpoint", lambda checkpoint: checkpoint["checkpoint_id"] >= 5)
    assert third["checkpoint_id"]
    first.suspend()
    if backend == "heap":
        assert timers_in(opened(bench, int(published(bench)[-1].name[4:])), "alarms") == ledger.keys

    faults.plan("before_ack=kill@2#1.2")
    second = launch(3)
    second.wait_for("restarting")
    again = second.wait_for("running", lambda running: running["attempt"] == 3)
    second.wait_for("checkpoint", lambda checkpoint: checkpoint["checkpoint_id"] > again["restored"] + 1)
    second.suspend()
    assert not list(rung.iterdir()), "an alarm rang before it was released"

    third_life = launch(2)
    third_life.wait_for("running")
    release.touch()
    third_life.finish()

    assert len(faults.happened) == 1
    assert Counter(sink.lines()) == Counter(("rang", key) for key in range(ledger.keys))


@pytest.mark.parametrize("mode", ["aligned", "unaligned"])
def test_event_time_windows_fire_once_through_crashes_and_two_changes_of_width(
    bench: Any, faults: Any, start: Any, mode: str
) -> None:
    go = bench.directory / "go"
    ledger = Ledger(length=500, rate=4_000, faults=3, fault_log=str(go))
    sink = LedgerSink(bench.directory / "out")

    def launch(parallelism: int) -> Any:
        env = bench.env(parallelism=parallelism, mode=mode, interval=50)
        ledger_stream(env, ledger).sink_to(sink).uid("sink")
        return start(env)

    first = launch(2)
    first.wait_for("checkpoint", lambda checkpoint: checkpoint["checkpoint_id"] >= 3)
    first.suspend()
    assert timers_in(opened(bench, int(published(bench)[-1].name[4:])), "books") >= ledger.keys

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
    assert ledger.problems(sink.lines()) == []
