"""The status file of a job, by which other processes find it: `<state directory>/<job_id>.json`."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import threading
from pathlib import Path
from typing import IO

from headrace.runtime.job.printer import FLUSH_S
from headrace.runtime.job.status import StatusReport

_numbers = itertools.count(1)


def state_directory() -> Path:
    """Where status files live: `HEADRACE_STATE_DIR`, or the user's state directory."""
    set_by_user = os.environ.get("HEADRACE_STATE_DIR")
    if set_by_user:
        return Path(set_by_user)
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "headrace"


class StatusFile:
    """Keeps `<job_id>.json` up to date; a reader always sees a whole file.

    Reports are written by a thread of its own, the newest only: a home directory that hangs must not stop the
    coordinator, which reports on its way.

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
                break
            self._held.close()
            self._temporary.unlink()
        self._newest: StatusReport | None = None
        self._closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="status-file", daemon=True)
        self._thread.start()

    def put(self, report: StatusReport) -> None:
        """Write this report, unless a newer one comes first. Never waits."""
        with self._changed:
            self._newest = report
            self._changed.notify()

    def close(self) -> None:
        """The job has ended: write the last report. The file stays, until the next job of that id takes it over.

        Returns after `FLUSH_S` at the latest.
        """
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(FLUSH_S)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._newest is not None or self._closing)
                report, self._newest = self._newest, None
            if report is None:
                self._held.close()
                return
            # A full disk must not stop the job for the sake of its status.
            with contextlib.suppress(OSError):
                newer = self._version(report)
                os.replace(self._temporary, self.path)
                self._held.close()
                self._held = newer

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
