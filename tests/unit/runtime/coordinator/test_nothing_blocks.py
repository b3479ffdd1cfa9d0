"""Whatever storage, the program's enumerators and its functions do: tasks are heard, and the job can be ended.

The coordinator, its executor and the job directory are real. Time-outs here are limits on a hang, never a measure.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.checkpoint.handles import KeyedSnapshot, StateFile, SubtaskSnapshot, TaskSnapshot
from headrace.checkpoint.job_directory import JobDirectory
from headrace.checkpoint.lifecycle.facts import TaskId
from headrace.checkpoint.lifecycle.settings import LifecycleSettings
from headrace.checkpoint.metadata.model import CheckpointMetadata
from headrace.checkpoint.storage.filesystem import FileSystemCheckpointStorage
from headrace.clocks import Clocks
from headrace.errors import CheckpointFailure, FencedError, StorageError
from headrace.runtime.control import messages as msg
from headrace.runtime.coordinator.coordinator import CAUSE_WAIT_MS, Coordinator
from headrace.runtime.coordinator.events import (
    Command,
    Event,
    FeedAdvanced,
    MetadataPublished,
    ReaderAddressed,
    SavepointWanted,
    SparkEnded,
    TaskLost,
    TaskSaid,
)
from headrace.runtime.coordinator.executor import Lane, ThreadedExecutor
from headrace.runtime.coordinator.inbox import Inbox
from headrace.runtime.coordinator.outcomes import End, Outcome, TaskDiedError
from headrace.runtime.coordinator.ports import CoordinatedAttempt, Ports, Silent
from headrace.runtime.coordinator.savepoints import SavepointOrder, SavepointOrders
from headrace.runtime.coordinator.startup import Startup
from headrace.runtime.coordinator.store import AttemptStore

PATIENCE_S = 60.0
INTERVAL_MS = 1_000
TIMEOUT_MS = 30_000
A, B = TaskId(0, 0), TaskId(1, 0)


class Storage(FileSystemCheckpointStorage):
    """A directory that answers nothing while it is `stuck`, or answers with an error."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.answers = threading.Event()
        self.answers.set()
        self.asked = threading.Event()
        self.error: StorageError | None = None

    def _answer(self) -> None:
        if not self.answers.is_set():
            self.asked.set()
            assert self.answers.wait(PATIENCE_S)
        if self.error is not None:
            raise self.error

    def create_exclusive(self, path: str, data: bytes) -> None:
        self._answer()
        super().create_exclusive(path, data)

    def exists(self, path: str) -> bool:
        self._answer()
        return super().exists(path)

    def delete(self, path: str) -> None:
        self._answer()
        super().delete(path)

    def delete_tree(self, prefix: str) -> None:
        self._answer()
        super().delete_tree(prefix)

    def list(self, prefix: str) -> list[str]:
        self._answer()
        return super().list(prefix)


