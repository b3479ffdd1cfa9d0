"""Runs a whole job in the test's own thread: no Spark, no waiting; checkpoints and crashes come when the test says so.

    source = ManualSource(str)
    words = env.from_source(source, WatermarkStrategy.no_watermarks(), "words")
    with JobHarness(words.key_by(lambda w: w).map_with_state(count)) as job:
        source.emit("a", "b", "a")
        job.checkpoint()
        source.emit("a")
        job.crash()
        source.end()
        assert job.run_to_end() == [...]

Coordinator, chains, gates, mailboxes, cells, edge writers, backends, snapshots, enumerators and the way state is dealt
out at another parallelism are the engine's own. What is missing is what lies between: Spark, processes, sockets and
threads; and the decision when to restart.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from headrace.checkpoint.job_directory import JobDirectory, PublishOutcomeUnknownError
from headrace.checkpoint.lifecycle.facts import TaskId
from headrace.checkpoint.metadata.codec import decode_metadata, encode_metadata
from headrace.checkpoint.metadata.model import CheckpointMetadata
from headrace.checkpoint.storage.base import CheckpointStorage, storage_for
from headrace.checkpoint.storage.memory import JobManagerCheckpointStorage
from headrace.clocks import Clocks
from headrace.datastream.environment import StreamExecutionEnvironment
from headrace.datastream.streams import DataStream
from headrace.durations import DurationLike
from headrace.errors import CheckpointError, CheckpointFailure, JobDefinitionError
from headrace.operators.base import Operator
from headrace.operators.factories import CollectFactory, SourceFactory
from headrace.plan.builder import Draft
from headrace.plan.graph import JobPlan
from headrace.runtime.control import messages as msg
from headrace.runtime.coordinator.coordinator import Coordinator
from headrace.runtime.coordinator.events import ReaderAddressed, SavepointWanted, TaskJoined, TaskSaid
from headrace.runtime.coordinator.executor import ManualExecutor
from headrace.runtime.coordinator.inbox import Inbox
from headrace.runtime.coordinator.outcomes import Outcome
from headrace.runtime.coordinator.ports import CoordinatedAttempt, Ports, Silent
from headrace.runtime.coordinator.savepoints import SavepointOrder, SavepointOrders
from headrace.runtime.coordinator.startup import Startup, operators_by_task
from headrace.runtime.coordinator.store import AttemptStore
from headrace.runtime.job.alignment import Alignments
from headrace.runtime.job.attempt import lifecycle_settings, source_tasks_of
from headrace.runtime.job.collected import CollectedResults
from headrace.runtime.job.enumerators import Enumerators
from headrace.runtime.job.restoration import Restoration
from headrace.runtime.task.deployment import LevelDeployment
from headrace.runtime.task.routing import edge_records
from headrace.testing.clock import ManualClock
from headrace.testing.harness import LOOK_AGAIN_S, PATIENCE_S
from headrace.testing.harness_task import HarnessTask
from headrace.testing.scripted import Marker, TestSource

_COLLECTOR = "harness"
_MEMORY = 1 << 30
_INTERVAL_MS = 1
_NEVER_MS = 1 << 40


@dataclass(frozen=True)
class JobSnapshot:
    """A complete checkpoint of a whole job, or a savepoint."""

    metadata: CheckpointMetadata
    storage: CheckpointStorage | None = None
    """Where the files of a savepoint lie."""
    folder: Any = None
    """Keeps a savepoint's directory for as long as the snapshot is held."""
    committed: bool = False
    """The harness that took it has committed what it holds; else whoever restores it does."""

    @property
    def checkpoint_id(self) -> int:
        return self.metadata.checkpoint_id


