"""Ctrl-C while a job runs: the first suspends it and says so, a second ends the process at once.

The handler only notes what was pressed. What is to be said and done about it happens in `look`, on the main thread
but outside of the handler, which may have interrupted anything.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any, NoReturn

from headrace.plan.settings import JobSettings
from headrace.runtime.job.printer import STDERR
from headrace.runtime.job.status import JobStatus, StatusBoard
from headrace.runtime.job.status_text import resume_text

INTERRUPTED = 130
"""The exit code of a process that Ctrl-C ended, by custom of the shell; the job goes on with the same command."""


class Interrupts:
    """Our own SIGINT handler while a job runs: PySpark's would cancel the Spark job before we know why.

    Made by the thread that waits for the job, which calls `look` every now and then, and `undo` at the end. Outside of
    the main thread there are no signals, and it does nothing.
    """

    def __init__(self, board: StatusBoard, settings: JobSettings, suspend: Callable[[], Any]) -> None:
        self._board = board
        self._settings = settings
        self._suspend = suspend
        self._main = threading.current_thread() is threading.main_thread()
        self._before = signal.getsignal(signal.SIGINT) if self._main else None
        self._handler = self._handle
        self.pressed = False
        self._told = False
        self._pressed_again = False
        self._install()

    def look(self) -> None:
        """Do what was asked for since the last look. Does not return if Ctrl-C was pressed a second time."""
        self._install()
        if self.pressed and not self._told:
            # Before the words are out: whoever reads them may be quicker than the next line.
            self._told = True
            self._board.event("suspending")
        # A job that has ended meanwhile needs no violence.
        if self._pressed_again and not self._board.report.status.is_terminal:
            self._end_at_once()

    def suspended(self) -> bool:
        """Whether the job was stopped by Ctrl-C, so that it can go on."""
        return self.pressed and self._board.report.status is JobStatus.SUSPENDED

    def undo(self) -> None:
        if self._main and self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _install(self) -> None:
        """PySpark installs its handler when the session is made, which is later than ours."""
        if self._main and signal.getsignal(signal.SIGINT) is not self._handler:
            signal.signal(signal.SIGINT, self._handler)

    def _handle(self, signum: int, frame: Any) -> None:
        # Some shells and runners deliver one Ctrl-C twice. It counts as a second one only when somebody was told what
        # a second one does.
        if self._told:
            self._pressed_again = True
        elif not self.pressed:
            self.pressed = True
            self._suspend()

    def _end_at_once(self) -> NoReturn:
        text = resume_text(self._board.report, self._settings)
        name = self._settings.name
        STDERR.put(
            [f'headrace: job "{name}" ended at once by the second Ctrl-C, without waiting for its tasks. {text}']
        )
        # A terminal that is blocked must not keep the process alive.
        STDERR.flush()
        # Not by an exception: whatever did not come to an end by itself would be waited for once more. Spark's JVM
        # notices that its driver is gone and takes the workers with it.
        os._exit(INTERRUPTED)
