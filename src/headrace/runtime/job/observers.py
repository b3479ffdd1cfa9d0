"""Who watches a job by default: the status file for other programs, a line on the terminal or in the log for people.

HEADRACE_STATE_DIR    where status files live; the user's state directory if not set
HEADRACE_LOG          `info`: log lines even where nobody looks at a terminal; `off`: nothing, even on one
HEADRACE_EVENT_LOG    a file that gets every event and every report as a line of JSON
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from enum import Enum
from pathlib import Path

from headrace.clocks import wall_ms
from headrace.errors import ConfigurationError
from headrace.plan.settings import JobSettings
from headrace.runtime.job.background_watcher import BackgroundWatcher, HasReport, Watcher
from headrace.runtime.job.status import JobEvent, StatusBoard, StatusReport
from headrace.runtime.job.status_file import StatusFile

OnJob = Callable[[StatusBoard, JobSettings], None]


class Telling(Enum):
    """How much people are told about a job. What HEADRACE_LOG says comes before it."""

    ON_TERMINAL = "on a terminal"
    """A live line if standard error is a terminal, else nothing: for programs that call `execute()` themselves."""
    ALWAYS = "always"
    """The same, and log lines where there is no terminal: for `headrace run`."""


_telling = Telling.ON_TERMINAL
_on_job: OnJob | None = None


@contextmanager
def telling(how: Telling, on_job: OnJob | None = None) -> Iterator[None]:
    """Jobs that start inside the block are told about in this way; `on_job` is called with each as it starts."""
    global _telling, _on_job
    before = _telling, _on_job
    _telling, _on_job = how, on_job
    try:
        yield
    finally:
        _telling, _on_job = before


def attach_observers(board: StatusBoard, settings: JobSettings) -> list[Callable[[], None]]:
    """Begin to watch; what is returned is called when the job has ended."""
    if _on_job is not None:
        _on_job(board, settings)
    closing: list[Callable[[], None]] = []
    # A job must not fail for want of a place to tell of it.
    with contextlib.suppress(OSError):
        status = StatusFile(settings.job_id, replace(board.report, updated_at_ms=wall_ms()))
        board.listeners.append(status.put)
        closing.append(status.close)
    closing += _tell_people(board, settings)
    if path := os.environ.get("HEADRACE_EVENT_LOG"):
        log = EventLog(Path(path))
        board.listeners.append(log.on_report)
        board.event_listeners.append(log.on_event)
        closing.append(log.close)
    return closing


class EventLog:
    """Every event and report of a job as a line of JSON, in order: `{"kind": …, "at_ms": …, …}`.

    Lines are appended and flushed one by one, so that those of a killed process are there up to the last.
    """

    def __init__(self, path: Path) -> None:
        self._file = open(path, "a")  # noqa: SIM115 - closed when the job has ended
        self._write({"kind": "opened", "at_ms": wall_ms(), "pid": os.getpid()})

    def on_event(self, event: JobEvent) -> None:
        self._write({"kind": event.kind, "at_ms": event.at_ms, **event.detail})

    def on_report(self, report: StatusReport) -> None:
        self._write(
            {
                "kind": "report",
                "at_ms": report.updated_at_ms,
                "status": report.status.value,
                "attempt": report.attempt,
                "records_read": report.records_read,
                "records_written": report.records_written,
            }
        )

    def close(self) -> None:
        self._file.close()

    def _write(self, entry: dict[str, object]) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._file.write(json.dumps(entry) + "\n")
            self._file.flush()


def _tell_people(board: StatusBoard, settings: JobSettings) -> list[Callable[[], None]]:
    wish = os.environ.get("HEADRACE_LOG", "").strip().lower()
    if wish not in ("", "info", "off"):
        raise ConfigurationError(f"HEADRACE_LOG is {wish!r}; wanted info or off, or leave it out.")
    stream = sys.stderr
    if wish == "off" or stream is None:
        return []
    on_terminal = stream.isatty() and os.environ.get("TERM", "") != "dumb"
    if not on_terminal and wish != "info" and _telling is not Telling.ALWAYS:
        return []
    # Loaded here only: a job that nobody watches needs no rich.
    from headrace.runtime.job.live_line import LiveLine, LogLines, terminal_line

    def make(seen: HasReport) -> Watcher:
        return LiveLine(settings, seen, terminal_line(stream)) if on_terminal else LogLines(settings, seen, stream)

    watcher = BackgroundWatcher(board, stream, make)
    board.listeners.append(watcher.on_report)
    board.event_listeners.append(watcher.on_event)
    return [watcher.close]
