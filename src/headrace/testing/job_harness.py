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

Chains, gates, mailboxes, cells, edge writers, backends, snapshots, enumerators and the way state is dealt out at
another parallelism are the engine's own. What is missing is what lies between: Spark, processes, sockets, and the
coordinator's decisions when to take a checkpoint and when to restart.
"""

from __future__ import annotations

import queue
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from headrace.checkpoint.handles import TaskSnapshot
from headrace.checkpoint.metadata.codec import decode_metadata, encode_metadata
from headrace.checkpoint.metadata.model import CheckpointMetadata, channels_of, operators_of, shared_files_of
from headrace.checkpoint.storage.base import CheckpointStorage, storage_for
from headrace.checkpoint.storage.memory import JobManagerCheckpointStorage
from headrace.datastream.environment import StreamExecutionEnvironment
from headrace.datastream.streams import DataStream
from headrace.durations import DurationLike
from headrace.errors import CheckpointError, CheckpointFailure, JobDefinitionError
from headrace.operators.base import Operator
from headrace.operators.factories import CollectFactory, SourceFactory
from headrace.plan.builder import Draft
from headrace.runtime.control import messages as msg
from headrace.runtime.job.collected import CollectedResults
from headrace.runtime.job.enumerators import Enumerators
from headrace.runtime.job.restoration import Restoration
from headrace.runtime.task.deployment import LevelDeployment
from headrace.testing.clock import ManualClock
from headrace.testing.harness import LOOK_AGAIN_S, PATIENCE_S
from headrace.testing.harness_task import HarnessTask
from headrace.testing.scripted import Marker, TestSource

_COLLECTOR = "harness"
_MEMORY = 1 << 30


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

    def __init__(self) -> None:
        super().__init__()
        self._seen: list[Any] = []

    def had(self, metadata: CheckpointMetadata) -> None:
        """What that checkpoint holds was delivered, perhaps by another harness."""
        for operator in metadata.operators:
            for subtask in operator.subtasks:
                self._taken.update(
                    (_COLLECTOR, operator.uid, subtask.subtask, p.checkpoint_id) for p in subtask.prepared
                )

    def so_far(self) -> list[Any]:
        waiting = self._queue(_COLLECTOR)
        while not waiting.empty():
            self._seen.append(waiting.get())
        return self._seen


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
        self._collected = _Results()
        self._inbox: queue.SimpleQueue[tuple[int, tuple[int, int], Any]] = queue.SimpleQueue()
        self._woken = threading.Event()
        self._last = restored
        self._checkpoint_id = 0 if restored is None else restored.checkpoint_id
        self._attempt = 0
        self._tasks: dict[tuple[int, int], HarnessTask] = {}
        self._acknowledged: dict[int, dict[tuple[int, int], TaskSnapshot]] = {}
        self._committed: dict[int, set[tuple[int, int]]] = {}
        self.finished = False
        self._begin()

    # Running

    def run(self, turns: int | None = None) -> None:
        """Until nothing is left to do, or for so many turns of the tasks; a turn is a cell, a poll or less.

        What a user function raises is raised here.
        """
        done = 0
        busy = True
        while busy or not self._inbox.empty():
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
        return self._checkpoint(None, complete)

    def savepoint(self, *, in_flight: bool = False) -> JobSnapshot:
        """The same in the form that every backend reads. Crashes do not go back to it."""
        if not in_flight:
            self.run()
        folder = tempfile.TemporaryDirectory(prefix="headrace-savepoint-")
        taken = self._checkpoint(Path(folder.name).as_uri(), False)
        return replace(taken, folder=folder)

    def _checkpoint(self, location: str | None, complete: bool) -> JobSnapshot:
        self._checkpoint_id += 1
        checkpoint_id = self._checkpoint_id
        self._listen()
        enumerators = self._enumerators.snapshot()
        checkpointing = self._settings.checkpointing
        unaligned = checkpointing.unaligned and checkpointing.aligned_timeout_ms == 0 and location is None
        trigger = msg.Trigger(checkpoint_id, unaligned, location is not None)
        self._acknowledged[checkpoint_id] = {}
        for key, task in self._tasks.items():
            if location is not None:
                task.mailbox.deliver(msg.SavepointTarget(checkpoint_id, location))
            if unaligned or key[0] == 0 or any(subtask.source is not None for subtask in task.subtasks):
                task.mailbox.deliver(trigger)
        got = self._acknowledged[checkpoint_id]
        self.wait_until(lambda: len(got) == len(self._tasks), f"all tasks to write checkpoint {checkpoint_id}")
        snapshots = list(got.values())
        metadata = CheckpointMetadata(
            job_id=self._settings.job_id,
            job_name=self._settings.name,
            run=1,
            attempt=self._attempt,
            checkpoint_id=checkpoint_id,
            kind="checkpoint" if location is None else "savepoint",
            mode="unaligned" if unaligned else "aligned",
            created_ms=0,
            duration_ms=0,
            operators=operators_of(snapshots, {node.uid: node.name for node in self._plan.graph.nodes}),
            enumerators=enumerators,
            channels=channels_of(snapshots),
        )
        storage = None if location is None else storage_for(location)
        taken = JobSnapshot(decode_metadata(encode_metadata(metadata)), storage, committed=complete)
        if complete:
            self._last = taken
            self._committed[checkpoint_id] = set()
            for task in self._tasks.values():
                task.mailbox.deliver(msg.Complete(checkpoint_id, tuple(sorted(shared_files_of(taken.metadata)))))
            committed = self._committed[checkpoint_id]
            self.wait_until(lambda: len(committed) == len(self._tasks), f"sinks to commit checkpoint {checkpoint_id}")
        return taken

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
        self._attempt += 1
        last = self._last
        restoration = Restoration.of(
            self._plan,
            None if last is None else last.metadata,
            None if last is None else last.storage,
            allow_non_restored=False,
        )
        if last is not None and last.committed:
            self._collected.had(last.metadata)
        own = self._settings.checkpointing.storage
        restoration.commit_sinks(self._settings.job_id, self._attempt, self._collected, own)
        for level in self._plan.levels:
            deployment = self._deployment(level.index, restoration.storage)
            for slot in range(level.slots):
                task = HarnessTask(deployment, slot, self.clock, self._told, self._woken)
                self._tasks[task.key] = task
        self._hosts = {
            (self._plan.graph.node(chain.nodes[0]).uid, subtask): (chain.level, slot)
            for chain in self._plan.chains
            for subtask, slot in enumerate(chain.slots)
        }
        self._enumerators = Enumerators(self._plan, self._to_reader)
        restore = restoration.restore
        self._enumerators.restore(
            lambda uid: None if restore is None else restore.enumerator(uid),
            lambda uid: () if restore is None else restore.splits(uid),
        )
        for key, task in self._tasks.items():
            task.open(restoration.deploy(*key))
        for task in self._tasks.values():
            task.mailbox.begin()
        self._enumerators.start(self.clock())

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
        )

    def _discard(self) -> None:
        tasks, self._tasks = self._tasks, {}
        if tasks:
            self._enumerators.close()
        for task in tasks.values():
            task.discard()

    def _told(self, task: tuple[int, int], message: Any) -> None:
        self._inbox.put((self._attempt, task, message))
        self._woken.set()

    def _to_reader(self, uid: str, subtask: int, message: msg.Message) -> None:
        self._tasks[self._hosts[uid, subtask]].mailbox.deliver(message)

    def _listen(self) -> bool:
        """Take what tasks told; True if that may give them something to do."""
        heard = False
        while not self._inbox.empty():
            attempt, key, message = self._inbox.get()
            if attempt != self._attempt:
                continue
            match message:
                case msg.SplitRequest() | msg.Reached():
                    self._enumerators.hear(message)
                    heard = True
                case msg.Acknowledge(checkpoint_id, snapshot):
                    self._acknowledged[checkpoint_id][key] = snapshot
                case msg.Decline(checkpoint_id, failure, detail):
                    raise CheckpointError(CheckpointFailure[failure], checkpoint_id, detail)
                case msg.Committed(checkpoint_id):
                    self._committed[checkpoint_id].add(key)
                case msg.Drained():
                    self._tasks[key].drained = True
                case msg.Collected(collector, uid, subtask, checkpoint_id, payload):
                    self._collected.take(collector, uid, subtask, checkpoint_id, payload)
        return heard

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
