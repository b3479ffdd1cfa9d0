"""Everything that reaches a coordinator: one closed union of frozen values.

What stems from an attempt carries its number, so that nothing an old attempt left behind (a Spark job that ends late, a
storage call that answers after minutes) can be taken for news of the next one. Requests of people carry none: they are
for whichever attempt runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from headrace.checkpoint.handles import AttemptId, CheckpointId
from headrace.checkpoint.lifecycle.actions import TriggerCheckpoint
from headrace.checkpoint.lifecycle.facts import TaskId
from headrace.errors import HeadraceError, StorageError
from headrace.runtime.control import messages as msg
from headrace.runtime.coordinator.savepoints import SavepointOrder

TaskReport: TypeAlias = (
    msg.Ready
    | msg.SplitRequest
    | msg.Announced
    | msg.Reached
    | msg.Acknowledge
    | msg.Decline
    | msg.Committed
    | msg.Drained
    | msg.Failed
)
"""What a task tells its coordinator. Progress and printed lines are not among them: they go past it."""


# -- from tasks and Spark


@dataclass(frozen=True, slots=True)
class TaskJoined:
    """A task has connected and waits for its state."""

    attempt: AttemptId
    task: TaskId
    pid: int


@dataclass(frozen=True, slots=True)
class TaskSaid:
    """A message of a task, in the order in which it sent them."""

    attempt: AttemptId
    task: TaskId
    message: TaskReport


@dataclass(frozen=True, slots=True)
class TaskLost:
    """The task's connection is gone."""

    attempt: AttemptId
    task: TaskId
    reason: str


@dataclass(frozen=True, slots=True)
class SparkEnded:
    """The Spark job is over."""

    attempt: AttemptId
    error: Exception | None
    task: TaskId | None = None
    """The task that Spark says failed first, where it says so."""


@dataclass(frozen=True, slots=True)
class ResultsUnreadable:
    """Collected results arrived that the driver's process cannot unpack."""

    attempt: AttemptId
    error: Exception


@dataclass(frozen=True, slots=True)
class FeedAdvanced:
    """A Spark query has published a batch for the source with this uid, or has published its last one."""

    attempt: AttemptId
    uid: str


@dataclass(frozen=True, slots=True)
class FeedFailed:
    """A Spark query that feeds the job failed."""

    attempt: AttemptId
    error: HeadraceError


# -- results of I/O


@dataclass(frozen=True, slots=True)
class MetadataPublished:
    """The `_metadata` of the checkpoint exists, and the attempt was current afterwards."""

    attempt: AttemptId
    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class PublicationFailed:
    """The `_metadata` does not exist or, if `unknown`, may exist."""

    attempt: AttemptId
    checkpoint_id: CheckpointId
    error: StorageError
    unknown: bool


@dataclass(frozen=True, slots=True)
class Removed:
    """A removal is over; with `error` only a part of it was done."""

    attempt: AttemptId
    checkpoint_ids: tuple[CheckpointId, ...]
    error: StorageError | None = None


@dataclass(frozen=True, slots=True)
class SourcesRestored:
    """Every enumerator exists and has its splits back."""

    attempt: AttemptId


@dataclass(frozen=True, slots=True)
class SourcesSaved:
    """The enumerators' state for a checkpoint. Splits assigned before this event belong to the checkpoint."""

    attempt: AttemptId
    trigger: TriggerCheckpoint
    states: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class SourcesLooked:
    """A discovery of new splits is over."""

    attempt: AttemptId
    uid: str | None
    """Of the source that was asked; None if all were that were due."""


@dataclass(frozen=True, slots=True)
class PositionsTaken:
    """The enumerators know where readers stood when they last said so."""

    attempt: AttemptId


@dataclass(frozen=True, slots=True)
class ReaderAddressed:
    """An enumerator has a message for a reader's task."""

    attempt: AttemptId
    task: TaskId
    message: msg.Message


@dataclass(frozen=True, slots=True)
class OutputHandedOver:
    """The program's functions have taken the output of the checkpoint."""

    attempt: AttemptId
    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class WorkFailed:
    """I/O or the program's code on an I/O thread raised something that ends the attempt."""

    attempt: AttemptId
    error: Exception


# -- requests of people, and of the lease


class Command(Enum):
    """How a person ends a job."""

    CANCEL = "cancel"
    SUSPEND = "suspend"


@dataclass(frozen=True, slots=True)
class SavepointWanted:
    """Somebody asks for a savepoint."""

    order: SavepointOrder


@dataclass(frozen=True, slots=True)
class OwnershipLost:
    """The lease on the job's directory is somebody else's now."""

    reason: str


AttemptEvent: TypeAlias = (
    TaskJoined
    | TaskSaid
    | TaskLost
    | SparkEnded
    | ResultsUnreadable
    | FeedAdvanced
    | FeedFailed
    | MetadataPublished
    | PublicationFailed
    | Removed
    | SourcesRestored
    | SourcesSaved
    | SourcesLooked
    | PositionsTaken
    | ReaderAddressed
    | OutputHandedOver
    | WorkFailed
)
"""Of one attempt, and dropped by every other."""

Event: TypeAlias = AttemptEvent | Command | SavepointWanted | OwnershipLost
