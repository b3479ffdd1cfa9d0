"""A live line or log lines, written from a thread of their own: a blocked terminal delays nothing but itself."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol, TextIO

from headrace.runtime.job.printer import FLUSH_S, wait_writable
from headrace.runtime.job.status import JobEvent, StatusBoard, StatusReport

MAX_PENDING = 1_000
"""Beyond this, the oldest events are not shown. The event log and the status file are not affected."""


class HasReport(Protocol):
    """A board as watchers see it."""

    @property
    def report(self) -> StatusReport: ...


class Watcher(Protocol):
    """Shows a job to people."""

    def on_report(self, report: StatusReport) -> None: ...

    def on_event(self, event: JobEvent) -> None: ...

    def close(self) -> None: ...


class BackgroundWatcher:
    """Passes reports and events of a job on to a watcher, in order. Of reports in a row only the newest is shown.

    While the watcher handles an event, `report` is the report as it was when the event happened.
    """

    def __init__(self, board: StatusBoard, stream: TextIO, make: Callable[[HasReport], Watcher]) -> None:
        """`make` is called on the watcher's thread: a watcher may write as soon as it is made."""
        self._board = board
        self._stream = stream
        self._make = make
        self._seen = board.report
        self._pending: deque[tuple[JobEvent | None, StatusReport]] = deque(maxlen=MAX_PENDING)
        self._closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="watcher", daemon=True)
        self._thread.start()

    @property
    def report(self) -> StatusReport:
        return self._seen

    def on_report(self, report: StatusReport) -> None:
        with self._changed:
            if self._pending and self._pending[-1][0] is None:
                self._pending.pop()
            self._pending.append((None, report))
            self._changed.notify()

    def on_event(self, event: JobEvent) -> None:
        with self._changed:
            self._pending.append((event, self._board.report))
            self._changed.notify()

    def close(self) -> None:
        """Show the rest and the ending; returns after `FLUSH_S` at the latest."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(FLUSH_S)

    def _run(self) -> None:
        self._wait_writable()
        watcher = self._make(self)
        while True:
            with self._changed:
                while not self._pending and not self._closing:
                    self._changed.wait()
            self._wait_writable()
            with self._changed:
                item = self._pending.popleft() if self._pending else None
            if item is None:
                self._seen = self._board.report
                watcher.close()
                return
            event, self._seen = item
            if event is not None:
                watcher.on_event(event)
            else:
                watcher.on_report(self._seen)

    def _wait_writable(self) -> None:
        while not wait_writable(self._stream, 0.5):
            pass
