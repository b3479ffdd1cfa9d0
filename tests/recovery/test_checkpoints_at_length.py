"""What takes long on Spark: hundreds of checkpoints with kills, changes of width, the same job started twice."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

import pytest
from every_state import expected
from every_state_job import EVENTS, RULES
from ledger import Ledger, LedgerSink, ledger_stream
from programs import Program

from headrace import ExternalizedCheckpointRetention
from headrace.checkpoint.collection import audit, collect
from headrace.checkpoint.job_directory import JobDirectory
from headrace.checkpoint.metadata.model import files_of
from headrace.checkpoint.places import JobPlace
from headrace.checkpoint.storage.filesystem import FileSystemCheckpointStorage
from headrace.checkpoint.verification import verify

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

HERE = Path(__file__).parent
WIDTHS = (3, 5, 3)


def further_checkpoints(program: Program, count: int) -> None:
    """Wait until so many more have been completed."""
    program.wait_until(lambda status: status.get("checkpoints_completed", 0) >= 1)
    known = program.status()["checkpoints_completed"]
    program.wait_until(lambda status: status["checkpoints_completed"] >= known + count)


def on_disk(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}


def test_after_200_checkpoints_on_spark_with_aborts_and_kills_every_file_is_accounted_for(
    bench: Any, start: Any, faults: Any
) -> None:
    random = Random(4711)
    # Checkpoints that fail in tasks, at moments of their own; besides, tasks are killed from outside.
    faults.plan(*(f"{name}=raise@{random.randrange(5, 60)}" for name in ("after_upload", "before_ack")))
    go = bench.directory / "go"
    ledger = Ledger(length=2_500, rate=400, faults=1, fault_log=str(go))
    sink = LedgerSink(bench.directory / "out")
    env = bench.env(interval=40, backend="rocksdb", restarts=60)
    config = env.get_checkpoint_config()
    # Nothing travels inside `_metadata`: every file is one on disk.
    config.set_checkpoint_storage(FileSystemCheckpointStorage(str(bench.directory / "checkpoints"), 0))
    config.set_num_retained_checkpoints(2)
    config.set_externalized_checkpoint_retention(ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION)
    ledger_stream(env, ledger).sink_to(sink).uid("sink")
    job = start(env)
    kills = 0
    while len(job.kinds("checkpoint")) < 200:
        soon = max((c["checkpoint_id"] for c in job.kinds("checkpoint")), default=0) + random.randrange(12, 25)
        job.wait_for("checkpoint", lambda checkpoint, soon=soon: checkpoint["checkpoint_id"] >= soon)
        attempt = job.report.attempt
        try:
            os.kill(random.choice(sorted(job.report.task_pids.values())), signal.SIGKILL)
        except ProcessLookupError:
            continue  # the attempt is coming to its end by itself
        kills += 1
        job.wait_for("running", lambda running, attempt=attempt: running["attempt"] > attempt)
    go.mkdir()
    (go / "now").touch()
    result = job.finish(300)
    assert min(kills, result.restarts) >= 5
    assert len(job.kinds("checkpoint")) >= 200
    assert ledger.problems(sink.lines()) == []

    root = bench.directory / "checkpoints"
    storage = FileSystemCheckpointStorage(str(root))
    place = JobPlace(storage, "ledger")
    directory = JobDirectory(storage, "ledger")
    directory.look_at(1)
    counted = directory.completed()
    assert len(counted) == 2
    named = {path for ref in counted for path in (ref.path, *files_of(directory.load(ref)))}
    record = re.compile(r"ledger/(?:lease-\d{6}|run-000001/(?:(?:attempt|restored)-\d{6}|_ended))")
    found = on_disk(root)
    assert named <= found
    assert {item.path for item in audit(place).garbage} == {p for p in found - named if record.fullmatch(p) is None}
    collect(place)
    assert {path for path in on_disk(root) - named if record.fullmatch(path) is None} == set()
    assert verify(place.checkpoints()).findings == ()


def test_every_kind_of_state_goes_from_three_to_five_to_three_subtasks(tmp_path: Path, programs: list[Program]) -> None:
    for stage, width in enumerate(WIDTHS):
        settings = {"directory": str(tmp_path), "parallelism": width, "parts": len(WIDTHS)}
        program = Program(settings, program=HERE / "every_state_job.py")
        programs.append(program)
        if stage == 0:
            program.wait_until(lambda status: status["records_read"] >= len(RULES))
            # The second checkpoint from here on was begun after the rules were read: so everybody knows them.
            further_checkpoints(program, 2)
            (tmp_path / "rules-known").touch()
        if stage < len(WIDTHS) - 1:
            further_checkpoints(program, 4)
            os.kill(program.process.pid, signal.SIGINT)
            assert program.finish() == 130, program.tail()
            (tmp_path / f"go-{stage}").touch()
        else:
            (tmp_path / f"go-{stage}").touch()
            assert program.finish() == 0, program.tail()
    files = [
        file
        for file in (tmp_path / "out").rglob("part-*")
        if not any(p.startswith(("_", ".")) for p in file.relative_to(tmp_path / "out").parts)
    ]
    lines = Counter(line for file in files for line in file.read_text().splitlines())
    # Timers of processing time are an hour away: no end of input makes them fire.
    assert lines == Counter(repr(one) for one in expected(EVENTS, RULES) if one[0] != "later")


def test_an_unaligned_job_with_full_buffers_goes_from_three_to_five_to_three_subtasks(
    tmp_path: Path, programs: list[Program]
) -> None:
    go = tmp_path / "go"
    ledger = Ledger(length=1_500, rate=2_000, splits=7, faults=1, fault_log=str(go))
    for stage, width in enumerate(WIDTHS):
        settings = {"directory": str(tmp_path), "ledger": asdict(ledger), "parallelism": width, "interval": 50}
        program = Program(settings | {"backend": "rocksdb", "mode": "unaligned"})
        programs.append(program)
        if stage < len(WIDTHS) - 1:
            program.wait_until(lambda status: status["checkpoints_completed"] >= 5)
            os.kill(program.process.pid, signal.SIGINT)
            assert program.finish() == 130, program.tail()
        else:
            go.mkdir()
            (go / "now").touch()
            assert program.finish() == 0, program.tail()
    assert ledger.problems(LedgerSink(tmp_path / "out").lines()) == []


@pytest.mark.parametrize("number", range(3))
def test_of_two_processes_that_start_the_same_job_at_the_same_moment_one_runs_it_and_one_is_refused(
    tmp_path: Path, programs: list[Program], number: int
) -> None:
    go = tmp_path / "go"
    ledger = Ledger(length=200, rate=2_000, faults=1, fault_log=str(go))
    settings = {"directory": str(tmp_path), "ledger": asdict(ledger)}
    programs += [Program(settings), Program(settings)]
    first, second = (program.process for program in programs)
    refused = None
    while refused is None:
        for process in (first, second):
            try:
                code = process.wait(0.2)
            except subprocess.TimeoutExpired:
                continue
            assert code == 3, programs[0].tail()
            refused = process
    other = second if refused is first else first
    assert other.poll() is None
    assert f"is run by process {other.pid}" in programs[0].tail()
    go.mkdir()
    (go / "now").touch()
    assert other.wait(150) == 0, programs[0].tail()
    assert ledger.problems(LedgerSink(tmp_path / "out").lines()) == []