class Sources:
    """Enumerators that take as long as the test wants."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.answers.set()
        self.heard: list[Any] = []
        self.looked: list[str] = []
        self.snapshots = 0

    def _answer(self) -> None:
        assert self.answers.wait(PATIENCE_S)

    def restore(self) -> None:
        self._answer()

    def start(self, now_ms: int) -> None:
        self._answer()

    def hear(self, message: msg.SplitRequest | msg.Announced) -> None:
        self._answer()
        self.heard.append(message)

    def snapshot(self) -> dict[str, bytes]:
        self._answer()
        self.snapshots += 1
        return {"src": b"%d" % self.snapshots}

    def discover(self, now_ms: int) -> None:
        self._answer()

    def look(self, uid: str) -> None:
        self._answer()
        self.looked.append(uid)

    def close(self) -> None:
        self._answer()


class World(Silent):
    """One attempt of two tasks, seen from its coordinator."""

    def __init__(self, home: Path, retain: int = 1) -> None:
        self.storage = Storage(str(home))
        self.directory = JobDirectory(self.storage, "job")
        self.directory.open_run()
        self.number = self.directory.claim_attempt()
        self.directory.record_restored(self.number, None)
        self.now_ms = 0
        self.sent: list[tuple[TaskId, msg.Message]] = []
        self.failures: list[tuple[int, CheckpointFailure, str]] = []
        self.completed: list[int] = []
        self.troubles: list[str] = []
        self.sources = Sources()
        self.output: threading.Event | None = None
        self.handing = threading.Event()
        self.inbox = Inbox()
        self.executor = ThreadedExecutor(self.number, self.inbox.put)
        self.orders = SavepointOrders()
        attempt = CoordinatedAttempt(
            job_id="job",
            job_name="job",
            run=1,
            number=self.number,
            history="",
            tasks=frozenset((A, B)),
            source_tasks=frozenset((A,)),
            operator_names={},
            edges=(),
            mode="aligned",
            lifecycle=LifecycleSettings(INTERVAL_MS, TIMEOUT_MS, retain=retain),
            next_checkpoint_id=1,
        )
        clocks = Clocks(lambda: self.now_ms, lambda: self.now_ms)
        store = AttemptStore(self.directory, self.number)
        ports = Ports(self, store, self.sources, reporter=self, hand_over=self, clocks=clocks)
        startup = Startup({A: "a", B: "b"}, 1_000, restores=False, clock=lambda: 0.0)
        self.coordinator = Coordinator(attempt, ports, self.executor, startup, self.orders)
        self.coordinator.begin()
        for task in (A, B):
            self.says(task, msg.Ready())
        self.until(lambda: msg.Start() in self.to(A))

    # Ports

    def send(self, task: TaskId, message: msg.Message) -> None:
        self.sent.append((task, message))

    def deployment(self, task: TaskId) -> msg.Deploy:
        return msg.Deploy(restored=False)

    def checkpoint_failed(self, checkpoint_id: int, failure: CheckpointFailure, detail: str, in_a_row: int) -> None:
        self.failures.append((checkpoint_id, failure, detail))

    def checkpoint_completed(self, metadata: CheckpointMetadata, duration_ms: int) -> None:
        self.completed.append(metadata.checkpoint_id)

    def storage_trouble(self, error: StorageError) -> None:
        self.troubles.append(str(error))

    def has_output(self, metadata: CheckpointMetadata) -> bool:
        return self.output is not None

    def hand(self, metadata: CheckpointMetadata, order: SavepointOrder | None) -> None:
        assert self.output is not None
        self.handing.set()
        assert self.output.wait(PATIENCE_S)

    # What happens

    def to(self, task: TaskId) -> list[msg.Message]:
        return [message for receiver, message in self.sent if receiver == task]

    def says(self, task: TaskId, message: Any) -> Outcome | None:
        return self.coordinator.handle(TaskSaid(self.number, task, message))

    def until(self, condition: Callable[[], bool]) -> None:
        """Take results of I/O until it holds."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, "it never happened"
            event = self.inbox.take(0.01)
            if event is not None:
                assert self.coordinator.handle(event) is None, event

    def passes(self, ms: int) -> Outcome | None:
        self.now_ms += ms
        return self.coordinator.on_time()

    def triggered(self, checkpoint_id: int) -> bool:
        return any(isinstance(m, msg.Trigger) and m.checkpoint_id == checkpoint_id for m in self.to(A))

    def acknowledge(self, checkpoint_id: int, *tasks: TaskId, shared: dict[TaskId, str] | None = None) -> None:
        for task in tasks or (A, B):
            assert self.says(task, msg.Acknowledge(checkpoint_id, part(task, (shared or {}).get(task)))) is None

    def checkpoint(self, checkpoint_id: int) -> None:
        """Up to the publication."""
        assert self.passes(INTERVAL_MS) is None
        self.until(lambda: self.triggered(checkpoint_id))
        self.acknowledge(checkpoint_id)

    def complete(self, checkpoint_id: int) -> None:
        self.checkpoint(checkpoint_id)
        self.until(lambda: any(isinstance(m, msg.Complete) and m.checkpoint_id == checkpoint_id for m in self.to(B)))


