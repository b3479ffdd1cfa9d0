"""The output of a task: cells for the slots of the next level, bounded, in order per channel.

The mailbox appends; the generator that Spark pulls empties the queue. The JVM hands a row to the next Python
worker only when another row follows it, so whenever the queue runs empty the channels written to since get an
empty *nudge* cell. That is known here and nowhere else.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator

import pyarrow as pa

from headrace.operators.base import Attention
from headrace.runtime.task.cells import NUDGE_CELL

CELL_SCHEMA = pa.schema([("slot", pa.int32()), ("channel", pa.int32()), ("data", pa.binary())])

SOFT_LIMIT = 192 * 1024
"""Above this the mailbox processes no further record until Spark has taken some."""
HARD_LIMIT = 32 * SOFT_LIMIT
"""Above this even the record in hand waits: one that gives millions must not fill the memory."""
ROWS_AT_ONCE = 16


class OutputClosed(BaseException):
    """The task is being torn down; not an Exception, so that no user code swallows it."""


class OutputQueue:
    """Cells on their way to Spark."""

    def __init__(self, slot: int, next_slots: int, attention: Attention) -> None:
        self._slot = slot
        self._next_slots = next_slots
        self._attention = attention
        self._cells: deque[tuple[int, bytes]] = deque()
        self._bytes = 0
        self._condition = threading.Condition()
        self._closed = False
        self._finished = False
        self.cells_sent = 0

    @property
    def is_last_level(self) -> bool:
        return self._next_slots == 0

    def put(self, slot: int, data: bytes) -> None:
        """Append a cell. Mailbox only."""
        with self._condition:
            if self._closed:
                raise OutputClosed
            self._cells.append((slot, data))
            self._bytes += len(data)
            # First wake the generator: one cell beyond the hard limit would else wait for it for ever.
            self._condition.notify_all()
            if self._bytes > SOFT_LIMIT:
                self._attention.raised = True
                while self._bytes > HARD_LIMIT and not self._closed:
                    self._condition.wait(1.0)
                if self._closed:
                    raise OutputClosed

    def put_all(self, data: bytes) -> None:
        """The same cell to every slot of the next level (a barrier)."""
        for slot in range(self._next_slots):
            self.put(slot, data)

    @property
    def full(self) -> bool:
        return self._bytes > SOFT_LIMIT

    def on_room(self, call: threading.Event) -> None:
        """Have `call` set as soon as the queue is no longer full; for the mailbox's wait."""
        self._room = call

    _room: threading.Event | None = None

    def finish(self) -> None:
        """No further cell will come; the generator ends when the queue is empty."""
        with self._condition:
            self._finished = True
            self._condition.notify_all()

    def close(self) -> None:
        """Tear down: drop everything, release whoever waits."""
        with self._condition:
            self._closed = True
            self._cells.clear()
            self._bytes = 0
            self._condition.notify_all()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """What Spark's generator yields, until `finish` or `close`."""
        nudge: set[int] = set()
        while True:
            with self._condition:
                while not self._cells and not nudge and not self._finished and not self._closed:
                    self._condition.wait()
                if self._closed:
                    return
                rows = [self._cells.popleft() for _ in range(min(len(self._cells), ROWS_AT_ONCE))]
                was_full = self.full
                self._bytes -= sum(len(data) for _, data in rows)
                if was_full and not self.full:
                    if self._room is not None:
                        self._room.set()
                    self._condition.notify_all()
                finished = self._finished and not self._cells
            nudge.update(slot for slot, _ in rows)
            if not rows and nudge:
                rows = [(slot, NUDGE_CELL) for slot in sorted(nudge)]
                nudge.clear()
            if rows:
                self.cells_sent += len(rows)
                yield pa.RecordBatch.from_arrays(
                    [
                        pa.array([slot for slot, _ in rows], pa.int32()),
                        pa.array([self._slot] * len(rows), pa.int32()),
                        pa.array([data for _, data in rows], pa.binary()),
                    ],
                    schema=CELL_SCHEMA,
                )
            elif finished:
                return
