"""What a path that a person gives stands for: a job's directory, a checkpoint, a savepoint, or a place with several.

<root>                           every job in it
<root>/alerts                    one job, all its runs
<root>/alerts/run-000002         one run
<root>/alerts/run-000002/chk-…   one checkpoint (with or without /_metadata)
<savepoint>                      a directory with its own _metadata
<directory of savepoints>        every savepoint directly in it
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from headrace.checkpoint.job_directory import JobDirectory, PublishedCheckpoint
from headrace.checkpoint.metadata.codec import decode_metadata
from headrace.checkpoint.metadata.model import CheckpointMetadata
from headrace.checkpoint.storage.base import CheckpointStorage, MissingFileError, storage_for
from headrace.errors import RestoreError, StorageError

METADATA = "_metadata"
SAVEPOINTS = "savepoints"
"""Beside the runs of a job: where its savepoints go if nobody names a place."""

_CHECKPOINT = re.compile(r"(?P<root>.*)/(?P<job>[^/]+)/run-(?P<run>\d{1,18})/chk-(?P<checkpoint>\d{1,18})")
_RUN = re.compile(r"(?P<root>.*)/(?P<job>[^/]+)/run-(?P<run>\d{1,18})")
_RUN_FILE = re.compile(r"run-\d{1,18}/.+")
_FILE_OF_JOB = re.compile(r"(?P<job>[^/]+)/(?:run-\d{1,18}/.+|lease-\d{1,18})")
_SAVEPOINT_INSIDE = re.compile(r"(?P<name>[^/]+)/_metadata")


@dataclass(frozen=True, slots=True)
class FoundCheckpoint:
    """A checkpoint or savepoint that was found, whole or not."""

    path: str
    """Of its directory, as a person would write it."""
    storage: CheckpointStorage
    checkpoint: PublishedCheckpoint
    run: int = 0
    """0 for a savepoint."""

    @property
    def whole(self) -> CheckpointMetadata:
        """Its metadata; raises what keeps it from being read."""
        if self.checkpoint.problem is not None:
            raise self.checkpoint.problem
        assert self.checkpoint.metadata is not None
        return self.checkpoint.metadata


@dataclass(frozen=True, slots=True)
class JobPlace:
    """The directory of one job."""

    storage: CheckpointStorage
    job_id: str
    run: int | None = None
    """None: all runs."""

    def checkpoints(self, *, although_damaged: bool = False) -> list[FoundCheckpoint]:
        """Everything published in its runs, oldest first, then the savepoints that lie beside them.

        Raises if the records that say which of them count are damaged, unless `although_damaged`.
        """
        directory = JobDirectory(self.storage, self.job_id)
        found: list[FoundCheckpoint] = []
        for run in [self.run] if self.run is not None else directory.runs():
            directory.look_at(run)
            found += [
                FoundCheckpoint(_shown(self.storage, checkpoint.path), self.storage, checkpoint, run)
                for checkpoint in (directory.survey().published if although_damaged else directory.published())
            ]
        return found if self.run is not None else found + self._savepoints()

    def _savepoints(self) -> list[FoundCheckpoint]:
        """Those that nobody named a place for."""
        start = f"{self.job_id}/{SAVEPOINTS}/"
        names = [
            inside["name"]
            for path in self.storage.list(start)
            if (inside := _SAVEPOINT_INSIDE.fullmatch(path.removeprefix(start)))
        ]
        root = f"{self.storage.location.rstrip('/')}/{start}"
        return _by_age(_savepoint(storage_for(root + name), root + name) for name in names)


@dataclass(frozen=True, slots=True)
class Place:
    """What lies under a path."""

    path: str
    jobs: tuple[JobPlace, ...] = ()
    single: tuple[FoundCheckpoint, ...] = ()
    """The checkpoint or savepoint that the path names itself, or the savepoints of a directory."""

    def checkpoints(self, *, although_damaged: bool = False) -> list[FoundCheckpoint]:
        """All of them, job by job, oldest first; see `JobPlace.checkpoints`."""
        of_jobs = [found for job in self.jobs for found in job.checkpoints(although_damaged=although_damaged)]
        return of_jobs + list(self.single)

    def one(self) -> FoundCheckpoint:
        """The checkpoint that the path means: itself, or the newest that counts of its one job."""
        if self.single:
            if len(self.single) > 1:
                raise RestoreError(f"{self.path} holds {len(self.single)} savepoints. Name one of them.")
            return self.single[0]
        if len(self.jobs) > 1:
            names = ", ".join(job.job_id for job in self.jobs)
            raise RestoreError(f"{self.path} holds several jobs: {names}. Name the directory of one.")
        found = self.checkpoints()
        counted = [c for c in found if c.run and (c.checkpoint.counts or c.checkpoint.problem)]
        if not counted:
            raise RestoreError(f"{self.path} holds no completed checkpoint.")
        return counted[-1]


def find_place(path: str) -> Place:
    """Look what is there; `RestoreError` if it is nothing of ours. Reads names and metadata only."""
    uri = _absolute(path.rstrip("/").removesuffix(f"/{METADATA}") or "/")
    match = _CHECKPOINT.fullmatch(uri)
    if match:
        return Place(path, single=(_checkpoint(match, path),))
    match = _RUN.fullmatch(uri)
    if match:
        return Place(path, (JobPlace(storage_for(match["root"] or "/"), match["job"], int(match["run"])),))
    storage = storage_for(uri)
    if storage.exists(METADATA):
        return Place(path, single=(_savepoint(storage, path),))
    names = storage.list("")
    if any(_RUN_FILE.fullmatch(name) for name in names):
        root, _, job = uri.rpartition("/")
        return Place(path, (JobPlace(storage_for(root or "/"), job),))
    jobs = sorted({found["job"] for name in names if (found := _FILE_OF_JOB.fullmatch(name))})
    savepoints = [found["name"] for name in names if (found := _SAVEPOINT_INSIDE.fullmatch(name))]
    if not jobs and not savepoints:
        raise RestoreError(
            f"There is no checkpoint, savepoint or job at {path}. Give a checkpoint directory "
            "(…/<job>/run-000001/chk-000007), a savepoint, or the directory of a job."
        )
    single = _by_age(_savepoint(storage_for(f"{uri}/{name}"), f"{path.rstrip('/')}/{name}") for name in savepoints)
    return Place(path, tuple(JobPlace(storage, job) for job in jobs), tuple(single))


def _checkpoint(match: re.Match[str], path: str) -> FoundCheckpoint:
    """One checkpoint of a job; whether it counts is known from its neighbours, where they are still there."""
    storage = storage_for(match["root"] or "/")
    job = JobPlace(storage, match["job"], int(match["run"]))
    wanted = int(match["checkpoint"])
    try:
        found = next((c for c in job.checkpoints() if c.checkpoint.checkpoint_id == wanted), None)
    except (StorageError, RestoreError):
        # The records of attempts are damaged or gone: the checkpoint can be looked at all the same.
        return _alone(storage, f"{match['job']}/run-{match['run']}/chk-{match['checkpoint']}/{METADATA}", path, job.run)
    if found is None:
        raise RestoreError(f"There is no checkpoint at {path}: it has no {METADATA}.")
    return found


def _by_age(found: Iterable[FoundCheckpoint]) -> list[FoundCheckpoint]:
    def key(checkpoint: FoundCheckpoint) -> tuple[int, str]:
        metadata = checkpoint.checkpoint.metadata
        return (0 if metadata is None else metadata.created_ms, checkpoint.path)

    return sorted(found, key=key)


def _savepoint(storage: CheckpointStorage, path: str) -> FoundCheckpoint:
    return _alone(storage, METADATA, path, 0)


def _alone(storage: CheckpointStorage, name: str, path: str, run: int | None) -> FoundCheckpoint:
    try:
        metadata = decode_metadata(storage.read(name), f"{storage.location}/{name}")
    except MissingFileError as error:
        raise RestoreError(f"There is no checkpoint at {path}: it has no {METADATA}.") from error
    except RestoreError as error:
        return FoundCheckpoint(path, storage, PublishedCheckpoint(0, name, None, False, error), run or 0)
    return FoundCheckpoint(path, storage, PublishedCheckpoint(metadata.checkpoint_id, name, metadata, True), run or 0)


def _absolute(path: str) -> str:
    """Plain paths from the root of the machine, so that the directory above one can be named."""
    return path if urlsplit(path).scheme else os.path.abspath(os.path.expanduser(path))


def _shown(storage: CheckpointStorage, metadata_path: str) -> str:
    return f"{storage.location.rstrip('/')}/{metadata_path.removesuffix(f'/{METADATA}')}"
