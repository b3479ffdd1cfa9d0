"""What people read about a checkpoint that failed: its cause, in the log line and in the status."""

from __future__ import annotations

import pytest

from headrace.clocks import SYSTEM_CLOCKS
from headrace.errors import CheckpointFailure
from headrace.plan.settings import JobSettings
from headrace.runtime.job.reporting import BoardReporter
from headrace.runtime.job.status import JobEvent, StatusBoard, StatusReport
from headrace.runtime.job.status_text import event_text

DETAIL = "task 1.0: [Errno 28] No space left on device"


@pytest.fixture
def board() -> StatusBoard:
    return StatusBoard(StatusReport(job_id="job", name="job"))


def test_a_tolerated_failure_names_its_cause_in_log_and_status(board: StatusBoard) -> None:
    told: list[JobEvent] = []
    board.event_listeners.append(told.append)
    reporter = BoardReporter(board, 1, "file:///c", None, SYSTEM_CLOCKS)
    reporter.checkpoint_failed(7, CheckpointFailure.STORAGE, DETAIL, 2)
    assert [(event.kind, event.detail) for event in told] == [
        ("checkpoint-failed", {"checkpoint_id": 7, "reason": "storage failed", "detail": DETAIL})
    ]
    line = event_text(told[0], board.report, JobSettings("job", "job"))
    assert line.endswith(f"checkpoint 7 failed: storage failed: {DETAIL}")
    assert board.report.last_failure == f"Checkpoint 7 failed: storage failed: {DETAIL}"
    assert (board.report.checkpoints_failed, board.report.tolerated_failures) == (1, 2)


def test_a_checkpoint_that_ends_with_the_job_is_no_failure_of_it(board: StatusBoard) -> None:
    reporter = BoardReporter(board, 1, "file:///c", None, SYSTEM_CLOCKS)
    reporter.checkpoint_failed(7, CheckpointFailure.JOB_STOPPING, "the job is stopping", 0)
    assert board.report.last_failure == ""
