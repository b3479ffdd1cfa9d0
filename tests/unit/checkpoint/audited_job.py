"""A job without Spark, for audits: two tasks with RocksDB state, and the coordinator that production runs.

Coordinator, job directory, backends and storage are the engine's own. What a run goes through is drawn by a seed: tasks
that decline, die, or whose acknowledgement comes late or never; publications whose outcome nobody knows; checkpoints
that time out; drivers that are killed between any two operations on storage; drivers that wake up after they were
replaced, before or behind their own look at the attempts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from random import Random
from typing import Any

from headrace.backends.rocksdb.backend import RocksDBBackend
from headrace.checkpoint.handles import ChannelSnapshot, PreparedItem, StateFile, SubtaskSnapshot, TaskSnapshot
from headrace.checkpoint.job_directory import JobDirectory
from headrace.checkpoint.lifecycle.facts import TaskId
from headrace.checkpoint.lifecycle.settings import LifecycleSettings
from headrace.checkpoint.metadata.codec import encode_metadata
from headrace.checkpoint.metadata.model import CheckpointMetadata, channels_of, operators_of, shared_files_of
from headrace.checkpoint.publication import PublishOutcomeUnknownError
from headrace.checkpoint.storage.base import FileStore
from headrace.checkpoint.storage.filesystem import FileSystemCheckpointStorage
from headrace.clocks import Clocks
from headrace.errors import CheckpointFailure, FencedError, StorageError
from headrace.runtime.control import messages as msg
from headrace.runtime.coordinator.coordinator import Coordinator
from headrace.runtime.coordinator.events import Command, Event, TaskSaid, WorkFailed
from headrace.runtime.coordinator.executor import Lane, ManualExecutor
from headrace.runtime.coordinator.ports import CoordinatedAttempt, Ports, Silent
from headrace.runtime.coordinator.savepoints import SavepointOrders
from headrace.runtime.coordinator.startup import Startup
from headrace.runtime.coordinator.store import AttemptStore
from headrace.state.backend import BackendContext
from headrace.state.descriptors import ValueStateDescriptor
from headrace.state.key_groups import group_range, key_group
from headrace.types.information import Types

JOB = "audited"
UID = "kept"
WIDTH = 2
MAX_PARALLELISM = 16
RETAIN = 2
GRACE_MS = 30_000
TIMEOUT_MS = 5_000
VALUE = ValueStateDescriptor("value", Types.STRING())
KEYS = [f"key-{n}" for n in range(120)]


class Killed(BaseException):
    """The driver's process is gone, here and now."""


class FragileStorage(FileSystemCheckpointStorage):
    """A directory whose user can be killed before or after any operation of the driver, and lied to."""

    steps_to_live: int | None = None
    lose_the_answer = False
    """The next file is created, but the driver hears of an error, and cannot read it back."""
    full = False
    """Tasks can store nothing more."""
    shared_files_removed = 0

    def _step(self) -> None:
        if self.steps_to_live is not None:
            if self.steps_to_live == 0:
                raise Killed
            self.steps_to_live -= 1

    def create_exclusive(self, path: str, data: bytes) -> None:
        self._step()
        super().create_exclusive(path, data)
        if self.lose_the_answer and path.endswith("_metadata"):
            raise StorageError(f"no answer about {path}")
        self._step()

    def read(self, path: str) -> bytes:
        # The driver's look at its own attempt comes before, and is answered.
        if self.lose_the_answer and path.endswith("_metadata"):
            raise StorageError(f"no answer about {path}")
        return super().read(path)

    def delete(self, path: str) -> None:
        self._step()
        super().delete(path)
        if "/shared/" in path:
            self.shared_files_removed += 1
        self._step()

    def delete_tree(self, prefix: str) -> None:
        self._step()
        super().delete_tree(prefix)
        self._step()

    def file_store(self, prefix: str, known_shared: frozenset[str] = frozenset()) -> FileStore:
        store = super().file_store(prefix, known_shared)
        return _FullStore(store) if self.full else store


class _FullStore:
    """Takes one file and no more."""

    def __init__(self, store: FileStore) -> None:
        self._store = store
        self._taken = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def _take(self) -> None:
        if self._taken:
            raise StorageError("no space left on device")
        self._taken = True

    def write(self, name: str, chunks: Iterable[bytes | memoryview]) -> StateFile:
        self._take()
        return self._store.write(name, chunks)

    def write_shared(self, path: Path) -> StateFile:
        self._take()
        return self._store.write_shared(path)


