"""One life of a job, between two failures: claims its number, restores, runs the Spark job, takes checkpoints.

The coordinator loop is one thread. It turns events (messages of tasks, Spark's end, commands, the clock) into facts
for the pure lifecycle and performs the actions that come back.
"""

from __future__ import annotations

import contextlib
import queue
import secrets
import threading
import time
from collections.abc import Callable
from typing import Any

from headrace import failpoints
from headrace.checkpoint.job_directory import JobDirectory, PublishOutcomeUnknownError
from headrace.checkpoint.lifecycle import actions as act
from headrace.checkpoint.lifecycle import facts
from headrace.checkpoint.lifecycle.lifecycle import CheckpointLifecycle
from headrace.checkpoint.lifecycle.settings import LifecycleSettings
from headrace.checkpoint.metadata.model import (
    CheckpointMetadata,
    channels_of,
    operators_of,
    shared_files_of,
    timings_of,
)
from headrace.checkpoint.storage.paths import WriterScope
from headrace.clocks import SYSTEM_CLOCKS, Clocks
from headrace.errors import CheckpointFailure, FencedError, HeadraceError, StorageError
from headrace.operators.factories import SourceFactory
from headrace.plan.graph import JobPlan
from headrace.plan.settings import CheckpointingMode, JobSettings
from headrace.runtime.control import messages as msg
from headrace.runtime.control.server import ControlServer, TaskJoined, TaskKey, TaskLost, TaskSaid
from headrace.runtime.control.wire import ConnectionLost
from headrace.runtime.coordinator.outcomes import (
    Command,
    End,
    Outcome,
    OwnershipLost,
    SavepointWanted,
    SourcePositions,
    SparkEnded,
    TaskDiedError,
    UnreadableResults,
    error_of,
)
from headrace.runtime.coordinator.savepoints import SavepointOrder, SavepointOrders, savepoint_of
from headrace.runtime.coordinator.startup import Startup
from headrace.runtime.job.collected import CollectedResults
from headrace.runtime.job.enumerators import Enumerators
from headrace.runtime.job.printer import STDOUT
from headrace.runtime.job.restoration import Restoration
from headrace.runtime.job.status import CheckpointReport, JobStatus, StatusBoard
from headrace.runtime.spark.session import SparkHandle
from headrace.runtime.spark.submit import LevelSpec, SparkJob
from headrace.runtime.task.deployment import LevelDeployment, without_other_levels
from headrace.runtime.task.main import LevelTask

CAUSE_WAIT_S = 0.5
"""A dead task is known by its closed connection; its neighbour's error, if there is one, follows within this time."""
TEARDOWN_S = 15.0


