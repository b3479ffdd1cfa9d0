"""A whole job in one thread: coordinator, tasks and channels, stepped in an order that a seed decides.

The coordinator, its lifecycle and its queue of results, the input gate, chain inputs, routing, cells and control
messages are the engine's own. Channels and control connections are queues that keep their order; storage is a
dictionary that may be slow or fail; the I/O of the coordinator gets on when the dice say so. A crash throws all tasks
away and begins a new attempt from the newest checkpoint, while I/O of the old one may still be under way.
"""

from __future__ import annotations

import marshal
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from cut_oracle import Violation, check_cut, check_end
from simulated_plan import Mode, Record, Scenario, plan_of
from simulated_task import Item, ModelTask, State, TaskKey, level_of

from headrace.checkpoint.job_directory import PublishOutcomeUnknownError
from headrace.checkpoint.lifecycle.facts import TaskId
from headrace.checkpoint.lifecycle.settings import LifecycleSettings
from headrace.checkpoint.metadata.model import CheckpointMetadata
from headrace.clocks import Clocks
from headrace.errors import FencedError, StorageError
from headrace.runtime.control import messages as msg
from headrace.runtime.coordinator.coordinator import Coordinator
from headrace.runtime.coordinator.events import Event, ReaderAddressed, SavepointWanted, TaskSaid
from headrace.runtime.coordinator.executor import Lane, ManualExecutor, Work
from headrace.runtime.coordinator.ports import CoordinatedAttempt, Ports, Removal
from headrace.runtime.coordinator.savepoints import SavepointOrder, SavepointOrders
from headrace.runtime.coordinator.startup import Startup
from headrace.runtime.task.gate import CONTROL, InputGate
from headrace.runtime.task.routing import Router

MOST_STEPS = 80_000
PATIENT_FROM = 15_000


@dataclass(frozen=True)
class Metadata:
    """What is published: the one commit point."""

    checkpoint_id: int
    attempt: int
    kind: str
    paths: dict[TaskKey, str]
    unassigned: dict[str, dict[str, int]]
    written: CheckpointMetadata
    """As the coordinator wrote it."""

    @classmethod
    def of(cls, written: CheckpointMetadata) -> Metadata:
        paths = {
            (level_of(operator.uid), subtask.subtask): subtask.keyed.files[0].path
            for operator in written.operators
            for subtask in operator.subtasks
            if subtask.keyed is not None
        }
        unassigned = {source: marshal.loads(state) for source, state in written.enumerators.items()}
        return cls(written.checkpoint_id, written.attempt, written.kind, paths, unassigned, written)


@dataclass
class Storage:
    """Files, metadata and attempts, as the job's directory keeps them."""

    files: dict[str, State] = field(default_factory=dict)
    published: dict[int, Metadata] = field(default_factory=dict)
    attempts: dict[int, int] = field(default_factory=dict)
    """What each attempt restored from (0: nothing)."""

    def counted(self) -> list[Metadata]:
        """Checkpoints that count, oldest first: what an attempt published after its successor began does not."""
        return [
            m
            for _, m in sorted(self.published.items())
            if m.kind == "checkpoint" and m.checkpoint_id <= self.attempts.get(m.attempt + 1, m.checkpoint_id)
        ]

    def drop(self, checkpoint_ids: tuple[int, ...]) -> None:
        for checkpoint_id in checkpoint_ids:
            self.published.pop(checkpoint_id, None)
        for path in [p for p in self.files if int(p.split("/")[1]) in checkpoint_ids]:
            del self.files[path]


