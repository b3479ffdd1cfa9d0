"""`headrace run` on real Spark: its lines, its exit codes, and that the same command resumes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from programs import descendants_of

from headrace.cli.main import main

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark_slots")]

READY = re.compile(r'headrace: job "(?P<job>[^"]+)" running, pid (?P<pid>\d+), attempt (?P<attempt>\d+), (?P<rest>.*)')

JOB = """
import sys
from pathlib import Path
from headrace import *

last, rate, output, poison = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3], sys.argv[4:]
if Path("hurry").exists():
    rate = 100_000.0


def double(n):
    if poison and n == int(poison[0]):
        raise LookupError(f"no place for {n}")
    return 2 * n


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(2)
env.enable_checkpointing(100)
env.set_restart_strategy(RestartStrategies.no_restart())
numbers = env.from_source(NumberSequenceSource(1, last, rate=rate), WatermarkStrategy.no_watermarks(), "numbers")
doubled = numbers.map(double).name("doubling").uid("doubler")
doubled.key_by(lambda n: n % 10).map(lambda n: n).sink_to(FileSink.text(output))
env.execute("doubles")
"""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The program, in a working directory of its own, with a state directory of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADRACE_STATE_DIR", str(tmp_path / "state"))
    file = tmp_path / "job.py"
    file.write_text(JOB)
    return file


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["run", "job.py", *arguments])


def output(directory: Path) -> list[int]:
    return sorted(int(line) for file in directory.glob("part-*") for line in file.read_text().split())


def status(directory: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((directory / "state" / "doubles.json").read_text())
    return read


def test_a_job_that_ends_says_that_it_runs_and_how_it_ended(job: Path, tmp_path: Path) -> None:
    result = run("--", "500", "100000", "out")
    assert result.exit_code == 0, result.stderr
    ready = READY.search(result.stderr)
    assert ready is not None
    assert (ready["job"], int(ready["pid"]), ready["attempt"]) == ("doubles", os.getpid(), "1")
    assert "coordinator memory, which survives the loss of a task, not of this process" in ready["rest"]
    assert 'job "doubles" finished after ' in result.stderr
    assert output(tmp_path / "out") == [2 * n for n in range(1, 501)]
    assert status(tmp_path)["status"] == "FINISHED"


def test_the_users_own_error_is_shown_with_operator_uid_record_and_line(job: Path) -> None:
    result = run("--", "500", "100000", "out", "77")
    assert result.exit_code == 1
    line = JOB.splitlines().index('        raise LookupError(f"no place for {n}")') + 1
    assert "the job's own code failed: LookupError: no place for 77" in result.stderr
    assert 'operator   "doubling", uid "doubler"' in result.stderr
    assert "record     77" in result.stderr
    assert f"job.py:{line}" in result.stderr
    assert "Traceback" not in result.stderr


def test_verbose_adds_the_traceback(job: Path) -> None:
    result = run("--verbose", "--", "500", "100000", "out", "77")
    assert result.exit_code == 1
    assert "Traceback (most recent call last)" in result.stderr
    assert "record     77" in result.stderr


def test_a_master_that_cannot_be_had_refuses_the_start(job: Path, tmp_path: Path) -> None:
    result = run("--master", "local[1]", "--", "500", "100000", "out")
    assert result.exit_code == 3
    assert "wanted local[1]" in result.stderr
    assert output(tmp_path / "out") == []


def test_a_checkpoint_that_is_not_there_refuses_the_start(job: Path) -> None:
    result = run("--from", "nowhere/chk-7", "--", "500", "100000", "out")
    assert result.exit_code == 3, result.stderr
    assert "nowhere/chk-7" in result.stderr


def test_the_command_line_wins_over_the_program(job: Path, tmp_path: Path) -> None:
    result = run("-p", "1", "--backend", "rocksdb", "--checkpoint-dir", "ck", "--", "200", "100000", "out")
    assert result.exit_code == 0, result.stderr
    assert sorted(status(tmp_path)["task_pids"]) == ["0.0", "1.0"]
    assert status(tmp_path)["storage"] == (tmp_path / "ck").as_uri()


@pytest.mark.timeout(600)
def test_ctrl_c_suspends_and_the_same_command_resumes_while_a_second_owner_is_refused(
    job: Path, tmp_path: Path
) -> None:
    # So slow that it cannot end before it is asked to; the same command is quick later.
    arguments = ["--checkpoint-dir", "ck", "--", "8000", "40", "out"]
    command = [sys.executable, "-m", "headrace.cli", "run", "job.py", *arguments]
    first = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert first.stderr is not None
        said = []
        for line in first.stderr:
            said.append(line)
            if READY.search(line):
                break
        assert READY.search(said[-1]), said

        second = run(*arguments)
        assert second.exit_code == 4, second.stderr
        assert f"is run by process {first.pid}" in second.stderr
        assert "--take-over" in second.stderr

        # Not before something is committed: resuming from nothing would prove less.
        while not output(tmp_path / "out"):
            with suppress(subprocess.TimeoutExpired):
                pytest.fail(f"ended with {first.wait(0.05)} before it committed: {first.stderr.read()}")
        first.send_signal(signal.SIGINT)
        rest = first.stderr.read()
        assert first.wait(180) == 130, rest
        suspended = re.search(r"The same command resumes from checkpoint (\d+)", rest)
        assert suspended is not None, rest
        assert status(tmp_path)["status"] == "SUSPENDED"
    finally:
        if first.poll() is None:
            first.kill()
            first.wait()
    before = output(tmp_path / "out")
    assert 0 < len(before) < 8_000

    (tmp_path / "hurry").touch()
    resumed = run(*arguments)
    assert resumed.exit_code == 0, resumed.stderr
    assert f"restored from checkpoint {suspended[1]}" in resumed.stderr
    assert output(tmp_path / "out") == [2 * n for n in range(1, 8_001)]


def test_a_supervisor_that_asks_it_to_stop_suspends_it_too(job: Path, tmp_path: Path) -> None:
    ready = threading.Event()

    def stop_when_ready() -> None:
        # From within the process: the handler is the command's own, and it was set before the job began.
        while not ready.wait(0.05):
            with suppress(OSError, ValueError):
                if status(tmp_path)["checkpoints_completed"]:
                    os.kill(os.getpid(), signal.SIGTERM)
                    return

    supervisor = threading.Thread(target=stop_when_ready)
    supervisor.start()
    result = run("--checkpoint-dir", "ck", "--", "1000000", "100", "out")
    ready.set()
    supervisor.join()
    assert result.exit_code == 130, result.stderr
    assert "The same command resumes from checkpoint" in result.stderr


CLINGING = """
import sys
import threading
from headrace import *


