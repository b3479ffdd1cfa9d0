"""Printed lines of tasks on their way to a stream that may be slow, or blocked for good (`| less`, Ctrl-S).

    connection thread ── put ──▶ bounded queue ──▶ printer thread ──▶ sys.stdout

A healthy stream gets every line: a full queue makes `put` wait. A stream that accepts nothing for `STALL_S`, or that
makes `put` wait for `PUT_S`, loses lines, the oldest first; then one line says how many are missing.
"""

from __future__ import annotations

import contextlib
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import TextIO

QUEUE_CHARS = 1 << 18
STALL_S = 1.0
"""A stream that accepts nothing for this long is blocked."""
PUT_S = 5.0
"""What else a task reports waits behind its printed lines, so they wait no longer than this for a slow stream."""
FLUSH_S = 3.0
"""The end of a job waits this long for its lines; well below the 5 s in which `cancel` answers."""
_CHUNK_CHARS = 1_000
"""At most 4,000 bytes: a pipe that polls as writable accepts one page without blocking."""


class Printer:
    """Writes lines to a stream from a thread of its own. Any thread may call it."""

    def __init__(
        self,
        stream: Callable[[], TextIO | None],
        *,
        queue_chars: int = QUEUE_CHARS,
        stall_s: float = STALL_S,
    ) -> None:
        """`stream` is called for every write: a program may replace `sys.stdout` at any time."""
        self._stream = stream
        self._queue_chars = queue_chars
        self._stall_s = stall_s
        self._lines: deque[str] = deque()
        self._chars = 0
        self._dropped = 0
        self._writing = False
        self._blocked_from: float | None = None
        """When the write that is under way counts as blocked; None between two writes."""
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def put(self, lines: Iterable[str]) -> None:
        """Append lines. Waits for room while the stream accepts output, for `stall_s` at most while it does not."""
        until = time.monotonic() + PUT_S
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="printer", daemon=True)
                self._thread.start()
            for line in lines:
                while self._lines and self._chars + len(line) > self._queue_chars:
                    if self._blocked or time.monotonic() >= until:
                        self._chars -= len(self._lines.popleft()) + 1
                        self._dropped += 1
                    else:
                        self._changed.notify_all()
                        self._changed.wait(0.1)
                self._lines.append(line)
                self._chars += len(line) + 1
            self._changed.notify_all()

    def flush(self, limit_s: float = FLUSH_S) -> bool:
        """Wait until every line is written; False if the stream is blocked or took longer than `limit_s`."""
        until = time.monotonic() + limit_s
        with self._changed:
            while self._lines or self._writing:
                if self._blocked or time.monotonic() >= until:
                    return False
                self._changed.wait(0.1)
            return True

    @property
    def _blocked(self) -> bool:
        # Read once: the printer's thread sets it without the lock.
        blocked_from = self._blocked_from
        return blocked_from is not None and time.monotonic() >= blocked_from

    # -- the printer's thread

    def _run(self) -> None:
        while True:
            with self._changed:
                self._writing = False
                self._changed.notify_all()
                while not self._lines:
                    self._changed.wait()
                self._writing = True
            # Lines stay in the queue while the stream is blocked: there the oldest can still be dropped.
            self._wait_writable()
            text = self._take()
            for start in range(0, len(text), _CHUNK_CHARS):
                self._write(text[start : start + _CHUNK_CHARS])

    def _write(self, chunk: str) -> None:
        self._wait_writable()
        # Some streams block although they polled as writable.
        self._blocked_from = time.monotonic() + 10 * self._stall_s
        stream = self._stream()
        # A closed stream, or one whose reader is gone: nobody can be shown these lines.
        with contextlib.suppress(OSError, ValueError):
            if stream is not None:
                stream.write(chunk)
                stream.flush()
        with self._changed:
            self._blocked_from = None
            self._changed.notify_all()

    def _wait_writable(self) -> None:
        while not wait_writable(self._stream(), 0.1):
            if self._blocked_from is None:
                self._blocked_from = time.monotonic() + self._stall_s
        self._blocked_from = None

    def _take(self) -> str:
        """The text of the next write: as many whole lines as fit into one chunk, or one longer line."""
        with self._changed:
            text = ""
            if self._dropped:
                text = f"[headrace: {self._dropped:,} printed lines were dropped: the output was blocked or too slow]\n"
                self._dropped = 0
            while self._lines and (not text or len(text) + len(self._lines[0]) < _CHUNK_CHARS):
                line = self._lines.popleft()
                self._chars -= len(line) + 1
                text += line + "\n"
            return text


def wait_writable(stream: TextIO | None, timeout_s: float) -> bool:
    """Whether a small write to the stream would not block. True for a stream without a descriptor.

    A thread must not stay inside of a write: Python aborts the process at its end if a daemon thread holds the lock
    of `sys.stdout` or `sys.stderr`.
    """
    try:
        descriptor = stream.fileno() if stream is not None else -1
    except (OSError, ValueError, AttributeError):
        return True
    if descriptor < 0:
        return True
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return bool(poll.poll(timeout_s * 1_000))


STDOUT = Printer(lambda: sys.stdout)
"""What tasks print, for all jobs of the process."""
STDERR = Printer(lambda: sys.stderr)
"""Last words that must not block."""