class _Results(CollectedResults):
    """Collected results that can be looked at without waiting for more."""

    def __init__(self, plan: JobPlan) -> None:
        super().__init__(plan)
        self._seen: list[Any] = []

    def had(self, metadata: CheckpointMetadata) -> None:
        """What that checkpoint holds was delivered, perhaps by another harness."""
        for operator in metadata.operators:
            for subtask in operator.subtasks:
                key = (_COLLECTOR, operator.uid, subtask.subtask)
                self._newest[key] = max((p.checkpoint_id for p in subtask.prepared), default=self._newest.get(key, 0))

    def so_far(self) -> list[Any]:
        waiting = self._queue(_COLLECTOR)
        while not waiting.empty():
            self._seen.append(waiting.get())
        return self._seen


class _Reporter(Silent):
    """Notes which checkpoints failed, and why."""

    def __init__(self) -> None:
        self.failed: dict[int, CheckpointError] = {}

    def checkpoint_failed(self, checkpoint_id: int, failure: CheckpointFailure, detail: str, in_a_row: int) -> None:
        self.failed[checkpoint_id] = CheckpointError(failure, checkpoint_id, detail)


class _Store(AttemptStore):
    """The job's directory, which shows what was published."""

    def __init__(self, directory: JobDirectory, attempt: int) -> None:
        super().__init__(directory, attempt)
        self.published: dict[int, CheckpointMetadata] = {}
        self.answers = True
        """Whether the coordinator hears that a checkpoint was published."""

    def publish(self, metadata: CheckpointMetadata) -> None:
        super().publish(metadata)
        self._note(metadata)
        if not self.answers:
            raise PublishOutcomeUnknownError("the test keeps the answer to itself")

    def publish_savepoint(self, order: SavepointOrder, metadata: CheckpointMetadata) -> None:
        super().publish_savepoint(order, metadata)
        self._note(metadata)

    def _note(self, metadata: CheckpointMetadata) -> None:
        self.published[metadata.checkpoint_id] = decode_metadata(encode_metadata(metadata))


