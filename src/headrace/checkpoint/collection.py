"""What lies in a job's directory and nothing names: found by set difference, removed only when asked.

    unnamed        a state file that no published checkpoint of the run names (an abandoned checkpoint left it)
    unfinished     a half-written file of a process that died
    superseded     a checkpoint that was published by an attempt which had been replaced, with its files

What must stay is decided by the rule in `needed.py`. Only `chk-*` and `shared` of a run are looked at: whatever else
lies in a job's directory belongs to somebody else.

Removing is safe against drivers that are alive, paused or about to start, in this order:

    1  take the job's lease: a live owner is an error, and nobody starts meanwhile
    2  claim an attempt of the open run and record what a start would restore: a paused driver that wakes up
       later publishes in vain, so a file that only it knows of is needed by nobody
    3  list again, and delete: metadata of a checkpoint first, then files
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

import msgspec

from headrace import failpoints
from headrace.checkpoint.job_directory import ENDED, JobDirectory
from headrace.checkpoint.lease import Lease, LeaseRecord
from headrace.checkpoint.metadata.model import files_of
from headrace.checkpoint.places import METADATA, JobPlace
from headrace.checkpoint.storage.base import CheckpointStorage, MissingFileError
from headrace.checkpoint.survey import Survey


class Why(Enum):
    """Why a file is garbage."""

    UNNAMED = "no checkpoint names it"
    UNFINISHED = "half-written by a process that died"
    SUPERSEDED = "published by an attempt that had been replaced"


class Garbage(msgspec.Struct, frozen=True):
    """A file that nothing needs."""

    path: str
    """In the job's storage."""
    size: int
    why: Why


class Audit(msgspec.Struct, frozen=True):
    """Every file of a job's runs, needed or not."""

    job_id: str
    needed_files: int
    garbage: tuple[Garbage, ...]
    kept_back: tuple[str, ...] = ()
    """In words: what might be garbage but is kept, because a damaged checkpoint may name it."""

    @property
    def garbage_bytes(self) -> int:
        return sum(item.size for item in self.garbage)


def owner_of(job: JobPlace) -> LeaseRecord | None:
    """Who runs the job right now, if anybody."""
    return Lease(job.storage, job.job_id).owner()


def audit(job: JobPlace) -> Audit:
    """Look only. While the job runs, files of checkpoints under way are shown too: nothing names them yet."""
    directory = JobDirectory(job.storage, job.job_id)
    needed = 0
    garbage: list[Garbage] = []
    kept_back: list[str] = []
    surveys: list[Survey] = []
    for run in directory.runs():
        directory.look_at(run)
        surveys.append(directory.survey())
    if surveys and ENDED not in surveys[-1].names:
        surveys[-1].completed()  # what a start would refuse is refused here: nobody knows what it needs
    for survey in surveys:
        if job.run not in (None, survey.run):
            continue
        if survey.damage is not None:
            raise survey.damage
        # A later run may have begun from a checkpoint of this one.
        chosen = frozenset().union(*(other.lineage.chosen_in(survey.run) for other in surveys))
        found = _RunAudit(survey, chosen, job.storage, f"{job.job_id}/run-{survey.run:06d}")
        needed += len(found.needed.files)
        garbage += found.garbage()
        kept_back += found.kept_back
    return Audit(job.job_id, needed, tuple(garbage), tuple(kept_back))


def collect(job: JobPlace) -> Audit:
    """Delete the garbage of one job and return what was deleted; `JobOwnedError` while somebody runs it."""
    lease = Lease(job.storage, job.job_id)
    lease.acquire()  # Step 1
    try:
        _fence(job)  # Step 2
        found = audit(job)
        # Step 3. Metadata first: what has none is no checkpoint, whatever an interruption leaves of the rest.
        for item in sorted(found.garbage, key=lambda item: (not item.path.endswith(f"/{METADATA}"), item.path)):
            lease.renew()
            job.storage.delete(item.path)
            failpoints.hit("gc_deleted")
        return found
    finally:
        lease.release()


def _fence(job: JobPlace) -> None:
    """Do what a starting driver does, up to the point where it would start something."""
    directory = JobDirectory(job.storage, job.job_id)
    if directory.open_run() not in directory.runs():
        return  # every run has ended: there is no driver left to be fenced off
    attempt = directory.claim_attempt()
    survey = directory.survey()
    newest = survey.newest()
    # What the last attempt started from outside this run is still what the next one needs.
    source = "" if newest is not None else survey.lineage.source
    directory.record_restored(attempt, None if newest is None else newest.checkpoint_id, source)


class _RunAudit:
    """One run: what must stay, and the rest."""

    def __init__(self, survey: Survey, chosen: frozenset[int], storage: CheckpointStorage, home: str) -> None:
        self._storage = storage
        self._home = home
        self._folders = [name for name in survey.names if name.startswith("chk-")]
        self.needed = survey.needed(chosen)
        self._superseded = {
            path
            for checkpoint in survey.published
            if checkpoint.metadata is not None
            for path in (checkpoint.path, *files_of(checkpoint.metadata))
        }
        self.kept_back = [
            f"{checkpoint.path} is damaged: its files, and shared files that were there when it was taken, are kept, "
            "because it may name them"
            for checkpoint in survey.published
            if checkpoint.checkpoint_id in self.needed.damaged
        ]

    def garbage(self) -> Iterator[Garbage]:
        """Every file of the run that nothing needs, in order of path."""
        for folder in self._folders:
            if int(folder[4:].rstrip("/")) in self.needed.damaged:
                continue
            for path in self._storage.list(f"{self._home}/{folder.rstrip('/')}/"):
                if path not in self.needed.files:
                    yield from self._item(path)
        for path in self._storage.list(f"{self._home}/shared/"):
            if not self.needed.spares_shared(path):
                yield from self._item(path)
        for path in self._storage.unfinished(self._home):
            yield from self._item(path, Why.UNFINISHED)

    def _item(self, path: str, why: Why | None = None) -> Iterator[Garbage]:
        why = why or (Why.SUPERSEDED if path in self._superseded else Why.UNNAMED)
        try:
            yield Garbage(path, self._storage.size(path), why)
        except MissingFileError:
            return  # removed since it was listed
