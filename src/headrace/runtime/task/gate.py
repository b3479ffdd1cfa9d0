"""The input gate: decides for every cell whether it is delivered, set aside or logged, and when to snapshot.

No threads of its own and no Spark: the input thread and the control thread call `arrive`, the mailbox calls
`take`; the simulation calls both. One lock makes "log it and queue it" a single step against a snapshot.

A checkpoint begins with the first of trigger or barrier. Its snapshot may be taken at any moment up to the
last barrier. Channels whose barrier came are **set aside** until the snapshot; channels whose barrier has not
come are **logged** after it, and the log is channel state:

    aligned                 snapshot at the last barrier; nothing is logged
    unaligned               snapshot at once; nothing is set aside
    aligned with timeout    snapshot in between; both
    at-least-once           snapshot at the last barrier; no cell is set aside, nothing is logged

Cells of a **fixed edge** are never logged: their records belong to the subtask they were sent to (see
`routing.FIXED_ROUTES`), so in a checkpoint they would tie it to one parallelism. Where fixed edges lead through a
task, an early snapshot waits until all barriers are read and the fixed cells before them are processed; the rest is
logged.

Only records are logged. Splits are dealt anew on every restore, so a producer that had ended may be given one
and go on: an end or a watermark from before would be a lie, and all producers say theirs again.

To a task with sources its control connection is one more channel (`CONTROL`): a trigger is the barrier, a
split assignment is a cell. A task with sources never snapshots before its trigger, because splits
assigned before it are no longer in the enumerator's state; and what is assigned after it waits for the snapshot
in every mode, because those splits are still there and would come back twice.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from headrace.runtime.task.cells import BARRIER, RECORDS, Barrier, address_of
from headrace.runtime.task.spill import Queued, SpillQueue

CONTROL = -1
MEMORY_ASIDE = 8 * 1024 * 1024
REMEMBERED = 1_024
"""So many ids of checkpoints that are over are known one by one; older ones are dropped by the highest of them."""


class GateMode(Enum):
    """What happens to a channel between its barrier and the snapshot."""

    EXACTLY_ONCE = "exactly once"
    AT_LEAST_ONCE = "at least once"


@dataclass(frozen=True, slots=True)
class Deliver:
    """Process this cell (or, on CONTROL, this message) now."""

    channel: int
    item: Any


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Take the snapshot now, before anything else is processed."""

    barrier: Barrier
    alignment_s: float
    logged: list[Queued] | None = None
    """Cells in flight that belong to the checkpoint, if it is taken before the last barrier."""
    log_complete: bool = True
    """False: more cells will be logged; `LogComplete` follows."""


@dataclass(frozen=True, slots=True)
class LogComplete:
    """The last barrier of an unaligned checkpoint came: these cells complete its channel state."""

    checkpoint_id: int
    logged: list[Queued]


@dataclass(frozen=True, slots=True)
class GiveUp:
    """This checkpoint cannot complete here; tell the coordinator."""

    checkpoint_id: int
    reason: str


GateEvent = Deliver | TakeSnapshot | LogComplete | GiveUp


@dataclass(slots=True)
class _Alignment:
    """One checkpoint on its way through this task."""

    barrier: Barrier
    started: float
    arrived: set[int] = field(default_factory=set)
    taken: bool = False
    log: list[Queued] = field(default_factory=list)
    log_bytes: int = 0
    log_reported: bool = False


