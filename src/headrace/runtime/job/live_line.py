"""How a running job shows itself: one line that is drawn anew on a terminal, plain lines anywhere else."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TextIO

from rich.console import Console
from rich.text import Text

from headrace.plan.settings import JobSettings
from headrace.runtime.job.background_watcher import HasReport
from headrace.runtime.job.status import JobEvent, JobStatus, StatusReport
from headrace.runtime.job.status_text import ending_text, event_text, status_parts

LOG_EVERY_S = 5.0
_ERASE = "\r\x1b[2K"


class LogLines:
    """A line for each event and, while the job runs, one every few seconds; each with its time in front."""

    def __init__(
        self,
        settings: JobSettings,
        board: HasReport,
        stream: TextIO,
        *,
        every_s: float = LOG_EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._board = board
        self._stream = stream
        self._every_s = every_s
        self._clock = clock
        self._began = clock()
        self._next: float | None = None
        """When the next line is due; None while the job neither runs nor starts its tasks."""
        self._say(f'job "{settings.name}" starting')

    def on_report(self, report: StatusReport) -> None:
        now = self._clock()
        if report.status is not JobStatus.RUNNING and not report.starting:
            self._next = None
        elif self._next is None:
            self._next = now + self._every_s
        elif now >= self._next:
            self._next = now + self._every_s
            running = ", ".join(f"{label} {value}".strip() for label, value in status_parts(report))
            self._say(f'job "{report.name}": {report.starting or running}')

    def on_event(self, event: JobEvent) -> None:
        line = event_text(event, self._board.report, self._settings)
        if line is not None:
            self._say(line)

    def close(self) -> None:
        self._say(ending_text(self._board.report, self._clock() - self._began))

    def _say(self, text: str) -> None:
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        try:
            print(f"{stamp} headrace: {text}", file=self._stream, flush=True)
        except (OSError, ValueError):
            return  # whoever read it is gone; that must not end the job


class LiveLine:
    """One job's part of the terminal's last line; what happens to the job is written above it and stays."""

    def __init__(self, settings: JobSettings, board: HasReport, terminal: TerminalLine) -> None:
        self._settings = settings
        self._board = board
        self._terminal = terminal
        self._began = time.monotonic()
        terminal.join(self)
        self._draw("starting Spark …")

    def on_report(self, report: StatusReport) -> None:
        if report.status is JobStatus.CREATED:
            if report.starting:
                self._draw(report.starting)
            return
        text = self._title()
        for label, value in status_parts(report):
            text.append("  ")
            if label:
                text.append(f"{label} ", style="dim")
            text.append(value, style="yellow" if not label else "")
        self._terminal.draw(self, text)

    def on_event(self, event: JobEvent) -> None:
        line = event_text(event, self._board.report, self._settings)
        if line is not None:
            self._terminal.say(line, style=_STYLES.get(event.kind, ""))

    def close(self) -> None:
        report = self._board.report
        style = "green" if report.status is JobStatus.FINISHED else "red" if report.status is JobStatus.FAILED else ""
        self._terminal.leave(self)
        self._terminal.say(ending_text(report, time.monotonic() - self._began), style=style)

    def _draw(self, words: str) -> None:
        self._terminal.draw(self, self._title().append(f"  {words}"))

    def _title(self) -> Text:
        return Text(end="").append(f"▸ {self._settings.name}", style="bold cyan")


_STYLES = {"failure": "red", "restarting": "yellow", "running": "green", "checkpoint-failed": "yellow"}


class TerminalLine:
    """The last line of a terminal, shared by all jobs of the process and kept below everything that is printed.

    While at least one job shows itself, the program's own `print` goes through a guard that takes the line away and
    puts it back, so that neither cuts into the other. Output that is redirected to a file is not touched.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._console = Console(file=stream, highlight=False, force_terminal=True)
        self._lock = threading.RLock()
        self._texts: dict[object, Text] = {}
        self._drawn = False
        self._at_line_start = True
        self._guards: dict[str, _Guard] = {}

    def join(self, owner: object) -> None:
        with self._lock:
            self._texts[owner] = Text("", end="")
            if len(self._texts) == 1:
                self._guard()

    def leave(self, owner: object) -> None:
        with self._lock:
            self._erase()
            self._texts.pop(owner, None)
            if not self._texts:
                self._unguard()
            self._redraw()

    def draw(self, owner: object, text: Text) -> None:
        with self._lock:
            if owner in self._texts:
                self._texts[owner] = text
                self._erase()
                self._redraw()

    def say(self, line: str, style: str = "") -> None:
        """A line that stays."""
        with self._lock:
            self._erase()
            start = "" if self._at_line_start else "\n"
            self._write(start + self._rendered(Text(f"headrace: {line}", style=style, end=""), cut=False) + "\n")
            self._at_line_start = True
            self._redraw()

    def pass_on(self, stream: TextIO, text: str) -> int:
        """Somebody else's output."""
        with self._lock:
            self._erase()
            written = stream.write(text)
            if text:
                self._at_line_start = text.endswith("\n")
            if self._at_line_start:
                stream.flush()
                self._redraw()
            return written

    def _guard(self) -> None:
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            if stream is not None and stream.isatty():
                self._guards[name] = _Guard(self, stream)
                setattr(sys, name, self._guards[name])

    def _unguard(self) -> None:
        for name, guard in self._guards.items():
            # Unless the program has put something of its own there since.
            if getattr(sys, name) is guard:
                setattr(sys, name, guard.stream)
        self._guards.clear()

    def _erase(self) -> None:
        if self._drawn:
            self._write(_ERASE)
            self._drawn = False

    def _redraw(self) -> None:
        shown = [text for text in self._texts.values() if text.plain]
        if shown and self._at_line_start:
            self._write(self._rendered(Text("   ", end="").join(shown), cut=True))
            self._drawn = True

    def _rendered(self, text: Text, *, cut: bool) -> str:
        with self._console.capture() as capture:
            if cut:
                # One column less than there is: a full line makes some terminals begin the next.
                text.truncate(max(20, self._console.width - 1), overflow="ellipsis")
            self._console.print(text, end="", soft_wrap=True)
        return capture.get()

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            return  # the terminal is gone; that must not end the job


class _Guard:
    """Stands in for `sys.stdout` or `sys.stderr` while the line is shown."""

    def __init__(self, line: TerminalLine, stream: TextIO) -> None:
        self._line = line
        self.stream = stream

    def write(self, text: str) -> int:
        return self._line.pass_on(self.stream, text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        self.stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


_terminal: TerminalLine | None = None
_terminal_lock = threading.Lock()


def terminal_line(stream: TextIO) -> TerminalLine:
    """The one line of this process's terminal."""
    global _terminal
    with _terminal_lock:
        real = stream.stream if isinstance(stream, _Guard) else stream
        if _terminal is None or _terminal._stream is not real:
            _terminal = TerminalLine(real)
        return _terminal