class SimulatedSources:
    """The enumerators: each deals its splits out, one or two at a time."""

    def __init__(self, job: SimulatedJob, attempt: int, restored: Metadata | None) -> None:
        self.job = job
        self.attempt = attempt
        self.unassigned = {source: dict.fromkeys(splits, 0) for source, splits in job.scenario.splits.items()}
        if restored is not None:
            self.unassigned = {source: dict(splits) for source, splits in restored.unassigned.items()}
            for path in restored.paths.values():
                for source, splits in job.storage.files[path].splits.items():
                    self.unassigned[source].update(splits)

    def hear(self, message: msg.SplitRequest | msg.Announced) -> None:
        assert isinstance(message, msg.SplitRequest)
        source, slot = message.uid, message.subtask
        splits = self.unassigned[source]
        given = dict([splits.popitem() for _ in range(min(len(splits), self.job.rng.randint(1, 2)))])
        encoded = tuple(map(marshal.dumps, given.items()))
        task = TaskId(0 if source == "a" else 1, slot)
        self.job.results.append(
            ReaderAddressed(self.attempt, task, msg.AssignSplits(source, slot, encoded, last=not given))
        )

    def snapshot(self) -> dict[str, bytes]:
        return {source: marshal.dumps(splits) for source, splits in self.unassigned.items()}

    def restore(self) -> None: ...
    def start(self, now_ms: int) -> None: ...
    def discover(self, now_ms: int) -> None: ...
    def look(self, uid: str) -> None: ...
    def close(self) -> None: ...


class SimulatedStore:
    """The job's directory for one attempt. Storage answers, fails, or does what it was asked and fails to say so."""

    def __init__(self, job: SimulatedJob, attempt: int) -> None:
        self.job = job
        self.attempt = attempt
        self.has_looked = False
        """A driver that was replaced had looked at the attempts before it was: what it does now, it does late."""

    def assert_current(self) -> None:
        if self.job.attempt > self.attempt and not self.has_looked:
            raise FencedError(f"attempt {self.job.attempt} took over")

    def publish(self, metadata: CheckpointMetadata) -> None:
        self.assert_current()
        job, made = self.job, Metadata.of(metadata)
        luck = 0.0 if self.has_looked else job.rng.random()
        if luck < 0.9:
            job.storage.published[made.checkpoint_id] = made
            if self.attempt == job.attempt:
                job.check(made)
        elif luck < 0.94:
            raise StorageError("no space left on device")
        else:
            if luck < 0.97:
                job.storage.published[made.checkpoint_id] = made
            raise PublishOutcomeUnknownError("no answer")

    def publish_savepoint(self, order: SavepointOrder, metadata: CheckpointMetadata) -> None:
        self.publish(metadata)

    def remove(self, removal: Removal) -> None:
        self.assert_current()
        for path in removal.files:
            self.job.storage.files.pop(path, None)
        for checkpoint_id in removal.checkpoint_ids:
            if not self.has_looked and self.job.rng.random() < 0.05:
                raise StorageError("the storage does not answer")
            self.job.storage.drop((checkpoint_id,))


@dataclass(frozen=True)
class Build:
    """The parts of the engine under test; a broken build replaces one of them."""

    gate: type[InputGate] = InputGate
    task: type[ModelTask] = ModelTask
    coordinator: type[Coordinator] = Coordinator
    """Of the job: the one that production runs."""


