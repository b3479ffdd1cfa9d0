"""Two sources and one sink, step by step: barriers, alignment, input buffer, snapshot, acknowledgement, metadata.

source 0 ─▶╲
            sink task          records are numbers; the sink's state is their sum
source 1 ─▶╱
"""

from __future__ import annotations

import marshal
from dataclasses import dataclass, field

from headrace.checkpoint.handles import StateFile, SubtaskSnapshot, TaskSnapshot
from headrace.checkpoint.lifecycle import actions as act
from headrace.checkpoint.lifecycle import facts
from headrace.checkpoint.lifecycle.lifecycle import CheckpointLifecycle
from headrace.checkpoint.lifecycle.settings import LifecycleSettings
from headrace.runtime.task.cells import RECORDS_HEADER, Address, Barrier, records_header
from headrace.runtime.task.gate import CONTROL, Deliver, GateMode, InputGate, TakeSnapshot

SOURCES = (facts.TaskId(0, 0), facts.TaskId(0, 1))
SINK = facts.TaskId(1, 0)


def record(source: int, number: int) -> bytes:
    return records_header(Address(0, source, 0), 0, 0, 1) + marshal.dumps(number)


class Clock:
    """Stands still until it is told to move."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class SourceTask:
    """Counts upwards from its position; its control connection is its only input."""

    slot: int
    numbers: list[int]
    gate: InputGate
    output: list[bytes] = field(default_factory=list)
    position: int = 0
    saved: int | None = None

    def emit(self) -> None:
        assert not self.gate.is_blocked(CONTROL)
        self.output.append(record(self.slot, self.numbers[self.position]))
        self.position += 1

    def work(self) -> None:
        event = self.gate.take()
        assert isinstance(event, TakeSnapshot)
        self.output.append(event.barrier.encode())
        self.saved = self.position


@dataclass
class SinkTask:
    """Adds up what it is given. Barriers are none of its business."""

    gate: InputGate
    processed: list[int] = field(default_factory=list)
    saved: int | None = None
    barriers_out: list[int] = field(default_factory=list)

    def work(self) -> None:
        """Everything that can be done now, but stops right after a snapshot."""
        while (event := self.gate.take()) is not None:
            match event:
                case Deliver(_, data):
                    self.processed.append(marshal.loads(data[RECORDS_HEADER:]))
                case TakeSnapshot(barrier):
                    self.barriers_out.append(barrier.checkpoint_id)
                    self.saved = sum(self.processed)
                    return


def snapshot_of(task: facts.TaskId, saved: int | None) -> TaskSnapshot:
    file = StateFile(8, "", inline=marshal.dumps(saved))
    subtask = SubtaskSnapshot("sum", task.slot, 1, 128, extra=file.inline or b"")
    return TaskSnapshot(task.level, task.slot, (subtask,))


def test_two_sources_and_one_sink_take_a_checkpoint_in_six_steps() -> None:
    clock = Clock()

    def gate(*channels: int) -> InputGate:
        return InputGate(channels, mode=GateMode.EXACTLY_ONCE, clock=clock)

    one = SourceTask(0, [1, 2, 3, 4], gate(CONTROL))
    two = SourceTask(1, [10, 20, 30, 40], gate(CONTROL))
    sink = SinkTask(gate(0, 1))
    lifecycle = CheckpointLifecycle(LifecycleSettings(interval_ms=100), frozenset((*SOURCES, SINK)), next_id=1)
    assert lifecycle.handle(facts.TasksRunning(), 0) == []
    one.emit()
    two.emit()
    two.emit()

    # Step 1: the coordinator tells the sources, and nobody else.
    (trigger,) = lifecycle.handle(facts.Tick(), 100)
    assert isinstance(trigger, act.TriggerCheckpoint)
    for source in (one, two):
        source.gate.arrive_control(Barrier(trigger.checkpoint_id))

    # Step 2: each source saves its position and sends a numbered barrier into the stream, behind its records.
    one.work()
    one.emit()
    two.work()
    two.emit()
    assert (one.saved, two.saved) == (1, 2)
    assert one.output == [record(0, 1), Barrier(1).encode(), record(0, 2)]
    assert two.output == [record(1, 10), record(1, 20), Barrier(1).encode(), record(1, 30)]

    # Step 3: the barrier of source 0 comes first. The sink goes on with source 1 and sets source 0 aside.
    for cell in one.output:
        sink.gate.arrive(0, cell)
    sink.work()
    clock.now = 0.5
    for cell in two.output[:2]:
        sink.gate.arrive(1, cell)
    sink.work()
    assert sink.processed == [1, 10, 20]
    assert sink.saved is None
    assert sink.gate.is_blocked(0)
    assert not sink.gate.is_blocked(1)

    # Step 4: the last barrier comes. Snapshot: neither 2 nor 30 belongs to it, although 2 has been here for long.
    for cell in two.output[2:]:
        sink.gate.arrive(1, cell)
    sink.work()
    assert sink.barriers_out == [1]
    assert sink.saved == 1 + 10 + 20

    # Step 5: the input buffer goes before new input, and processing goes on while the snapshot is being written.
    sink.work()
    assert sink.processed == [1, 10, 20, 2, 30]
    assert sink.saved == 31

    # Step 6: each task reports its handle; when all have, and not before, the metadata is written last.
    for task, saved in ((SOURCES[1], two.saved), (SINK, sink.saved)):
        assert lifecycle.handle(facts.TaskAcknowledged(1, task, snapshot_of(task, saved)), 110) == []
    (publish,) = lifecycle.handle(facts.TaskAcknowledged(1, SOURCES[0], snapshot_of(SOURCES[0], one.saved)), 111)
    assert isinstance(publish, act.Publish)
    handles = {(s.level, s.slot): marshal.loads(s.subtasks[0].extra) for s in publish.snapshots}
    assert handles == {(0, 0): 1, (0, 1): 2, (1, 0): 31}
    assert lifecycle.handle(facts.Published(1), 112)[0] == act.NotifyComplete(1)

    # What the checkpoint holds is the truth for these positions: going back to it repeats and omits nothing.
    restored = handles[1, 0] + sum(one.numbers[handles[0, 0] :]) + sum(two.numbers[handles[0, 1] :])
    assert restored == sum(one.numbers) + sum(two.numbers)


def test_the_same_topology_without_alignment_counts_a_record_twice_after_a_restore() -> None:
    sink = SinkTask(InputGate((0, 1), mode=GateMode.AT_LEAST_ONCE, clock=Clock()))
    for channel, cell in (
        (0, record(0, 1)),
        (0, Barrier(1).encode()),
        (0, record(0, 2)),
        (1, record(1, 10)),
        (1, Barrier(1).encode()),
    ):
        sink.gate.arrive(channel, cell)
    sink.work()
    assert sink.saved == 1 + 2 + 10
    replayed_from_position_one = sink.saved + 2
    assert replayed_from_position_one == 1 + 2 + 2 + 10


def test_an_unaligned_checkpoint_of_the_same_topology_keeps_the_records_in_flight_instead_of_waiting() -> None:
    sink = SinkTask(InputGate((0, 1), mode=GateMode.EXACTLY_ONCE, clock=Clock(), aligned_timeout_s=0.0))
    barrier = Barrier(1, unaligned=True)
    for channel, cell in ((1, record(1, 10)), (1, record(1, 20)), (0, barrier.encode()), (0, record(0, 2))):
        sink.gate.arrive(channel, cell)
    event = sink.gate.take()
    assert isinstance(event, TakeSnapshot)
    assert event.logged == [(1, record(1, 10)), (1, record(1, 20))]
    assert not event.log_complete
    sink.work()
    assert sink.processed == [10, 20, 2]