class InputGate:
    """See the module. `channels` are the producers' slots, and `CONTROL` where the task has sources."""

    def __init__(
        self,
        channels: Iterable[int],
        *,
        mode: GateMode,
        clock: Callable[[], float],
        aligned_timeout_s: float | None = None,
        fixed_edges: Iterable[int] = (),
        aside_limit: int = 64 * 1024 * 1024,
        spill_dir: Path | None = None,
        memory_limit: int = MEMORY_ASIDE,
        on_urgent: Callable[[], None] = lambda: None,
    ) -> None:
        self._channels = frozenset(channels)
        self._has_control = CONTROL in self._channels
        self._mode = mode
        self._clock = clock
        self._aligned_timeout_s = aligned_timeout_s
        """None: a barrier overtakes only where it says so itself."""
        self._fixed_edges = frozenset(fixed_edges)
        self._put_back_fixed: frozenset[int] = frozenset()
        self._fixed_in_hand = False
        """The cell delivered last came on one of them, and may not be processed to its end yet."""
        self._aside_limit = aside_limit
        self._spill_dir = spill_dir
        self._memory_limit = memory_limit
        self._on_urgent = on_urgent
        self._lock = threading.Lock()
        self._inbox: deque[Queued] = deque()
        self._control: deque[Any] = deque()
        self._front: deque[SpillQueue] = deque()
        self._aside = SpillQueue(spill_dir, memory_limit)
        self._alignments: dict[int, _Alignment] = {}
        """Exactly-once holds at most one; at-least-once counts several at a time."""
        self._noticed: tuple[Barrier, float] | None = None
        """The first barrier that was read but not yet reached by the mailbox."""
        self._finished = 0
        """Barriers with this id or a smaller one are dropped."""
        self._dropped: set[int] = set()
        """The same one by one: an older checkpoint may still be under way when a newer one is given up or, in
        at-least-once mode, counted."""
        self._pending_events: deque[GateEvent] = deque()
        self.inbox_bytes = 0

    # -- called by the input thread and the control thread

    def arrive(self, channel: int, data: bytes) -> None:
        """A cell was read from Spark."""
        urgent = False
        with self._lock:
            self._inbox.append((channel, data))
            self.inbox_bytes += len(data)
            if data[0] == BARRIER:
                urgent = self._notice(channel, Barrier.decode(data))
            elif data[0] == RECORDS:
                current = self._logging()
                if current is not None and channel not in current.arrived:
                    current.log.append((channel, data))
                    current.log_bytes += len(data)
        if urgent:
            self._on_urgent()

    def arrive_control(self, item: Any) -> None:
        """A trigger (`Barrier`) or another message that belongs to the control channel."""
        with self._lock:
            self._control.append(item)
        self._on_urgent()

    def put_back(self, cells: Iterable[Queued], fixed_edges: Iterable[int] = ()) -> None:
        """Cells that were in flight when the restored checkpoint was taken; before anything arrives.

        `fixed_edges` are fixed until all that was put back is processed: nothing else comes on them.
        """
        with self._lock:
            self._put_back_fixed |= set(fixed_edges) - self._fixed_edges
            self._fixed_edges |= self._put_back_fixed
            restored = SpillQueue(self._spill_dir, self._memory_limit)
            for channel, data in cells:
                restored.append(channel, data)
            self._front.append(restored)

    def may_read_on(self, limit: int) -> bool:
        """Whether the input thread may read another cell: below the limit, or while a checkpoint logs."""
        with self._lock:
            if self.inbox_bytes < limit:
                return True
            current = self._logging()
            if current is not None:
                return current.log_bytes < self._aside_limit
            return self._waits_for_barriers() and self.inbox_bytes < self._aside_limit

    def _logging(self) -> _Alignment | None:
        for alignment in self._alignments.values():
            if alignment.taken and not alignment.log_reported:
                return alignment
        return None

    def _notice(self, channel: int, barrier: Barrier) -> bool:
        """Look at a barrier as it is read, ahead of its turn. True if the mailbox should come at once."""
        if self._mode is GateMode.AT_LEAST_ONCE or self._is_over(barrier.checkpoint_id):
            return False
        current = self._alignments.get(barrier.checkpoint_id)
        if current is not None and current.taken:
            current.arrived.add(channel)
            return self._report_log(current)
        if self._noticed is None or self._noticed[0].checkpoint_id < barrier.checkpoint_id:
            self._noticed = (barrier, self._clock())
        return barrier.unaligned or self._aligned_timeout_s is not None

    def _report_log(self, current: _Alignment) -> bool:
        if current.arrived >= self._channels and not current.log_reported:
            current.log_reported = True
            self._finish(current.barrier.checkpoint_id)
            self._pending_events.append(LogComplete(current.barrier.checkpoint_id, current.log))
            return True
        return False

    # -- called by the mailbox

    def take_urgent(self) -> GateEvent | None:
        """What goes before the cell in hand: control messages and barriers that overtake."""
        with self._lock:
            return self._urgent()

    def take(self) -> GateEvent | None:
        """The next thing to do, or None if there is nothing now; what was delivered before is done."""
        with self._lock:
            self._fixed_in_hand = False
            if self._put_back_fixed and not any(len(queue) for queue in self._front):
                self._fixed_edges -= self._put_back_fixed
                self._put_back_fixed = frozenset()
            event = self._urgent()
            if event is not None:
                return event
            while (queued := self._pop()) is not None:
                channel, data = queued
                current = self._current()
                if current is not None and channel in current.arrived and not current.taken and self._sets_aside():
                    self._aside.append(channel, data)
                    if self._aside.total_bytes > self._aside_limit:
                        return self._overflow(current)
                    continue
                if data[0] == BARRIER:
                    event = self._barrier(channel, Barrier.decode(data))
                    if event is not None:
                        return event
                    continue
                self._fixed_in_hand = self._is_fixed(data)
                return Deliver(channel, data)
            return None

    def deadline(self) -> float | None:
        """When `take` should be called again although nothing arrives (the alignment timeout)."""
        with self._lock:
            if self._aligned_timeout_s is None or self._noticed is None or not self._may_overtake(self._noticed[0]):
                return None
            if self._fixed_edges and self._is_due(*self._noticed):
                # It waits for cells, and their arrival wakes the mailbox.
                return None
            return self._noticed[1] + self._aligned_timeout_s

    def is_blocked(self, channel: int) -> bool:
        """Whether that channel waits for the snapshot (sources are not polled while CONTROL does)."""
        with self._lock:
            current = self._current()
            return current is not None and not current.taken and self._sets_aside() and channel in current.arrived

    @property
    def has_input(self) -> bool:
        """Whether `take` would find something, apart from what waits for a snapshot."""
        if self.has_cells:
            return True
        with self._lock:
            return bool(self._control) and not self._control_waits()

    @property
    def has_cells(self) -> bool:
        return bool(self._inbox) or bool(self._front)

    @property
    def spilled(self) -> int:
        """Cells that lie on disk right now."""
        return self._aside.spilled + sum(q.spilled for q in self._front)

    def abort(self, checkpoint_id: int) -> None:
        """The coordinator gave the checkpoint up: what was set aside goes on, what was logged is dropped."""
        with self._lock:
            alignment = self._alignments.get(checkpoint_id)
            if alignment is not None:
                if not alignment.taken:
                    self._release_aside()
                self._finish(checkpoint_id)
            elif checkpoint_id > self._finished:
                # Not `_finish`: an older one may be waiting for its barriers, with cells set aside.
                self._drop(checkpoint_id)

    def close(self) -> None:
        with self._lock:
            self._aside.close()
            for queue in self._front:
                queue.close()

    # -- inside

    def _sets_aside(self) -> bool:
        return self._mode is GateMode.EXACTLY_ONCE

    def _current(self) -> _Alignment | None:
        return next(iter(self._alignments.values()), None)

    def _control_waits(self) -> bool:
        return any(not a.taken and CONTROL in a.arrived for a in self._alignments.values())

    def _pop(self) -> Queued | None:
        while self._front:
            if len(self._front[0]):
                return self._front[0].popleft()
            self._front.popleft().close()
        if self._inbox:
            queued = self._inbox.popleft()
            self.inbox_bytes -= len(queued[1])
            return queued
        return None

    def _urgent(self) -> GateEvent | None:
        if self._pending_events:
            return self._pending_events.popleft()
        while self._control:
            if self._control_waits():
                break
            item = self._control.popleft()
            if not isinstance(item, Barrier):
                return Deliver(CONTROL, item)
            event = self._trigger(item)
            if event is not None:
                return event
        return self._overtake()

    def _trigger(self, barrier: Barrier) -> GateEvent | None:
        if self._has_control:
            if self._noticed is None and not self._is_over(barrier.checkpoint_id):
                self._noticed = (barrier, self._clock())
            return self._barrier(CONTROL, barrier)
        # Without sources a trigger only says that the checkpoint has begun (it is sent to all if unaligned). It may
        # come later than the barrier of the next one, on another way; then it comes too late.
        known = max(self._alignments, default=0)
        noticed = 0 if self._noticed is None else self._noticed[0].checkpoint_id
        if not self._is_over(barrier.checkpoint_id) and barrier.checkpoint_id > max(known, noticed):
            self._noticed = (barrier, self._clock())
        return None

    def _overtake(self) -> GateEvent | None:
        """Take the snapshot of a barrier that was noticed, if it may overtake what lies before it."""
        if self._noticed is None or self._mode is GateMode.AT_LEAST_ONCE:
            return None
        barrier, since = self._noticed
        if self._is_over(barrier.checkpoint_id):
            self._noticed = None
            return None
        if not self._may_overtake(barrier):
            return None
        if not self._is_due(barrier, since) or not self._is_clear(barrier.checkpoint_id):
            return None
        current = self._alignments.get(barrier.checkpoint_id)
        if current is None:
            event = self._supersede(barrier)
            if event is not None:
                return event
            current = self._begin(barrier)
        return self._take_early(current)

    def _may_overtake(self, barrier: Barrier) -> bool:
        """Whether a noticed barrier may go before what lies in front of it, now or when its time has come."""
        current = self._alignments.get(barrier.checkpoint_id)
        if barrier.canonical or (current is not None and current.taken):
            return False
        return not self._has_control or (current is not None and CONTROL in current.arrived)

    def _is_due(self, barrier: Barrier, since: float) -> bool:
        timeout = self._aligned_timeout_s
        return barrier.unaligned or (timeout is not None and self._clock() - since >= timeout)

    def _is_fixed(self, data: bytes) -> bool:
        return bool(self._fixed_edges) and data[0] == RECORDS and address_of(data).edge in self._fixed_edges

    def _is_clear(self, checkpoint_id: int) -> bool:
        """Whether an early snapshot now would log no cell of a fixed edge, neither queued nor still to come."""
        if not self._fixed_edges:
            return True
        # What is queued in front is not looked at, for it may lie on disk: it goes first.
        if self._fixed_in_hand or any(len(queue) for queue in self._front):
            return False
        arrived = self._arrived(checkpoint_id)
        if any(self._is_fixed(data) for _, data in _before_barriers(self._inbox, checkpoint_id, arrived)):
            return False
        return arrived >= self._channels

    def _arrived(self, checkpoint_id: int) -> set[int]:
        """A copy: channels whose barrier has had its turn."""
        current = self._alignments.get(checkpoint_id)
        return set() if current is None else set(current.arrived)

    def _waits_for_barriers(self) -> bool:
        """Whether an early snapshot is held up by barriers that are not even read."""
        if not self._fixed_edges or self._noticed is None or self._mode is GateMode.AT_LEAST_ONCE:
            return False
        barrier = self._noticed[0]
        if not self._may_overtake(barrier) or not self._is_due(*self._noticed):
            return False
        arrived = self._arrived(barrier.checkpoint_id)
        for _ in _before_barriers(self._inbox, barrier.checkpoint_id, arrived):
            pass
        return not arrived >= self._channels

    def _begin(self, barrier: Barrier) -> _Alignment:
        current = _Alignment(barrier, self._clock())
        self._alignments[barrier.checkpoint_id] = current
        return current

    def _barrier(self, channel: int, barrier: Barrier) -> GateEvent | None:
        """A barrier whose turn has come on its channel."""
        if self._is_over(barrier.checkpoint_id):
            return None
        current = self._alignments.get(barrier.checkpoint_id)
        if current is None:
            event = self._supersede(barrier)
            if event is not None:
                # The barrier is looked at again after the older checkpoint was given up.
                self._requeue(channel, barrier)
                return event
            current = self._begin(barrier)
        if current.taken:
            current.arrived.add(channel)
            if self._report_log(current):
                return self._pending_events.popleft()
            return None
        current.arrived.add(channel)
        if barrier.unaligned and not barrier.canonical and self._may_take_early(current):
            return self._take_early(current)
        if current.arrived >= self._channels:
            return self._take_aligned(current)
        return None

    def _may_take_early(self, current: _Alignment) -> bool:
        if self._mode is GateMode.AT_LEAST_ONCE or (self._has_control and CONTROL not in current.arrived):
            return False
        return self._is_clear(current.barrier.checkpoint_id)

    def _requeue(self, channel: int, barrier: Barrier) -> None:
        if channel == CONTROL:
            self._control.appendleft(barrier)
            return
        again = SpillQueue(None, self._memory_limit)
        again.append(channel, barrier.encode())
        self._front.appendleft(again)

    def _supersede(self, barrier: Barrier) -> GateEvent | None:
        """In exactly-once mode a newer barrier on an open channel means that the older checkpoint is dead."""
        if self._mode is GateMode.AT_LEAST_ONCE:
            return None
        older = self._current()
        if older is None or older.barrier.checkpoint_id >= barrier.checkpoint_id:
            return None
        if not older.taken:
            self._release_aside()
        self._finish(older.barrier.checkpoint_id)
        return GiveUp(older.barrier.checkpoint_id, f"checkpoint {barrier.checkpoint_id} began before it was complete")

    def _take_aligned(self, current: _Alignment) -> TakeSnapshot:
        alignment_s = self._clock() - current.started
        self._release_aside()
        self._finish(current.barrier.checkpoint_id)
        return TakeSnapshot(current.barrier, alignment_s)

    def _take_early(self, current: _Alignment) -> TakeSnapshot:
        """Snapshot before the last barrier: what is queued on open channels before their barrier is in flight."""
        current.taken = True
        barrier_id = current.barrier.checkpoint_id
        queued = [q for queue in self._front for q in queue]
        queued.extend(self._inbox)
        for channel, data in _before_barriers(queued, barrier_id, current.arrived):
            if data[0] == RECORDS:
                current.log.append((channel, data))
                current.log_bytes += len(data)
        self._release_aside()
        complete = current.arrived >= self._channels
        if complete:
            current.log_reported = True
            self._finish(barrier_id)
        if self._noticed is not None and self._noticed[0].checkpoint_id <= barrier_id:
            self._noticed = None
        logged = current.log
        current.log = []
        return TakeSnapshot(current.barrier, self._clock() - current.started, logged, complete)

    def _overflow(self, current: _Alignment) -> GateEvent:
        if current.barrier.canonical or not self._may_take_early(current):
            self._release_aside()
            self._finish(current.barrier.checkpoint_id)
            return GiveUp(
                current.barrier.checkpoint_id,
                f"more than {self._aside_limit} bytes were set aside while it waited for its last barrier",
            )
        return self._take_early(current)

    def _release_aside(self) -> None:
        if len(self._aside):
            self._front.appendleft(self._aside)
            self._aside = SpillQueue(self._spill_dir, self._memory_limit)

    def _is_over(self, checkpoint_id: int) -> bool:
        if checkpoint_id <= self._finished or checkpoint_id in self._dropped:
            return True
        # In exactly-once mode the first barrier of a newer checkpoint ends the older ones here, seen before or not.
        return self._mode is GateMode.EXACTLY_ONCE and any(known > checkpoint_id for known in self._alignments)

    def _finish(self, checkpoint_id: int) -> None:
        if self._mode is GateMode.AT_LEAST_ONCE:
            # Several are counted at once; an older one that is still open stays open.
            self._drop(checkpoint_id)
            return
        self._finished = max(self._finished, checkpoint_id)
        for known in [c for c in self._alignments if c <= checkpoint_id]:
            del self._alignments[known]
        if self._dropped:
            self._dropped = {c for c in self._dropped if c > self._finished}
        if self._noticed is not None and self._noticed[0].checkpoint_id <= checkpoint_id:
            self._noticed = None

    def _drop(self, checkpoint_id: int) -> None:
        """This one is over, whatever becomes of older ones."""
        self._alignments.pop(checkpoint_id, None)
        self._dropped.add(checkpoint_id)
        if self._noticed is not None and self._noticed[0].checkpoint_id == checkpoint_id:
            self._noticed = None
        if len(self._dropped) > REMEMBERED:
            oldest = sorted(self._dropped)[: REMEMBERED // 2]
            if min(self._alignments, default=oldest[-1] + 1) > oldest[-1]:
                self._dropped.difference_update(oldest)
                self._finished = max(self._finished, oldest[-1])


def _before_barriers(cells: Iterable[Queued], checkpoint_id: int, arrived: set[int]) -> Iterator[Queued]:
    """Cells that lie before the barrier of their channel; `arrived` grows by the channels whose barrier is passed."""
    for channel, data in cells:
        if channel in arrived:
            continue
        if data[0] != BARRIER:
            yield channel, data
        elif Barrier.decode(data).checkpoint_id == checkpoint_id:
            arrived.add(channel)
