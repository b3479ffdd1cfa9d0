"""What a task prints appears where the job was started: whole lines travel to the driver over the control plane."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable

MAX_WAITING_BYTES = 1 << 20
WAIT_S = 5.0
"""How long a function that prints waits for a driver that is slow to take its lines, before lines are dropped."""


class DriverStdout(io.TextIOBase):
    """Stands in for `sys.stdout` in a task.

    `send` gets the finished lines of one write at a time. `wait_for_room(bytes, seconds)` says whether at most that
    much waits to be sent, now or within that time: printing must neither fill the memory nor block a task for good.
    """

    def __init__(
        self,
        send: Callable[[tuple[str, ...]], None],
        wait_for_room: Callable[[int, float], bool] = lambda waiting_bytes, limit_s: True,
    ) -> None:
        self._send = send
        self._wait_for_room = wait_for_room
        self._begun = ""
        self._dropped = 0
        self._lock = threading.Lock()

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        with self._lock:
            *lines, self._begun = (self._begun + text).split("\n")
            # Once lines were dropped, the next ones do not wait again.
            if lines and not self._wait_for_room(MAX_WAITING_BYTES, 0.0 if self._dropped else WAIT_S):
                self._dropped += len(lines)
                lines = []
            elif lines and self._dropped:
                lines.insert(0, f"[headrace: {self._dropped:,} printed lines were dropped: the driver took none]")
                self._dropped = 0
        if lines:
            self._send(tuple(lines))
        return len(text)
