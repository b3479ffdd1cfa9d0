"""What snapshots of both backends have in common: their label, and the word for one that was cancelled."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

from headrace.checkpoint.handles import StateShape
from headrace.errors import CheckpointError, CheckpointFailure
from headrace.state.backend import BackendContext

DOMAINS = ("event", "processing")
"""Time domains of timers; in a snapshot two states of kind `timers`, after all others."""


@dataclass(frozen=True, slots=True)
class SnapshotLabel:
    """What a snapshot is called: its checkpoint, its file, its key groups and the shapes of its states."""

    checkpoint_id: int
    file_name: str
    groups: range
    shapes: tuple[StateShape, ...]


def label_of(context: BackendContext, checkpoint_id: int, states: list[StateShape]) -> SnapshotLabel:
    """The label of a snapshot with these states and the timers of both domains."""
    # Uids may hold characters that paths cannot.
    uid = blake2b(context.uid.encode(), digest_size=6).hexdigest()
    timers = (StateShape(domain, "timers", "TIMERS") for domain in DOMAINS)
    return SnapshotLabel(checkpoint_id, f"keyed-{uid}-{context.subtask}", context.key_groups, (*states, *timers))


def cancelled(label: SnapshotLabel) -> CheckpointError:
    """The error of `SnapshotWork.write` after `cancel`."""
    return CheckpointError(CheckpointFailure.DECLINED, label.checkpoint_id, "its snapshot was cancelled")
