"""The whole process goes, and the same command goes on: kills at the driver's failpoints, SIGKILL, Ctrl-C, SIGSTOP."""

from __future__ import annotations

import os
import signal
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from checkpoints import job_home, published, restored_by_attempt
from ledger import Ledger, LedgerSink, ledger_stream
from programs import Program, kill_an_executor
from sweep import IN_TASKS, IN_THE_DRIVER, doing

from headrace.checkpoint.location import open_checkpoint
from headrace.checkpoint.metadata.model import files_of
from headrace.datastream.overrides import Overrides, overriding

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]


class Place:
    """Stands in for a bench where no Spark is needed in the test's own process."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory


@pytest.mark.timeout(900)
@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
@pytest.mark.parametrize("mode", ["aligned", "unaligned"])
def test_the_same_command_goes_on_after_the_whole_job_was_killed_at_every_failpoint(
    tmp_path: Path, faults: Any, programs: list[Program], backend: str, mode: str
) -> None:
    """In a task a failpoint holds that moment fast until every process is killed; the driver kills itself."""
    faults.plan(*doing("hang", IN_TASKS), *doing("kill", IN_THE_DRIVER))
    ledger = Ledger(length=600, rate=2_000).holding_for(faults)
    settings = {"directory": str(tmp_path), "ledger": asdict(ledger), "backend": backend, "mode": mode}

    codes: list[int | None] = []
    while 0 not in codes:
        assert len(codes) <= faults.planned, programs[-1].tail()
        known = len(faults.happened)
        program = Program(settings, faults.environment())
        programs.append(program)
        codes.append(program.finish_unless(lambda known=known: len(faults.happened) > known))
        if codes[-1] is None:
            program.kill_tree()

    assert set(codes) == {None, -9, 0}, programs[-1].tail()
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


def test_a_driver_stopped_between_publish_and_commit_finds_the_job_finished_and_changes_nothing(
    bench: Any, start: Any, programs: list[Program], faults: Any
) -> None:
    """The new owner commits for it and runs to the end of the input before it wakes up."""
    ledger = Ledger(length=200, rate=1_500)
    faults.plan("after_publish=stop@3")
    environment = faults.environment()
    faults.plan()  # not in this process
    settings = {"directory": str(bench.directory), "ledger": asdict(ledger), "interval": 50}
    old = Program(settings, environment)
    programs.append(old)
    old.wait_until_stopped()
    held = sorted(int(checkpoint.name[4:]) for checkpoint in published(bench))

    env = bench.env(interval=50)
    sink = LedgerSink(bench.directory / "out")
    ledger_stream(env, ledger).sink_to(sink).uid("sink")
    with overriding(Overrides(take_over=True)):
        job = start(env)
    assert job.wait_for("running")["restored"] == held[-1] == 3
    job.finish()
    assert ledger.problems(sink.lines()) == []
    before = everything_below(bench.directory / "out" / "committed"), everything_below(job_home(bench))

    os.kill(old.process.pid, signal.SIGCONT)
    assert old.finish(90) == 4, old.tail()

    assert (everything_below(bench.directory / "out" / "committed"), everything_below(job_home(bench))) == before


def everything_below(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every file with its inode and content."""
    return {
        str(path.relative_to(folder)): (path.stat().st_ino, path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file()
    }


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
@pytest.mark.parametrize("kills", [1, 10])
def test_an_executor_that_is_killed_costs_one_restart_and_no_record(
    tmp_path: Path, programs: list[Program], kills: int
) -> None:
    go = tmp_path / "go"
    ledger = Ledger(length=500 + 100 * kills, rate=1_000, faults=1, fault_log=str(go))
    settings = {
        "directory": str(tmp_path),
        "ledger": asdict(ledger),
        "master": "local-cluster[2,4,1024]",
        "restarts": 2 * kills,
    }
    program = Program(settings)
    programs.append(program)
    for done in range(kills):
        since = program.wait_until(lambda status: status["status"] == "RUNNING")["checkpoints_completed"]
        program.wait_until(lambda status, since=since: status["checkpoints_completed"] >= since + 2)
        kill_an_executor(program)
        program.wait_until(lambda status, done=done: status["restarts"] > done and status["status"] == "RUNNING")
        assert program.status()["restarts"] == done + 1
    go.mkdir()
    (go / "now").touch()
    assert program.finish() == 0, program.tail()

    assert ledger.problems(LedgerSink(tmp_path / "out").lines()) == []
    assert program.status()["restarts"] == kills
    found = [open_checkpoint(f"file://{checkpoint}").metadata for checkpoint in published(Place(tmp_path))]
    assert found
    for metadata in found:
        # Heap snapshots are whole: what a dead attempt stored is no part of a later attempt's checkpoint.
        others = [path for path in files_of(metadata) if f"attempt-{metadata.attempt:06d}" not in path]
        assert others == []
