"""What other programs can read about a job: the status file and the event log."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.status import report_of
from headrace.plan.settings import JobSettings
from headrace.runtime.job import status_file
from headrace.runtime.job.observers import attach_observers
from headrace.runtime.job.running_jobs import last_reports
from headrace.runtime.job.status import CheckpointReport, JobStatus, StatusBoard, StatusReport
from headrace.runtime.job.status_text import duration, size_text

SETTINGS = JobSettings("alerts", "alerts")

JOB_OF_ANOTHER_PROCESS = """
import signal
from headrace.plan.settings import JobSettings
from headrace.runtime.job.observers import attach_observers
from headrace.runtime.job.status import StatusBoard, StatusReport

board = StatusBoard(StatusReport(job_id="alerts", name="alerts", pid=1))
closing = attach_observers(board, JobSettings("alerts", "alerts"))
board.update(records_read=5)
print("written", flush=True)
signal.pause()
"""


@pytest.fixture
def board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StatusBoard:
    monkeypatch.setenv("HEADRACE_STATE_DIR", str(tmp_path / "state"))
    return StatusBoard(StatusReport(job_id="alerts", name="alerts", pid=4711))


def test_the_status_file_holds_what_a_watcher_needs(board: StatusBoard, tmp_path: Path) -> None:
    job = attach(board)
    board.update(
        status=JobStatus.RUNNING,
        attempt=3,
        restarts=2,
        restored_checkpoint=41,
        checkpoints_failed=1,
        tolerated_failures=1,
        task_pids={"0.0": 4712},
        last_checkpoint=CheckpointReport(42, "checkpoint", 1_700_000_000_000, 110, 5_000, 400, 5, 3),
    )
    end(job)
    file = tmp_path / "state" / "alerts.json"
    status = json.loads(file.read_text())
    wanted = {
        "status": "RUNNING",
        "pid": 4711,
        "attempt": 3,
        "restarts": 2,
        "restored_checkpoint": 41,
        "tolerated_failures": 1,
        "task_pids": {"0.0": 4712},
    }
    assert {name: status[name] for name in wanted} == wanted
    assert status["last_checkpoint"]["checkpoint_id"] == 42
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in file.parent.iterdir()] == ["alerts.json"]


def another(pid: int) -> StatusBoard:
    """A second job of the same id, with another checkpoint directory perhaps."""
    return StatusBoard(StatusReport(job_id="alerts", name="alerts", pid=pid))


def attach(board: StatusBoard) -> list[Callable[[], None]]:
    return attach_observers(board, SETTINGS)


def end(*jobs: list[Callable[[], None]]) -> None:
    for close in (close for closing in jobs for close in closing):
        close()


def pids(state: Path) -> dict[str, int]:
    return {path.name: json.loads(path.read_text())["pid"] for path in state.glob("*.json")}


def test_of_two_live_jobs_of_one_id_each_keeps_a_file_of_its_own(board: StatusBoard, tmp_path: Path) -> None:
    second = another(4712)
    jobs = attach(board), attach(second)
    for read in range(3):
        board.update(records_read=read)
        second.update(records_read=read)
        assert pids(tmp_path / "state") == {"alerts.json": 4711, "alerts.2.json": 4712}
    assert sorted(report["pid"] for report in last_reports()) == [4711, 4712]
    end(*jobs)


def test_the_plain_name_is_free_again_when_its_job_has_ended(board: StatusBoard, tmp_path: Path) -> None:
    end(attach(board))
    second = attach(another(4712))
    assert pids(tmp_path / "state") == {"alerts.json": 4712}
    end(second)


def test_a_killed_job_does_not_keep_its_file(board: StatusBoard, tmp_path: Path) -> None:
    state = tmp_path / "state"
    with subprocess.Popen([sys.executable, "-c", JOB_OF_ANOTHER_PROCESS], stdout=subprocess.PIPE, text=True) as killed:
        try:
            assert killed.stdout is not None
            assert killed.stdout.readline() == "written\n"
            end(attach(another(2)))
            assert pids(state) == {"alerts.json": 1, "alerts.2.json": 2}
        finally:
            killed.kill()
    job = attach(board)
    assert pids(state) == {"alerts.json": 4711, "alerts.2.json": 2}
    end(job)


def test_of_many_jobs_that_start_at_once_each_has_its_own_file(board: StatusBoard, tmp_path: Path) -> None:
    state = tmp_path / "state"
    for _ in range(2):  # first with nothing there, then over files of jobs that have ended
        boards = [another(number) for number in range(8)]
        with ThreadPoolExecutor(8) as pool:
            jobs = list(pool.map(attach, boards))
        for each in boards:
            each.update(records_read=1)
        found = pids(state)
        assert sorted(found.values()) == list(range(8))
        assert set(found) == {"alerts.json", *(f"alerts.{number}.json" for number in range(2, 9))}
        end(*jobs)


def test_a_state_directory_that_hangs_delays_neither_a_report_nor_the_end_of_the_job(
    board: StatusBoard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_file, "FLUSH_S", 0.05)
    job = attach(board)
    hangs, answers = threading.Event(), threading.Event()
    real = os.replace

    def hang(*paths: Any) -> None:
        hangs.set()
        answers.wait()
        real(*paths)

    monkeypatch.setattr(os, "replace", hang)
    try:
        for read in range(1_000):
            board.update(records_read=read)
        assert hangs.wait(30)
        end(job)
    finally:
        answers.set()
    for thread in threading.enumerate():
        if thread.name == "status-file":
            thread.join(30)
    assert json.loads((tmp_path / "state" / "alerts.json").read_text())["records_read"] == 999, "the newest is written"


def test_of_an_ended_job_the_newest_report_of_that_name_is_shown(board: StatusBoard, tmp_path: Path) -> None:
    second = another(4712)
    jobs = attach(board), attach(second)
    board.update(status=JobStatus.FAILED)
    second.update(status=JobStatus.FINISHED)
    end(*jobs)
    for name, at_ms in (("alerts.json", 1), ("alerts.2.json", 2)):
        path = tmp_path / "state" / name
        path.write_text(json.dumps({**json.loads(path.read_text()), "updated_at_ms": at_ms}))
    assert report_of("alerts")["status"] == "FINISHED"


def test_a_job_runs_where_no_status_can_be_kept(
    board: StatusBoard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("HEADRACE_STATE_DIR", str(tmp_path / "file" / "state"))
    attach_observers(board, SETTINGS)
    board.update(status=JobStatus.RUNNING)


def test_the_event_log_goes_on_where_a_killed_process_left_off(
    board: StatusBoard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "events.jsonl"
    monkeypatch.setenv("HEADRACE_EVENT_LOG", str(log))
    for attempt in (1, 2):
        closing = attach_observers(board, SETTINGS)
        board.event("running", attempt=attempt, restored=None)
        board.listeners.clear()
        board.event_listeners.clear()
        if attempt == 2:
            for close in closing:
                close()
    kinds = [json.loads(line)["kind"] for line in log.read_text().splitlines()]
    assert kinds == ["opened", "running", "opened", "running"]


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.0, "0.0 ms"),
        (0.0123, "12 ms"),
        (0.9996, "1.0 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min"),
        (75, "1 min 15 s"),
        (3_600, "1 h"),
        (7_300, "2 h 1 min"),
        (90_000, "1 d 1 h"),
        (40_000_000, "1.3 years"),
    ],
)
def test_durations_are_short(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


def test_sizes_are_short() -> None:
    shown = [size_text(n) for n in (0, 999, 2_048, 5_400_000, 3 * 2**30, 5 * 2**40)]
    assert shown == ["0 B", "999 B", "2.0 KiB", "5.1 MiB", "3.0 GiB", "5.0 TiB"]
