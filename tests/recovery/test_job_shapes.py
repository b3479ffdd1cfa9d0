"""Jobs of unusual shape, and many jobs: relayed edges, unequal widths, one level, early ends, many restarts."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ledger import Bookkeeper, Ledger, LedgerReader, LedgerSink, LedgerSource, ledger_stream
from programs import descendants_of
from saboteurs import Saboteur, block_for_ever, raise_an_error

from headrace import OutputTag, ProcessFunction, RestartStrategies, WatermarkStrategy
from headrace.connectors.source import Boundedness, PollStatus, SourceBatch

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

EVENT_TIME = WatermarkStrategy.for_monotonous_timestamps()


@pytest.mark.parametrize("mode", ["aligned", "unaligned"])
def test_an_edge_that_skips_two_levels_is_relayed_without_loss(bench: Any, faults: Any, start: Any, mode: str) -> None:
    """Source ─▶ books ─▶ dealt round ─▶ joined, and source ─▶ joined directly: relayed by the levels between."""
    faults.plan("record=kill@20#2.1", "before_ack=kill@3#1.0", "barrier_injected=exit@3#3.0", "after_upload=kill@4#2.2")
    ledger = Ledger(length=300, rate=2_500).holding_for(faults)
    sink = LedgerSink(bench.directory / "out")
    env = bench.env(mode=mode, interval=50)
    records = env.from_source(LedgerSource(ledger), EVENT_TIME, "ledger").uid("src")
    books = records.key_by(lambda r: r[0]).process(Bookkeeper(ledger.window)).uid("books")
    dealt = books.rebalance().map(lambda line: line).uid("dealt").set_parallelism(3)
    raw = records.map(lambda r: ("raw", *r)).uid("raw")
    joined = dealt.union(raw).key_by(lambda line: line[1]).process(Passing()).uid("joined")
    joined.sink_to(sink).uid("sink")

    result = start(env).finish()

    lines = sink.lines()
    raw_lines = Counter(line for line in lines if line[0] == "raw")
    assert raw_lines == Counter(("raw", k, n) for k in range(ledger.keys) for n in range(1, ledger.length + 1))
    assert ledger.problems(line for line in lines if line[0] != "raw") == []
    assert len(faults.happened) == faults.planned
    assert 1 <= result.restarts <= faults.planned


class Passing(Bookkeeper):
    """A keyed operator without state of interest: passes lines on."""

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield value

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        raise AssertionError("it sets no timers")


def test_chains_of_unequal_width_share_a_level_and_a_source_that_ends_early_does_not_hold_up_checkpoints(
    bench: Any, faults: Any, start: Any
) -> None:
    """Sources of width 1 and 3 beside each other, books of width 2 behind; the short one ends at once."""
    faults.plan("before_ack=kill@6#0.2", "after_upload=kill@6#1.0", "barrier_aligned=exit@6#0.0")
    long = Ledger(length=300, rate=2_500).holding_for(faults)
    short = Ledger(keys=3, length=60, splits=1)
    sink = LedgerSink(bench.directory / "out")
    env = bench.env(interval=50)
    wide = env.from_source(LedgerSource(long), EVENT_TIME, "wide").uid("wide").set_parallelism(3)
    narrow = env.from_source(LedgerSource(short), EVENT_TIME, "narrow").uid("narrow").set_parallelism(1)
    renamed = narrow.map(lambda r: (100 + r[0], r[1])).uid("renamed").set_parallelism(1)
    books = wide.union(renamed).key_by(lambda r: r[0]).process(Bookkeeper(50)).uid("books")
    books.sink_to(sink).uid("sink")

    job = start(env)
    result = job.finish()

    lines = sink.lines()
    assert long.problems(line for line in lines if line[1] < 100) == []
    assert short.problems((line[0], line[1] - 100, *line[2:]) for line in lines if line[1] >= 100) == []
    assert len(faults.happened) == faults.planned
    assert 1 <= result.restarts <= faults.planned
    assert len(job.kinds("checkpoint")) >= 5


def test_a_job_of_one_level_survives_kills(bench: Any, faults: Any, start: Any) -> None:
    faults.plan("record=kill@10#0.0", "before_ack=kill@3#0.1", "sink_committed=kill@1#0.0.0")
    ledger = Ledger(length=300, rate=3_000).holding_for(faults)
    sink = LedgerSink(bench.directory / "out")
    env = bench.env(interval=50)
    records = env.from_source(LedgerSource(ledger), EVENT_TIME, "ledger").uid("src")
    records.map(lambda r: ("seq", *r)).uid("told").sink_to(sink).uid("sink")

    result = start(env).finish()

    wanted = Counter(("seq", key, number) for key in range(ledger.keys) for number in range(1, ledger.length + 1))
    assert Counter(sink.lines()) == wanted
    assert len(faults.happened) == faults.planned
    assert 1 <= result.restarts <= faults.planned


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_three_levels_with_every_output_dealt_round_stay_exact(
    bench: Any, faults: Any, start: Any, backend: str
) -> None:
    faults.plan(
        "record=kill@10#2.0", "before_ack=kill@3#1.1", "before_sink_commit=kill@2#2.1", "barrier_injected=exit@4#0.0"
    )
    ledger = Ledger(length=300, rate=2_500).holding_for(faults)
    sink = LedgerSink(bench.directory / "out")
    env = bench.env(interval=50, backend=backend, mode="timeout")
    ledger_stream(env, ledger, levels=3).sink_to(sink).uid("sink")

    result = start(env).finish()

    assert ledger.problems(sink.lines()) == []
    assert len(faults.happened) == faults.planned
    assert 1 <= result.restarts <= faults.planned


def test_two_jobs_at_once_crash_and_recover_each_for_itself(bench: Any, start: Any) -> None:
    jobs = []
    for name in ("first ledger", "second ledger"):
        home = bench.directory / name.partition(" ")[0]
        marks = home / "marks"
        ledger = Ledger(length=300, rate=2_000, faults=1, fault_log=str(marks))
        sink = LedgerSink(home / "out")
        env = bench.env(interval=50)
        records = env.from_source(LedgerSource(ledger), EVENT_TIME, "ledger").uid("src")
        hit = records.map(Saboteur(raise_an_error, lambda r: tuple(r) == (3, 150), [str(marks / "deed")])).uid("hit")
        hit.key_by(lambda r: r[0]).process(Bookkeeper(50)).uid("books").sink_to(sink).uid("sink")
        jobs.append((start(env, name), ledger, sink))
    for job, ledger, sink in jobs:
        assert job.finish().restarts == 1
        assert ledger.problems(sink.lines()) == []


LATE = OutputTag("odd numbers")


class Sorter(ProcessFunction):
    """Even numbers to the main output, odd ones aside."""

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield ("even", *value) if value[1] % 2 == 0 else (LATE, ("odd", *value))


def test_side_outputs_are_as_exact_as_the_main_output(bench: Any, faults: Any, start: Any) -> None:
    faults.plan("record=kill@10#1.0", "before_ack=kill@3#0.1")
    ledger = Ledger(length=300, rate=3_000).holding_for(faults)
    main, aside = LedgerSink(bench.directory / "even"), LedgerSink(bench.directory / "odd")
    env = bench.env(interval=50)
    records = env.from_source(LedgerSource(ledger), EVENT_TIME, "ledger").uid("src")
    sorted_ = records.process(Sorter()).uid("sorter")
    sorted_.rebalance().map(lambda line: line).uid("evens").sink_to(main).uid("even sink")
    sorted_.get_side_output(LATE).rebalance().map(lambda line: line).uid("odds").sink_to(aside).uid("odd sink")

    start(env).finish()

    keys, numbers = range(ledger.keys), range(1, ledger.length + 1)
    assert Counter(main.lines()) == Counter(("even", k, n) for k in keys for n in numbers if n % 2 == 0)
    assert Counter(aside.lines()) == Counter(("odd", k, n) for k in keys for n in numbers if n % 2)
    assert len(faults.happened) == faults.planned


class StuckSource(LedgerSource):
    """A source whose client blocks for ever, on the very thread that must not block."""

    def create_reader(self, context: Any) -> StuckReader:
        return StuckReader(self.ledger, super().create_reader(context)._pace)

    @property
    def boundedness(self) -> Boundedness:
        return Boundedness.UNBOUNDED


class StuckReader(LedgerReader):
    def poll(self, limit: int) -> SourceBatch | PollStatus:
        batch = super().poll(limit)
        if isinstance(batch, SourceBatch) and batch.timestamps and batch.timestamps[-1] > 20:
            block_for_ever()
        return batch


def test_a_source_that_blocks_for_ever_can_be_cancelled(bench: Any, start: Any) -> None:
    env = bench.env(interval=50)
    records = env.from_source(StuckSource(Ledger(length=100)), EVENT_TIME, "stuck").uid("src")
    records.key_by(lambda r: r[0]).process(Bookkeeper(50)).uid("books").sink_to(LedgerSink(bench.directory / "out"))
    job = start(env)
    job.wait_for("running")
    pids = list(job.report.task_pids.values())
    job.client.cancel().result(180)
    assert job.report.status.value == "CANCELED"
    assert len(pids) == 4
    _gone(pids)


def _gone(pids: list[int]) -> None:
    """Every one of these processes ends."""
    waiting = threading.Event()
    for _ in range(900):
        alive = [pid for pid in pids if Path(f"/proc/{pid}").exists() and not _zombie(pid)]
        if not alive:
            return
        waiting.wait(0.1)
    raise AssertionError(f"workers {alive} are still there")


def _zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_job_that_idles_for_150_seconds_goes_on_where_it_stood(bench: Any, start: Any) -> None:
    """No record and no barrier passes any channel for longer than Spark's own patience with silent connections."""
    go = bench.directory / "go"
    ledger = Ledger(length=300, reserve=150, faults=1, fault_log=str(go))
    sink = LedgerSink(bench.directory / "out")
    env = bench.env(interval=3_600_000, restarts=0)
    ledger_stream(env, ledger).sink_to(sink).uid("sink")
    job = start(env)
    job.wait_for("running")
    pause = threading.Event()
    while job.report.records_read < ledger.keys * 150:
        pause.wait(0.1)

    pause.wait(150)

    assert job.report.status.value == "RUNNING"
    assert job.report.records_read == ledger.keys * 150
    assert job.kinds("failure") == []
    go.mkdir()
    (go / "now").touch()
    assert job.finish().restarts == 0
    assert ledger.problems(sink.lines()) == []


