"""A task of the simulation: the engine's own gate and chain input around a model of operators, sources and a sink.

It does what the mailbox does, in steps small enough that the scheduler can put anything between two of them.
"""

from __future__ import annotations

import marshal
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from simulated_plan import Record, Scenario

from headrace.checkpoint.handles import KeyedSnapshot, StateFile, SubtaskSnapshot, TaskSnapshot
from headrace.errors import CheckpointFailure
from headrace.runtime.control import messages as msg
from headrace.runtime.task.cells import (
    END,
    NUDGE,
    RECORDS,
    RECORDS_HEADER,
    Address,
    Barrier,
    address_of,
    end_cell,
    read_records_header,
    records_header,
)
from headrace.runtime.task.chain import ChainInput
from headrace.runtime.task.gate import CONTROL, Deliver, GiveUp, InputGate, LogComplete, TakeSnapshot
from headrace.runtime.task.routing import Router
from headrace.runtime.task.spill import Queued

TaskKey = tuple[int, int]


@dataclass(frozen=True)
class Item:
    """Prepared output: invisible until it is committed."""

    name: tuple[int, int, int, int]
    """(attempt, checkpoint, level, slot)"""
    records: tuple[Record, ...]


@dataclass
class State:
    """What a task saves at a barrier."""

    seen: Counter[Record] = field(default_factory=Counter)
    """Records that the operator processed: its counts per key, and more."""
    sunk: Counter[Record] = field(default_factory=Counter)
    last: dict[tuple[str, str, str], int] = field(default_factory=dict)
    """The last position of each (way, split, key): they take one way, so they come in order."""
    finished: bool = False
    splits: dict[str, dict[str, int]] = field(default_factory=dict)
    prepared: tuple[Item, ...] = ()
    logged: list[Queued] = field(default_factory=list)

    def copy(self) -> State:
        return State(
            Counter(self.seen),
            Counter(self.sunk),
            dict(self.last),
            self.finished,
            {source: dict(splits) for source, splits in self.splits.items()},
            self.prepared,
        )


@dataclass
class Reader:
    """A source's reader in one task."""

    source: str
    splits: dict[str, int] = field(default_factory=dict)
    last: bool = False
    requested: bool = False
    ended: bool = False


@dataclass
class Running:
    """A snapshot that is being written."""

    checkpoint_id: int
    state: State
    complete: bool


class TiedToOneWidth(AssertionError):
    """Records that belong to one subtask are in flight in a checkpoint, which restores at one parallelism only."""


class OutOfOrder(AssertionError):
    """A record came after one that it was sent before."""


