"""What the driver is to do, in the order given. It performs actions and reports back with facts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from headrace.checkpoint.handles import CheckpointId, TaskSnapshot
from headrace.checkpoint.metadata.model import CheckpointKind
from headrace.errors import CheckpointFailure


@dataclass(frozen=True, slots=True)
class TriggerCheckpoint:
    """Take the enumerators' state and send the trigger, in one step."""

    checkpoint_id: CheckpointId
    kind: CheckpointKind
    final: bool = False
    unaligned: bool = False
    """Send the trigger to all tasks, which take their snapshots at once; else to those with sources only."""
    request: str | None = None
    target: str | None = None
    stop: bool = False
    drain: bool = False


@dataclass(frozen=True, slots=True)
class Publish:
    """All tasks have acknowledged: write `_metadata`, then report Published or PublishFailed. One at a time."""

    checkpoint_id: CheckpointId
    kind: CheckpointKind
    snapshots: tuple[TaskSnapshot, ...]
    triggered_ms: int
    """On the clock that the lifecycle is given: for how long it took, not for when it was."""
    duration_ms: int
    final: bool = False
    target: str | None = None
    stop: bool = False


@dataclass(frozen=True, slots=True)
class NotifyComplete:
    """Tell all tasks that the checkpoint is durable.

    With `commit` sinks commit everything up to it and tasks answer TaskCommitted. A savepoint that does not
    stop the job commits nothing: recovery goes back to the last *checkpoint* and would write that output again.
    """

    checkpoint_id: CheckpointId
    commit: bool = True


@dataclass(frozen=True, slots=True)
class NotifyAbort:
    """Tell all tasks that the checkpoint is over; prepared output stays with its sink for the next one."""

    checkpoint_id: CheckpointId
    failure: CheckpointFailure
    detail: str = ""
    """What went wrong, in the words of whoever noticed."""


@dataclass(frozen=True, slots=True)
class DropCheckpoints:
    """Delete these: completed ones beyond `retain`, and what older abandoned ones left. Then collect shared files."""

    checkpoint_ids: tuple[CheckpointId, ...]


@dataclass(frozen=True, slots=True)
class DiscardPending:
    """Delete these files of an abandoned checkpoint; shared ones are not among them."""

    checkpoint_id: CheckpointId
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DiscardLate:
    """An acknowledgement that changes nothing: delete `files`, which no live checkpoint names."""

    checkpoint_id: CheckpointId
    snapshot: TaskSnapshot
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FailJob:
    """Too many checkpoints failed in a row, or another attempt owns the job."""

    reason: str
    failures: int


@dataclass(frozen=True, slots=True)
class RestoreLatest:
    """The savepoint that was to stop the job failed after sources had stopped: go on from the last checkpoint,
    in a new attempt that no restart strategy counts."""

    reason: str


@dataclass(frozen=True, slots=True)
class SavepointCompleted:
    """Answer to SavepointRequested: it is durable."""

    request: str
    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class SavepointFailed:
    """Answer to SavepointRequested: there is none."""

    request: str
    reason: str


@dataclass(frozen=True, slots=True)
class ReleaseJob:
    """Every task has committed the last checkpoint: let level 0 return."""


Action: TypeAlias = (
    TriggerCheckpoint
    | Publish
    | NotifyComplete
    | NotifyAbort
    | DropCheckpoints
    | DiscardPending
    | DiscardLate
    | FailJob
    | RestoreLatest
    | SavepointCompleted
    | SavepointFailed
    | ReleaseJob
)
