"""Which Spark task this Python worker is running, as far as Spark tells its Python side."""

from __future__ import annotations

from typing import NamedTuple

from pyspark import TaskContext


class TaskAttempt(NamedTuple):
    """The identity of a running Spark task."""

    partition_id: int
    """The slot within its level."""
    attempt_number: int
    """0 for the first try. Anything else means that Spark repeated the task by itself, which a job refuses."""
    stage_id: int
    """Differs between the levels of a job and between jobs; never used twice in one Spark application."""
    task_attempt_id: int
    """Unique among all tasks and tries of one Spark application."""


def task_attempt_number() -> TaskAttempt:
    """Return the identity of the task that the calling worker runs. Called by tasks, once, at their start.

    Spark does not tell Python the attempt of the stage. It is not needed: Spark never repeats a stage of pipelined
    levels, and a job of one level has no shuffle whose loss could make Spark repeat it.
    """
    context = TaskContext.get()
    if context is None:
        raise RuntimeError("task_attempt_number() was called outside a Spark task: only a task has an attempt.")
    return TaskAttempt(context.partitionId(), context.attemptNumber(), context.stageId(), context.taskAttemptId())
