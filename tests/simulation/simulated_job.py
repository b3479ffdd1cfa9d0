"""A whole job in one thread: coordinator, tasks and channels, stepped in an order that a seed decides.

The checkpoint lifecycle, the input gate, chain inputs, routing, cells and control messages are the engine's own.
Channels and control connections are queues that keep their order; storage is a dictionary; a crash throws all
tasks away and begins a new attempt from the newest checkpoint.
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
from simulated_task import Item, ModelTask, State, TaskKey

from headrace.checkpoint.lifecycle import actions as act
from headrace.checkpoint.lifecycle import facts
from headrace.checkpoint.lifecycle.lifecycle import CheckpointLifecycle
from headrace.checkpoint.lifecycle.settings import LifecycleSettings
from headrace.errors import CheckpointFailure
from headrace.runtime.control import messages as msg
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


class Coordinator:
    """The driver of one attempt: performs what the lifecycle decides."""

    def __init__(self, job: SimulatedJob, attempt: int, restored: Metadata | None) -> None:
        self.job = job
        self.attempt = attempt
        scenario = job.scenario
        tasks = frozenset(facts.TaskId(level, slot) for level, n in enumerate(scenario.slots) for slot in range(n))
        self.lifecycle = CheckpointLifecycle(
            LifecycleSettings(
                interval_ms=100 if job.patient else scenario.interval_ms,
                timeout_ms=20_000 if job.patient else scenario.timeout_ms,
                max_concurrent=scenario.concurrent,
                tolerable_failures=1_000 if job.patient else scenario.tolerable_failures,
                retain=scenario.retain,
                unaligned=scenario.mode in (Mode.UNALIGNED, Mode.TIMEOUT),
            ),
            tasks,
            job.next_id,
            tuple(m.checkpoint_id for m in job.storage.counted()),
        )
        self.unassigned = self.all_splits()
        if restored is not None:
            self.unassigned = {source: dict(splits) for source, splits in restored.unassigned.items()}
            for path in restored.paths.values():
                for source, splits in job.storage.files[path].splits.items():
                    self.unassigned[source].update(splits)
        self.unassigned_at: dict[int, dict[str, dict[str, int]]] = {}
        self.publishing: act.Publish | None = None

    def all_splits(self) -> dict[str, dict[str, int]]:
        return {source: dict.fromkeys(splits, 0) for source, splits in self.job.scenario.splits.items()}

    def fact(self, fact: facts.Fact) -> None:
        for action in self.lifecycle.handle(fact, self.job.now_ms):
            self.perform(action)

    def message(self, task: TaskKey, message: Any) -> None:
        who = facts.TaskId(*task)
        match message:
            case msg.Acknowledge(checkpoint_id, snapshot):
                self.acknowledged(checkpoint_id)
                self.fact(facts.TaskAcknowledged(checkpoint_id, who, snapshot))
            case msg.Decline(checkpoint_id, failure, detail):
                self.fact(facts.TaskDeclined(checkpoint_id, who, CheckpointFailure[failure], detail))
            case msg.Committed(checkpoint_id):
                self.fact(facts.TaskCommitted(checkpoint_id, who))
            case msg.Drained():
                self.fact(facts.TaskDrained(who))
            case msg.SplitRequest(source, _):
                self.assign(source, task)

    def assign(self, source: str, task: TaskKey) -> None:
        splits = self.unassigned[source]
        given = dict([splits.popitem() for _ in range(min(len(splits), self.job.rng.randint(1, 2)))])
        encoded = tuple(map(marshal.dumps, given.items()))
        self.job.to_task(task, msg.AssignSplits(source, task[1], encoded, last=not given))

    def perform(self, action: act.Action) -> None:
        storage = self.job.storage
        match action:
            case act.TriggerCheckpoint():
                self.trigger(action)
            case act.Publish():
                self.publishing = action
            case act.NotifyComplete(checkpoint_id, commit):
                if commit:
                    self.job.to_all(msg.Complete(checkpoint_id))
            case act.NotifyAbort(checkpoint_id, _):
                self.job.to_all(msg.Abort(checkpoint_id))
            case act.DropCheckpoints(checkpoint_ids):
                storage.drop(checkpoint_ids)
            case act.DiscardPending(_, files) | act.DiscardLate(_, _, files):
                for path in files:
                    storage.files.pop(path, None)
            case act.FailJob() | act.RestoreLatest():
                self.job.failing = True
            case act.ReleaseJob():
                self.job.released = True

    def trigger(self, action: act.TriggerCheckpoint) -> None:
        self.job.next_id = action.checkpoint_id + 1
        self.save_enumerators(action.checkpoint_id)
        unaligned = self.job.scenario.mode is Mode.UNALIGNED and action.kind == "checkpoint" and not action.final
        trigger = msg.Trigger(action.checkpoint_id, unaligned, action.kind == "savepoint")
        for task in self.job.tasks if unaligned else self.job.scenario.source_tasks():
            self.job.to_task(task, trigger)

    def save_enumerators(self, checkpoint_id: int) -> None:
        self.unassigned_at[checkpoint_id] = {s: dict(splits) for s, splits in self.unassigned.items()}

    def acknowledged(self, checkpoint_id: int) -> None:
        """For a broken build to stand on."""

    def metadata(self, action: act.Publish) -> Metadata:
        paths = {(s.level, s.slot): s.subtasks[0].keyed.files[0].path for s in action.snapshots}  # type: ignore[union-attr]
        unassigned = self.unassigned_at[action.checkpoint_id]
        return Metadata(action.checkpoint_id, self.attempt, action.kind, paths, unassigned)

    def publish(self, outcome: str) -> None:
        """The storage has answered, or has not."""
        assert self.publishing is not None
        action, self.publishing = self.publishing, None
        metadata = self.metadata(action)
        if outcome in ("published", "unknown, but it is"):
            self.job.storage.published[action.checkpoint_id] = metadata
        if outcome == "published":
            self.job.check(metadata)
            self.fact(facts.Published(action.checkpoint_id))
        else:
            unknown = outcome.startswith("unknown")
            self.fact(facts.PublishFailed(action.checkpoint_id, CheckpointFailure.STORAGE, outcome, unknown))


@dataclass(frozen=True)
class Build:
    """The parts of the engine under test; a broken build replaces one of them."""

    gate: type[InputGate] = InputGate
    task: type[ModelTask] = ModelTask
    coordinator: type[Coordinator] = Coordinator


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
        self.zombies: list[Metadata] = []
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
        self.coordinator = self.build.coordinator(self, self.attempt, restored)
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
        self.coordinator.fact(facts.TasksRunning())

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
        if self.coordinator.publishing is not None:
            metadata = self.coordinator.metadata(self.coordinator.publishing)
            match self.rng.randrange(4):
                case 0:
                    self.storage.published[metadata.checkpoint_id] = metadata
                case 1 | 2:
                    self.zombies.append(metadata)
        for task in self.tasks.values():
            task.gate.close()
        self.begin()
        # Trouble seldom comes alone: the next crash may come before the next checkpoint.
        self.crash_at = self.steps + self.rng.randint(50, 1_500) if self.rng.random() < 0.4 else None

    # -- what tasks and the coordinator are given

    def to_task(self, task: TaskKey, message: msg.Message) -> None:
        self.downwards[task].append(message)

    def to_all(self, message: msg.Message) -> None:
        for queue in self.downwards.values():
            queue.append(message)

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
            if dice < 0.92:
                self.step_of_a_task(dice / 0.92)
            elif dice < 0.97:
                self.step_of_the_coordinator()
            elif dice < 0.99:
                self.let_time_pass()
            elif self.crashes and (rng.random() < 0.1 or (self.crash_at is not None and self.steps > self.crash_at)):
                self.crashes -= 1
                self.crash()
            elif self.zombies and rng.random() < 0.3:
                zombie = self.zombies.pop()
                self.storage.published[zombie.checkpoint_id] = zombie
            elif self.savepoints and rng.random() < 0.05:
                self.savepoints -= 1
                self.coordinator.fact(facts.SavepointRequested(str(self.next_id), None))
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
                self.coordinator.message(key, self.upwards[key].popleft())
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
        self.coordinator.fact(facts.Tick())

    def is_quiet(self) -> bool:
        """Whether nothing moves until the clock does (a lost acknowledgement is waited for)."""
        queues = (*self.channels.values(), *self.downwards.values(), *self.upwards.values())
        return (
            self.coordinator.publishing is None
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
        if self.coordinator.publishing is None:
            return
        luck = self.rng.random()
        if self.crashes and luck < 0.1:
            self.crashes -= 1
            self.crash()
            return
        outcomes = ("failed", "unknown, but it is", "unknown, and it is not")
        self.coordinator.publish("published" if luck < 0.9 else outcomes[int((luck - 0.9) * 30)])


def simulate(scenario: Scenario, seed: int, build: Build = Build(), spill_dir: Path | None = None) -> SimulatedJob:  # noqa: B008
    """Run the seed to its end; raises Violation (or what the engine raises) if anything is wrong."""
    job = SimulatedJob(scenario, seed, build, spill_dir)
    job.counted_twice = job.run()
    for task in job.tasks.values():
        task.gate.close()
    return job
