"""Spark's JVM dies alone: a job goes on in a new one, or ends with the cause where Spark was not Headrace's own."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from ledger import Ledger, LedgerSink
from programs import Program, jvm_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


def until(condition: Callable[[], object], program: Program, timeout: float = 200) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert program.process.poll() is None, program.tail()
        assert time.monotonic() < deadline, f"not within {timeout:g} s: {program.status()} {program.tail()}"
        time.sleep(0.02)


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def until_gone(pids: list[int], timeout: float = 60) -> None:
    deadline = time.monotonic() + timeout
    while left := [pid for pid in pids if not gone(pid)]:
        assert time.monotonic() < deadline, f"processes are left: {left}"
        time.sleep(0.02)


@pytest.mark.parametrize(
    "moments",
    [
        pytest.param(["after_upload=hang@3#1.0", "restore_file=hang#1.0"], id="in a checkpoint and in the restore"),
        pytest.param(["task_open=hang#0.1"], id="while tasks open", marks=pytest.mark.slow),
    ],
)
def test_the_job_goes_on_in_a_new_jvm_whenever_spark_dies(
    tmp_path: Path, programs: list[Program], faults: Any, moments: list[str]
) -> None:
    """Each death is one failure, with its cause."""
    faults.plan(*moments)
    ledger = Ledger(length=300, rate=2_000).holding_for(faults)
    settings = {"directory": str(tmp_path), "ledger": asdict(ledger), "backend": "rocksdb", "restarts": len(moments)}
    program = Program(settings, faults.environment())
    programs.append(program)

    old: list[int] = []
    for nth in range(1, len(moments) + 1):
        until(lambda nth=nth: len(faults.happened) == nth, program)
        jvm = jvm_of(program)
        old += [pid for pid in program.tree() if pid != program.process.pid]
        os.kill(jvm, signal.SIGKILL)
        cause = f"Spark's JVM (pid {jvm}) died: killed by signal 9"
        program.wait_until(lambda status, cause=cause: cause in status["last_failure"])

    assert program.finish() == 0, program.tail()
    assert ledger.problems(LedgerSink(tmp_path / "out").lines()) == []
    assert program.status()["restarts"] == len(moments)
    until_gone(old)


@pytest.mark.slow
def test_a_job_in_the_programs_own_session_ends_with_the_cause_and_the_same_command_resumes(
    tmp_path: Path, programs: list[Program]
) -> None:
    go = tmp_path / "go"
    ledger = Ledger(length=300, rate=2_000, faults=1, fault_log=str(go))
    settings = {"directory": str(tmp_path), "ledger": asdict(ledger), "own_session": True}
    first = Program(settings)
    programs.append(first)
    first.wait_until(lambda status: status["checkpoints_completed"] >= 3)
    jvm = jvm_of(first)
    old = first.tree()
    os.kill(jvm, signal.SIGKILL)
    assert first.finish(60) == 1, first.tail()
    assert f"SparkLostError: Spark's JVM (pid {jvm}) died: killed by signal 9" in first.tail()
    assert first.status()["restarts"] == 0
    until_gone(old)

    go.mkdir()
    (go / "now").touch()
    second = Program(settings)
    programs.append(second)
    assert second.finish() == 0, second.tail()
    assert second.status()["restored_checkpoint"] is not None
    assert ledger.problems(LedgerSink(tmp_path / "out").lines()) == []
