"""Where one task keeps what it needs on its host while it runs: databases, links, spilled cells.

A task that is killed cannot tidy up, and a gigabyte of state left behind at every crash would fill the disk. So a
directory is locked by its owner for as long as that lives, and tasks of the same job remove those that nobody locks.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

_OWNED = "owned"
_NEW = "new"


class LocalDirectory:
    """A directory of one task. Used by the process that made it, and by children it forks."""

    def __init__(self, job_id: str, level: int, slot: int, *, root: Path | None = None) -> None:
        """`root`: the host's directory for such things if not given."""
        place = Path(tempfile.gettempdir()) if root is None else root
        self.path = Path(tempfile.mkdtemp(prefix=f"{_prefix(job_id)}{level}-{slot}-", dir=place))
        # Locked before it has the name by which others know it: whoever finds it can tell whether its owner lives.
        self._lock = os.open(self.path / _NEW, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        # Where locks cannot be had, nothing is ever taken for abandoned.
        with contextlib.suppress(OSError):
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.rename(self.path / _NEW, self.path / _OWNED)

    def close(self) -> None:
        """Remove it. A second call does nothing."""
        shutil.rmtree(self.path, ignore_errors=True)
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)


def remove_abandoned(job_id: str, *, root: Path | None = None) -> list[Path]:
    """Remove directories of the job's tasks whose process is gone; gives which they were."""
    place = Path(tempfile.gettempdir()) if root is None else root
    found = []
    with contextlib.suppress(OSError):
        found = [entry.name for entry in os.scandir(place) if entry.name.startswith(_prefix(job_id))]
    return [place / name for name in found if _remove_if_abandoned(place / name)]


def _remove_if_abandoned(path: Path) -> bool:
    try:
        lock = os.open(path / _OWNED, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False  # just being made, being removed, or not ours
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    else:
        shutil.rmtree(path, ignore_errors=True)
        return True
    finally:
        os.close(lock)


def _prefix(job_id: str) -> str:
    return f"headrace-{job_id}-"