def _footprint() -> dict[str, int]:
    """What a restart may leave behind: in this process, in Spark's JVM, and as processes of their own."""
    children = descendants_of(os.getpid())
    (jvm,) = [pid for pid in children if Path(f"/proc/{pid}/comm").read_text().strip() == "java"]
    return {
        "threads": threading.active_count(),
        "files": len(os.listdir("/proc/self/fd")),
        "threads of the JVM": len(os.listdir(f"/proc/{jvm}/task")),
        # Workers of the attempt before may still be ending when the next one runs.
        "processes": len(children),
        "MiB": int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20,
    }


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_fifty_restarts_of_one_job_leave_no_threads_files_memory_or_workers_behind(bench: Any, start: Any) -> None:
    marks = bench.directory / "marks"
    crashes = 50
    ledger = Ledger(length=200, faults=crashes, fault_log=str(marks))
    sink = LedgerSink(bench.directory / "out")
    env = bench.env(interval=50)
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(crashes, 20, same_record_limit=None))
    records = env.from_source(LedgerSource(ledger), EVENT_TIME, "ledger").uid("src")
    names = [str(marks / f"{i:02d}") for i in range(crashes)]
    hit = records.map(Saboteur(raise_an_error, lambda r: tuple(r) == (3, 150), names)).uid("hit")
    hit.key_by(lambda r: r[0]).process(Bookkeeper(50)).uid("books").sink_to(sink).uid("sink")

    job = start(env)
    seen = []
    for attempt in range(1, crashes + 2):
        job.wait_for("running", lambda running, attempt=attempt: running["attempt"] == attempt)
        if attempt in (11, crashes + 1):
            seen.append(_footprint())
    result = job.finish()

    assert result.restarts == crashes
    assert ledger.problems(sink.lines()) == []
    early, late = seen
    slack = {"threads": 3, "files": 5, "processes": 4, "MiB": 24}
    assert {name: late[name] - early[name] for name in slack if late[name] > early[name] + slack[name]} == {}
    # Spark's pools keep an idle thread for a minute: what restarts have left there must be gone when that has passed.
    pause, deadline = threading.Event(), time.monotonic() + 180
    while (grown := _footprint()["threads of the JVM"] - early["threads of the JVM"]) > 0:
        assert time.monotonic() < deadline, f"{crashes} restarts left {grown} threads in the JVM"
        pause.wait(1)
