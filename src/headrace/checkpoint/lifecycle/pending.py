"""A checkpoint that was triggered and waits for its tasks."""

from __future__ import annotations

from headrace.checkpoint.handles import CheckpointId, TaskSnapshot
from headrace.checkpoint.lifecycle.actions import TriggerCheckpoint
from headrace.checkpoint.lifecycle.completed import CompletedCheckpoint, own_files
from headrace.checkpoint.lifecycle.facts import TaskId


class PendingCheckpoint:
    """Collects one acknowledgement from each task; `complete` ends its life."""

    __slots__ = ("_acknowledged", "_waiting_for", "deadline_ms", "trigger", "triggered_ms")

    def __init__(self, trigger: TriggerCheckpoint, tasks: frozenset[TaskId], now_ms: int, timeout_ms: int) -> None:
        self.trigger = trigger
        self.triggered_ms = now_ms
        self.deadline_ms = now_ms + timeout_ms
        self._waiting_for = set(tasks)
        self._acknowledged: dict[TaskId, TaskSnapshot] = {}

    @property
    def checkpoint_id(self) -> CheckpointId:
        return self.trigger.checkpoint_id

    @property
    def waiting_for(self) -> frozenset[TaskId]:
        return frozenset(self._waiting_for)

    @property
    def files(self) -> frozenset[str]:
        """Paths of the files acknowledged so far that belong to this checkpoint alone."""
        return own_files(self._acknowledged.values())

    def acknowledge(self, task: TaskId, snapshot: TaskSnapshot) -> bool:
        """Take the task's part; False if it is not waited for (foreign, or here already)."""
        if task not in self._waiting_for:
            return False
        self._waiting_for.remove(task)
        self._acknowledged[task] = snapshot
        return True

    @property
    def is_fully_acknowledged(self) -> bool:
        return not self._waiting_for

    def complete(self, now_ms: int) -> CompletedCheckpoint:
        """What it becomes when every task has acknowledged."""
        if self._waiting_for:
            raise ValueError(f"checkpoint {self.checkpoint_id} still waits for {sorted(self._waiting_for)}")
        snapshots = tuple(self._acknowledged[task] for task in sorted(self._acknowledged))
        return CompletedCheckpoint(self.trigger, snapshots, self.triggered_ms, now_ms)
