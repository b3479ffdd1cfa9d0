"""One life of a job between two failures, as far as it is Spark's: control server, Spark job, and a loop of events.

What the events mean and what is to be done about them is the coordinator's.
"""

from __future__ import annotations

import secrets
import threading
import time
from dataclasses import dataclass

from headrace import failpoints
from headrace.checkpoint.job_directory import JobDirectory
from headrace.checkpoint.lifecycle.facts import TaskId
from headrace.checkpoint.lifecycle.settings import LifecycleSettings
from headrace.checkpoint.metadata.model import CheckpointMetadata
from headrace.checkpoint.storage.paths import WriterScope
from headrace.clocks import SYSTEM_CLOCKS, Clocks
from headrace.errors import HeadraceError
from headrace.operators.factories import SourceFactory
from headrace.plan.graph import JobPlan
from headrace.plan.settings import CheckpointingMode, CheckpointSettings, JobSettings
from headrace.runtime.control import messages as msg
from headrace.runtime.control.address import control_address
from headrace.runtime.control.heartbeats import Heartbeats
from headrace.runtime.control.server import ControlServer, ServerEvent
from headrace.runtime.control.server import TaskJoined as Joined
from headrace.runtime.control.server import TaskLost as Lost
from headrace.runtime.control.server import TaskSaid as Said
from headrace.runtime.control.wire import ConnectionLost
from headrace.runtime.coordinator.coordinator import Coordinator
from headrace.runtime.coordinator.events import (
    MetadataPublished,
    PublicationFailed,
    ReaderAddressed,
    ResultsUnreadable,
    SparkEnded,
    TaskJoined,
    TaskLost,
    TaskSaid,
)
from headrace.runtime.coordinator.executor import ThreadedExecutor
from headrace.runtime.coordinator.inbox import Inbox
from headrace.runtime.coordinator.outcomes import End, Outcome, SourcePositions
from headrace.runtime.coordinator.ports import CoordinatedAttempt, Ports
from headrace.runtime.coordinator.savepoints import SavepointOrders
from headrace.runtime.coordinator.startup import Startup, operators_by_task
from headrace.runtime.coordinator.store import AttemptStore, Claimed
from headrace.runtime.job.alignment import Alignments
from headrace.runtime.job.collected import CollectedResults
from headrace.runtime.job.enumerators import Enumerators
from headrace.runtime.job.feeds import STOPPED_WITHIN_S
from headrace.runtime.job.printer import STDOUT
from headrace.runtime.job.reporting import BoardReporter
from headrace.runtime.job.restoration import Restoration
from headrace.runtime.job.spark_ends import AttemptEnds
from headrace.runtime.job.status import StatusBoard
from headrace.runtime.spark.session import SparkHandle
from headrace.runtime.spark.submit import LevelSpec, SparkJob
from headrace.runtime.task.deployment import LevelDeployment, without_other_levels
from headrace.runtime.task.main import LevelTask
from headrace.runtime.task.routing import edge_records

TEARDOWN_S = 15.0
"""How long the end of an attempt waits for its Spark job, whose slots the next one needs."""
IO_LIMIT_S = 5.0
FINISHED_IO_LIMIT_S = 30.0
"""How long it waits for storage. Nothing is lost by not waiting: a publication that comes late does not count, and what
was not removed is removed by the next attempt, or by `checkpoints gc`."""
AT_ONCE_S = 3.0
"""For all of it together where a person waits."""


@dataclass(frozen=True, slots=True)
class AttemptStart:
    """From where an attempt begins."""

    number: int
    run: int
    restoration: Restoration
    retained: tuple[CheckpointMetadata, ...]
    next_checkpoint_id: int
    resume: SourcePositions | None
    """Where sources stood, in a job without checkpoints."""
    remove_claimed: Claimed | None = None
    """Removes what the job was started from, if the job owns it."""


@dataclass(frozen=True, slots=True)
class JobWorld:
    """What is the same for all attempts of a job."""

    plan: JobPlan
    settings: JobSettings
    directory: JobDirectory
    inbox: Inbox
    board: StatusBoard
    collected: CollectedResults
    orders: SavepointOrders
    clocks: Clocks = SYSTEM_CLOCKS