class Task:
    """One subtask with its keys, what it should hold, and the snapshots under way."""

    def __init__(self, slot: int, folder: Path, saved: CheckpointMetadata | None, storage: FragileStorage) -> None:
        folder.mkdir(parents=True)
        self.slot = slot
        groups = group_range(slot, WIDTH, MAX_PARALLELISM)
        self.keys = [key for key in KEYS if key_group(key, MAX_PARALLELISM) in groups]
        self.backend = RocksDBBackend(BackendContext(UID, slot, groups, MAX_PARALLELISM, folder))
        self.values: dict[str, str] = {}
        self.works: dict[int, Any] = {}
        self.known_shared: frozenset[str] = frozenset()
        if saved is not None:
            (record,) = saved.operators
            mine = [s.keyed for s in record.subtasks if s.subtask == slot and s.keyed is not None]
            self.backend.restore(mine, storage.file_store("restore"))
            self.known_shared = shared_files_of(saved)
            self.values = self.contents()

    def contents(self) -> dict[str, str]:
        state = self.backend.state(VALUE)
        found = {}
        for key in list(self.backend.keys("value")):
            self.backend.key_context.key = key
            found[str(key)] = state.value()
        return found

    def change(self, random: Random) -> None:
        state = self.backend.state(VALUE)
        for key in random.sample(self.keys, 3):
            self.backend.key_context.key = key
            if random.random() < 0.1 and key in self.values:
                state.clear()
                del self.values[key]
            else:
                # Text that does not compress: files of a size worth sharing.
                self.values[key] = random.randbytes(400).hex()
                state.update(self.values[key])

    def upload(self, checkpoint_id: int, store: FileStore, random: Random) -> TaskSnapshot:
        """The asynchronous part of a snapshot, with output and cells in flight beside the keyed state."""
        work, _ = self.works.pop(checkpoint_id)
        keyed = work.write(store)
        prepared: tuple[PreparedItem, ...] = ()
        if random.random() < 0.3:
            prepared = (PreparedItem(checkpoint_id, b"", store.write("prepared", [random.randbytes(200)])),)
        channels = None
        if random.random() < 0.3:
            channels = ChannelSnapshot(0, self.slot, store.write("channels", [random.randbytes(100)]), 1)
        subtask = SubtaskSnapshot(UID, self.slot, WIDTH, MAX_PARALLELISM, keyed=keyed, prepared=prepared)
        return TaskSnapshot(0, self.slot, (subtask,), channels)

    def abort(self, checkpoint_id: int) -> None:
        if checkpoint_id in self.works:
            self.works.pop(checkpoint_id)[0].cancel()

    def close(self) -> None:
        for checkpoint_id in list(self.works):
            self.abort(checkpoint_id)
        self.backend.close()


class NoSources:
    """The tasks of this job make up their own input."""

    def snapshot(self) -> dict[str, bytes]:
        return {}

    def restore(self) -> None: ...
    def start(self, now_ms: int) -> None: ...
    def hear(self, message: msg.SplitRequest | msg.Announced) -> None: ...
    def discover(self, now_ms: int) -> None: ...
    def look(self, uid: str) -> None: ...
    def close(self) -> None: ...


class AuditedStore(AttemptStore):
    """The engine's own, with storage that does not always answer."""

    job: AuditedJob

    def publish(self, metadata: CheckpointMetadata) -> None:
        job = self.job
        job.storage.lose_the_answer = job.chance(0.03)
        try:
            super().publish(metadata)
        except StorageError as error:
            unknown = isinstance(error, PublishOutcomeUnknownError)
            job.events["outcome unknown" if unknown else "not published"] += 1
            raise
        finally:
            job.storage.lose_the_answer = False
        job.events["published"] += 1


