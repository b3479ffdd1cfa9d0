"""What can happen to checkpoints. The driver reports each fact to `CheckpointLifecycle.handle` as it learns of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from headrace.checkpoint.handles import CheckpointId, TaskSnapshot
from headrace.errors import CheckpointFailure


class TaskId(NamedTuple):
    """One of the parallel tasks of the job: a slot of a level."""

    level: int
    slot: int


@dataclass(frozen=True, slots=True)
class TasksRunning:
    """All tasks of the attempt have restored and run; the first interval starts now."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed. Due at `next_wakeup_ms`; harmless at any other moment."""


@dataclass(frozen=True, slots=True)
class SavepointRequested:
    """A person asked for a savepoint; `request` comes back in exactly one of SavepointCompleted, SavepointFailed."""

    request: str
    target: str | None
    stop: bool = False
    """Stop the job after it: sources emit nothing behind its barrier."""
    drain: bool = False
    """With `stop`: send the MAX watermark first, so that windows and timers fire for the last time."""


@dataclass(frozen=True, slots=True)
class TaskAcknowledged:
    """The task's part of the checkpoint is durable."""

    checkpoint_id: CheckpointId
    task: TaskId
    snapshot: TaskSnapshot


@dataclass(frozen=True, slots=True)
class TaskDeclined:
    """The task cannot take part in the checkpoint."""

    checkpoint_id: CheckpointId
    task: TaskId
    failure: CheckpointFailure
    detail: str = ""


@dataclass(frozen=True, slots=True)
class TaskDrained:
    """All input of the task has ended, and it has emitted what it emits at the end of input."""

    task: TaskId


@dataclass(frozen=True, slots=True)
class Published:
    """The `_metadata` of the checkpoint exists, and this attempt still owned the job afterwards."""

    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class PublishFailed:
    """The `_metadata` was not published, or, if `unknown`, may or may not have been."""

    checkpoint_id: CheckpointId
    failure: CheckpointFailure
    detail: str = ""
    unknown: bool = False


@dataclass(frozen=True, slots=True)
class TaskCommitted:
    """The task's sinks have committed everything up to the checkpoint."""

    checkpoint_id: CheckpointId
    task: TaskId


@dataclass(frozen=True, slots=True)
class Stopping:
    """The attempt is coming to its end: cancelled, suspended or failed. Nothing new begins."""


Fact: TypeAlias = (
    TasksRunning
    | Tick
    | SavepointRequested
    | TaskAcknowledged
    | TaskDeclined
    | TaskDrained
    | Published
    | PublishFailed
    | TaskCommitted
    | Stopping
)
