"""A worker dies: the error names its task, in whatever order the driver hears of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_clocks_that_are_set import Job, Machine

from headrace.checkpoint.lifecycle.facts import TaskId
from headrace.runtime.control import messages as msg
from headrace.runtime.coordinator.coordinator import CAUSE_WAIT_MS
from headrace.runtime.coordinator.events import SparkEnded, TaskJoined, TaskLost, TaskSaid
from headrace.runtime.coordinator.outcomes import Outcome
from headrace.runtime.spark.errors import SparkJobError

TASK = TaskId(0, 0)
CRASHED = SparkJobError("A task failed: Python worker exited unexpectedly (crashed)", detail="")


class Watched(Job):
    """Its one task has joined as process 4711 and runs."""

    def __init__(self, home: Path) -> None:
        super().__init__(home, Machine())
        self.hears(TaskJoined(self.number, TASK, 4711))

    def hears(self, event: Any) -> Outcome | None:
        return self.attempt.coordinator.handle(event)

    def later(self) -> Outcome | None:
        self.machine.passes(CAUSE_WAIT_MS)
        return self.attempt.coordinator.on_time()


@pytest.fixture
def job(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


@pytest.mark.parametrize(
    "heard",
    [
        [TaskLost(1, TASK, "closed"), SparkEnded(1, CRASHED, TASK)],
        [SparkEnded(1, CRASHED, TASK), TaskLost(1, TASK, "closed")],
        [SparkEnded(1, CRASHED), TaskLost(1, TASK, "closed")],
        [SparkEnded(1, CRASHED, TASK)],
    ],
    ids=["connection first", "Spark first", "Spark first, without a name", "Spark alone"],
)
def test_the_task_is_named_in_whatever_order_its_end_is_heard(job: Watched, heard: list[Any]) -> None:
    assert job.number == 1
    outcomes = [job.hears(event) for event in heard]
    outcome = outcomes[-1] or job.later()
    assert outcome is not None
    assert "Task 0.0 (pid 4711)" in str(outcome.error)
    assert "Python worker exited unexpectedly" in str(outcome.error)


def test_what_a_task_reports_is_the_cause_even_after_spark_has_ended(job: Watched) -> None:
    assert job.hears(SparkEnded(1, CRASHED)) is None
    report = msg.Failed("ValueError", "the record is odd", operator="odd", uid="odd", location="jobs.py:3")
    outcome = job.hears(TaskSaid(1, TASK, report))
    assert outcome is not None
    assert str(outcome.error) == "the record is odd"


def test_spark_that_ends_before_any_task_joined_is_the_cause_at_once(tmp_path: Path) -> None:
    job = Job(tmp_path, Machine())
    outcome = job.attempt.coordinator.handle(SparkEnded(1, CRASHED))
    assert outcome is not None
    assert outcome.error is CRASHED