class Driver(Silent):
    """One attempt: restores, then runs the engine's coordinator, whose I/O gets on when the dice say so."""

    store_type: type[AuditedStore] = AuditedStore

    def __init__(self, job: AuditedJob) -> None:
        self.job = job
        self.over = False
        clocks = Clocks(wall_ms=lambda: job.now_ms, steady_ms=lambda: job.now_ms)
        self.directory = JobDirectory(job.storage, JOB, clocks=clocks, grace_ms=GRACE_MS)
        self.directory.open_run()
        self.attempt = self.directory.claim_attempt()
        newest = self.directory.newest()
        saved = None if newest is None else self.directory.load(newest)
        self.directory.record_restored(self.attempt, None if newest is None else newest.checkpoint_id)
        retained = tuple(self.directory.load(ref) for ref in self.directory.completed())
        self.directory.drop(self.directory.orphans())
        local = job.local / f"attempt-{self.attempt}"
        self.tasks = [Task(slot, local / str(slot), saved, job.storage) for slot in range(WIDTH)]
        if saved is not None:
            wanted = job.models[saved.attempt, saved.checkpoint_id]
            assert [task.values for task in self.tasks] == wanted, f"checkpoint {saved.checkpoint_id} restores exactly"
        self.barriers: list[tuple[int, Task]] = []
        self.uploads: list[tuple[int, Task]] = []
        self.late: list[TaskSaid] = []
        everyone = {TaskId(0, slot): UID for slot in range(WIDTH)}
        attempt = CoordinatedAttempt(
            job_id=JOB,
            job_name=JOB,
            run=1,
            number=self.attempt,
            history="",
            tasks=frozenset(everyone),
            source_tasks=frozenset(everyone),
            operator_names={},
            edges=(),
            mode="aligned",
            lifecycle=LifecycleSettings(
                interval_ms=1_000,
                timeout_ms=TIMEOUT_MS,
                max_concurrent=2,
                tolerable_failures=1_000_000,
                retain=RETAIN,
            ),
            next_checkpoint_id=self.directory.next_checkpoint_id(),
            retained=retained,
        )
        store = self.store_type(self.directory, self.attempt)
        store.job = job
        self.executor = ManualExecutor(self.attempt)
        ports = Ports(self, store, NoSources(), reporter=self, clocks=clocks)
        startup = Startup(everyone, 1, restores=False, clock=lambda: 0.0)
        self.coordinator = Coordinator(attempt, ports, self.executor, startup, SavepointOrders())
        self.coordinator.begin()
        for task in everyone:
            self.handle(TaskSaid(self.attempt, task, msg.Ready()))

    def handle(self, event: Event) -> None:
        assert self.coordinator.handle(event) is None, event
        self.sources()

    def time_passes(self) -> None:
        assert self.coordinator.on_time() is None
        self.sources()

    def sources(self) -> None:
        """There are none, so that they answer at once."""
        while self.executor.lanes[Lane.SOURCES]:
            self._step(Lane.SOURCES)

    def io(self) -> None:
        """One of the threads that write and delete gets on."""
        self._step(self.job.random.choice(self.executor.busy))
        self.sources()

    def _step(self, lane: Lane) -> None:
        result = self.executor.step(lane)
        if result is not None:
            assert self.coordinator.handle(result) is None, result

    # What the coordinator has to say

    def send(self, task: TaskId, message: msg.Message) -> None:
        receiver = self.tasks[task.slot]
        match message:
            case msg.Trigger(checkpoint_id):
                self.barriers.append((checkpoint_id, receiver))
            case msg.Complete(checkpoint_id, shared):
                receiver.backend.checkpoint_complete(checkpoint_id)
                receiver.known_shared = frozenset(shared)
            case msg.Abort(checkpoint_id):
                self.barriers = [item for item in self.barriers if item != (checkpoint_id, receiver)]
                self.uploads = [item for item in self.uploads if item != (checkpoint_id, receiver)]
                receiver.abort(checkpoint_id)

    def deployment(self, task: TaskId) -> msg.Deploy:
        raise AssertionError("tasks are made with their state")

    def checkpoint_failed(self, checkpoint_id: int, failure: CheckpointFailure, detail: str, in_a_row: int) -> None:
        self.job.events[f"aborted: {failure.name}"] += 1

    def storage_trouble(self, error: StorageError) -> None:
        self.job.events["not removed"] += 1

    def metadata(self, checkpoint_id: int, snapshots: Iterable[TaskSnapshot]) -> CheckpointMetadata:
        parts = tuple(snapshots)
        return CheckpointMetadata(
            job_id=JOB,
            job_name=JOB,
            run=1,
            attempt=self.attempt,
            checkpoint_id=checkpoint_id,
            kind="checkpoint",
            mode="aligned",
            created_ms=self.job.now_ms,
            duration_ms=0,
            operators=operators_of(parts, {}),
            channels=channels_of(parts),
        )

    # What tasks do

    def barrier(self) -> None:
        """The next barrier comes to its task."""
        checkpoint_id, task = self.barriers.pop(0)
        task.works[checkpoint_id] = (task.backend.snapshot(checkpoint_id), None)
        self.job.models.setdefault((self.attempt, checkpoint_id), [{}] * WIDTH)[task.slot] = dict(task.values)
        self.uploads.append((checkpoint_id, task))

    def upload(self) -> None:
        """A task stores its part and says so; or it cannot, or nobody hears it in time."""
        job = self.job
        checkpoint_id, task = self.uploads.pop(job.random.randrange(len(self.uploads)))
        who = TaskId(0, task.slot)
        prefix = self.directory.prefix_for(checkpoint_id, self.attempt)
        job.storage.full = job.chance(0.06)
        try:
            snapshot = task.upload(checkpoint_id, job.storage.file_store(prefix, task.known_shared), job.random)
        except StorageError as error:
            job.events["declined"] += 1
            failure = CheckpointFailure.STORAGE.name
            self.handle(TaskSaid(self.attempt, who, msg.Decline(checkpoint_id, failure, str(error))))
            return
        finally:
            job.storage.full = False
        told = TaskSaid(self.attempt, who, msg.Acknowledge(checkpoint_id, snapshot))
        if job.chance(0.05):
            job.events["acknowledged late"] += 1
            self.late.append(told)
        else:
            self.handle(told)

    def take_it_easy(self) -> None:
        """Everything that is under way comes to its end, without faults."""
        while self.barriers or self.uploads or self.executor.busy:
            if self.barriers:
                self.barrier()
            elif self.uploads:
                checkpoint_id, task = self.uploads.pop(0)
                prefix = self.directory.prefix_for(checkpoint_id, self.attempt)
                store = self.job.storage.file_store(prefix, task.known_shared)
                snapshot = task.upload(checkpoint_id, store, self.job.random)
                self.handle(TaskSaid(self.attempt, TaskId(0, task.slot), msg.Acknowledge(checkpoint_id, snapshot)))
            else:
                self.io()

    def end(self, *, in_peace: bool) -> None:
        """The attempt is over; what it had under way is done, or is not."""
        self.coordinator.handle(Command.SUSPEND)
        self.coordinator.close()
        while in_peace and self.executor.busy:
            self._step(self.executor.busy[0])

    def close(self) -> None:
        if not self.over:
            self.over = True
            for task in self.tasks:
                task.close()


