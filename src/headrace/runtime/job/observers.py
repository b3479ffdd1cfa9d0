"""Who watches a job by default: the status file, for other programs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

from headrace.plan.settings import JobSettings
from headrace.runtime.job.status import StatusBoard, StatusReport


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


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def attach_observers(board: StatusBoard, settings: JobSettings) -> list[Callable[[], None]]:
    """Begin to watch; what is returned is called when the job has ended."""
    status_file = StatusFile(settings.job_id)
    board.listeners.append(status_file.write)
    return []