class Attempt:
    """Made for one attempt and run once, by the runner's thread."""

    def __init__(self, job: JobWorld, start: AttemptStart, handle: SparkHandle, ends: AttemptEnds) -> None:
        self._job = job
        self._start = start
        self._handle = handle
        self._ends = ends
        self.number = start.number
        self._topology = {
            (job.plan.graph.node(chain.nodes[0]).uid, subtask): TaskId(chain.level, slot)
            for chain in job.plan.chains
            for subtask, slot in enumerate(chain.slots)
        }
        resume, restore = start.resume, start.restoration.restore
        self._enumerators = Enumerators(
            job.plan,
            self._to_reader_in_order,
            lambda uid: resume.state(uid) if resume is not None else restore.enumerator(uid) if restore else None,
            lambda uid: resume.splits(uid) if resume is not None else restore.splits(uid) if restore else (),
            keeps_positions=self._announces_positions,
        )
        self._executor = ThreadedExecutor(self.number, job.inbox.put)
        self.coordinator = self._coordinator()

    def run(self) -> Outcome:
        """From the first message to the last. The Spark job is gone when this returns, unless a person waits."""
        job, settings = self._job, self._job.settings
        job.board.begin_attempt()
        secret = secrets.token_bytes(32)
        conf = self._handle.context.getConf()
        address = control_address(
            settings.control.bind_address,
            settings.control.port,
            is_local=self._handle.is_local,
            driver_host=conf.get("spark.driver.host"),
            driver_bind_address=conf.get("spark.driver.bindAddress"),
        )
        self._server = ControlServer(
            *(address.bind, address.port, secret, self.number, self._on_server_event, self._take_results, STDOUT.put),
            heartbeats=self._heartbeats,
        )
        self._spark = SparkJob(
            self._handle,
            [self._level(level.index, address.advertised, secret) for level in job.plan.levels],
            group=f"headrace-{settings.job_id}-{self.number}",
            description=f"{settings.name} (attempt {self.number})",
        )
        outcome = Outcome(End.FAILED)
        try:
            self.coordinator.begin()
            self._spark.start()
            threading.Thread(target=self._watch_spark, name="spark-watch", daemon=True).start()
            outcome = self._loop()
        except HeadraceError as error:
            outcome = Outcome(End.FAILED, error)
        finally:
            self._tear_down(outcome.end)
        return outcome

    def positions(self) -> SourcePositions:
        """Where sources stand, for a restart without checkpoints."""
        return self._enumerators.standing()

    @property
    def next_checkpoint_id(self) -> int:
        """Higher than any id that this attempt has used: what storage has not answered may still arrive there."""
        return self.coordinator.lifecycle.next_id

    @property
    def _announces_positions(self) -> bool:
        """Whether readers say where they stand: sources go on from there where no checkpoint says so."""
        return not (self._job.settings.checkpointing.enabled or self._job.settings.batch)

    def _loop(self) -> Outcome:
        coordinator = self.coordinator
        while True:
            event = self._job.inbox.take(coordinator.wait_s())
            outcome = None if event is None else coordinator.handle(event)
            if outcome is None:
                outcome = coordinator.on_time()
            if outcome is not None:
                return outcome

    # -- setting up

    def _coordinator(self) -> Coordinator:
        job, start, settings = self._job, self._start, self._job.settings
        checkpointing = settings.checkpointing
        plan = job.plan
        metadata = start.restoration.metadata
        attempt = CoordinatedAttempt(
            job_id=settings.job_id,
            job_name=settings.name,
            run=start.run,
            number=self.number,
            history=job.directory.history,
            tasks=frozenset(operators_by_task(plan)),
            source_tasks=source_tasks_of(plan),
            operator_names={n.uid: n.name for n in plan.graph.nodes},
            edges=edge_records(plan),
            mode="at-least-once" if checkpointing.mode is CheckpointingMode.AT_LEAST_ONCE else "aligned",
            lifecycle=lifecycle_settings(checkpointing),
            next_checkpoint_id=start.next_checkpoint_id,
            retained=start.retained,
        )
        restored = None if metadata is None else metadata.checkpoint_id
        ports = Ports(
            tasks=self,
            store=AttemptStore(job.directory, self.number, self._ends.spools, start.remove_claimed),
            sources=self._enumerators,
            reporter=BoardReporter(job.board, self.number, checkpointing.storage.location, restored, job.clocks),
            alignment=Alignments(plan, self._to_reader),
            hand_over=self._ends,
            clocks=job.clocks,
        )
        startup = Startup(
            operators_by_task(plan),
            settings.initialization_timeout_ms,
            restores=start.restoration.restore is not None,
        )
        return Coordinator(attempt, ports, self._executor, startup, job.orders)

    @property
    def _heartbeats(self) -> Heartbeats:
        control = self._job.settings.control
        return Heartbeats.of_millis(control.heartbeat_interval_ms, control.heartbeat_timeout_ms)

    def _level(self, level: int, host: str, secret: bytes) -> LevelSpec:
        job, settings = self._job, self._job.settings
        deployment = LevelDeployment(
            level=level,
            plan=without_other_levels(job.plan, level),
            job_id=settings.job_id,
            attempt=self.number,
            host=host,
            port=self._server.port,
            secret=secret,
            checkpointing=settings.checkpointing,
            backend=settings.backend,
            home=WriterScope.of(job.directory.prefix_for(0, self.number)).home,
            object_reuse=settings.object_reuse,
            buffer_timeout_ms=settings.buffer_timeout_ms,
            job_parameters=settings.job_parameters,
            announce_positions=self._announces_positions,
            restore_storage=self._start.restoration.storage,
            failpoints=failpoints.configured(),
            history=job.directory.history,
            heartbeats=self._heartbeats,
            pickles=self._start.restoration.pickles,
        )
        return LevelSpec(job.plan.levels[level].slots, LevelTask(deployment))

    # -- the tasks port

    def send(self, task: TaskId, message: msg.Message) -> None:
        self._server.send(task, message)

    def deployment(self, task: TaskId) -> msg.Deploy:
        return self._start.restoration.deploy(*task)

    def _to_reader(self, uid: str, subtask: int, message: msg.Message) -> None:
        self.send(self._topology[uid, subtask], message)

    def _to_reader_in_order(self, uid: str, subtask: int, message: msg.Message) -> None:
        """From the sources' own thread: through the coordinator, which knows on which side of a trigger it belongs."""
        self._job.inbox.put(ReaderAddressed(self.number, self._topology[uid, subtask], message))

    # -- events, from threads of their own

    def _on_server_event(self, event: ServerEvent) -> None:
        put, number = self._job.inbox.put, self.number
        match event:
            case Joined(task, hello):
                put(TaskJoined(number, TaskId(*task), hello.pid))
            case Lost(task, reason):
                put(TaskLost(number, TaskId(*task), reason))
            case Said(task, msg.Progress() as progress):
                self._job.board.progress(task, progress)
            case Said(_, msg.Hello() | msg.Printed()):
                pass  # said once, in the handshake; lines go past the coordinator
            case Said(task, message):
                put(TaskSaid(number, TaskId(*task), message))

    def _take_results(self, results: msg.Collected) -> None:
        """Unpacking them is no work for the coordinator."""
        c = results
        try:
            self._job.collected.take(c.collector, c.uid, c.subtask, c.checkpoint_id, c.payload)
        except Exception as error:
            self._job.inbox.put(ResultsUnreadable(self.number, error))
            raise ConnectionLost(f"results of {c.uid} cannot be read") from error

    def _watch_spark(self) -> None:
        self._spark.join()
        failed = self._spark.failed_task
        self._job.inbox.put(SparkEnded(self.number, self._spark.error, None if failed is None else TaskId(*failed)))

    def _tear_down(self, end: End) -> None:
        """Stop everything of this attempt. What does not stop in time is abandoned: it is fenced off, or harmless."""
        at_once = end in (End.CANCELED, End.SUSPENDED)
        deadline = time.monotonic() + AT_ONCE_S

        def at_most(limit_s: float) -> float:
            return min(limit_s, max(0.0, deadline - time.monotonic())) if at_once else limit_s

        self._spark.cancel()
        self._ends.stop(at_most(STOPPED_WITHIN_S))
        self._spark.join(at_most(TEARDOWN_S))
        self._server.close()
        self.coordinator.close()
        limit_s = FINISHED_IO_LIMIT_S if end is End.FINISHED else IO_LIMIT_S
        self._executor.close(at_most(limit_s), drop_queued=self.coordinator.is_fenced)
        for event in self._job.inbox.forget_attempts():
            # What was published while the attempt ended is complete, and people are told so.
            if isinstance(event, MetadataPublished | PublicationFailed):
                self.coordinator.handle(event)


def source_tasks_of(plan: JobPlan) -> frozenset[TaskId]:
    """Those that get the trigger of an aligned checkpoint."""
    found = {TaskId(0, slot) for slot in range(plan.levels[0].slots)}
    for chain in plan.chains:
        if isinstance(plan.graph.node(chain.nodes[0]).factory, SourceFactory):
            found.update(TaskId(chain.level, slot) for slot in chain.slots)
    return frozenset(found)


def lifecycle_settings(checkpointing: CheckpointSettings) -> LifecycleSettings:
    unaligned = checkpointing.unaligned and checkpointing.mode is CheckpointingMode.EXACTLY_ONCE
    return LifecycleSettings(
        interval_ms=checkpointing.interval_ms,
        timeout_ms=checkpointing.timeout_ms,
        min_pause_ms=checkpointing.min_pause_ms,
        max_concurrent=checkpointing.max_concurrent,
        tolerable_failures=checkpointing.tolerable_failures,
        retain=checkpointing.retain,
        unaligned=unaligned,
        unaligned_at_once=unaligned and checkpointing.aligned_timeout_ms == 0,
        final_checkpoint=checkpointing.only_final,
    )
