"""A checkpoint that every task has acknowledged."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headrace.checkpoint.handles import CheckpointId, TaskSnapshot
from headrace.checkpoint.lifecycle.actions import Publish, TriggerCheckpoint
from headrace.checkpoint.metadata.model import task_files


@dataclass(frozen=True, slots=True)
class CompletedCheckpoint:
    """Has all its parts; durable as soon as its metadata is published."""

    trigger: TriggerCheckpoint
    snapshots: tuple[TaskSnapshot, ...]
    triggered_ms: int
    completed_ms: int

    @property
    def checkpoint_id(self) -> CheckpointId:
        return self.trigger.checkpoint_id

    @property
    def files(self) -> frozenset[str]:
        """Paths of the files that belong to this checkpoint alone."""
        return own_files(self.snapshots)

    def publication(self) -> Publish:
        return Publish(
            checkpoint_id=self.trigger.checkpoint_id,
            kind=self.trigger.kind,
            snapshots=self.snapshots,
            triggered_ms=self.triggered_ms,
            duration_ms=self.completed_ms - self.triggered_ms,
            final=self.trigger.final,
            target=self.trigger.target,
            stop=self.trigger.stop,
        )


def own_files(snapshots: Iterable[TaskSnapshot]) -> frozenset[str]:
    """Paths of files that no other checkpoint can name: neither inline nor shared."""
    return frozenset(
        file.path for snapshot in snapshots for file in task_files(snapshot) if file.path and not file.shared
    )