class SimulatedJob:
    """One run. Everything that happens is decided by the seed."""

    def __init__(self, scenario: Scenario, seed: int, build: Build, spill_dir: Path | None) -> None:
        self.scenario = scenario
        self.rng = Random(f"steps {seed}")
        self.build = build
        self.spill_dir = spill_dir if scenario.spills else None
        self.router = Router(plan_of(scenario))
        self.storage = Storage()
        self.committed: dict[tuple[int, int, int, int], Item] = {}
        self.durable: set[Item] = set()
        """Output that a completed checkpoint names: nothing else may be committed."""
        self.read_from: dict[str, int] = {}
        """Nothing before these positions may be read again."""
        self.zombies: list[Work] = []
        """I/O that an attempt had under way when it was replaced."""
        self.results: deque[Event] = deque()
        """Of I/O and enumerators, on their way to the coordinator; those of replaced attempts come, too."""
        self.now_ms = 0
        self.next_id = 1
        self.attempt = 0
        self.crashes = scenario.crashes
        self.savepoints = scenario.savepoints
        self.crash_at: int | None = None
        self.failing = False
        self.patient = False
        self.released = False
        self.completed = 0
        self.counted_twice = False
        self.steps = 0
        self.begin()

    # -- one attempt after the other

    def begin(self) -> None:
        self.attempt += 1
        counted = self.storage.counted()
        restored = counted[-1] if counted else None
        self.storage.attempts[self.attempt] = 0 if restored is None else restored.checkpoint_id
        if restored is not None:
            lost = [p for p in restored.paths.values() if p not in self.storage.files]
            if lost:
                raise Violation(f"checkpoint {restored.checkpoint_id} counts, but its files {lost} were deleted")
            self.check(restored)
            for path in restored.paths.values():
                for item in self.storage.files[path].prepared:
                    self.commit(item)
        self.failing = False
        self.channels: dict[tuple[int, int, int], deque[bytes]] = {}
        self.downwards: dict[TaskKey, deque[Any]] = {}
        self.upwards: dict[TaskKey, deque[Any]] = {}
        self.tasks: dict[TaskKey, ModelTask] = {}
        for level, slots in enumerate(self.scenario.slots):
            for slot in range(slots):
                self.downwards[level, slot] = deque()
                self.upwards[level, slot] = deque()
                state = None if restored is None else self.storage.files[restored.paths[level, slot]]
                self.tasks[level, slot] = self.task(level, slot, state)
        self.everyone = list(self.tasks)
        self.coordinate(restored)

    def coordinate(self, restored: Metadata | None) -> None:
        """A coordinator for the attempt, whose tasks all run."""
        scenario = self.scenario
        tasks = dict.fromkeys((TaskId(*key) for key in self.everyone), "model")
        attempt = CoordinatedAttempt(
            job_id="simulated",
            job_name="simulated",
            run=1,
            number=self.attempt,
            history="",
            tasks=frozenset(tasks),
            source_tasks=frozenset(TaskId(*key) for key in scenario.source_tasks()),
            operator_names={},
            edges=(),
            mode="aligned",
            lifecycle=LifecycleSettings(
                interval_ms=100 if self.patient else scenario.interval_ms,
                timeout_ms=20_000 if self.patient else scenario.timeout_ms,
                max_concurrent=scenario.concurrent,
                tolerable_failures=1_000 if self.patient else scenario.tolerable_failures,
                retain=scenario.retain,
                unaligned=scenario.mode in (Mode.UNALIGNED, Mode.TIMEOUT),
                unaligned_at_once=scenario.mode is Mode.UNALIGNED,
            ),
            next_checkpoint_id=self.next_id,
            retained=tuple(m.written for m in self.storage.counted()),
        )
        self.store = SimulatedStore(self, self.attempt)
        self.executor = ManualExecutor(self.attempt)
        self.orders = SavepointOrders()
        sources = SimulatedSources(self, self.attempt, restored)
        ports = Ports(self, self.store, sources, clocks=Clocks(lambda: self.now_ms, lambda: self.now_ms))
        startup = Startup(tasks, 1, restores=False, clock=lambda: 0.0)
        self.coordinator = self.build.coordinator(attempt, ports, self.executor, startup, self.orders)
        self.coordinator.begin()
        for task in tasks:
            self.handle(TaskSaid(self.attempt, task, msg.Ready()))
        restoring = self.executor.step(Lane.SOURCES)
        assert restoring is not None
        self.handle(restoring)

    def handle(self, event: Event) -> None:
        self.failing |= self.coordinator.handle(event) is not None

    def task(self, level: int, slot: int, state: State | None) -> ModelTask:
        scenario = self.scenario
        channels = set(range(scenario.slots[level - 1])) if level else set()
        for producer in channels:
            self.channels[level, producer, slot] = deque()
        if scenario.readers(level):
            channels.add(CONTROL)
        timeout = {Mode.UNALIGNED: 0.0, Mode.TIMEOUT: scenario.alignment_timeout_s}.get(scenario.mode)
        gate = self.build.gate(
            channels,
            mode=scenario.mode.gate,
            clock=lambda: self.now_ms / 1_000,
            aligned_timeout_s=timeout,
            fixed_edges=scenario.fixed_through(level),
            aside_limit=scenario.aside_limit,
            spill_dir=self.spill_dir,
            memory_limit=100,
        )
        return self.build.task(
            scenario,
            attempt=self.attempt,
            level=level,
            slot=slot,
            router=self.router,
            gate=gate,
            send=self.upwards[level, slot].append,
            put=lambda target, data: self.channels[level + 1, slot, target].append(data),
            read=self.read,
            commit=self.commit,
            restored=state,
        )

    def crash(self) -> None:
        """A task or the driver dies. What the driver was publishing has landed, has not, or lands later."""
        self.next_id = self.coordinator.lifecycle.next_id
        publishing, removing = self.executor.lanes[Lane.PUBLISH], self.executor.lanes[Lane.REMOVE]
        for work in [*list(publishing)[:1], *list(removing)[:1]]:
            match self.rng.randrange(4):
                case 0:
                    self.io_of_the_past(work)
                case 1 | 2:
                    self.zombies.append(work)
        self.store.has_looked = self.rng.random() < 0.5
        for task in self.tasks.values():
            task.gate.close()
        self.begin()
        # Trouble seldom comes alone: the next crash may come before the next checkpoint.
        self.crash_at = self.steps + self.rng.randint(50, 1_500) if self.rng.random() < 0.4 else None

    def io_of_the_past(self, work: Work) -> None:
        """What a replaced driver still does; what comes of it reaches whoever coordinates the job now."""
        try:
            result = work()
        except FencedError:
            return
        if result is not None:
            self.results.append(result)

    # -- what tasks and the coordinator are given

    def send(self, task: TaskId, message: msg.Message) -> None:
        if isinstance(message, msg.Release):
            self.released = True
        elif not isinstance(message, msg.Start):
            self.downwards[task].append(message)

    def deployment(self, task: TaskId) -> msg.Deploy:
        raise AssertionError("tasks of the simulation are made with their state")

    def read(self, split: str, position: int) -> Record:
        if position < self.read_from.get(split, 0):
            raise Violation(f"{split} was read at {position}, a completed checkpoint stands at {self.read_from[split]}")
        source = split[0]
        return Record(source, split, position, self.scenario.splits[source][split][position])

    def commit(self, item: Item) -> None:
        if item not in self.durable:
            raise Violation(f"item {item.name} was committed, but no completed checkpoint names it")
        self.committed[item.name] = item

    def check(self, metadata: Metadata) -> None:
        self.completed += 1
        states = {task: self.storage.files[path] for task, path in metadata.paths.items()}
        reached = check_cut(self.scenario, states, metadata.unassigned, self.committed)
        if metadata.kind == "checkpoint":
            self.read_from = reached
            self.durable.update(item for state in states.values() for item in state.prepared)

    # -- steps

    def run(self) -> bool:
        """To the end; True if something was counted twice."""
        rng = self.rng
        for self.steps in range(MOST_STEPS):
            if self.released:
                states = {key: task.state for key, task in self.tasks.items()}
                return check_end(self.scenario, states, self.committed)
            if self.steps == PATIENT_FROM:
                # Somebody raises the limits: a job whose checkpoints can never complete proves nothing.
                self.patient = self.failing = True
            if self.failing:
                self.crash()
            dice = rng.random()
            if dice < 0.90:
                self.step_of_a_task(dice / 0.90)
            elif dice < 0.97:
                self.step_of_the_coordinator()
            elif dice < 0.99:
                self.let_time_pass()
            elif self.crashes and (rng.random() < 0.1 or (self.crash_at is not None and self.steps > self.crash_at)):
                self.crashes -= 1
                self.crash()
            elif self.zombies and rng.random() < 0.3:
                self.io_of_the_past(self.zombies.pop())
            elif self.savepoints and rng.random() < 0.05:
                self.savepoints -= 1
                order = SavepointOrder("somewhere", request=str(self.steps))
                self.orders.add(order)
                self.handle(SavepointWanted(order))
        raise Violation(f"the job hangs after {MOST_STEPS} steps")

    def step_of_a_task(self, dice: float) -> None:
        rng = self.rng
        number = int(rng.random() * len(self.everyone))
        key = self.everyone[number]
        task = self.tasks[key]
        if dice < 0.45:
            if rng.random() < self.scenario.speeds[number]:
                self.now_ms += rng.random() < 0.05
                task.work(1 + (rng.random() < 0.2), self.full(key))
        elif dice < 0.70:
            self.read_input(key, task)
        elif dice < 0.80:
            if self.downwards[key] and (self.patient or rng.random() < self.scenario.control_speeds[number]):
                task.receive(self.downwards[key].popleft())
        elif dice < 0.87:
            if self.upwards[key]:
                self.handle(TaskSaid(self.attempt, TaskId(*key), self.upwards[key].popleft()))
        elif dice < 0.90:
            if task.letters:
                task.letter()
        elif dice < 0.95:
            self.write_snapshot(key, task)
        elif dice < 0.98:
            task.flush()
        elif task.commits:
            task.commit_next()

    def let_time_pass(self) -> None:
        self.now_ms += self.rng.randint(1, 10)
        due = self.coordinator.lifecycle.next_wakeup_ms(self.now_ms)
        if due is not None and self.is_quiet():
            self.now_ms = max(self.now_ms, due)
        self.failing |= self.coordinator.on_time() is not None

    def is_quiet(self) -> bool:
        """Whether nothing moves until the clock does (a lost acknowledgement is waited for)."""
        queues = (*self.channels.values(), *self.downwards.values(), *self.upwards.values())
        return (
            not self.results
            and not self.executor.busy
            and not any(queues)
            and all(t.drained and not t.running and not t.letters and not t.commits for t in self.tasks.values())
            and not any(t.gate.has_input for t in self.tasks.values())
        )

    def full(self, key: TaskKey) -> bool:
        level, slot = key
        return level < self.scenario.last and any(
            len(self.channels[level + 1, slot, target]) > self.scenario.room
            for target in range(self.scenario.slots[level + 1])
        )

    def read_input(self, key: TaskKey, task: ModelTask) -> None:
        level, slot = key
        if level and task.gate.may_read_on(self.scenario.read_ahead):
            producer = int(self.rng.random() * self.scenario.slots[level - 1])
            channel = self.channels[level, producer, slot]
            if channel:
                task.gate.arrive(producer, channel.popleft())

    def write_snapshot(self, key: TaskKey, task: ModelTask) -> None:
        written = task.writable()
        if not written:
            return
        checkpoint_id = self.rng.choice(written)
        luck = self.rng.random()
        if luck < self.scenario.write_failures:
            task.fail_to_write(checkpoint_id)
            return
        task.acknowledge(checkpoint_id, self.storage.files)
        queue = self.upwards[key]
        if luck > 0.98:
            queue.pop()
        elif luck > 0.96:
            queue.append(queue[-1])

    def step_of_the_coordinator(self) -> None:
        """It takes the next result, and one of its I/O threads gets on, unless storage is slow today."""
        if self.results and self.rng.random() < 0.8:
            self.handle(self.results.popleft())
        busy = self.executor.busy
        if not busy:
            return
        lane = self.rng.choice(busy)
        if lane in (Lane.PUBLISH, Lane.REMOVE):
            if self.crashes and self.rng.random() < 0.1:
                self.crashes -= 1
                self.crash()
                return
            if not self.patient and self.rng.random() > self.scenario.storage_speed:
                return
        result = self.executor.step(lane)
        if result is not None:
            self.results.append(result)


def simulate(scenario: Scenario, seed: int, build: Build = Build(), spill_dir: Path | None = None) -> SimulatedJob:  # noqa: B008
    """Run the seed to its end; raises Violation (or what the engine raises) if anything is wrong."""
    job = SimulatedJob(scenario, seed, build, spill_dir)
    job.counted_twice = job.run()
    for task in job.tasks.values():
        task.gate.close()
    return job
