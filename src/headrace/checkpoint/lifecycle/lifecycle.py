"""The coordinator's decisions about checkpoints, as a pure state machine.

    trigger ─▶ PendingCheckpoint ─ all acknowledged ─▶ CompletedCheckpoint ─ published ─▶ retained ─▶ dropped
                     └──────────── declined, timed out, superseded, stopping ──▶ aborted

One instance serves one attempt. The driver calls `handle` from one thread with each fact, performs the
actions in order, and calls again with `Tick` at `next_wakeup_ms`. The clock is an argument, so every race
can be replayed in a unit test; a driver gives that of a steady clock, which nobody can set.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from headrace.checkpoint.handles import CheckpointId, TaskSnapshot
from headrace.checkpoint.lifecycle.actions import (
    Action,
    DiscardLate,
    DiscardPending,
    DropCheckpoints,
    FailJob,
    NotifyAbort,
    NotifyComplete,
    ReleaseJob,
    RestoreLatest,
    SavepointCompleted,
    SavepointFailed,
    TriggerCheckpoint,
)
from headrace.checkpoint.lifecycle.completed import CompletedCheckpoint, own_files
from headrace.checkpoint.lifecycle.facts import (
    Fact,
    Published,
    PublishFailed,
    SavepointRequested,
    Stopping,
    TaskAcknowledged,
    TaskCommitted,
    TaskDeclined,
    TaskDrained,
    TaskId,
    TasksRunning,
    Tick,
)
from headrace.checkpoint.lifecycle.pending import PendingCheckpoint
from headrace.checkpoint.lifecycle.settings import LifecycleSettings
from headrace.errors import CheckpointFailure

UNCOUNTED = frozenset({CheckpointFailure.SUPERSEDED, CheckpointFailure.JOB_STOPPING})
"""Ends of a checkpoint that say nothing about the health of the job."""

FINAL_RETRY_MS = 100
FINAL_RETRY_MAX_MS = 10_000
"""A final checkpoint that failed is tried again after a pause that doubles, so a full disk is no busy loop."""


class CheckpointLifecycle:
    """Decides when checkpoints begin, complete, fail and are dropped, and when the job may end."""

    def __init__(
        self,
        settings: LifecycleSettings,
        tasks: frozenset[TaskId],
        next_id: CheckpointId,
        retained: tuple[CheckpointId, ...] = (),
    ) -> None:
        self._settings = settings
        self._tasks = tasks
        self._next_id = next_id
        self._now_ms = 0

        self._pending: dict[CheckpointId, PendingCheckpoint] = {}
        self._ready: dict[CheckpointId, CompletedCheckpoint] = {}
        """Acknowledged by all, but another one is being published."""
        self._publishing: CompletedCheckpoint | None = None
        self._retained = sorted(retained)
        self._published_files: dict[CheckpointId, frozenset[str]] = {}
        self._undecided: dict[CheckpointId, frozenset[str]] = {}
        """Nobody knows whether they were published, so their files stay until a newer one is."""
        self._leftovers: set[CheckpointId] = set()
        """Abandoned ones, whose tasks may have stored files they never acknowledged."""

        self._savepoints: deque[SavepointRequested] = deque()
        self._running_since_ms: int | None = None
        self._last_trigger_ms: int | None = None
        self._last_end_ms: int | None = None
        self._failures = 0
        self._drained: set[TaskId] = set()
        self._closed = False

        self._last_id: CheckpointId | None = None
        """The checkpoint that ends the job (final, or a savepoint with stop), from its trigger unless it fails."""
        self._last_published = False
        self._committed: set[TaskId] = set()
        self._released = False
        self._final_failures = 0
        self._final_not_before_ms = 0

    # What status pages may ask

    @property
    def next_id(self) -> CheckpointId:
        return self._next_id

    @property
    def open_ids(self) -> tuple[CheckpointId, ...]:
        """Triggered and neither published nor aborted."""
        return tuple(sorted(checkpoint.checkpoint_id for checkpoint in self._open()))

    @property
    def publishing_id(self) -> CheckpointId | None:
        """The one whose metadata is being published."""
        return None if self._publishing is None else self._publishing.checkpoint_id

    @property
    def undecided_ids(self) -> tuple[CheckpointId, ...]:
        """Nobody knows whether these were published; their shared files are still needed."""
        return tuple(sorted(self._undecided))

    @property
    def retained(self) -> tuple[CheckpointId, ...]:
        return tuple(self._retained)

    @property
    def consecutive_failures(self) -> int:
        return self._failures

    # Facts in, actions out

    def handle(self, fact: Fact, now_ms: int) -> list[Action]:
        """Take note of `fact` and say what is to be done, in order."""
        self._now_ms = now = max(self._now_ms, now_ms)
        actions: list[Action] = []
        match fact:
            case TasksRunning():
                if self._running_since_ms is None:
                    self._running_since_ms = now
            case Tick():
                pass
            case SavepointRequested():
                self._request_savepoint(fact, actions)
            case TaskAcknowledged(checkpoint_id, task, snapshot):
                self._acknowledge(checkpoint_id, task, snapshot, actions)
            case TaskDeclined(checkpoint_id, task, failure, detail):
                if checkpoint_id in self._pending and task in self._tasks:
                    self._abort(self._pending.pop(checkpoint_id), failure, detail, actions)
            case TaskDrained(task):
                if task in self._tasks:
                    self._drained.add(task)
            case Published(checkpoint_id):
                if self._publishing is not None and self._publishing.checkpoint_id == checkpoint_id:
                    self._complete(actions)
            case PublishFailed(checkpoint_id, failure, detail, unknown):
                if self._publishing is not None and self._publishing.checkpoint_id == checkpoint_id:
                    failed, self._publishing = self._publishing, None
                    self._abort(failed, failure, detail, actions, unknown=unknown)
            case TaskCommitted(checkpoint_id, task):
                self._commit(checkpoint_id, task, actions)
            case Stopping():
                self._close(CheckpointFailure.JOB_STOPPING, "the job is stopping", actions)
        self._advance(actions)
        return actions

    def next_wakeup_ms(self, now_ms: int) -> int | None:
        """The moment at which `Tick` is due (perhaps already past), or None if only another fact changes anything."""
        moments = [pending.deadline_ms for pending in self._pending.values()]
        if self._may_trigger() and not self._savepoints:
            due = self._due_ms()
            if due is not None:
                moments.append(due)
        return min(moments, default=None)

    # Facts

    def _request_savepoint(self, request: SavepointRequested, actions: list[Action]) -> None:
        if self._closed or self._last_id is not None or self._released:
            actions.append(SavepointFailed(request.request, "the job is ending and takes no more savepoints"))
        else:
            self._savepoints.append(request)

    def _acknowledge(
        self, checkpoint_id: CheckpointId, task: TaskId, snapshot: TaskSnapshot, actions: list[Action]
    ) -> None:
        pending = self._pending.get(checkpoint_id)
        own = task == (snapshot.level, snapshot.slot)
        if pending is None or not own or not pending.acknowledge(task, snapshot):
            # A retry of the network may repeat an acknowledgement word for word: its files are then in use.
            files = tuple(sorted(own_files((snapshot,)) - self._live_files()))
            actions.append(DiscardLate(checkpoint_id, snapshot, files))
        elif pending.is_fully_acknowledged:
            del self._pending[checkpoint_id]
            self._ready[checkpoint_id] = pending.complete(self._now_ms)

    def _complete(self, actions: list[Action]) -> None:
        """`_metadata` exists. The order matters: tasks hear of the new one before any older one is dropped."""
        assert self._publishing is not None
        done, self._publishing = self._publishing, None
        trigger = done.trigger
        self._last_end_ms = self._now_ms
        self._published_files[trigger.checkpoint_id] = done.files
        actions.append(NotifyComplete(trigger.checkpoint_id, commit=trigger.kind == "checkpoint" or trigger.stop))
        if trigger.request is not None:
            actions.append(SavepointCompleted(trigger.request, trigger.checkpoint_id))
        if trigger.checkpoint_id == self._last_id:
            self._last_published = True
        for older in [c for c in self._open() if c.checkpoint_id < trigger.checkpoint_id]:
            self._forget(older)
            self._abort(older, CheckpointFailure.SUPERSEDED, f"by checkpoint {trigger.checkpoint_id}", actions)
        if trigger.kind == "checkpoint":
            self._failures = 0
            self._retained.append(trigger.checkpoint_id)
            self._drop_older_than(trigger.checkpoint_id, actions)

    def _drop_older_than(self, newest: CheckpointId, actions: list[Action]) -> None:
        beyond = set(self._retained[: -self._settings.retain])
        self._retained = self._retained[-self._settings.retain :]
        for checkpoint_id in beyond:
            self._published_files.pop(checkpoint_id, None)
        stale = {c for c in (*self._leftovers, *self._undecided) if c < newest}
        self._leftovers -= stale
        for checkpoint_id in stale:
            self._undecided.pop(checkpoint_id, None)
        if beyond or stale:
            actions.append(DropCheckpoints(tuple(sorted(beyond | stale))))

    def _commit(self, checkpoint_id: CheckpointId, task: TaskId, actions: list[Action]) -> None:
        if checkpoint_id == self._last_id and self._last_published and task in self._tasks:
            self._committed.add(task)
            if self._committed == self._tasks:
                self._release(actions)

    def _release(self, actions: list[Action]) -> None:
        if not self._released:
            self._released = True
            actions.append(ReleaseJob())

    # Ends of a checkpoint

    def _abort(
        self,
        checkpoint: PendingCheckpoint | CompletedCheckpoint,
        failure: CheckpointFailure,
        detail: str,
        actions: list[Action],
        *,
        unknown: bool = False,
    ) -> None:
        """Give up a checkpoint that is no longer among the open ones."""
        trigger = checkpoint.trigger
        reason = f"{failure.value}: {detail}" if detail else failure.value
        self._last_end_ms = self._now_ms
        actions.append(NotifyAbort(trigger.checkpoint_id, failure, detail))
        if unknown:
            self._undecided[trigger.checkpoint_id] = checkpoint.files
        elif failure is not CheckpointFailure.FENCED:
            # One that is fenced off deletes nothing: the files may belong to its successor.
            files = tuple(sorted(checkpoint.files - self._live_files()))
            actions.append(DiscardPending(trigger.checkpoint_id, files))
            self._leftovers.add(trigger.checkpoint_id)
        if trigger.request is not None:
            actions.append(SavepointFailed(trigger.request, reason))
        if trigger.checkpoint_id == self._last_id:
            self._last_id = None
            if trigger.final:
                pause = FINAL_RETRY_MS << min(self._final_failures, 10)
                self._final_failures += 1
                self._final_not_before_ms = self._now_ms + min(pause, FINAL_RETRY_MAX_MS)
        if self._closed:
            return
        if failure is CheckpointFailure.FENCED:
            actions.append(FailJob(f"Checkpoint {trigger.checkpoint_id} {reason}", self._failures))
            self._close(failure, reason, actions)
        elif trigger.stop and failure is not CheckpointFailure.JOB_STOPPING:
            actions.append(RestoreLatest(f"Savepoint {trigger.checkpoint_id}, which was to stop the job, {reason}"))
            self._close(CheckpointFailure.JOB_STOPPING, "the job restarts from its last checkpoint", actions)
        elif trigger.kind == "checkpoint" and failure not in UNCOUNTED:
            self._failures += 1
            if self._failures > self._settings.tolerable_failures:
                actions.append(
                    FailJob(
                        f"{self._failures} checkpoints failed in a row, {self._settings.tolerable_failures} are "
                        f"tolerated; the last, {trigger.checkpoint_id}, {reason}",
                        self._failures,
                    )
                )
                self._close(CheckpointFailure.JOB_STOPPING, "the job has failed", actions)

    def _close(self, failure: CheckpointFailure, detail: str, actions: list[Action]) -> None:
        """Begin nothing more and give up what is open, except a publication that is under way."""
        if self._closed:
            return
        self._closed = True
        for checkpoint in list(self._open()):
            if checkpoint is not self._publishing:
                self._forget(checkpoint)
                self._abort(checkpoint, failure, detail, actions)
        while self._savepoints:
            actions.append(SavepointFailed(self._savepoints.popleft().request, detail))

    # Time

    def _advance(self, actions: list[Action]) -> None:
        """What follows from the clock and from places that became free."""
        for pending in list(self._pending.values()):
            if pending.deadline_ms <= self._now_ms and pending.checkpoint_id in self._pending:
                self._forget(pending)
                waiting = ", ".join(f"{task.level}/{task.slot}" for task in sorted(pending.waiting_for)[:5])
                detail = f"after {self._settings.timeout_ms} ms, {len(pending.waiting_for)} tasks missing ({waiting})"
                self._abort(pending, CheckpointFailure.TIMED_OUT, detail, actions)
        if self._publishing is None and self._ready:
            # One at a time and the oldest first, so that completion is told in the order of ids.
            self._publishing = self._ready.pop(min(self._ready))
            actions.append(self._publishing.publication())
        while self._may_trigger():
            trigger = self._choose(actions)
            if trigger is None:
                break
            self._begin(trigger, actions)

    def _may_trigger(self) -> bool:
        running = self._running_since_ms is not None or self._all_drained
        if not running or self._closed or self._released or self._last_id is not None:
            return False
        open_now = list(self._open())
        # A newer checkpoint that completed first would end an open savepoint, so none is begun beside it.
        return len(open_now) < self._settings.concurrent_limit and all(c.trigger.kind == "checkpoint" for c in open_now)

    def _choose(self, actions: list[Action]) -> TriggerCheckpoint | None:
        """The next checkpoint to begin, if one is due. Savepoints first, then the final one, then the periodic."""
        if self._savepoints:
            asked = self._savepoints.popleft()
            return TriggerCheckpoint(
                self._next_id,
                "savepoint",
                request=asked.request,
                target=asked.target,
                stop=asked.stop,
                drain=asked.drain,
            )
        if self._all_drained and not self._settings.takes_final:
            if not any(self._open()):
                self._release(actions)
            return None
        due = self._due_ms()
        if due is None or due > self._now_ms:
            return None
        # The last one has nothing to overtake: all input has ended.
        at_once = self._settings.unaligned_at_once and not self._all_drained
        return TriggerCheckpoint(self._next_id, "checkpoint", final=self._all_drained, unaligned=at_once)

    def _due_ms(self) -> int | None:
        """When the next final or periodic checkpoint may begin."""
        if self._all_drained:
            return self._final_not_before_ms if self._settings.takes_final else None
        if self._settings.interval_ms is None or self._running_since_ms is None:
            return None
        last = self._running_since_ms if self._last_trigger_ms is None else self._last_trigger_ms
        due = last + self._settings.interval_ms
        if self._last_end_ms is not None:
            due = max(due, self._last_end_ms + self._settings.min_pause_ms)
        return due

    def _begin(self, trigger: TriggerCheckpoint, actions: list[Action]) -> None:
        self._next_id += 1
        if trigger.kind == "checkpoint":
            self._last_trigger_ms = self._now_ms
        if trigger.final or trigger.stop:
            self._last_id = trigger.checkpoint_id
        self._pending[trigger.checkpoint_id] = PendingCheckpoint(
            trigger, self._tasks, self._now_ms, self._settings.timeout_ms
        )
        actions.append(trigger)

    # Bookkeeping

    @property
    def _all_drained(self) -> bool:
        return self._drained == self._tasks

    def _open(self) -> Iterator[PendingCheckpoint | CompletedCheckpoint]:
        yield from self._pending.values()
        yield from self._ready.values()
        if self._publishing is not None:
            yield self._publishing

    def _forget(self, checkpoint: PendingCheckpoint | CompletedCheckpoint) -> None:
        self._pending.pop(checkpoint.checkpoint_id, None)
        self._ready.pop(checkpoint.checkpoint_id, None)

    def _live_files(self) -> set[str]:
        """Files that an open, published or undecided checkpoint names."""
        live: set[str] = set()
        for checkpoint in self._open():
            live |= checkpoint.files
        return live.union(*self._published_files.values(), *self._undecided.values())