class Attempt:
    """Made for one attempt and run once, by the runner's thread."""

    def __init__(
        self,
        *,
        plan: JobPlan,
        settings: JobSettings,
        handle: SparkHandle,
        directory: JobDirectory,
        number: int,
        run: int,
        restoration: Restoration,
        retained: list[CheckpointMetadata],
        events: queue.SimpleQueue[Any],
        board: StatusBoard,
        collected: CollectedResults,
        orders: SavepointOrders,
        resume: SourcePositions | None,
        first_complete: Callable[[], None] = lambda: None,
        clocks: Clocks = SYSTEM_CLOCKS,
    ) -> None:
        """`first_complete` is called when as many checkpoints as are to be kept are complete."""
        self._plan = plan
        self._settings = settings
        self._handle = handle
        self._directory = directory
        self.number = number
        self._run_number = run
        self._restoration = restoration
        self._events = events
        self._board = board
        self._collected = collected
        self._orders = orders
        self._savepoints: dict[int, SavepointOrder] = {}
        """Savepoints that were triggered, by checkpoint id; failed ones stay, to tidy up behind late tasks."""
        self._resume = resume
        self._first_complete = first_complete
        self._clocks = clocks
        self._names = {n.uid: n.name for n in plan.graph.nodes}
        self._retained = {m.checkpoint_id: m for m in retained}
        self._tasks = {facts.TaskId(level.index, slot) for level in plan.levels for slot in range(level.slots)}
        self._source_tasks = self._find_source_tasks()
        self._hosts = {
            (plan.graph.node(chain.nodes[0]).uid, subtask): (chain.level, slot)
            for chain in plan.chains
            for subtask, slot in enumerate(chain.slots)
        }
        checkpointing = settings.checkpointing
        self._unaligned = checkpointing.unaligned and checkpointing.mode is CheckpointingMode.EXACTLY_ONCE
        self._lifecycle = CheckpointLifecycle(
            LifecycleSettings(
                interval_ms=checkpointing.interval_ms,
                timeout_ms=checkpointing.timeout_ms,
                min_pause_ms=checkpointing.min_pause_ms,
                max_concurrent=checkpointing.max_concurrent,
                tolerable_failures=checkpointing.tolerable_failures,
                retain=checkpointing.retain,
                unaligned=self._unaligned,
                final_checkpoint=checkpointing.only_final,
            ),
            frozenset(self._tasks),
            directory.next_checkpoint_id(),
            tuple(sorted(self._retained)),
        )
        self._enumerators = Enumerators(plan, self._send_to_reader)
        self._enumerator_states: dict[int, dict[str, bytes]] = {}
        self._startup = Startup(plan, settings.initialization_timeout_ms, restores=restoration.restore is not None)
        self._released = False
        self._lost: tuple[float, TaskLost] | None = None
        self._tick_at = time.monotonic() + 1.0

    def run(self) -> Outcome:
        """From the first message to the last; the Spark job is gone when this returns."""
        self._board.begin_attempt()
        secret = secrets.token_bytes(32)
        host = "127.0.0.1" if self._handle.is_local else str(self._handle.context.getConf().get("spark.driver.host"))
        bind = "127.0.0.1" if self._handle.is_local else "0.0.0.0"
        self._server = ControlServer(bind, 0, secret, self.number, self._events.put, self._take_results, STDOUT.put)
        self._job = SparkJob(
            self._handle,
            [self._level(level.index, host, secret) for level in self._plan.levels],
            group=f"headrace-{self._settings.job_id}-{self.number}",
            description=f"{self._settings.name} (attempt {self.number})",
        )
        try:
            if self._resume is not None:
                resume = self._resume
                self._enumerators.restore(resume.state, resume.splits)
            else:
                restore = self._restoration.restore
                self._enumerators.restore(
                    lambda uid: None if restore is None else restore.enumerator(uid),
                    lambda uid: () if restore is None else restore.splits(uid),
                )
            self._job.start()
            threading.Thread(target=self._watch_spark, name="spark-watch", daemon=True).start()
            outcome = self._loop()
        except HeadraceError as error:
            outcome = self._failed(error)
        finally:
            self._tear_down()
        return outcome

    def positions(self) -> SourcePositions:
        """Where sources stand, for a restart without checkpoints."""
        return self._enumerators.standing()

    # -- setting up

    def _level(self, level: int, host: str, secret: bytes) -> LevelSpec:
        settings = self._settings
        deployment = LevelDeployment(
            level=level,
            plan=without_other_levels(self._plan, level),
            job_id=settings.job_id,
            attempt=self.number,
            host=host,
            port=self._server.port,
            secret=secret,
            checkpointing=settings.checkpointing,
            backend=settings.backend,
            home=WriterScope.of(self._directory.prefix_for(0, self.number)).home,
            object_reuse=settings.object_reuse,
            buffer_timeout_ms=settings.buffer_timeout_ms,
            job_parameters=settings.job_parameters,
            announce_positions=not (settings.checkpointing.enabled or settings.batch),
            restore_storage=self._restoration.storage,
            failpoints=failpoints.configured(),
            history=self._directory.history,
        )
        return LevelSpec(self._plan.levels[level].slots, LevelTask(deployment))

    def _find_source_tasks(self) -> set[TaskKey]:
        found = {(0, slot) for slot in range(self._plan.levels[0].slots)}
        for chain in self._plan.chains:
            if isinstance(self._plan.graph.node(chain.nodes[0]).factory, SourceFactory):
                found.update((chain.level, slot) for slot in chain.slots)
        return found

    def _watch_spark(self) -> None:
        self._job.join()
        self._events.put(SparkEnded(self._job.error))

    def _tear_down(self) -> None:
        self._job.cancel()
        self._job.join(TEARDOWN_S)
        self._server.close()
        self._enumerators.close()
        for order in self._savepoints.values():
            self._tidy(order)

    # -- the loop

    def _loop(self) -> Outcome:
        while True:
            try:
                event = self._events.get(timeout=self._patience())
            except queue.Empty:
                event = None
            outcome = self._on_event(event) if event is not None else None
            if outcome is None:
                outcome = self._on_time()
            if outcome is not None:
                if outcome.end is not End.FINISHED:
                    self._tell(facts.Stopping())
                return outcome

    def _patience(self) -> float:
        now = self._clocks.steady_ms()
        waits = [self._tick_at - time.monotonic(), 1.0]
        wakeup = self._lifecycle.next_wakeup_ms(now)
        if wakeup is not None:
            waits.append((wakeup - now) / 1_000)
        if self._lost is not None:
            waits.append(self._lost[0] + CAUSE_WAIT_S - time.monotonic())
        return max(0.0, min(waits))

    def _on_time(self) -> Outcome | None:
        now = time.monotonic()
        if now >= self._tick_at:
            self._tick_at = now + 1.0
            self._enumerators.discover(self._clocks.steady_ms())
            if self._startup.complete:
                self._board.tick()
            else:
                self._board.update(starting=self._startup.words())
        if self._lost is not None and now >= self._lost[0] + CAUSE_WAIT_S:
            return self._failed(self._death(self._lost[1]))
        overdue = self._startup.overdue()
        if overdue is not None:
            return self._failed(overdue)
        return self._tell(facts.Tick())

    def _on_event(self, event: Any) -> Outcome | None:
        match event:
            case TaskJoined(task, hello):
                self._startup.joined(task, hello.pid)
                self._server.send(task, self._restoration.deploy(*task))
            case TaskSaid(task, message):
                return self._on_message(task, message)
            case TaskLost():
                if not self._released and self._lost is None:
                    self._lost = (time.monotonic(), event)
            case SparkEnded(error):
                if self._released and error is None:
                    self._board.tick()
                    return Outcome(End.FINISHED)
                if self._lost is not None:
                    return self._failed(self._death(self._lost[1], error))
                text = str(error) if error is not None else "the Spark job ended before the job did"
                return self._failed(error if isinstance(error, HeadraceError) else TaskDiedError(text))
            case Command("cancel"):
                self._board.update(status=JobStatus.CANCELLING)
                return Outcome(End.CANCELED)
            case Command("suspend"):
                return Outcome(End.SUSPENDED)
            case SavepointWanted(order):
                order.taken = True
                request = facts.SavepointRequested(order.request, order.location, order.stop, order.drain)
                return self._tell(request)
            case OwnershipLost(reason):
                return self._failed(FencedError(reason))
            case UnreadableResults(error):
                # A class that workers can load and the program cannot: they would come again in every attempt.
                raise error
        return None

    def _on_message(self, task: TaskKey, message: Any) -> Outcome | None:
        who = facts.TaskId(*task)
        match message:
            case msg.Ready(_, restored):
                self._startup.ready(task, restored)
                if self._startup.complete:
                    self._begin()
            case msg.SplitRequest() | msg.Announced() | msg.Reached():
                self._enumerators.hear(message)
            case msg.Acknowledge(checkpoint_id, snapshot):
                if checkpoint_id in self._savepoints:
                    order = self._savepoints[checkpoint_id]
                    order.acknowledged += 1
                    order.progress = f"{order.acknowledged} of {len(self._tasks)} tasks have written their part"
                return self._tell(facts.TaskAcknowledged(checkpoint_id, who, snapshot))
            case msg.Decline(checkpoint_id, failure, detail):
                reason = CheckpointFailure[failure]
                self._board.event("checkpoint-declined", checkpoint_id=checkpoint_id, reason=detail)
                return self._tell(facts.TaskDeclined(checkpoint_id, who, reason, detail))
            case msg.Committed(checkpoint_id):
                return self._tell(facts.TaskCommitted(checkpoint_id, who))
            case msg.Drained():
                return self._tell(facts.TaskDrained(who))
            case msg.Progress():
                self._board.progress(task, message)
            case msg.Failed():
                return self._failed(error_of(message, restoring=not self._startup.complete))
        return None

    def _take_results(self, results: msg.Collected) -> None:
        """On a connection's thread: unpacking them is no work for the coordinator."""
        c = results
        try:
            self._collected.take(c.collector, c.uid, c.subtask, c.checkpoint_id, c.payload)
        except Exception as error:
            self._events.put(UnreadableResults(error))
            raise ConnectionLost(f"results of {c.uid} cannot be read") from error

    def _begin(self) -> None:
        for task in self._tasks:
            self._server.send(task, msg.Start())
        self._enumerators.start(self._clocks.steady_ms())
        self._tell(facts.TasksRunning())
        self._board.update(
            status=JobStatus.RUNNING,
            attempt=self.number,
            task_pids=self._startup.pids,
            starting="",
            storage=self._settings.checkpointing.storage.location,
            restored_bytes=self._startup.restored.as_json(),
        )
        metadata = self._restoration.metadata
        self._board.event(
            "running",
            attempt=self.number,
            restored=None if metadata is None else metadata.checkpoint_id,
            started_in_ms=self._startup.elapsed_ms,
            bytes=self._startup.restored.as_json(),
        )

    def _failed(self, error: HeadraceError) -> Outcome:
        self._board.update(status=JobStatus.FAILING, last_failure=str(error), starting="")
        return Outcome(End.FAILED, error)

    def _death(self, lost: TaskLost, spark: Exception | None = None) -> HeadraceError:
        level, slot = lost.task
        pid = self._startup.pid(lost.task)
        detail = f" Spark says: {spark}" if spark is not None else ""
        return TaskDiedError(
            f"Task {level}.{slot} (pid {pid}) ended without a word: killed, out of memory, or its host is gone.{detail}"
        )

    def _send_to_reader(self, uid: str, subtask: int, message: msg.Message) -> None:
        self._server.send(self._hosts[uid, subtask], message)

    # -- actions

    def _tell(self, fact: facts.Fact) -> Outcome | None:
        return self._perform(self._lifecycle.handle(fact, self._clocks.steady_ms()))

    def _perform(self, actions: list[act.Action]) -> Outcome | None:
        outcome: Outcome | None = None
        for action in actions:
            # Behind an end of the attempt only those are heard who wait for an answer.
            if outcome is None or isinstance(action, act.SavepointFailed):
                outcome = self._do(action) or outcome
        return outcome

    def _do(self, action: act.Action) -> Outcome | None:
        match action:
            case act.TriggerCheckpoint():
                self._trigger(action)
            case act.Publish():
                return self._publish(action)
            case act.NotifyComplete(checkpoint_id, commit):
                # A savepoint that does not stop the job commits nothing: recovery would write its output again.
                if commit:
                    metadata = self._retained.get(checkpoint_id)
                    shared = () if metadata is None else tuple(sorted(shared_files_of(metadata)))
                    self._to_all(msg.Complete(checkpoint_id, shared))
            case act.NotifyAbort(checkpoint_id, failure):
                self._enumerator_states.pop(checkpoint_id, None)
                self._to_all(msg.Abort(checkpoint_id))
                if checkpoint_id not in self._savepoints:
                    failed, tolerated = self._board.report.checkpoints_failed + 1, self._lifecycle.consecutive_failures
                    self._board.update(checkpoints_failed=failed, tolerated_failures=tolerated)
                    self._board.event("checkpoint-failed", checkpoint_id=checkpoint_id, reason=failure.value)
            case act.SavepointCompleted(request, _):
                order = self._orders.get(request)
                if order is not None and order.stop:
                    order.progress = "complete; sinks commit, and the job stops"
                elif order is not None:
                    self._orders.complete(order)
            case act.SavepointFailed(request, reason):
                order = self._orders.get(request)
                if order is not None:
                    self._tidy(order)
                    self._board.event("savepoint-failed", reason=reason, path=order.location)
                    self._orders.fail(order, reason)
            case act.RestoreLatest(reason):
                return Outcome(End.GOING_BACK, HeadraceError(reason))
            case act.DropCheckpoints(checkpoint_ids):
                return self._guarded(lambda: self._drop(checkpoint_ids))
            case act.DiscardPending(_, files) | act.DiscardLate(_, _, files):
                return self._guarded(lambda: self._directory.discard(files))
            case act.FailJob(reason, _):
                return self._failed(HeadraceError(reason))
            case act.ReleaseJob():
                self._released = True
                self._to_all(msg.Release())
        return None

    def _trigger(self, action: act.TriggerCheckpoint) -> None:
        self._enumerator_states[action.checkpoint_id] = self._enumerators.snapshot()
        at_once = self._unaligned and self._settings.checkpointing.aligned_timeout_ms == 0
        unaligned = at_once and action.kind == "checkpoint" and not action.final
        order = self._orders.get(action.request)
        if order is not None:
            self._savepoints[action.checkpoint_id] = order
            order.progress = f"0 of {len(self._tasks)} tasks have written their part"
            self._to_all(msg.SavepointTarget(action.checkpoint_id, order.location))
        trigger = msg.Trigger(action.checkpoint_id, unaligned, action.kind == "savepoint", action.stop, action.drain)
        for task in self._tasks if unaligned else self._source_tasks:
            self._server.send(task, trigger)

    def _publish(self, action: act.Publish) -> Outcome | None:
        failpoints.hit("after_all_acks")
        order = self._savepoints.get(action.checkpoint_id)
        mode = "at-least-once" if self._settings.checkpointing.mode is CheckpointingMode.AT_LEAST_ONCE else "aligned"
        channels = channels_of(action.snapshots)
        metadata = CheckpointMetadata(
            job_id=self._settings.job_id,
            job_name=self._settings.name,
            run=self._run_number,
            attempt=self.number,
            checkpoint_id=action.checkpoint_id,
            kind=action.kind,
            mode="unaligned" if channels else mode,
            created_ms=self._clocks.wall_ms(),
            duration_ms=action.duration_ms,
            operators=operators_of(action.snapshots, self._names),
            enumerators=self._enumerator_states.pop(action.checkpoint_id, {}),
            channels=channels,
            bytes_total=sum(s.bytes_total for s in action.snapshots),
            bytes_uploaded=sum(s.bytes_uploaded for s in action.snapshots),
            tasks=timings_of(action.snapshots),
            history=self._directory.history,
        )
        try:
            failpoints.hit("before_publish")
            if order is None:
                self._directory.publish(metadata)
            else:
                self._publish_outside(order, metadata)
            failpoints.hit("after_publish")
        except FencedError as error:
            return self._failed(error)
        except StorageError as error:
            unknown = isinstance(error, PublishOutcomeUnknownError)
            return self._tell(facts.PublishFailed(action.checkpoint_id, CheckpointFailure.STORAGE, str(error), unknown))
        if order is None:
            self._retained[action.checkpoint_id] = metadata
            self._report(metadata, action)
        else:
            self._report_savepoint(order, metadata, self._clocks.steady_ms() - action.triggered_ms)
        outcome = self._tell(facts.Published(action.checkpoint_id))
        if order is None and len(self._retained) >= self._settings.checkpointing.retain:
            done, self._first_complete = self._first_complete, lambda: None
            outcome = outcome or self._guarded(done)
        return outcome

    def _publish_outside(self, order: SavepointOrder, metadata: CheckpointMetadata) -> None:
        """A savepoint, at its own place. One that stops the job is announced before, as its sinks will commit."""
        if order.stop:
            self._directory.record_stopping(self.number, metadata.checkpoint_id, order.location)
        else:
            self._directory.assert_current(self.number)
        order.may_exist = True
        try:
            order.directory.publish(metadata)
        except PublishOutcomeUnknownError:
            raise
        except StorageError:
            order.may_exist = False
            raise
        try:
            self._directory.assert_current(self.number)
        except StorageError as error:
            raise PublishOutcomeUnknownError(
                f"{order.location} was published, but whether attempt {self.number} still owned the job is not known: "
                f"{error}"
            ) from error
        order.published = savepoint_of(order, metadata, metadata.duration_ms)
        failpoints.hit("savepoint_published")

    def _report_savepoint(self, order: SavepointOrder, metadata: CheckpointMetadata, duration_ms: int) -> None:
        self._board.update(
            savepoints_completed=self._board.report.savepoints_completed + 1, last_savepoint=order.location
        )
        self._board.event(
            "savepoint",
            checkpoint_id=metadata.checkpoint_id,
            path=order.location,
            duration_ms=duration_ms,
            bytes=metadata.bytes_total,
            stop=order.stop,
        )

    def _tidy(self, order: SavepointOrder) -> None:
        """Remove what a failed savepoint has left; what cannot be removed now is left for the next time."""
        if not order.may_exist:
            with contextlib.suppress(StorageError):
                order.directory.dispose()

    def _report(self, metadata: CheckpointMetadata, action: act.Publish) -> None:
        duration_ms = self._clocks.steady_ms() - action.triggered_ms
        report = CheckpointReport(
            checkpoint_id=metadata.checkpoint_id,
            kind=metadata.kind,
            completed_at_ms=self._clocks.wall_ms(),
            duration_ms=duration_ms,
            size_bytes=metadata.bytes_total,
            uploaded_bytes=metadata.bytes_uploaded,
            alignment_ms=max((s.alignment_ms for s in action.snapshots), default=0),
            sync_ms=max((s.sync_ms for s in action.snapshots), default=0),
            channel_bytes=sum(c.cells.size for c in metadata.channels),
        )
        self._board.update(
            last_checkpoint=report,
            checkpoints_completed=self._board.report.checkpoints_completed + 1,
            tolerated_failures=0,
        )
        self._board.event(
            "checkpoint",
            checkpoint_id=report.checkpoint_id,
            duration_ms=duration_ms,
            bytes=report.size_bytes,
            uploaded=report.uploaded_bytes,
            alignment_ms=report.alignment_ms,
            sync_ms=report.sync_ms,
            channel_bytes=report.channel_bytes,
        )

    def _drop(self, checkpoint_ids: tuple[int, ...]) -> None:
        failpoints.hit("gc_marked")
        self._directory.drop(checkpoint_ids)
        for checkpoint_id in checkpoint_ids:
            self._retained.pop(checkpoint_id, None)
        failpoints.hit("gc_deleted")
        known = {path for m in self._retained.values() for path in shared_files_of(m)}
        self._directory.collect_shared(
            self._retained.values(),
            self.number,
            pending=(*self._lifecycle.open_ids, *self._lifecycle.undecided_ids),
            known_shared=known,
        )

    def _guarded(self, work: Callable[[], Any]) -> Outcome | None:
        """Removal: being fenced off ends the attempt, storage trouble only leaves files for later."""
        try:
            work()
        except FencedError as error:
            return self._failed(error)
        except StorageError as error:
            self._board.event("storage-trouble", reason=str(error))
        return None

    def _to_all(self, message: msg.Message) -> None:
        for task in self._tasks:
            self._server.send(task, message)
