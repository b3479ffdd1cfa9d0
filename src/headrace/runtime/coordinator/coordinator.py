"""The coordinator of one attempt: events become facts, the pure lifecycle decides, its actions go to ports.

    tasks, Spark, people, clock ─▶ handle() ─▶ CheckpointLifecycle ─▶ actions ─▶ tasks
                                     ▲                                  │
                                     └──── events ◀──── executor ◀──────┘  storage, sources, hand-over

One thread calls it, and no call waits: whatever may take time runs on a lane of the executor, and its result comes back
as an event. Production, `testing.JobHarness`, the seeded simulation and the checkpoint audit run this class; they
differ in their ports, and in when the executor does its work.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import assert_never

from headrace.checkpoint.handles import CheckpointId
from headrace.checkpoint.job_directory import PublishOutcomeUnknownError
from headrace.checkpoint.lifecycle import actions as act
from headrace.checkpoint.lifecycle import facts
from headrace.checkpoint.lifecycle.facts import TaskId
from headrace.checkpoint.lifecycle.lifecycle import CheckpointLifecycle
from headrace.checkpoint.metadata.model import (
    CheckpointMetadata,
    channels_of,
    operators_of,
    task_files,
    timings_of,
)
from headrace.errors import CheckpointFailure, FencedError, HeadraceError, StorageError
from headrace.runtime.control import messages as msg
from headrace.runtime.coordinator.events import (
    AttemptEvent,
    Command,
    Event,
    FeedAdvanced,
    FeedFailed,
    MetadataPublished,
    OutputHandedOver,
    OwnershipLost,
    PositionsTaken,
    PublicationFailed,
    ReaderAddressed,
    Removed,
    ResultsUnreadable,
    SavepointWanted,
    SourcesLooked,
    SourcesRestored,
    SourcesSaved,
    SparkEnded,
    TaskJoined,
    TaskLost,
    TaskReport,
    TaskSaid,
    WorkFailed,
)
from headrace.runtime.coordinator.executor import Executor, Lane
from headrace.runtime.coordinator.outcomes import End, Outcome, TaskDiedError, error_of
from headrace.runtime.coordinator.ports import CoordinatedAttempt, Ports
from headrace.runtime.coordinator.removals import Removals
from headrace.runtime.coordinator.savepoints import SavepointOrder, SavepointOrders, savepoint_of
from headrace.runtime.coordinator.startup import Startup

CAUSE_WAIT_MS = 500
"""A dead task is known by its closed connection; its neighbour's error, if there is one, follows within this time."""
TICK_MS = 1_000


@dataclass(frozen=True, slots=True)
class _Publication:
    """A checkpoint whose metadata is being published."""

    metadata: CheckpointMetadata
    order: SavepointOrder | None
    triggered_ms: int
    begun_ms: int
    shared: dict[TaskId, tuple[str, ...]]
    """Shared files by the task that named them: it alone may name them again without storing them."""


