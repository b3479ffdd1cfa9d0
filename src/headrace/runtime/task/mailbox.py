"""The mailbox: the one thread that touches operators and state.

    Spark's reader ─ input thread ─▶ input gate ─▶ MAILBOX (chains, state, timers) ─▶ output queue ─▶ generator
                                  control thread ──▶ │ ◀── due timers      background: snapshot files, sink commits

Between two records, never inside one, it takes a control message, a due timer or input, or waits for room in the
output. So a snapshot needs no lock, and user code is single-threaded.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from headrace import failpoints
from headrace.connectors.source import PollStatus
from headrace.errors import CheckpointFailure
from headrace.operators.base import Attention, Block, Operator
from headrace.operators.collect import CollectOperator
from headrace.operators.sink import SinkOperator
from headrace.operators.watermarks import MAX_WATERMARK
from headrace.plan.graph import Edge
from headrace.runtime.control.messages import (
    Abort,
    AlignTo,
    AssignSplits,
    Committed,
    Complete,
    Decline,
    Drained,
    Message,
    Progress,
    Release,
    SavepointTarget,
    SplitRequest,
    Trigger,
)
from headrace.runtime.task.cells import (
    BARRIER,
    END,
    IDLE,
    NUDGE,
    RECORDS,
    RECORDS_HEADER,
    WATERMARK,
    Barrier,
    address_of,
    read_idle,
    read_records_header,
    read_watermark,
    records_header,
)
from headrace.runtime.task.chain import ChainSubtask
from headrace.runtime.task.edges import Clock, EdgeWriter
from headrace.runtime.task.gate import CONTROL, Deliver, GiveUp, InputGate, LogComplete, TakeSnapshot
from headrace.runtime.task.metrics import readings
from headrace.runtime.task.output import OutputQueue
from headrace.runtime.task.poll_size import PollSize
from headrace.runtime.task.records import EdgeCodec
from headrace.runtime.task.routing import Router
from headrace.runtime.task.snapshots import RunningSnapshot, SnapshotWriter
from headrace.runtime.task.spill import Queued

PROGRESS_EVERY_S = 1.0
IDLE_BACKOFF_S = (0.001, 0.02)


class Mailbox:
    """Runs the chains of one task until the driver releases it."""

    def __init__(
        self,
        *,
        level: int,
        slot: int,
        subtasks: list[ChainSubtask],
        writers: list[EdgeWriter],
        codecs: dict[int, EdgeCodec],
        router: Router,
        gate: InputGate,
        output: OutputQueue,
        snapshots: SnapshotWriter,
        send: Callable[[Message], None],
        clock: Clock,
        attention: Attention,
        wakeup: threading.Event,
        buffer_timeout_s: float,
        input_consumed: Callable[[], None],
        in_background: Callable[[Callable[[], Any]], None],
    ) -> None:
        self._level = level
        self._slot = slot
        self._subtasks = subtasks
        self._writers = writers
        self._codecs = codecs
        self._router = router
        self._gate = gate
        self._output = output
        self._snapshots = snapshots
        self._send = send
        self._clock = clock
        self._attention = attention
        self._wakeup = wakeup
        self._buffer_timeout_s = buffer_timeout_s
        self._input_consumed = input_consumed
        self._in_background = in_background

        self._by_input = {(edge.id, s.subtask): s for s in subtasks for edge in _in_edges(s, codecs)}
        self._takers = {
            (edge.id, s.subtask): (_decoder(s, edge, codecs), s.operators[edge.target].input(edge.input))
            for s in subtasks
            for edge in _in_edges(s, codecs)
        }
        """For each edge and subtask: what makes a block of a cell, and what takes the block."""
        self._sources = [s for s in subtasks if s.source is not None]
        self._operators = [o for s in subtasks for o in s.operators.values()]
        self._timed = [o for o in self._operators if type(o).next_processing_time is not Operator.next_processing_time]
        self._bounded = [o for o in self._operators if type(o).has_room is not Operator.has_room]
        """Operators that may have no room for another record."""
        self._ends = [o for o in self._operators if isinstance(o, SinkOperator | CollectOperator)]
        self._letters: deque[Any] = deque()
        """Out-of-band messages and results of background work, in order of arrival."""
        self._block: Block | None = None
        self._block_cell: tuple[int, Callable[[Block, Attention], None], bytes] | None = None
        self._requested: set[tuple[str, int]] = set()
        self._rest_until: dict[int, float] = {}
        self._backoff: dict[int, float] = {}
        self._poll_size = PollSize()
        self._drained = False
        self._released = False
        self._stopped = False
        """A stopping savepoint's barrier has passed: sources emit nothing more and no timer fires."""
        self._input_ended = False
        self._records_in = 0
        self._latency_ms: float | None = None
        self._busy_s = 0.0
        self._progress_at = self._clock.now + PROGRESS_EVERY_S
        self._progress_since = self._clock.now

    # -- called by other threads

    def deliver(self, message: Any) -> None:
        """A message from the driver. Triggers and splits are in-band; everything else comes between records."""
        match message:
            case Trigger():
                self._gate.arrive_control(
                    Barrier(
                        message.checkpoint_id, message.unaligned, message.canonical, message.stopping, message.drain
                    )
                )
            case SavepointTarget(checkpoint_id, location):
                # At once: the savepoint's writer may be waiting for it already.
                self._snapshots.aim(checkpoint_id, location)
            case AssignSplits():
                self._gate.arrive_control(message)
            case _:
                self._letters.append(message)
                self.wake()

    def wake(self) -> None:
        self._attention.raised = True
        self._wakeup.set()

    def input_ended(self) -> None:
        """Spark has no further cell for this task."""
        self._input_ended = True
        self.wake()

    # -- the loop

    def run(self) -> None:
        """Until released. Whatever an operator raises ends the task."""
        self.begin()
        while self.turn():
            pass

    def begin(self) -> None:
        """Before the first turn."""
        for subtask in self._subtasks:
            if subtask.input is not None and subtask.input.ended:
                subtask.head.end_input()

    def turn(self) -> bool:
        """One step, or a wait if there is nothing to do; False when the task is over."""
        self._attention.raised = False
        while self._letters:
            self._letter(self._letters.popleft())
        now = self._clock.tick()
        if self._released and (self._level == 0 or self._input_ended):
            return False
        if now >= self._progress_at:
            self._report(now)
        if self._output.full:
            self._wait_for_room()
            return True
        if self._bounded and not self._has_room():
            self._hold()
            return True
        worked = self._work(now)
        self._flush_if_due(idle=not worked)
        if not worked:
            self._rest()
        else:
            self._busy_s += time.monotonic() - now
        return True

    def _sleep(self, seconds: float) -> None:
        """Until somebody wakes the mailbox, at most so long."""
        self._wakeup.wait(max(0.0, seconds))

    def _work(self, now: float) -> bool:
        """One step; False if there was nothing to do."""
        if not self._stopped:
            self._fire_timers()
        if self._block is not None:
            event = self._gate.take_urgent()
            if event is None:
                self._continue_block()
            else:
                self._handle(event)
            return True
        event = self._gate.take()
        if event is not None:
            self._handle(event)
        polled = self._poll_sources(now)
        if event is None and not polled:
            return False
        self._note_drained()
        return True

    def _has_room(self) -> bool:
        return self._stopped or all(operator.has_room() for operator in self._bounded)

    def _hold(self) -> None:
        """An operator can take no record now: all else goes on."""
        self._fire_timers()
        event = self._gate.take_urgent()
        if event is not None:
            self._handle(event)
            return
        self._flush_if_due(idle=True)
        self._wakeup.clear()
        if not self._letters and not self._attention.raised and not self._has_room():
            self._sleep(self._next_deadline() - time.monotonic())

    def _rest(self) -> None:
        """Wait for a message, input or the next moment at which something is due."""
        self._note_drained()
        self._wakeup.clear()
        if self._letters or self._gate.has_input or self._attention.raised:
            return
        until = self._next_deadline()
        self._sleep(until - time.monotonic())

    def _next_deadline(self) -> float:
        now = self._clock.now
        until = self._progress_at
        gate = self._gate.deadline()
        if gate is not None:
            until = min(until, max(gate, now + 0.001))
        oldest = [w.unflushed_since for w in self._writers if w.unflushed_since is not None]
        if oldest:
            until = min(until, min(oldest) + self._buffer_timeout_s)
        if not self._stopped:
            wall_ms = self._clock.wall_ms()
            for operator in self._timed:
                due_ms = self._due_ms(operator)
                if due_ms is not None:
                    until = min(until, now + max(0, due_ms - wall_ms + 1) / 1_000)
            for index in range(len(self._sources)):
                rest = self._rest_until.get(index)
                if rest is not None:
                    until = min(until, rest)
        return until

    # -- input

    def _handle(self, event: Any) -> None:
        match event:
            case Deliver(channel, item):
                if channel == CONTROL:
                    self._assign(item)
                else:
                    self._cell(channel, item)
                    self._input_consumed()
            case TakeSnapshot():
                self._snapshot(event)
            case LogComplete(checkpoint_id, logged):
                self._snapshots.log_complete(checkpoint_id, logged)
                self._input_consumed()
            case GiveUp(checkpoint_id, reason):
                self._snapshots.abort(checkpoint_id)
                self._send(Decline(checkpoint_id, CheckpointFailure.DECLINED.name, reason))
                self._input_consumed()

    def _cell(self, channel: int, data: bytes) -> None:
        kind = data[0]
        if kind == NUDGE:
            return
        assert kind != BARRIER
        address = address_of(data)
        subtask = self._by_input.get((address.edge, address.target))
        if subtask is None:
            self._output.put(self._router.next_slot(self._level, address.edge, address.producer, address.target), data)
            return
        if kind == RECORDS:
            _, flags, born_us, count = read_records_header(data)
            self._clock.born_us = born_us
            self._records_in += count
            decode, take = self._takers[address.edge, address.target]
            self._block = decode(flags, memoryview(data)[RECORDS_HEADER:])
            self._block_cell = (channel, take, data)
            self._continue_block()
            return
        assert subtask.input is not None
        if kind == WATERMARK:
            subtask.input.watermark(address, read_watermark(data))
        elif kind == IDLE:
            subtask.input.idle(address, read_idle(data))
        elif kind == END:
            subtask.input.end(address)

    def _continue_block(self) -> None:
        block, cell = self._block, self._block_cell
        assert block is not None
        assert cell is not None
        failpoints.hit("record", f"{self._level}.{self._slot}")
        cell[1](block, self._attention)
        if block.position >= len(block.values):
            self._block = self._block_cell = None
            if self._ends and self._clock.born_us:
                self._latency_ms = time.time_ns() / 1e6 - self._clock.born_us / 1e3

    def _rest_of_block(self) -> list[Queued]:
        """The records in hand that were not processed yet, as a cell: in flight, like the cells behind it."""
        if self._block is None or self._block_cell is None:
            return []
        block, (channel, _, data) = self._block, self._block_cell
        address, _, born_us, _ = read_records_header(data)
        at = block.position
        values = block.values[at:]
        flags, parts = self._codecs[address.edge].encode(
            values,
            None if block.keys is None else block.keys[at:],
            None if block.timestamps is None else block.timestamps[at:],
        )
        return [(channel, b"".join((records_header(address, flags, born_us, len(values)), *parts)))]

    # -- sources

    def _assign(self, message: AssignSplits) -> None:
        for subtask in self._sources:
            source = subtask.source
            assert source is not None
            if source.context.uid == message.uid and subtask.subtask == message.subtask:
                if not message.splits and not message.last:
                    source.no_split_now()
                    continue
                self._requested.discard((message.uid, message.subtask))
                if message.splits:
                    source.assign(message.splits)
                if message.last:
                    source.no_more_splits()
                self._rest_until.clear()

    def _poll_sources(self, now: float) -> bool:
        if not self._sources or self._stopped or self._gate.is_blocked(CONTROL):
            return False
        worked = False
        for index, subtask in enumerate(self._sources):
            source = subtask.source
            assert source is not None
            if subtask.ended or (self._rest_until.get(index, 0.0) > now and not source.woken):
                continue
            self._clock.born_us = time.time_ns() // 1_000
            started, busy = time.monotonic(), time.thread_time()
            answer = source.poll(self._poll_size.limit)
            if isinstance(answer, int):
                worked = True
                self._backoff.pop(index, None)
                self._rest_until.pop(index, None)
                if answer:
                    self._poll_size.polled(answer, time.thread_time() - busy, time.monotonic() - started)
                    failpoints.hit("record", f"{self._level}.{self._slot}")
                continue
            if answer is PollStatus.ENDED:
                subtask.end_source()
                worked = True
            elif answer is PollStatus.NEEDS_SPLIT:
                key = (source.context.uid, subtask.subtask)
                if key not in self._requested:
                    self._requested.add(key)
                    self._send(SplitRequest(*key))
                self._rest_until[index] = now + 3_600.0
            else:
                known = source.idle_until()
                backoff = min(self._backoff.get(index, IDLE_BACKOFF_S[0]) * 2, IDLE_BACKOFF_S[1])
                self._backoff[index] = backoff
                self._rest_until[index] = now + backoff if known is None else max(known, now + 0.0005)
        return worked

    def _note_drained(self) -> None:
        if (
            not self._drained
            and not self._block
            and all(s.ended for s in self._subtasks)
            # What is still in flight in an operator comes before the end of its output.
            and all(o.output_ended for o in self._bounded)
        ):
            self._drained = True
            self._flush()
            self._report(self._clock.now)
            self._send(Drained())

    # -- time

    def _fire_timers(self) -> None:
        """Whatever is due by the clock."""
        if not self._timed:
            return
        now_ms = self._clock.wall_ms()
        for operator in self._timed:
            due_ms = self._due_ms(operator)
            if due_ms is not None and due_ms <= now_ms:
                operator.processing_time(now_ms)

    def _due_ms(self, operator: Operator) -> int | None:
        """When the operator wants to look at the clock next; never after its end.

        An ended operator has told the next one that nothing follows, and the final checkpoint may be under way: what a
        timer would emit would be lost. One that was restored after its end stays quiet unless there is input again.
        """
        if operator.output_ended or (operator.ended and not self._has_had_input):
            return None
        return operator.next_processing_time()

    @property
    def _has_had_input(self) -> bool:
        return self._records_in > 0 or any(s.source is not None and s.source.records for s in self._sources)

    def _flush_if_due(self, *, idle: bool) -> None:
        """Cells leave when full, when their records waited long enough or, without sources, when all is idle."""
        if idle and not self._sources:
            self._flush()
            return
        now = time.monotonic()
        for writer in self._writers:
            if writer.unflushed_since is not None and now - writer.unflushed_since >= self._buffer_timeout_s:
                writer.flush()

    def _flush(self) -> None:
        for writer in self._writers:
            writer.flush()

    def _wait_for_room(self) -> None:
        """Output is full: take control messages meanwhile, a snapshot among them."""
        event = self._gate.take_urgent()
        if event is not None:
            self._handle(event)
            return
        self._wakeup.clear()
        if self._output.full and not self._letters and not self._attention.raised:
            self._sleep(0.5)

    # -- checkpoints

    def _snapshot(self, event: TakeSnapshot) -> None:
        """Barrier to all outputs, then the synchronous part; writing goes on in the background."""
        checkpoint_id = event.barrier.checkpoint_id
        scope = f"{self._level}.{self._slot}"
        failpoints.hit("barrier_aligned", scope)
        started = time.monotonic()
        if event.barrier.drain:
            for subtask in self._sources:
                if not subtask.ended:
                    subtask.head.watermark(MAX_WATERMARK)
        for operator in self._operators:
            operator.prepare_snapshot(checkpoint_id)
        failpoints.hit("sink_prepared", scope)
        self._flush()
        self._output.put_all(event.barrier.encode())
        failpoints.hit("barrier_injected", scope)
        work = [o.snapshot(checkpoint_id, canonical=event.barrier.canonical) for o in self._operators]
        logged = []
        if event.logged is not None:
            logged = self._rest_of_block() + event.logged
        running = RunningSnapshot(
            checkpoint_id, work, event.alignment_s, time.monotonic() - started, logged, event.barrier.canonical
        )
        if event.log_complete:
            running.log_complete.set()
        self._snapshots.begin(running)
        if event.barrier.stopping:
            self._stopped = True
        self._input_consumed()

    def _letter(self, letter: Any) -> None:
        match letter:
            case Complete(checkpoint_id, shared):
                self._snapshots.completed(checkpoint_id, frozenset(shared))
                self._complete(checkpoint_id)
            case Abort(checkpoint_id):
                self._gate.abort(checkpoint_id)
                self._snapshots.abort(checkpoint_id)
                for operator in self._operators:
                    operator.aborted(checkpoint_id)
                self._input_consumed()
            case AlignTo(uid, number, floor):
                for subtask in self._sources:
                    if subtask.source is not None and (subtask.source.context.uid, subtask.subtask) == (uid, number):
                        subtask.source.align_to(floor)
            case Release():
                self._released = True
                if self._level == 0:
                    self._flush()
            case BaseException():
                raise letter
            case _ if callable(letter):
                letter()

    def _complete(self, checkpoint_id: int) -> None:
        work = [w for o in self._operators if (w := o.complete(checkpoint_id)) is not None]
        scope = f"{self._level}.{self._slot}"

        def commit() -> None:
            try:
                if work:
                    failpoints.hit("before_sink_commit", scope)
                for index, step in enumerate(work):
                    after = step()
                    if after is not None:
                        self._letters.append(after)
                    failpoints.hit("sink_committed", f"{scope}.{index}")
                self._send(Committed(checkpoint_id))
            except Exception as error:
                self._letters.append(error)
            self.wake()

        self._in_background(commit)

    # -- progress

    def _report(self, now: float) -> None:
        passed = max(now - self._progress_since, 1e-6)
        read = sum(s.source.records for s in self._sources if s.source is not None)
        watermarks = [s.head.current_watermark for s in self._subtasks]
        self._send(
            Progress(
                records_in=self._records_in,
                records_out=sum(w.records for w in self._writers),
                records_read=read,
                records_written=sum(o.records for o in self._ends),
                watermark=min(watermarks) if watermarks else None,
                latency_ms=self._latency_ms,
                busy=min(1.0, self._busy_s / passed),
                metrics=readings(self._operators),
            )
        )
        self._busy_s = 0.0
        self._latency_ms = None
        self._progress_since = now
        self._progress_at = now + PROGRESS_EVERY_S


def _decoder(subtask: ChainSubtask, edge: Edge, codecs: dict[int, EdgeCodec]) -> Callable[[int, memoryview], Block]:
    codec = codecs[edge.id]
    return codec.decode_undivided if subtask.operators[edge.target].takes_columns(edge.input) else codec.decode


def _in_edges(subtask: ChainSubtask, codecs: dict[int, EdgeCodec]) -> list[Edge]:
    """Edges whose cells come to the subtask; one that leads into the middle of its chain has restored cells only."""
    return [codec.edge for codec in codecs.values() if codec.edge.target in subtask.operators]
