"""Who watches a job by default: the status file for other programs, a line on the terminal or in the log for people.

HEADRACE_STATE_DIR    where status files live; the user's state directory if not set
HEADRACE_LOG          `info`: log lines even where nobody looks at a terminal; `off`: nothing, even on one
HEADRACE_EVENT_LOG    a file that gets every event and every report as a line of JSON
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import IO

from headrace.clocks import wall_ms
from headrace.errors import ConfigurationError
from headrace.plan.settings import JobSettings
from headrace.runtime.job.background_watcher import BackgroundWatcher, HasReport, Watcher
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
_numbers = itertools.count(1)


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
        board.listeners.append(status.write)
        closing.append(status.close)
    closing += _tell_people(board, settings)
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
    """Keeps `<job_id>.json` up to date; a reader always sees a whole file.

    While another job of that id is alive, with another checkpoint directory perhaps, its file is left to it, and this
    one is `<job_id>.2.json`, or the next number. Whether the job of a file is alive is told by a lock on it: every
    version that is put in place is locked before, and the kernel gives up the locks of a process that dies.
    """

    def __init__(self, job_id: str, report: StatusReport) -> None:
        """Find a file that belongs to no live job and write `report` there; `OSError` if nothing can be written."""
        directory = state_directory()
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        for number in itertools.count(1):
            self.path = directory / (f"{job_id}.json" if number == 1 else f"{job_id}.{number}.json")
            self._temporary = directory / f"{self.path.stem}.{os.getpid()}-{next(_numbers)}.tmp"
            self._held = self._version(report)
            if self._take():
                return
            self.close()
            self._temporary.unlink()

    def write(self, report: StatusReport) -> None:
        # A full disk must not stop the job for the sake of its status.
        with contextlib.suppress(OSError):
            newer = self._version(report)
            os.replace(self._temporary, self.path)
            self.close()
            self._held = newer

    def close(self) -> None:
        """The job has ended: the file stays as it is, until the next job of that id takes it over."""
        self._held.close()

    def _version(self, report: StatusReport) -> IO[str]:
        """The next version of the file, locked but not yet in its place."""
        file = open(self._temporary, "w", opener=_private)  # noqa: SIM115 - its lock lasts as long as it is open
        try:
            json.dump(report.as_json(), file, indent=1)
            file.flush()
            _lock(file)
        except BaseException:
            file.close()
            raise
        return file

    def _take(self) -> bool:
        """Put the first version in its place, unless a live job's is there."""
        while True:
            try:
                os.link(self._temporary, self.path)
            except FileExistsError:
                pass
            except OSError:
                # There are file systems without links. They have no locks either, as a rule.
                os.replace(self._temporary, self.path)
                return True
            else:
                self._temporary.unlink()
                return True
            with contextlib.suppress(FileNotFoundError), open(self.path) as theirs:
                if not _lock(theirs):
                    return False
                # Who holds the lock of the version that is in place may replace it, and nobody else may.
                if os.path.samestat(os.fstat(theirs.fileno()), os.stat(self.path)):
                    os.replace(self._temporary, self.path)
                    return True


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


def _lock(file: IO[str]) -> bool:
    """Lock it for as long as it is open; False if somebody else has. Where there are no locks, nobody has."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
