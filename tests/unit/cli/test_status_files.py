"""What other programs can read about a job: the status file and the event log."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from headrace.plan.settings import JobSettings
from headrace.runtime.job.observers import attach_observers
from headrace.runtime.job.status import CheckpointReport, JobStatus, StatusBoard, StatusReport
from headrace.runtime.job.status_text import duration, size_text

SETTINGS = JobSettings("alerts", "alerts")


@pytest.fixture
def board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StatusBoard:
    monkeypatch.setenv("HEADRACE_STATE_DIR", str(tmp_path / "state"))
    return StatusBoard(StatusReport(job_id="alerts", name="alerts", pid=4711))


def test_the_status_file_holds_what_a_watcher_needs(board: StatusBoard, tmp_path: Path) -> None:
    attach_observers(board, SETTINGS)
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