def part(task: TaskId, shared: str | None = None) -> TaskSnapshot:
    files = () if shared is None else (StateFile(1, "", shared, shared=True),)
    keyed = KeyedSnapshot("table", 0, 0, (), files)
    return TaskSnapshot(task.level, task.slot, (SubtaskSnapshot(f"op-{task.level}", task.slot, 1, 8, keyed),))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.storage.answers.set()
    world.sources.answers.set()
    if world.output is not None:
        world.output.set()


def is_heard(world: World) -> None:
    """A task that dies is noticed, and a person who cancels is answered."""
    world.coordinator.handle(TaskLost(world.number, B, "closed"))
    outcome = world.passes(CAUSE_WAIT_MS)
    assert outcome is not None
    assert isinstance(outcome.error, TaskDiedError)


@pytest.mark.parametrize("stuck_in", ["publishing", "removing", "sources", "hand-over"])
def test_nothing_that_hangs_delays_acknowledgements_the_detection_of_failures_or_cancel(
    world: World, stuck_in: str
) -> None:
    match stuck_in:
        case "publishing":
            world.storage.answers.clear()
            world.checkpoint(1)
            assert world.storage.asked.wait(PATIENCE_S)
        case "removing":
            world.complete(1)
            world.checkpoint(2)
            world.until(lambda: 2 in world.completed)
            world.storage.answers.clear()
            assert world.passes(INTERVAL_MS) is None
            world.until(lambda: world.triggered(3))
            assert world.says(B, msg.Decline(3, CheckpointFailure.STORAGE.name, "no room")) is None
            # Late files of an abandoned checkpoint, which nobody needs.
            own = StateFile(1, "", "job/run-000001/chk-000003/attempt-000001/x")
            snapshot = TaskSnapshot(0, 0, (SubtaskSnapshot("op-0", 0, 1, 8, KeyedSnapshot("table", 0, 0, (), (own,))),))
            assert world.says(A, msg.Acknowledge(3, snapshot)) is None
            assert world.storage.asked.wait(PATIENCE_S)
        case "sources":
            world.sources.answers.clear()
            assert world.says(A, msg.SplitRequest("src", 0)) is None
            assert world.passes(INTERVAL_MS) is None
        case "hand-over":
            world.output = threading.Event()
            world.checkpoint(1)
            world.until(world.handing.is_set)
            assert not any(isinstance(m, msg.Complete) for m in world.to(A)), "not before it was handed over"

    order = SavepointOrder("file:///nowhere")
    world.orders.add(order)
    assert world.coordinator.handle(SavepointWanted(order)) is None
    is_heard(world)
    assert world.coordinator.handle(Command.CANCEL) is None, "the attempt has ended already"
    world.coordinator.close()
    stuck = world.executor.close(0.05)
    assert stuck != [], "it was still stuck"


def test_cancel_ends_the_attempt_while_a_checkpoint_is_being_published(world: World) -> None:
    world.storage.answers.clear()
    world.checkpoint(1)
    assert world.coordinator.handle(Command.CANCEL) == Outcome(End.CANCELED)


def test_a_publication_that_ends_after_the_attempt_is_still_reported_and_nothing_begins(world: World) -> None:
    world.storage.answers.clear()
    world.checkpoint(1)
    assert world.coordinator.handle(Command.SUSPEND) == Outcome(End.SUSPENDED)
    world.storage.answers.set()
    world.coordinator.close()
    assert world.executor.close(PATIENCE_S) == []
    for event in world.inbox.forget_attempts():
        assert world.coordinator.handle(event) is None
    assert world.completed == [1]
    assert [ref.checkpoint_id for ref in world.directory.completed()] == [1]
    assert not world.triggered(2)


