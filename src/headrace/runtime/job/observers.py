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
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path

from headrace.errors import ConfigurationError
from headrace.plan.settings import JobSettings
from headrace.runtime.job.status import JobEvent, StatusBoard, StatusReport

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
    # A job must not fail for want of a place to tell of it.
    with contextlib.suppress(OSError):
        board.listeners.append(StatusFile(settings.job_id).write)
    closing = _tell_people(board, settings)
    if path := os.environ.get("HEADRACE_EVENT_LOG"):
        log = EventLog(Path(path))
        board.listeners.append(log.on_report)
        board.event_listeners.append(log.on_event)
        closing.append(log.close)
    return closing


def state_directory() -> Path:
    """Where status files live: `HEADRACE_STATE_DIR`, or the user's state directory."""
    set_by_user = os.environ.get("HEADRACE_STATE_DIR")
    if set_by_user:
        return Path(set_by_user)
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "headrace"


class StatusFile:
    """Keeps `<job_id>.json` up to date; a reader always sees a whole file."""

    def __init__(self, job_id: str) -> None:
        directory = state_directory()
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.path = directory / f"{job_id}.json"

    def write(self, report: StatusReport) -> None:
        temporary = self.path.with_suffix(f".{os.getpid()}.tmp")
        try:
            with open(temporary, "w", opener=_private) as file:
                json.dump(report.as_json(), file, indent=1)
            os.replace(temporary, self.path)
        except OSError:
            return  # a full disk must not stop the job for the sake of its status


class EventLog:
    """Every event and report of a job as a line of JSON, in order: `{"kind": …, "at_ms": …, …}`.

    Lines are appended and flushed one by one, so that those of a killed process are there up to the last.
    """

    def __init__(self, path: Path) -> None:
        self._file = open(path, "a")  # noqa: SIM115 - closed when the job has ended
        self._write({"kind": "opened", "at_ms": time.time_ns() // 1_000_000, "pid": os.getpid()})

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

    watcher = LiveLine(settings, board, terminal_line(stream)) if on_terminal else LogLines(settings, board, stream)
    board.listeners.append(watcher.on_report)
    board.event_listeners.append(watcher.on_event)
    return [watcher.close]


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