class ModelTask:
    """One slot of one level for one attempt."""

    def __init__(
        self,
        scenario: Scenario,
        *,
        attempt: int,
        level: int,
        slot: int,
        router: Router,
        gate: InputGate,
        send: Callable[[msg.Message], None],
        put: Callable[[int, bytes], None],
        read: Callable[[str, int], Record],
        commit: Callable[[Item], None],
        restored: State | None,
    ) -> None:
        self.scenario = scenario
        self.attempt = attempt
        self.level = level
        self.slot = slot
        self.router = router
        self.gate = gate
        self.send = send
        self.put = put
        """Append a cell to the channel to a slot of the next level."""
        self.read = read
        self.commit = commit
        self.state = State()
        if restored is not None:
            self.state = restored.copy()
            # Splits are with the enumerator, and prepared output was committed before the tasks came up.
            self.state.prepared = ()
            gate.put_back(restored.logged)
        self.readers = {source: Reader(source) for source in scenario.readers(level)}
        self.state.splits = {}
        self.open_item: list[Record] = []
        self.buffers: dict[tuple[int, int], list[Record]] = {}
        self.letters: deque[msg.Message] = deque()
        self.running: dict[int, Running] = {}
        self.commits: deque[int] = deque()
        self.block: tuple[int, Address, list[Record], int] | None = None
        self.drained = False
        producers = [
            (edge, producer)
            for edge in scenario.inputs(level)
            for producer in range(scenario.slots[scenario.level_of_producer(edge)])
        ]
        self.input = ChainInput(self, producers) if level else None  # type: ignore[arg-type]

    # -- what the control thread and the background do

    def receive(self, message: msg.Message) -> None:
        match message:
            case msg.Trigger():
                self.gate.arrive_control(
                    Barrier(message.checkpoint_id, message.unaligned, message.canonical, message.stopping)
                )
            case msg.AssignSplits():
                self.gate.arrive_control(message)
            case _:
                self.letters.append(message)

    def writable(self) -> list[int]:
        return [c for c, running in self.running.items() if running.complete]

    def acknowledge(self, checkpoint_id: int, files: dict[str, Any]) -> None:
        """The asynchronous part is over."""
        running = self.running.pop(checkpoint_id)
        fixed = self.scenario.fixed & {address_of(data).edge for _, data in running.state.logged}
        if fixed:
            raise TiedToOneWidth(f"checkpoint {checkpoint_id} of task {self.level}.{self.slot} logs edges {fixed}")
        path = f"{self.attempt}/{checkpoint_id}/{self.level}.{self.slot}"
        files[path] = running.state
        keyed = KeyedSnapshot("table", 0, 0, (), (StateFile(1, "", path),))
        subtask = SubtaskSnapshot(uid_of(self.level), self.slot, self.scenario.slots[self.level], 16, keyed)
        self.send(msg.Acknowledge(checkpoint_id, TaskSnapshot(self.level, self.slot, (subtask,))))

    def fail_to_write(self, checkpoint_id: int) -> None:
        del self.running[checkpoint_id]
        self.send(msg.Decline(checkpoint_id, CheckpointFailure.STORAGE.name, "no room"))

    def commit_next(self) -> None:
        """The background commits everything up to a completed checkpoint, in order."""
        checkpoint_id = self.commits.popleft()
        for item in [i for i in self.state.prepared if i.name[1] <= checkpoint_id]:
            self.commit(item)
        self.state.prepared = tuple(i for i in self.state.prepared if i.name[1] > checkpoint_id)
        self.send(msg.Committed(checkpoint_id))

    # -- the mailbox

    def letter(self) -> None:
        match self.letters.popleft():
            case msg.Complete(checkpoint_id):
                self.commits.append(checkpoint_id)
            case msg.Abort(checkpoint_id):
                self.gate.abort(checkpoint_id)
                self.running.pop(checkpoint_id, None)

    def work(self, polled: int, full: bool) -> bool:
        """One step of the mailbox; False if there was nothing to do."""
        if full or self.block is not None:
            event = self.gate.take_urgent()
            if event is not None:
                self.handle(event)
            elif full:
                return False
            else:
                self.next_record()
            return True
        event = self.gate.take()
        if event is not None:
            self.handle(event)
        worked = self.poll(polled) or event is not None
        self.note_drained()
        return worked

    def handle(self, event: Any) -> None:
        match event:
            case Deliver(channel, item):
                if channel == CONTROL:
                    self.assign(item)
                else:
                    self.cell(channel, item)
            case TakeSnapshot():
                self.snapshot(event)
            case LogComplete(checkpoint_id, logged):
                running = self.running.get(checkpoint_id)
                if running is not None:
                    running.state.logged.extend(logged)
                    running.complete = True
            case GiveUp(checkpoint_id, reason):
                self.running.pop(checkpoint_id, None)
                self.send(msg.Decline(checkpoint_id, CheckpointFailure.DECLINED.name, reason))

    def cell(self, channel: int, data: bytes) -> None:
        if data[0] == NUDGE:
            return
        address = address_of(data)
        if self.router.target_level(address.edge) != self.level:
            self.put(self.router.next_slot(self.level, address.edge, address.producer, address.target), data)
        elif data[0] == RECORDS:
            self.block = (channel, address, decode(data), 0)
            self.next_record()
        elif data[0] == END:
            assert self.input is not None
            self.input.end(address)

    def next_record(self) -> None:
        assert self.block is not None
        channel, address, records, at = self.block
        self.process(records[at])
        self.block = (channel, address, records, at + 1) if at + 1 < len(records) else None

    def process(self, record: Record) -> None:
        place = (record.way, record.split, record.key)
        if self.scenario.exact and record.position <= self.state.last.get(place, -1):
            raise OutOfOrder(f"{record} came after position {self.state.last[place]} at task {self.level}.{self.slot}")
        self.state.last[place] = record.position
        self.state.seen[record] += 1
        self.emit(record)

    def emit(self, record: Record) -> None:
        """From the operator onwards."""
        if self.level == self.scenario.last:
            self.state.sunk[record] += 1
            self.open_item.append(record)
        else:
            self.write(self.level, record)

    def write(self, edge: int, record: Record) -> None:
        self.buffers.setdefault((edge, self.scenario.target(edge, record.key)), []).append(record)

    def flush(self) -> None:
        for (edge, target), records in self.buffers.items():
            if records:
                address = Address(edge, self.slot, target)
                self.put(self.router.next_slot(self.level, edge, self.slot, target), encode(address, records))
        self.buffers.clear()

    def end(self, edge: int) -> None:
        self.flush()
        for target in range(self.scenario.slots[self.scenario.level_of_target(edge)]):
            cell = end_cell(Address(edge, self.slot, target))
            self.put(self.router.next_slot(self.level, edge, self.slot, target), cell)

    def end_input(self) -> None:
        """Called by the chain input. What an operator emits at the end of its input, it emits once in a job's life."""
        if not self.state.finished:
            self.state.finished = True
            self.emit(farewell(self.level, self.slot))
        if self.level < self.scenario.last:
            self.end(self.level)

    def note_drained(self) -> None:
        inputs_ended = self.input is None or self.input.ended
        if not self.drained and inputs_ended and not self.block and all(r.ended for r in self.readers.values()):
            self.drained = True
            self.flush()
            self.send(msg.Drained())

    # -- sources

    def assign(self, message: msg.AssignSplits) -> None:
        reader = self.readers[message.uid]
        reader.requested = False
        reader.splits.update(dict(map(marshal.loads, message.splits)))
        reader.last = reader.last or message.last

    def poll(self, limit: int) -> bool:
        if not self.readers or self.gate.is_blocked(CONTROL):
            return False
        worked = [self.poll_reader(reader, limit) for reader in self.readers.values() if not reader.ended]
        return any(worked)

    def poll_reader(self, reader: Reader, limit: int) -> bool:
        if not reader.splits:
            if reader.last:
                reader.ended = True
                for edge, _ in self.scenario.edges_of_source(reader.source):
                    self.end(edge)
                return True
            if not reader.requested:
                reader.requested = True
                self.send(msg.SplitRequest(reader.source, self.slot))
                return True
            return False
        split, position = next(iter(reader.splits.items()))
        end = len(self.scenario.splits[reader.source][split])
        for at in range(position, min(position + limit, end)):
            record = self.read(split, at)
            if self.level == self.scenario.last:
                self.emit(record)
            for edge, way in self.scenario.edges_of_source(reader.source):
                self.write(edge, record._replace(way=way))
            reader.splits[split] = at + 1
        if position + limit >= end:
            del reader.splits[split]
        return True

    # -- checkpoints

    def snapshot(self, event: TakeSnapshot) -> None:
        """Barrier to all outputs, then a copy of the state; writing it goes on in the background."""
        checkpoint_id = event.barrier.checkpoint_id
        self.prepare(checkpoint_id)
        self.flush()
        self.barrier(event.barrier)
        self.state.splits = {reader.source: reader.splits for reader in self.readers.values()}
        state = self.state.copy()
        if event.logged is not None:
            state.logged = [*self.rest_of_block(), *event.logged]
        self.running[checkpoint_id] = Running(checkpoint_id, state, event.log_complete)

    def prepare(self, checkpoint_id: int) -> None:
        if self.open_item:
            name = (self.attempt, checkpoint_id, self.level, self.slot)
            self.state.prepared = (*self.state.prepared, Item(name, tuple(self.open_item)))
            self.open_item = []

    def barrier(self, barrier: Barrier) -> None:
        if self.level < self.scenario.last:
            for slot in range(self.scenario.slots[self.level + 1]):
                self.put(slot, barrier.encode())

    def rest_of_block(self) -> Iterator[Queued]:
        if self.block is not None:
            channel, address, records, at = self.block
            yield channel, encode(address, records[at:])


def uid_of(level: int) -> str:
    return f"model-{level}"


def level_of(uid: str) -> int:
    return int(uid.removeprefix("model-"))


def farewell(level: int, slot: int) -> Record:
    """What the operator of a task emits when its input has ended."""
    return Record("end", f"{level}.{slot}", 0, f"k{slot}")


def encode(address: Address, records: list[Record]) -> bytes:
    return records_header(address, 0, 0, len(records)) + marshal.dumps([tuple(r) for r in records])


def decode(data: bytes) -> list[Record]:
    _, _, _, count = read_records_header(data)
    records = [Record(*fields) for fields in marshal.loads(data[RECORDS_HEADER:])]
    assert len(records) == count
    return records
