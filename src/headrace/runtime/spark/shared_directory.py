"""Whether executors see a directory of the driver: each is asked for a file that the driver has just written there.

A `file:` path means something on every machine. Where executors do not share the driver's file system, each of them
would write its part of a checkpoint to a disk of its own, and nobody would notice before the first restore elsewhere.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.runtime.spark.machine import Finding
from headrace.runtime.spark.pipelined import JavaObject
from headrace.runtime.spark.session import SparkHandle

NAME = "Checkpoint storage"
PATIENCE_S = 3.0
"""How long a task goes on looking: a network mount may show a new file a moment later."""
_LOOK_EVERY_S = 0.25
_NAMED = 5


@dataclass(frozen=True, slots=True)
class Look:
    """What one task found."""

    host: str
    trouble: str = ""
    """Why it did not see the file; empty if it did."""


def seen_by_executors(handle: SparkHandle, directory: Path) -> Finding:
    """Ask every executor, by one Spark job of as many tasks, for a file that is written for this and then removed.

    A `directory` that is missing is made, and stays if all is well. Not for local masters, whose tasks are on this
    machine.
    """
    # Spark spreads the tasks of a stage over its executors, one to each in turn.
    executors = _executors(handle)
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    try:
        for path in reversed(missing):
            path.mkdir(mode=0o700, exist_ok=True)
        with token_below(directory) as (path, token):
            tasks = handle.context.parallelize(range(executors), executors)
            looks = tasks.mapPartitions(_Looking(path, token)).collect()
    except Exception as error:
        # Py4J's errors are of many kinds; those of the disk say all in one line.
        first = next((line for line in str(error).splitlines() if "Error" in line), str(error)[:200]).strip()
        looks = [Look("this host" if isinstance(error, OSError) else "an executor", f"could not look: {first}")]
    finding = judge(directory, looks)
    if not finding.ok:
        for path in missing:
            # What a refused start made is empty, unless somebody else has begun to use it.
            with contextlib.suppress(OSError):
                path.rmdir()
    return finding


@contextlib.contextmanager
def token_below(directory: Path) -> Iterator[tuple[Path, bytes]]:
    """A new file below `directory` and the bytes in it, which nobody can guess; gone when the block ends."""
    token = secrets.token_bytes(16)
    path = directory / f"preflight-{secrets.token_hex(6)}"
    # As open as the files of a checkpoint are: who may not read this could not read them.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(token)
            file.flush()
            # Other machines see of a network mount what has reached the server.
            os.fsync(file.fileno())
        yield path, token
    finally:
        path.unlink(missing_ok=True)


def look(path: str, token: bytes, patience_s: float = PATIENCE_S, clock: Callable[[], float] = time.monotonic) -> Look:
    """Look for the file, in a task. What is not there at once may come within `patience_s`."""
    host = socket.gethostname()
    deadline = clock() + patience_s
    while True:
        try:
            found = Path(path).read_bytes()
            return Look(host) if found == token else Look(host, "a file of that name has other bytes")
        except (FileNotFoundError, NotADirectoryError):
            if clock() >= deadline:
                return Look(host, "the driver's file is not there")
            time.sleep(_LOOK_EVERY_S)
        except OSError as error:
            return Look(host, error.strerror or str(error))


def judge(directory: Path, looks: Sequence[Look]) -> Finding:
    """Well only if every task saw the file."""
    wanted = "a directory that the driver and all executors share"
    blind = [one for one in looks if one.trouble]
    if looks and not blind:
        hosts = len({one.host for one in looks})
        found = f"{directory.as_uri()} is seen by {len(looks)} executors on {hosts} {'host' if hosts == 1 else 'hosts'}"
        return Finding(NAME, True, found, wanted)
    reasons = sorted({f"{one.host}: {one.trouble}" for one in blind}) or ["no task looked"]
    more = f" and {len(reasons) - _NAMED} more" if len(reasons) > _NAMED else ""
    return Finding(
        NAME,
        False,
        f"{directory.as_uri()} is not seen by {len(blind)} of {len(looks)} executors "
        f"({'; '.join(reasons[:_NAMED])}{more})",
        wanted,
        f"Mount one file system at {directory} on the driver and on every executor, or keep checkpoints where all "
        "of them reach: s3://bucket/path or hdfs://host/path.",
    )


def _executors(handle: SparkHandle) -> int:
    """Those that are there now. The scheduler's own count, as for free slots; at least one, and Spark waits for it."""
    known: JavaObject = handle.context._jsc.sc().taskScheduler().runningTasksByExecutors()
    return max(1, int(known.size()))


class _Looking:
    """Goes to the workers."""

    def __init__(self, path: Path, token: bytes) -> None:
        self._path = str(path)
        self._token = token

    def __call__(self, _: Iterable[int]) -> list[Look]:
        return [look(self._path, self._token)]