def test_a_publication_that_storage_never_answers_is_a_failed_checkpoint_and_the_next_one_begins(world: World) -> None:
    world.storage.answers.clear()
    world.checkpoint(1)
    assert world.passes(TIMEOUT_MS - 1) is None
    assert world.failures == []
    assert world.passes(1) is None
    ((checkpoint_id, failure, detail),) = world.failures
    assert (checkpoint_id, failure) == (1, CheckpointFailure.TIMED_OUT)
    assert f"storage has not answered for {TIMEOUT_MS} ms" in detail

    world.until(lambda: world.triggered(2))
    world.acknowledge(2)
    world.storage.answers.set()
    world.until(lambda: world.completed == [2])
    world.until(lambda: [ref.checkpoint_id for ref in world.directory.completed()] == [2])
    assert len(world.failures) == 1, "what comes late of the first changes nothing"


def test_a_checkpoint_whose_sources_do_not_answer_times_out_and_says_so(world: World) -> None:
    world.sources.answers.clear()
    assert world.passes(INTERVAL_MS) is None
    assert world.passes(TIMEOUT_MS) is None
    ((checkpoint_id, failure, detail),) = world.failures
    assert (checkpoint_id, failure) == (1, CheckpointFailure.TIMED_OUT)
    assert "a source's enumerator has not given its state" in detail
    world.sources.answers.set()
    world.until(lambda: world.sources.snapshots >= 2)
    assert not world.triggered(1), "a trigger behind its own abort"


def test_splits_assigned_after_the_sources_gave_their_state_are_sent_behind_the_trigger(world: World) -> None:
    world.sources.answers.clear()
    assert world.passes(INTERVAL_MS) is None
    world.sources.answers.set()
    late = msg.AssignSplits("src", 0, (b"late",))
    deadline = time.monotonic() + PATIENCE_S
    while not world.sources.snapshots:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    world.executor.submit(Lane.SOURCES, lambda: ReaderAddressed(world.number, A, late))
    world.until(lambda: late in world.to(A))
    kinds = [type(message) for message in world.to(A)]
    assert kinds.index(msg.Trigger) < kinds.index(msg.AssignSplits)


def test_a_full_disk_is_named_in_the_report_of_the_checkpoint_that_failed(world: World) -> None:
    world.storage.error = StorageError("[Errno 28] No space left on device: chk-000001/_metadata")
    world.checkpoint(1)
    world.until(lambda: bool(world.failures))
    ((_, failure, detail),) = world.failures
    assert failure is CheckpointFailure.STORAGE
    assert "No space left on device" in detail
    assert world.says(A, msg.Decline(2, CheckpointFailure.STORAGE.name, "")) is None


def test_what_a_task_says_about_a_checkpoint_it_declines_is_in_the_report_with_the_task(world: World) -> None:
    assert world.passes(INTERVAL_MS) is None
    world.until(lambda: world.triggered(1))
    assert world.says(B, msg.Decline(1, CheckpointFailure.STORAGE.name, "[Errno 28] No space left on device")) is None
    ((_, failure, detail),) = world.failures
    assert (failure, detail) == (CheckpointFailure.STORAGE, "task 1.0: [Errno 28] No space left on device")


def test_a_removal_that_fails_is_reported_and_done_again_with_the_next_one(world: World) -> None:
    world.complete(1)
    refusals = iter([StorageError("the storage does not answer")])
    delete = FileSystemCheckpointStorage.delete

    def refuse_once(path: str) -> None:
        error = next(refusals, None)
        if error is not None:
            raise error
        delete(world.storage, path)

    world.storage.delete = refuse_once  # type: ignore[method-assign]
    world.complete(2)
    world.until(lambda: world.troubles == ["the storage does not answer"])
    assert [ref.checkpoint_id for ref in world.directory.completed()] == [1, 2]
    world.complete(3)
    world.until(lambda: [ref.checkpoint_id for ref in world.directory.completed()] == [3])


