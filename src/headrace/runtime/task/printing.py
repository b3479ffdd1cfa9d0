"""What a task prints appears where the job was started: whole lines travel to the driver over the control plane."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable


class DriverStdout(io.TextIOBase):
    """Stands in for `sys.stdout` in a task; `send` gets the finished lines of one write at a time."""

    def __init__(self, send: Callable[[tuple[str, ...]], None]) -> None:
        self._send = send
        self._begun = ""
        self._lock = threading.Lock()

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        with self._lock:
            *lines, self._begun = (self._begun + text).split("\n")
        if lines:
            self._send(tuple(lines))
        return len(text)