class JobHarness:
    """A job under test; also a context manager. `what` is an environment, or a stream whose records are collected.

    Output counts when a checkpoint has completed that holds it, as in a job with checkpoints. `restored` is a snapshot
    of another harness, whose program may have had another parallelism; a savepoint may also change the backend.
    """

    def __init__(
        self,
        what: DataStream | StreamExecutionEnvironment,
        *,
        clock: ManualClock | None = None,
        restored: JobSnapshot | None = None,
    ) -> None:
        plan, settings = _built(what)
        self.clock = clock if clock is not None else ManualClock()
        storage = JobManagerCheckpointStorage(max_state_size=_MEMORY)
        interval = settings.checkpointing.interval_ms or 10
        self._plan = plan
        self._settings = replace(
            settings, checkpointing=replace(settings.checkpointing, interval_ms=interval, storage=storage)
        )
        self._collected = _Results(plan)
        self._directory = JobDirectory(storage, settings.job_id)
        self._directory.open_run()
        self._inbox = Inbox()
        self._now_ms = 0
        """The coordinator's clock, by which it takes the next checkpoint: it moves when the test asks for one."""
        self._woken = threading.Event()
        self._given = self._last = restored
        self._next_id = 1 if restored is None else restored.checkpoint_id + 1
        self._attempt = 0
        self._tasks: dict[tuple[int, int], HarnessTask] = {}
        self._committed: dict[int, set[TaskId]] = {}
        self.finished = False
        self._begin()

    # Running

    def run(self, turns: int | None = None) -> None:
        """Until nothing is left to do, or for so many turns of the tasks; a turn is a cell, a poll or less.

        What a user function raises is raised here.
        """
        done = 0
        busy = True
        while busy or len(self._inbox):
            busy = self._listen()
            for task in list(self._tasks.values()):
                if turns is not None and done >= turns:
                    return
                busy |= task.step()
                busy |= self._carry(task)
                done += 1

    def advance(self, by: DurationLike) -> None:
        """Run, let processing time pass, and run on. (`clock.advance` moves the clock alone.)"""
        self.run()
        self.clock.advance(by)
        self.run()

    def watermark(self, time_ms: int, source: str | None = None) -> None:
        """Run, then let event time reach `time_ms` behind a source, known by its name, or behind all."""
        self.run()
        for task in self._tasks.values():
            for subtask in task.subtasks:
                if subtask.source is not None and source in (None, subtask.source.context.name):
                    subtask.source.watermark(time_ms)
        self.run()

    def wait_until(self, condition: Callable[[], bool], what: str = "it", timeout_s: float = PATIENCE_S) -> None:
        """For operators that work in the background: run until the condition holds."""
        deadline = time.monotonic() + timeout_s
        while True:
            self._woken.clear()
            self.run()
            if condition():
                return
            left = deadline - time.monotonic()
            if left <= 0:
                raise AssertionError(f"Waited {timeout_s:g} s for {what}, in vain.")
            self._woken.wait(min(left, LOOK_AGAIN_S))

    def run_to_end(self) -> list[Any]:
        """Until all input has ended and the last checkpoint is complete; gives all collected results."""
        self.wait_until(lambda: all(task.drained for task in self._tasks.values()), "the end of all input")
        self.checkpoint()
        self.finished = True
        return self.results

    # Looking

    @property
    def results(self) -> list[Any]:
        """What was collected and committed so far, in order of delivery."""
        return list(self._collected.so_far())

    def operators(self, uid: str) -> list[Operator]:
        """The subtasks of an operator, in order."""
        found = [o for task in self._tasks.values() for o in task.operators if o.context.uid == uid]
        if not found:
            known = ", ".join(node.uid for node in self._plan.graph.nodes)
            raise JobDefinitionError(f'There is no operator with the uid "{uid}". There are: {known}.')
        return sorted(found, key=lambda operator: operator.context.subtask)

    # Checkpoints and crashes

    def checkpoint(self, *, in_flight: bool = False, complete: bool = True) -> JobSnapshot:
        """Run, then take a checkpoint and commit what it holds.

        `in_flight`: at once, while records may be on their way. `complete=False`: it is written, but the tasks are
        never told that it is complete, and crashes do not go back to it.
        """
        if not in_flight:
            self.run()
        return self._checkpoint(complete)

    def savepoint(self, *, in_flight: bool = False) -> JobSnapshot:
        """The same in the form that every backend reads. Crashes do not go back to it."""
        if not in_flight:
            self.run()
        folder = tempfile.TemporaryDirectory(prefix="headrace-savepoint-")
        order = SavepointOrder(Path(folder.name).as_uri())
        self._orders.add(order)
        checkpoint_id = self._coordinator.lifecycle.next_id
        self._inbox.put(SavepointWanted(order))
        metadata = self._published(checkpoint_id, order.answer.done)
        order.answer.result()
        return JobSnapshot(metadata, storage_for(order.location), folder)

    def _checkpoint(self, complete: bool) -> JobSnapshot:
        self._listen()
        checkpoint_id = self._coordinator.lifecycle.next_id
        self._store.answers = complete
        self._committed[checkpoint_id] = set()
        self._now_ms += _INTERVAL_MS
        self._outcome(self._coordinator.on_time())
        metadata = self._published(checkpoint_id, lambda: checkpoint_id in self._store.published)
        taken = JobSnapshot(metadata, committed=complete)
        if complete:
            self._last = taken
            committed = self._committed[checkpoint_id]
            self.wait_until(lambda: len(committed) == len(self._tasks), f"sinks to commit checkpoint {checkpoint_id}")
        return taken

    def _published(self, checkpoint_id: int, done: Callable[[], bool]) -> CheckpointMetadata:
        failed = self._reporter.failed
        self.wait_until(lambda: done() or checkpoint_id in failed, f"all tasks to write checkpoint {checkpoint_id}")
        if checkpoint_id in failed and self._store.answers:
            raise failed[checkpoint_id]
        return self._store.published[checkpoint_id]

    def crash(self) -> None:
        """All tasks die; a new attempt begins from the last complete checkpoint, or from nothing."""
        self._discard()
        self._begin()

    def close(self) -> None:
        """End the job as it stands. May be called more than once."""
        self._discard()

    def __enter__(self) -> JobHarness:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Inside

    def _begin(self) -> None:
        last = self._last
        restoration = Restoration.of(
            self._plan,
            None if last is None else last.metadata,
            None if last is None else last.storage,
            allow_non_restored=False,
            pickles=self._settings.pickles(chosen=False),
        )
        self._attempt = self._directory.claim_attempt()
        own = None if last is None or last is self._given else last.checkpoint_id
        self._directory.record_restored(self._attempt, own)
        if last is not None and last.committed:
            self._collected.had(last.metadata)
        restoration.commit_sinks(self._settings.job_id, self._attempt, self._collected, self._directory.storage)
        for level in self._plan.levels:
            deployment = self._deployment(level.index, restoration.storage)
            for slot in range(level.slots):
                told = partial(self._told, self._attempt)
                task = HarnessTask(deployment, slot, self.clock, told, self._woken)
                self._tasks[task.key] = task
        self._coordinate(restoration)
        self._listen()

    def _coordinate(self, restoration: Restoration) -> None:
        """Have a new coordinator bring the tasks up."""
        checkpointing = self._settings.checkpointing
        restore = restoration.restore
        self._restoration = restoration
        self._hosts = {
            (self._plan.graph.node(chain.nodes[0]).uid, subtask): TaskId(chain.level, slot)
            for chain in self._plan.chains
            for subtask, slot in enumerate(chain.slots)
        }
        enumerators = Enumerators(
            self._plan,
            partial(self._to_reader, self._attempt),
            lambda uid: None if restore is None else restore.enumerator(uid),
            lambda uid: () if restore is None else restore.splits(uid),
        )
        self._store = _Store(self._directory, self._attempt)
        self._reporter = _Reporter()
        self._orders = SavepointOrders()
        self._executor = ManualExecutor(self._attempt)
        tasks = operators_by_task(self._plan)
        self._coordinator = Coordinator(
            CoordinatedAttempt(
                job_id=self._settings.job_id,
                job_name=self._settings.name,
                run=1,
                number=self._attempt,
                history="",
                tasks=frozenset(tasks),
                source_tasks=source_tasks_of(self._plan),
                operator_names={node.uid: node.name for node in self._plan.graph.nodes},
                edges=edge_records(self._plan),
                mode="aligned",
                lifecycle=replace(
                    lifecycle_settings(checkpointing),
                    interval_ms=_INTERVAL_MS,
                    min_pause_ms=0,
                    timeout_ms=_NEVER_MS,
                    tolerable_failures=_NEVER_MS,
                ),
                next_checkpoint_id=self._next_id,
                retained=tuple(self._directory.load(ref) for ref in self._directory.completed()),
            ),
            Ports(
                tasks=self,
                store=self._store,
                sources=enumerators,
                reporter=self._reporter,
                alignment=Alignments(self._plan, lambda uid, at, m: self.send(self._hosts[uid, at], m)),
                clocks=Clocks(lambda: 0, lambda: self._now_ms),
            ),
            self._executor,
            Startup(tasks, _NEVER_MS, restores=restore is not None),
            self._orders,
        )
        self._coordinator.begin()
        for task in tasks:
            self._inbox.put(TaskJoined(self._attempt, task, 0))

    # The tasks port

    def send(self, task: TaskId, message: msg.Message) -> None:
        """For the coordinator."""
        receiver = self._tasks.get(task)
        if receiver is None:
            return
        match message:
            case msg.Deploy():
                receiver.open(message)
                self._inbox.put(TaskSaid(self._attempt, task, msg.Ready()))
            case msg.Start():
                receiver.mailbox.begin()
            case msg.Release():
                return
            case _:
                receiver.mailbox.deliver(message)

    def deployment(self, task: TaskId) -> msg.Deploy:
        """For the coordinator."""
        return self._restoration.deploy(*task)

    def _deployment(self, level: int, restore_storage: CheckpointStorage | None) -> LevelDeployment:
        settings = self._settings
        return LevelDeployment(
            level=level,
            plan=self._plan,
            job_id=settings.job_id,
            attempt=self._attempt,
            host="",
            port=0,
            secret=b"",
            checkpointing=settings.checkpointing,
            backend=settings.backend,
            home="harness",
            object_reuse=settings.object_reuse,
            buffer_timeout_ms=0,
            job_parameters=settings.job_parameters,
            announce_positions=False,
            restore_storage=restore_storage,
            pickles=settings.pickles(chosen=False),
        )

    def _discard(self) -> None:
        tasks, self._tasks = self._tasks, {}
        if tasks:
            self._next_id = self._coordinator.lifecycle.next_id
            self._coordinator.close()
            self._work()
        for task in tasks.values():
            task.discard()
        self._inbox.forget_attempts()

    def _told(self, attempt: int, task: tuple[int, int], message: Any) -> None:
        """By a task, on any thread."""
        match message:
            case msg.Collected(collector, uid, subtask, checkpoint_id, payload):
                self._collected.take(collector, uid, subtask, checkpoint_id, payload)
            case msg.Progress() | msg.Printed():
                pass
            case _:
                self._inbox.put(TaskSaid(attempt, TaskId(*task), message))
        self._woken.set()

    def _to_reader(self, attempt: int, uid: str, subtask: int, message: msg.Message) -> None:
        self._inbox.put(ReaderAddressed(attempt, self._hosts[uid, subtask], message))

    def _listen(self) -> bool:
        """Have the coordinator take what happened; True if that may give tasks something to do."""
        heard = False
        while len(self._inbox) or self._executor.busy:
            heard = True
            event = self._inbox.take(0)
            match event:
                case None:
                    pass
                case TaskSaid(_, task, msg.Drained()):
                    # Not for the coordinator, which would take the last checkpoint at once: the test says when.
                    self._tasks[task].drained = True
                case _:
                    self._outcome(self._coordinator.handle(event))
            if isinstance(event, TaskSaid) and isinstance(event.message, msg.Committed):
                self._committed[event.message.checkpoint_id].add(event.task)
            self._work()
        return heard

    def _work(self) -> None:
        """Do the coordinator's I/O, here and now."""
        while busy := self._executor.busy:
            result = self._executor.step(busy[0])
            if result is not None:
                self._inbox.put(result)

    @staticmethod
    def _outcome(outcome: Outcome | None) -> None:
        if outcome is not None and outcome.error is not None:
            raise outcome.error

    def _carry(self, task: HarnessTask) -> bool:
        """Bring its cells to the next level."""
        cells = task.cells.cells
        if not cells:
            return False
        level, slot = task.key
        while cells:
            target, data = cells.popleft()
            receiver = self._tasks[level + 1, target]
            receiver.gate.arrive(slot, data)
        return True


def _built(what: DataStream | StreamExecutionEnvironment) -> Any:
    if isinstance(what, DataStream):
        env = what.get_execution_environment()
        draft: Draft = what._declare("collect", CollectFactory(_COLLECTOR), None)
        draft.parallelism = what._outlets[0].source.parallelism
    else:
        env = what
    plan, settings = env._taken("harness")
    for node in plan.graph.nodes:
        source = node.factory.source if isinstance(node.factory, SourceFactory) else None
        if isinstance(source, TestSource) and any(Marker.CRASH in m for m in source.markers.values()):
            raise JobDefinitionError(
                f'The script of source "{node.name}" holds CRASH, which kills the process it runs in: here, the test '
                "itself. Use a ManualSource and JobHarness.crash(), or run the job on Spark with run_until_done()."
            )
    return plan, settings