MUST_HAPPEN = {
    "published": 200,
    "declined": 3,
    "acknowledged late": 2,
    "aborted: TIMED_OUT": 2,
    "outcome unknown": 1,
    "tasks died": 2,
    "driver killed": 4,
    "driver replaced": 2,
    "published in vain": 1,
    "late work refused": 1,
    "left a half-written file": 1,
    "shared files removed": 20,
}
"""How often, at least, before a run is worth an audit."""


class AuditedJob:
    """Goes on until all has happened to it that a run must come through."""

    def __init__(self, root: Path, local: Path, seed: int, driver: type[Driver] = Driver) -> None:
        self._driver_type = driver
        self.random = Random(seed)
        self.storage = FragileStorage(str(root), file_state_size_threshold=0)
        self.local = local
        self.now_ms = 1_000_000
        self.events: Counter[str] = Counter()
        self.models: dict[tuple[int, int], list[dict[str, str]]] = {}
        """What each task held at its barrier, by attempt and checkpoint."""
        self.planted: set[Path] = set()
        self.healthy = False
        self.driver = driver(self)

    def chance(self, probability: float) -> bool:
        """Whether a fault happens."""
        return not self.healthy and self.random.random() < probability

    def run(self, must_happen: Mapping[str, int] = MUST_HAPPEN) -> None:
        while any(self.events[what] < least for what, least in must_happen.items()):
            self.events["shared files removed"] = self.storage.shared_files_removed
            try:
                self._step()
            except Killed:
                self._driver_dies()

    def _step(self) -> None:
        driver = self.driver
        what = self.random.random()
        if what < 0.22:
            self.random.choice(driver.tasks).change(self.random)
        elif what < 0.42 and driver.barriers:
            driver.barrier()
        elif what < 0.62 and driver.uploads:
            driver.upload()
        elif what < 0.80 and driver.executor.busy:
            driver.io()
        elif what < 0.97:
            self.now_ms += self.random.randrange(200, 1_200)
            driver.time_passes()
        elif what < 0.977:
            self.now_ms += TIMEOUT_MS + GRACE_MS
            driver.time_passes()
        elif what < 0.985 and driver.late:
            driver.handle(driver.late.pop())
        elif what < 0.988:
            self._tasks_die()
        elif what < 0.991:
            self._driver_is_replaced()
        elif self.storage.steps_to_live is None and what < 0.996:
            self.storage.steps_to_live = self.random.randrange(12)

    def restart(self) -> None:
        self.driver = self._driver_type(self)

    def _tasks_die(self) -> None:
        self.events["tasks died"] += 1
        self.driver.end(in_peace=self.random.random() < 0.5)
        self.driver.close()
        self.restart()

    def _driver_dies(self) -> None:
        """Nothing more is done by it; a file that it was writing may lie there half."""
        self.events["driver killed"] += 1
        self.storage.steps_to_live = None
        if self.chance(0.3):
            half = (
                self.storage.root / JOB / f"run-000001/chk-{self.random.randrange(1, 300):06d}/.tmp-{len(self.planted)}"
            )
            half.parent.mkdir(parents=True, exist_ok=True)
            half.write_bytes(b"half")
            self.planted.add(half)
            self.events["left a half-written file"] += 1
        self.driver.close()
        # The next one may be killed while it starts.
        while True:
            try:
                if self.chance(0.3):
                    self.storage.steps_to_live = self.random.randrange(4)
                self.restart()
                return
            except Killed:
                self.events["driver killed"] += 1
                self.storage.steps_to_live = None

    def _driver_is_replaced(self) -> None:
        """One goes to sleep, another one takes over, the first wakes up and finds that it may do nothing more."""
        self.storage.steps_to_live = None
        sleeper = self.driver
        self.restart()
        self.events["driver replaced"] += 1
        sleeper.barriers.clear()
        checkpoint_id = sleeper.directory.next_checkpoint_id()
        store = self.storage.file_store(sleeper.directory.prefix_for(checkpoint_id, sleeper.attempt))
        snapshots = []
        for task in sleeper.tasks:
            task.works[checkpoint_id] = (task.backend.snapshot(checkpoint_id), None)
            snapshots.append(task.upload(checkpoint_id, store, self.random))
        metadata = sleeper.metadata(checkpoint_id, snapshots)
        if self.chance(0.5):
            # As late as it can be: behind its own look at the attempts.
            path = f"{JOB}/run-000001/chk-{checkpoint_id:06d}/_metadata"
            self.storage.create_exclusive(path, encode_metadata(metadata))
            self.events["published in vain"] += 1
        else:
            refused(lambda: sleeper.directory.publish(metadata))
        refused(lambda: sleeper.directory.drop([checkpoint_id]))
        refused(lambda: sleeper.directory.discard([f"{JOB}/run-000001/chk-{checkpoint_id:06d}/x"]))
        refused(sleeper.directory.delete_checkpoints)
        for lane in (Lane.PUBLISH, Lane.REMOVE):
            while sleeper.executor.lanes[lane]:
                result = sleeper.executor.step(lane)
                assert isinstance(result, WorkFailed), result
                assert isinstance(result.error, FencedError)
                self.events["late work refused"] += 1
        sleeper.close()

    def settle(self) -> None:
        """What a healthy job does: completes checkpoints, is started anew, completes more; and time goes by."""
        self.storage.steps_to_live = None
        self.healthy = True
        for _ in range(2):
            for _ in range(RETAIN + 2):
                for task in self.driver.tasks:
                    task.change(self.random)
                self._settled_checkpoint()
            self.driver.end(in_peace=True)
            self.driver.close()
            self.restart()
        # What the last checkpoints gave up waits for its grace to be over: nobody needs it at two collections.
        for _ in range(RETAIN + 3):
            self._settled_checkpoint()

    def _settled_checkpoint(self) -> None:
        self.now_ms += GRACE_MS + TIMEOUT_MS
        self.driver.time_passes()
        self.driver.take_it_easy()


def refused(call: Any) -> None:
    try:
        call()
    except FencedError:
        return
    raise AssertionError("a driver that was replaced must be refused")