class Clinging(NumberSequenceSource):
    def create_enumerator(self, context, restored):
        enumerator = super().create_enumerator(context, restored)
        if sys.argv[1] == "cling":
            enumerator.close = threading.Event().wait  # never comes back
        return enumerator


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(1)
env.enable_checkpointing(100)
# So slow that it cannot end before it is asked to.
clinging = Clinging(1, 4_000, rate=20 if sys.argv[1] == "cling" else 100_000)
numbers = env.from_source(clinging, WatermarkStrategy.no_watermarks(), "numbers").uid("numbers")
numbers.key_by(lambda n: n % 10).map(lambda n: n).uid("same").sink_to(FileSink.text("out")).uid("files")
env.execute("doubles")
"""


@pytest.mark.timeout(400)
def test_a_second_ctrl_c_ends_at_once_what_the_first_could_not_suspend(job: Path, tmp_path: Path) -> None:
    job.write_text(CLINGING)
    command = [sys.executable, "-m", "headrace.cli", "run", "job.py", "--checkpoint-dir", "ck", "--"]
    first = subprocess.Popen([*command, "cling"], stderr=subprocess.PIPE, text=True, start_new_session=True)
    family = []
    try:
        assert first.stderr is not None
        _read_until(first, READY.search)
        while not output(tmp_path / "out"):
            with suppress(subprocess.TimeoutExpired):
                pytest.fail(f"ended with {first.wait(0.05)} before it committed: {first.stderr.read()}")
        family = descendants_of(first.pid)
        first.send_signal(signal.SIGINT)
        _read_until(first, re.compile(r'job "doubles" is being suspended; press Ctrl-C again to end at once').search)
        assert first.poll() is None
        first.send_signal(signal.SIGINT)
        rest = first.stderr.read()
        assert first.wait(180) == 130, rest
        assert "ended at once by the second Ctrl-C, without waiting for its tasks" in rest
        told = re.search(r"The same command resumes from checkpoint (\d+)", rest)
        assert told is not None, rest
    finally:
        if first.poll() is None:
            first.kill()
            first.wait()
    _wait_until_gone(family)
    before = output(tmp_path / "out")
    assert 0 < len(before) < 4_000

    resumed = run("--checkpoint-dir", "ck", "--", "let go")
    assert resumed.exit_code == 0, resumed.stderr
    assert f"restored from checkpoint {told[1]}" in resumed.stderr
    assert output(tmp_path / "out") == list(range(1, 4_001))


def _read_until(process: subprocess.Popen[str], wanted: Callable[[str], object]) -> None:
    """Take lines of its standard error until one is as wanted."""
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if wanted(line):
            return
    pytest.fail(f"ended with {process.wait(60)} before: {said}")


def _wait_until_gone(pids: list[int]) -> None:
    """The JVM and its workers end with their driver."""
    pause, deadline = threading.Event(), time.monotonic() + 90
    while alive := [pid for pid in pids if _is_alive(pid)]:
        assert time.monotonic() < deadline, f"{alive} outlive their driver"
        pause.wait(0.1)


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
