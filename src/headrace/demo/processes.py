"""A job's processes: the driver, its JVM, the daemon that forks workers, and the workers. Found by who started whom."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

_PROC = Path("/proc")
GONE_WITHIN_S = 10.0


def descendants(root: int, parents: Mapping[int, int]) -> list[int]:
    """`root` and everything below it, parents before children; `parents` maps each process to the one above it.

    >>> descendants(5, {5: 1, 9: 5, 7: 9, 8: 1})
    [5, 9, 7]
    """
    children: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    found = [root]
    for pid in found:
        found.extend(sorted(children.get(pid, ())))
    return found


def process_tree(root: int) -> list[int]:
    """The live processes of a job, the driver first."""
    return descendants(root, _parents())


def kill_tree(driver: subprocess.Popen[bytes]) -> int:
    """SIGKILL for the driver and everything it started, all at once; how many processes that were.

    A worker that was forked in the same moment may escape the first look. It is below a dead parent then, so it is
    found by what was known before; those left over end by themselves when their connection to the driver closes.
    """
    tree = process_tree(driver.pid)
    for pid in tree:
        _kill(pid)
    driver.wait()
    deadline = time.monotonic() + GONE_WITHIN_S
    while (alive := [pid for pid in tree[1:] if _is_alive(pid)]) and time.monotonic() < deadline:
        parents = _parents()
        for pid in alive:
            for straggler in descendants(pid, parents):
                _kill(straggler)
        time.sleep(0.01)
    return len(tree)


def kill_worker(driver: subprocess.Popen[bytes], pid: int) -> bool:
    """SIGKILL for one worker; False, and nothing killed, if that process is not one of this job."""
    if pid not in process_tree(driver.pid)[1:]:
        return False
    _kill(pid)
    return True


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _is_alive(pid: int) -> bool:
    """Whether it still runs; a dead one that nobody has asked for its exit code does not."""
    if _PROC.joinpath("self", "stat").exists():
        try:
            return _stat(pid)[0] not in ("Z", "X")
        except OSError:
            return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _parents() -> dict[int, int]:
    found = {}
    if _PROC.joinpath("self", "stat").exists():
        for entry in _PROC.iterdir():
            if entry.name.isdecimal():
                with contextlib.suppress(OSError):
                    state, parent = _stat(int(entry.name))
                    if state not in ("Z", "X"):
                        found[int(entry.name)] = parent
        return found
    listing = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    for line in listing.splitlines():
        child, above = line.split()
        found[int(child)] = int(above)
    return found


def _stat(pid: int) -> tuple[str, int]:
    """State and parent. The name of the program, in brackets before them, may hold anything."""
    fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return fields[0], int(fields[1])
