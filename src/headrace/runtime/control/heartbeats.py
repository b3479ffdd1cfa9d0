"""Whether the process at the other end of a connection is alive, however long its user functions take.

Both ends send a heartbeat from a thread of its own whenever nothing else waits to be sent. An end that hears nothing
for the timeout, or whose frames are not taken for as long, gives the other up. Only time in which this process itself
ran is counted: a process that was paused (SIGSTOP, a frozen container) finds what arrived meanwhile in its socket, and
must not take its own pause for the other's silence.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from headrace.runtime.control.messages import Heartbeat
from headrace.runtime.control.send_queue import SendQueue
from headrace.runtime.control.wire import Connection, ConnectionLost

_BEAT = msgspec.msgpack.encode(Heartbeat())


@dataclass(frozen=True, slots=True)
class Heartbeats:
    """How often heartbeats are sent, and how long silence may last."""

    interval_s: float = 2.0
    timeout_s: float = 50.0
    """Longer than pauses that a job should survive, and than a user function may hold Python's global lock."""

    @classmethod
    def of_millis(cls, interval_ms: int, timeout_ms: int) -> Heartbeats:
        return cls(interval_ms / 1_000, timeout_ms / 1_000)


class Pulse:
    """The other end of one connection. Used by one thread, which calls `beat` once in each interval."""

    def __init__(self, connection: Connection, queue: SendQueue, timeout_s: float) -> None:
        self._connection = connection
        self._queue = queue
        self._timeout_s = timeout_s
        self._received = self._sent = -1
        self._silent_s = self._stalled_s = 0.0

    def beat(self, elapsed_s: float) -> None:
        """Send a heartbeat; close the connection, with the reason, if the other end counts as lost."""
        connection, queue = self._connection, self._queue
        received, sent, waiting = connection.bytes_received, connection.bytes_sent, queue.waiting_bytes
        self._silent_s = 0.0 if received != self._received else self._silent_s + elapsed_s
        self._stalled_s = 0.0 if sent != self._sent or not waiting else self._stalled_s + elapsed_s
        self._received, self._sent = received, sent
        if self._silent_s >= self._timeout_s:
            connection.close(f"nothing was heard from it for {self._timeout_s:g} s (heartbeat.timeout)")
        elif self._stalled_s >= self._timeout_s:
            connection.close(
                f"it took nothing of the {waiting:,} bytes that wait for it for {self._timeout_s:g} s "
                "(heartbeat.timeout)"
            )
        elif not waiting:
            try:
                queue.put(_BEAT)
            except ConnectionLost:
                return


def keep_beating(
    heartbeats: Heartbeats,
    beat: Callable[[float], None],
    ended: threading.Event,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Call `beat` once in each interval until `ended`, with the time that passed while this process ran."""
    before = clock()
    while not ended.wait(heartbeats.interval_s):
        now = clock()
        # More than that, and the process was paused or starved.
        beat(min(now - before, 2 * heartbeats.interval_s))
        before = now
