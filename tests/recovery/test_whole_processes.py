"""The whole process goes, and the same command goes on: kills at the driver's failpoints, SIGKILL, Ctrl-C, SIGSTOP."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from checkpoints import published, restored_by_attempt
from ledger import Ledger, LedgerSink, ledger_stream
from programs import Program, descendants_of, executors_of

from headrace.checkpoint.location import open_checkpoint
from headrace.checkpoint.metadata.model import files_of
from headrace.datastream.overrides import Overrides, overriding

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def programs() -> Iterator[list[Program]]:
    started: list[Program] = []
    yield started
    for program in started:
        if program.process.poll() is None:
            program.kill_tree()


class Place:
    """Stands in for a bench where no Spark is needed in the test's own process."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory


@pytest.mark.parametrize(("backend", "mode"), [("heap", "aligned"), ("rocksdb", "unaligned")])
def test_the_same_command_goes_on_after_the_driver_died_at_each_of_its_failpoints(
    tmp_path: Path, faults: Any, programs: list[Program], backend: str, mode: str
) -> None:
    faults.plan(
        "after_all_acks=kill@3",
        "before_publish=exit@4",
        "after_publish=kill@5",
        "gc_marked=exit@5",
        "gc_deleted=kill@6",
    )
    ledger = Ledger(length=500, rate=2_000).holding_for(faults)
    settings = {"directory": str(tmp_path), "ledger": asdict(ledger), "backend": backend, "mode": mode}

    codes = []
    while len(codes) <= faults.planned:
        programs.append(Program(settings, faults.environment()))
        codes.append(programs[-1].finish())
        if codes[-1] == 0:
            break

    assert sorted(codes) == [-9, -9, -9, 0, 41, 41], programs[-1].tail()
    assert len(faults.happened) == faults.planned
    assert ledger.problems(LedgerSink(tmp_path / "out").lines()) == []
    restored = restored_by_attempt(Place(tmp_path))
    ids = [restored[attempt] or 0 for attempt in sorted(restored)]
    assert ids == sorted(ids), "an attempt went back behind the one before it"


def test_ctrl_c_suspends_sigkill_loses_nothing_and_the_same_command_finishes(
    tmp_path: Path, programs: list[Program]
) -> None:
    go = tmp_path / "go"
    ledger = Ledger(length=600, rate=1_500, faults=1, fault_log=str(go))
    settings = {"directory": str(tmp_path), "ledger": asdict(ledger)}

    first = Program(settings)
    programs.append(first)
    first.wait_until(lambda status: status["checkpoints_completed"] >= 3)
    os.kill(first.process.pid, signal.SIGINT)
    assert first.finish() == 130, first.tail()
    assert first.status()["status"] == "SUSPENDED"
    kept = published(Place(tmp_path))
    assert kept, "Ctrl-C must keep the checkpoints"

    second = Program(settings)
    programs.append(second)
    second.wait_until(lambda status: status["checkpoints_completed"] >= 3)
    assert second.status()["restored_checkpoint"] == int(kept[-1].name[4:])
    second.kill_tree()
    newest = int(published(Place(tmp_path))[-1].name[4:])

    go.mkdir()
    (go / "now").touch()
    third = Program(settings)
    programs.append(third)
    assert third.finish() == 0, third.tail()

    assert ledger.problems(LedgerSink(tmp_path / "out").lines()) == []
    restored = restored_by_attempt(Place(tmp_path))
    assert list(restored) == [1, 2, 3]
    assert restored[3] >= newest


def test_a_driver_that_was_paused_and_taken_over_shows_and_publishes_nothing_more(
    bench: Any, start: Any, programs: list[Program]
) -> None:
    go = bench.directory / "go"
    ledger = Ledger(length=600, rate=1_500, faults=1, fault_log=str(go))
    old = Program({"directory": str(bench.directory), "ledger": asdict(ledger), "interval": 50})
    programs.append(old)
    old.wait_until(lambda status: status["checkpoints_completed"] >= 3)
    os.kill(old.process.pid, signal.SIGSTOP)

    env = bench.env(interval=50)
    sink = LedgerSink(bench.directory / "out")
    ledger_stream(env, ledger).sink_to(sink).uid("sink")
    with overriding(Overrides(take_over=True)):
        job = start(env)
    restored = job.wait_for("running")["restored"]
    job.wait_for("checkpoint", lambda checkpoint: checkpoint["checkpoint_id"] >= restored + 2)

    os.kill(old.process.pid, signal.SIGCONT)
    assert old.finish(60) == 4, old.tail()
    for checkpoint in published(bench):
        metadata = open_checkpoint(f"file://{checkpoint}").metadata
        assert metadata.attempt == 2 or metadata.checkpoint_id <= restored

    go.mkdir()
    (go / "now").touch()
    job.finish()
    assert ledger.problems(sink.lines()) == []


def test_a_job_that_a_live_process_owns_is_refused_in_another_one(
    bench: Any, start: Any, programs: list[Program]
) -> None:
    go = bench.directory / "go"
    ledger = Ledger(length=400, rate=3_000, faults=1, fault_log=str(go))
    env = bench.env(interval=50)
    sink = LedgerSink(bench.directory / "out")
    ledger_stream(env, ledger).sink_to(sink).uid("sink")
    job = start(env)
    job.wait_for("checkpoint")

    other = Program({"directory": str(bench.directory), "ledger": asdict(ledger)})
    programs.append(other)
    assert other.finish() == 3
    assert f"run by process {os.getpid()}" in other.tail()
    assert "--take-over" in other.tail()

    go.mkdir()
    (go / "now").touch()
    result = job.finish()
    assert result.restarts == 0
    assert ledger.problems(sink.lines()) == []


@pytest.mark.cluster
def test_an_executor_that_is_killed_costs_one_restart_and_no_record(tmp_path: Path, programs: list[Program]) -> None:
    go = tmp_path / "go"
    ledger = Ledger(length=500, rate=1_500, faults=1, fault_log=str(go))
    settings = {"directory": str(tmp_path), "ledger": asdict(ledger), "master": "local-cluster[2,4,1024]"}
    program = Program(settings)
    programs.append(program)
    program.wait_until(lambda status: status["checkpoints_completed"] >= 3)
    executors = executors_of(program)
    assert len(executors) == 2
    # Spark may have put all tasks on one executor; the one with workers is the one to lose.
    workers = set(program.status()["task_pids"].values())
    busiest = max(executors, key=lambda pid: len(workers & set(descendants_of(pid))))
    os.kill(busiest, signal.SIGKILL)
    program.wait_until(lambda status: status["restarts"] >= 1 and status["status"] == "RUNNING")
    go.mkdir()
    (go / "now").touch()
    assert program.finish() == 0, program.tail()

    assert ledger.problems(LedgerSink(tmp_path / "out").lines()) == []
    assert program.status()["restarts"] == 1
    for checkpoint in published(Place(tmp_path)):
        metadata = open_checkpoint(f"file://{checkpoint}").metadata
        if metadata.attempt > 1:
            assert not [path for path in files_of(metadata) if "attempt-000001" in path]