def test_after_another_driver_took_over_nothing_more_is_written_or_deleted(world: World) -> None:
    world.complete(1)
    JobDirectory(FileSystemCheckpointStorage(str(world.storage.root)), "job")
    other = JobDirectory(FileSystemCheckpointStorage(str(world.storage.root)), "job")
    other.open_run()
    other.claim_attempt()
    world.checkpoint(2)
    deadline = time.monotonic() + PATIENCE_S
    outcome: Outcome | None = None
    while outcome is None:
        assert time.monotonic() < deadline
        event = world.inbox.take(0.01)
        outcome = None if event is None else world.coordinator.handle(event)
    assert isinstance(outcome.error, FencedError)
    assert world.coordinator.is_fenced
    world.coordinator.close()
    assert world.executor.close(PATIENCE_S, drop_queued=True) == []
    assert [m.checkpoint_id for m in world.to(A) if isinstance(m, msg.Complete)] == [1]
    assert {path.name for path in (world.storage.root / "job/run-000001").glob("chk-*")} == {"chk-000001"}


def test_late_events_of_an_older_attempt_are_dropped(world: World) -> None:
    older = world.number - 1
    events: list[Event] = [
        SparkEnded(older, None),
        TaskLost(older, A, "closed"),
        MetadataPublished(older, 1),
        ReaderAddressed(older, A, msg.AssignSplits("src", 0, (b"x",))),
        TaskSaid(older, A, msg.Failed("ValueError", "of the attempt before")),
    ]
    before = list(world.sent)
    for event in events:
        assert world.coordinator.handle(event) is None
    assert world.passes(CAUSE_WAIT_MS) is None
    assert world.sent == before


def test_each_task_is_told_of_the_shared_files_that_it_named_itself(world: World) -> None:
    assert world.passes(INTERVAL_MS) is None
    world.until(lambda: world.triggered(1))
    shared = {A: "job/run-000001/shared/aa/a.sst", B: "job/run-000001/shared/bb/b.sst"}
    world.acknowledge(1, shared=shared)
    world.until(lambda: 1 in world.completed)
    for task in (A, B):
        (complete,) = [m for m in world.to(task) if isinstance(m, msg.Complete)]
        assert complete.shared == (shared[task],)


def test_what_tasks_and_feeds_repeat_is_kept_once_in_the_queue() -> None:
    inbox = Inbox()
    for n in range(1_000):
        inbox.put(TaskSaid(1, A, msg.Reached("src", 0, n)))
        inbox.put(TaskSaid(1, A, msg.Announced("src", 0, (b"%d" % n,))))
        inbox.put(FeedAdvanced(1, "df"))
        inbox.put(TaskSaid(1, B, msg.Reached("src", 1, n)))
    inbox.put(Command.CANCEL)
    assert len(inbox) == 5
    taken = [inbox.take(0) for _ in range(5)]
    assert taken == [
        TaskSaid(1, A, msg.Reached("src", 0, 999)),
        TaskSaid(1, A, msg.Announced("src", 0, (b"999",))),
        FeedAdvanced(1, "df"),
        TaskSaid(1, B, msg.Reached("src", 1, 999)),
        Command.CANCEL,
    ]
    assert inbox.take(0) is None


def test_positions_and_batches_that_come_faster_than_sources_take_them_do_not_pile_up(world: World) -> None:
    world.sources.answers.clear()
    for n in range(1_000):
        assert world.says(A, msg.Announced("src", 0, (b"%d" % n,))) is None
        assert world.coordinator.handle(FeedAdvanced(world.number, "df")) is None
    assert len(world.executor._queues[Lane.SOURCES]) <= 5
    world.sources.answers.set()
    world.until(lambda: msg.Announced("src", 0, (b"999",)) in world.sources.heard)
    assert len(world.sources.heard) <= 3
    world.until(lambda: bool(world.sources.looked))
    assert world.sources.looked == ["df"]