class Coordinator:
    """Made for one attempt. `begin`, then `handle` for each event and `on_time` in between, until one gives an outcome.

    After that, `handle` still takes results of publications, so that what has become durable is known as such.
    """

    def __init__(
        self,
        attempt: CoordinatedAttempt,
        ports: Ports,
        executor: Executor,
        startup: Startup,
        orders: SavepointOrders,
    ) -> None:
        self._attempt = attempt
        self._ports = ports
        self._executor = executor
        self._startup = startup
        self._orders = orders
        self._lifecycle = CheckpointLifecycle(
            attempt.lifecycle,
            attempt.tasks,
            attempt.next_checkpoint_id,
            tuple(sorted(m.checkpoint_id for m in attempt.retained)),
        )
        self._removals = Removals(attempt, self._lifecycle, ports.store, executor)
        self._savepoints: dict[CheckpointId, SavepointOrder] = {}
        """Savepoints that were triggered; failed ones stay, because late tasks may leave files."""
        self._source_states: dict[CheckpointId, dict[str, bytes]] = {}
        self._publications: dict[CheckpointId, _Publication] = {}
        self._later: deque[act.NotifyComplete | act.DropCheckpoints] = deque()
        """What waits for the output that is being handed over right now, which belongs to its first entry."""
        self._sources_restored = False
        self._discovering = False
        self._looking: set[str] = set()
        self._positions: dict[tuple[str, int], msg.Announced] = {}
        self._taking_positions = False
        self._released = False
        self._fenced = False
        self._over = False
        self._lost: tuple[int, TaskLost] | None = None
        self._spark_failed: tuple[int, SparkEnded] | None = None
        self._tick_at = self._now() + TICK_MS

    @property
    def lifecycle(self) -> CheckpointLifecycle:
        """To look at."""
        return self._lifecycle

    @property
    def is_fenced(self) -> bool:
        """A newer attempt exists: nothing more may be written."""
        return self._fenced

    def begin(self) -> None:
        """Restore the sources; tasks may join from now on."""
        self._on_sources(self._ports.sources.restore, SourcesRestored(self._attempt.number))

    def wait_s(self) -> float:
        """After how many seconds without an event `on_time` is due."""
        now = self._now()
        moments = [self._tick_at]
        wakeup = self._lifecycle.next_wakeup_ms(now)
        if wakeup is not None:
            moments.append(wakeup)
        if self._lost is not None:
            moments.append(self._lost[0] + CAUSE_WAIT_MS)
        if self._spark_failed is not None:
            moments.append(self._spark_failed[0] + CAUSE_WAIT_MS)
        return max(0.0, (min(moments) - now) / 1_000)

    def on_time(self) -> Outcome | None:
        """Do what is due by the clock; how the attempt ended, if it did."""
        now = self._now()
        if now >= self._tick_at:
            self._tick_at = now + TICK_MS
            self._tick(now)
        if self._spark_failed is not None and now >= self._spark_failed[0] + CAUSE_WAIT_MS:
            return self._ended(self._failed(self._spark_failure(self._spark_failed[1])))
        if self._lost is not None and now >= self._lost[0] + CAUSE_WAIT_MS:
            return self._ended(self._failed(self._death(self._lost[1])))
        overdue = self._startup.overdue()
        if overdue is not None:
            return self._ended(self._failed(overdue))
        return self._ended(self._give_up_publications(now) or self._tell(facts.Tick()))

    def handle(self, event: Event) -> Outcome | None:
        """Take note of the event; how the attempt ended, if it did. What an older attempt left behind is dropped."""
        if isinstance(event, AttemptEvent) and event.attempt != self._attempt.number:
            return None
        if self._over and not isinstance(event, MetadataPublished | PublicationFailed):
            return None
        return self._ended(self._on_event(event))

    def close(self) -> None:
        """The attempt is over and its tasks are gone: have the executor do what is left."""
        self._over = True
        self._on_sources(self._ports.sources.close)
        if not self._fenced:
            for order in self._savepoints.values():
                self._removals.dispose(order)
            self._removals.finish()

    # -- events

    def _on_event(self, event: Event) -> Outcome | None:
        match event:
            case TaskJoined(_, task, pid):
                self._startup.joined(task, pid)
                self._ports.tasks.send(task, self._ports.tasks.deployment(task))
            case TaskSaid(_, task, message):
                return self._on_message(task, message)
            case TaskLost():
                if not self._released and self._lost is None:
                    self._lost = (self._now(), event)
            case SparkEnded():
                return self._on_spark_ended(event)
            case FeedAdvanced(_, uid):
                if uid not in self._looking:
                    self._looking.add(uid)
                    looked = SourcesLooked(self._attempt.number, uid)
                    self._on_sources(partial(self._ports.sources.look, uid), looked)
            case FeedFailed(_, error):
                return self._failed(error)
            case MetadataPublished(_, checkpoint_id):
                # One that was given up may exist all the same: its files stay, and a restart may find it.
                if (publication := self._publications.get(checkpoint_id)) is not None:
                    return self._on_published(publication)
            case PublicationFailed(_, checkpoint_id, error, unknown):
                publication = self._publications.pop(checkpoint_id, None)
                if publication is None:
                    return None
                if publication.order is not None:
                    publication.order.may_exist = unknown
                failure = CheckpointFailure.STORAGE
                return self._tell(facts.PublishFailed(checkpoint_id, failure, str(error), unknown))
            case Removed(_, checkpoint_ids, error):
                self._removals.over(checkpoint_ids, failed=error is not None)
                if error is not None:
                    self._ports.reporter.storage_trouble(error)
            case SourcesRestored():
                self._sources_restored = True
                self._begin_if_ready()
            case SourcesSaved(_, trigger, states):
                self._send_trigger(trigger, dict(states))
            case SourcesLooked(_, None):
                self._discovering = False
            case SourcesLooked(_, uid):
                self._looking.discard(uid)
            case PositionsTaken():
                self._taking_positions = False
                self._take_positions()
            case ReaderAddressed(_, task, message):
                self._ports.tasks.send(task, message)
            case OutputHandedOver():
                return self._go_on(handed_over=True)
            case ResultsUnreadable(_, error) | WorkFailed(_, error):
                # What is not ours would come again in every attempt: results whose class the program cannot load.
                if not isinstance(error, HeadraceError):
                    raise error
                return self._failed(error)
            case Command.CANCEL:
                self._ports.reporter.cancelling()
                return Outcome(End.CANCELED)
            case Command.SUSPEND:
                return Outcome(End.SUSPENDED)
            case SavepointWanted(order):
                order.taken = True
                return self._tell(facts.SavepointRequested(order.request, order.location, order.stop, order.drain))
            case OwnershipLost(reason):
                return self._failed(FencedError(reason))
            case _:
                assert_never(event)
        return None

    def _on_message(self, task: TaskId, message: TaskReport) -> Outcome | None:
        match message:
            case msg.Ready(_, restored):
                self._startup.ready(task, restored)
                self._begin_if_ready()
            case msg.SplitRequest():
                self._on_sources(partial(self._ports.sources.hear, message))
            case msg.Announced(uid, subtask):
                self._positions[uid, subtask] = message
                self._take_positions()
            case msg.Reached():
                self._ports.alignment.take(message)
            case msg.Acknowledge(checkpoint_id, snapshot):
                if (order := self._savepoints.get(checkpoint_id)) is not None:
                    order.acknowledged += 1
                    order.progress = f"{order.acknowledged} of {len(self._attempt.tasks)} tasks have written their part"
                return self._tell(facts.TaskAcknowledged(checkpoint_id, task, snapshot))
            case msg.Decline(checkpoint_id, failure, detail):
                self._ports.reporter.checkpoint_declined(checkpoint_id, detail)
                where = f"task {task.level}.{task.slot}: {detail}"
                return self._tell(facts.TaskDeclined(checkpoint_id, task, CheckpointFailure[failure], where))
            case msg.Committed(checkpoint_id):
                return self._tell(facts.TaskCommitted(checkpoint_id, task))
            case msg.Drained():
                return self._tell(facts.TaskDrained(task))
            case msg.Failed():
                return self._failed(error_of(message, restoring=not self._startup.complete))
            case _:
                assert_never(message)
        return None

    def _begin_if_ready(self) -> None:
        """All tasks are ready and all sources restored: the job runs."""
        if not (self._startup.complete and self._sources_restored):
            return
        now = self._now()
        self._to_all(msg.Start())
        self._on_sources(partial(self._ports.sources.start, now))
        self._tell(facts.TasksRunning())
        self._ports.reporter.running(self._startup.pids, self._startup.elapsed_ms, self._startup.restored)
        self._ports.hand_over.begin()

    def _tick(self, now: int) -> None:
        if not self._startup.complete:
            self._ports.reporter.starting(self._startup.words())
            return
        if not self._discovering:
            self._discovering = True
            looked = SourcesLooked(self._attempt.number, None)
            self._on_sources(partial(self._ports.sources.discover, now), looked)
        self._ports.reporter.tick()

    def _on_spark_ended(self, event: SparkEnded) -> Outcome | None:
        if self._released and event.error is None:
            self._ports.reporter.tick()
            return Outcome(End.FINISHED)
        if self._lost is not None:
            return self._failed(self._death(self._lost[1], event.error))
        if self._startup.pids and event.error is not None and not self._released:
            # The task's own report, or its closed connection, may be on its way and says more.
            self._spark_failed = (self._now(), event)
            return None
        return self._failed(self._spark_failure(event))

    def _spark_failure(self, event: SparkEnded) -> HeadraceError:
        """Why Spark ended before any task was lost: by the task that Spark names, or else the first that was lost."""
        lost = None if self._lost is None else self._lost[1]
        if event.task is not None and (lost is None or lost.task != event.task):
            lost = TaskLost(event.attempt, event.task, "its process ended")
        if lost is not None and self._startup.pid(lost.task):
            return self._death(lost, event.error)
        error = event.error
        text = str(error) if error is not None else "the Spark job ended before the job did"
        return error if isinstance(error, HeadraceError) else TaskDiedError(text)

    def _death(self, lost: TaskLost, spark: Exception | None = None) -> HeadraceError:
        level, slot = lost.task
        pid = self._startup.pid(lost.task)
        detail = f" Spark says: {spark}" if spark is not None else ""
        return TaskDiedError(f"Task {level}.{slot} (pid {pid}) was lost: {lost.reason}.{detail}")

    def _failed(self, error: HeadraceError) -> Outcome:
        self._fenced = self._fenced or isinstance(error, FencedError)
        self._ports.reporter.failing(error)
        return Outcome(End.FAILED, error)

    def _ended(self, outcome: Outcome | None) -> Outcome | None:
        """The first outcome is that of the attempt: nothing new begins after it."""
        if outcome is None or self._over:
            return None
        self._over = True
        if outcome.end is not End.FINISHED:
            self._tell(facts.Stopping())
        return outcome

    # -- facts and actions

    def _tell(self, fact: facts.Fact) -> Outcome | None:
        outcome: Outcome | None = None
        for action in self._lifecycle.handle(fact, self._now()):
            # After the attempt has ended, only replies to savepoint requests are sent.
            if outcome is None or isinstance(action, act.SavepointFailed):
                outcome = self._do(action) or outcome
        return outcome

    def _do(self, action: act.Action) -> Outcome | None:
        match action:
            case act.TriggerCheckpoint():
                self._executor.submit(Lane.SOURCES, partial(self._save_sources, action))
            case act.Publish():
                self._publish(action)
            case act.NotifyComplete() | act.DropCheckpoints():
                self._later.append(action)
                if len(self._later) == 1:
                    return self._go_on(handed_over=False)
            case act.NotifyAbort(checkpoint_id, failure, detail):
                self._abort(checkpoint_id, failure, detail)
            case act.SavepointCompleted(request):
                order = self._orders.get(request)
                if order is not None and order.stop:
                    order.progress = "complete; sinks commit, and the job stops"
                elif order is not None:
                    self._orders.complete(order)
            case act.SavepointFailed(request, reason):
                order = self._orders.get(request)
                if order is not None:
                    self._removals.dispose(order)
                    self._ports.reporter.savepoint_failed(order, reason)
                    self._orders.fail(order, reason)
            case act.RestoreLatest(reason):
                return Outcome(End.GOING_BACK, HeadraceError(reason))
            case act.DiscardPending(_, files) | act.DiscardLate(_, _, files):
                if not self._fenced:
                    self._removals.discard(files)
            case act.FailJob(reason):
                return self._failed(HeadraceError(reason))
            case act.ReleaseJob():
                self._released = True
                self._to_all(msg.Release())
            case _:
                assert_never(action)
        return None

    def _save_sources(self, trigger: act.TriggerCheckpoint) -> SourcesSaved:
        return SourcesSaved(self._attempt.number, trigger, self._ports.sources.snapshot())

    def _send_trigger(self, trigger: act.TriggerCheckpoint, states: dict[str, bytes]) -> None:
        """In one step with the sources' state: what enumerators assign from now on is sent behind the trigger."""
        checkpoint_id = trigger.checkpoint_id
        if checkpoint_id not in self._lifecycle.open_ids:
            return  # given up before the sources answered
        self._source_states[checkpoint_id] = states
        order = self._orders.get(trigger.request)
        if order is not None:
            self._savepoints[checkpoint_id] = order
            order.progress = f"0 of {len(self._attempt.tasks)} tasks have written their part"
            self._to_all(msg.SavepointTarget(checkpoint_id, order.location))
        message = msg.Trigger(
            checkpoint_id, trigger.unaligned, trigger.kind == "savepoint", trigger.stop, trigger.drain
        )
        for task in sorted(self._attempt.tasks if trigger.unaligned else self._attempt.source_tasks):
            self._ports.tasks.send(task, message)

    def _abort(self, checkpoint_id: CheckpointId, failure: CheckpointFailure, detail: str) -> None:
        triggered = self._source_states.pop(checkpoint_id, None) is not None
        if failure is CheckpointFailure.TIMED_OUT and not triggered and checkpoint_id not in self._savepoints:
            detail = f"{detail}; it was not triggered, because a source's enumerator has not given its state"
        self._to_all(msg.Abort(checkpoint_id))
        if checkpoint_id not in self._savepoints:
            in_a_row = self._lifecycle.consecutive_failures
            self._ports.reporter.checkpoint_failed(checkpoint_id, failure, detail, in_a_row)

    def _publish(self, action: act.Publish) -> None:
        checkpoint_id = action.checkpoint_id
        channels = channels_of(action.snapshots)
        attempt = self._attempt
        metadata = CheckpointMetadata(
            job_id=attempt.job_id,
            job_name=attempt.job_name,
            run=attempt.run,
            attempt=attempt.number,
            checkpoint_id=checkpoint_id,
            kind=action.kind,
            mode="unaligned" if channels else attempt.mode,
            created_ms=self._ports.clocks.wall_ms(),
            duration_ms=action.duration_ms,
            operators=operators_of(action.snapshots, attempt.operator_names),
            enumerators=self._source_states.get(checkpoint_id, {}),
            channels=channels,
            edge_records=attempt.edges if channels else (),
            bytes_total=sum(s.bytes_total for s in action.snapshots),
            bytes_uploaded=sum(s.bytes_uploaded for s in action.snapshots),
            tasks=timings_of(action.snapshots),
            history=attempt.history,
        )
        order = self._savepoints.get(checkpoint_id)
        if order is not None:
            # Whatever becomes of this attempt: nothing of it may be removed unless it is known to have failed.
            order.may_exist = True
        shared = {
            TaskId(s.level, s.slot): tuple(sorted(f.path for f in task_files(s) if f.shared and f.path))
            for s in action.snapshots
        }
        publication = _Publication(metadata, order, action.triggered_ms, self._now(), shared)
        self._publications[checkpoint_id] = publication
        self._executor.submit(Lane.PUBLISH, partial(self._publish_now, publication))

    def _publish_now(self, publication: _Publication) -> Event:
        """On the publishing lane."""
        metadata, number = publication.metadata, self._attempt.number
        try:
            if publication.order is None:
                self._ports.store.publish(metadata)
            else:
                self._ports.store.publish_savepoint(publication.order, metadata)
        except StorageError as error:
            unknown = isinstance(error, PublishOutcomeUnknownError)
            return PublicationFailed(number, metadata.checkpoint_id, error, unknown)
        return MetadataPublished(number, metadata.checkpoint_id)

    def _give_up_publications(self, now: int) -> Outcome | None:
        """Storage has not answered within the checkpoint's timeout: nobody knows whether it exists, or ever will."""
        timeout_ms = self._attempt.lifecycle.timeout_ms
        for checkpoint_id, publication in list(self._publications.items()):
            if checkpoint_id == self._lifecycle.publishing_id and now - publication.begun_ms >= timeout_ms:
                del self._publications[checkpoint_id]
                detail = f"storage has not answered for {timeout_ms} ms while the metadata was being published"
                timed_out = facts.PublishFailed(checkpoint_id, CheckpointFailure.TIMED_OUT, detail, unknown=True)
                outcome = self._tell(timed_out)
                if outcome is not None:
                    return outcome
        return None

    def _on_published(self, publication: _Publication) -> Outcome | None:
        metadata, order = publication.metadata, publication.order
        self._source_states.pop(metadata.checkpoint_id, None)
        duration_ms = self._now() - publication.triggered_ms
        if order is None:
            self._removals.retain(metadata)
            self._ports.reporter.checkpoint_completed(metadata, duration_ms)
        else:
            order.published = savepoint_of(order, metadata, metadata.duration_ms)
            self._ports.reporter.savepoint_completed(order, metadata, duration_ms)
        return self._tell(facts.Published(metadata.checkpoint_id))

    def _go_on(self, *, handed_over: bool) -> Outcome | None:
        """Perform what waits, up to the next output that has to be handed over.

        Tasks hear that a checkpoint is complete only when its output has been handed over: until then the output is
        part of every further checkpoint, and nothing of the checkpoint is dropped.
        """
        while self._later:
            action = self._later[0]
            if isinstance(action, act.NotifyComplete):
                if not handed_over and self._hands_over(action):
                    return None
                handed_over = False
                self._notify_complete(action)
            elif not self._fenced:
                self._removals.drop(action.checkpoint_ids)
            self._later.popleft()
        return None

    def _hands_over(self, action: act.NotifyComplete) -> bool:
        """Whether there is output to be handed over first, which then is under way."""
        publication = self._publications[action.checkpoint_id]
        hand_over = self._ports.hand_over
        if not action.commit or not hand_over.has_output(publication.metadata):
            return False

        def hand() -> OutputHandedOver:
            hand_over.hand(publication.metadata, publication.order)
            return OutputHandedOver(self._attempt.number, action.checkpoint_id)

        self._executor.submit(Lane.HAND_OVER, hand)
        return True

    def _notify_complete(self, action: act.NotifyComplete) -> None:
        publication = self._publications.pop(action.checkpoint_id)
        # A savepoint that does not stop the job commits nothing: recovery would write its output again.
        if action.commit:
            for task in sorted(self._attempt.tasks):
                shared = publication.shared.get(task, ()) if publication.order is None else ()
                self._ports.tasks.send(task, msg.Complete(action.checkpoint_id, shared))

    # -- I/O

    def _on_sources(self, call: Callable[[], object], done: Event | None = None) -> None:
        def work() -> Event | None:
            call()
            return done

        self._executor.submit(Lane.SOURCES, work)

    def _take_positions(self) -> None:
        """Pass on where readers stand. While the lane is busy with others, only the newest of each is kept."""
        if self._positions and not self._taking_positions:
            taken, self._positions = tuple(self._positions.values()), {}
            self._taking_positions = True
            self._on_sources(partial(self._hear, taken), PositionsTaken(self._attempt.number))

    def _hear(self, positions: tuple[msg.Announced, ...]) -> None:
        for announced in positions:
            self._ports.sources.hear(announced)

    def _to_all(self, message: msg.Message) -> None:
        for task in sorted(self._attempt.tasks):
            self._ports.tasks.send(task, message)

    def _now(self) -> int:
        return self._ports.clocks.steady_ms()
