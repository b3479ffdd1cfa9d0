"""Whose a restored checkpoint is: *no-claim* leaves it untouched, *claim* makes it the restoring job's own.

    <savepoint>/_claimed            exclusive create, by a restore with --claim only; JSON: who claimed it

A claimed one is removed by its new owner as soon as enough checkpoints of the owner's own are complete; until then
nobody else may claim or dispose of it. A restore without --claim writes nothing at all, so the savepoint may be
read-only and may be restored any number of times, by several jobs at once.
"""

from __future__ import annotations

import os
import socket
import time

import msgspec

from headrace.checkpoint.job_directory import JobDirectory
from headrace.checkpoint.lease import Lease
from headrace.checkpoint.location import OpenedCheckpoint, open_checkpoint
from headrace.checkpoint.metadata.model import files_of
from headrace.checkpoint.needed import needed_of
from headrace.checkpoint.savepoint import CLAIM_FILE, SavepointDirectory
from headrace.checkpoint.storage.base import AlreadyExistsError, CheckpointStorage, MissingFileError
from headrace.checkpoint.storage.paths import SharedName
from headrace.errors import ConfigurationError, RestoreError


class Claim(msgspec.Struct, frozen=True):
    """The contents of a claim file."""

    job_id: str
    storage: str
    """Where the owner's own checkpoints go: with the job id it tells one job from another."""
    host: str
    pid: int
    claimed_ms: int


def claim(opened: OpenedCheckpoint, job_id: str, storage: CheckpointStorage) -> None:
    """Take possession before the first file is restored. The same job may do so again, any other is refused."""
    other = claimant(opened)
    if other is None:
        _refuse_while_it_runs(opened, job_id, storage)
        mine = Claim(job_id, storage.location, socket.gethostname(), os.getpid(), time.time_ns() // 1_000_000)
        try:
            opened.storage.create_exclusive(_claim_path(opened), msgspec.json.encode(mine))
        except AlreadyExistsError:
            other = claimant(opened)
        else:
            return
    if other is None or (other.job_id, other.storage) != (job_id, storage.location):
        raise RestoreError(
            f"{opened.path} cannot be claimed by job {job_id}: {_owner_text(other)}. "
            "Restore it without --claim, or wait until that job is done with it."
        )


def claimant(opened: OpenedCheckpoint) -> Claim | None:
    """Who has claimed it; None if nobody has."""
    try:
        return msgspec.json.decode(opened.storage.read(_claim_path(opened)), type=Claim)
    except MissingFileError:
        return None
    except msgspec.MsgspecError as error:
        raise RestoreError(
            f"{opened.path}/{CLAIM_FILE} is damaged, so it is not known who claimed it. Delete that file if nobody did."
        ) from error


def remove_claimed(opened: OpenedCheckpoint) -> None:
    """Delete what this job has claimed and needs no more. A second call does nothing."""
    if not opened.inside:
        SavepointDirectory(opened.storage).dispose()
        return
    storage, folder = opened.storage, opened.inside
    job_id, run, checkpoint = folder.split("/")
    directory = JobDirectory(storage, job_id)
    directory.look_at(int(run.removeprefix("run-")))
    before = directory.survey()
    own = int(checkpoint.removeprefix("chk-"))
    storage.delete(f"{folder}/_metadata")
    storage.delete_tree(folder)
    if before.damage is not None or Lease(storage, job_id).owner() is not None:
        return  # its job, which may be this one, collects its shared files itself
    # Shared files belong to all checkpoints of that run: those go that none of the others needs.
    others = tuple(c for c in before.published if c.checkpoint_id != own)
    needed = needed_of(others, {c.checkpoint_id for c in others})
    for path in sorted(files_of(opened.metadata)):
        if SharedName.of(path) is not None and not needed.spares_shared(path):
            storage.delete(path)


def dispose_savepoint(path: str, *, force: bool = False) -> OpenedCheckpoint:
    """Delete the savepoint at `path`; refused for anything that is none, or that a claimed restore still uses."""
    opened = open_checkpoint(path)
    if opened.inside:
        raise ConfigurationError(
            f"{path} is checkpoint {opened.metadata.checkpoint_id} of job {opened.metadata.job_id}, no savepoint: the "
            "job drops it when it has newer ones. See `headrace checkpoints gc`."
        )
    owner = None if force else claimant(opened)
    if owner is not None:
        raise RestoreError(
            f"{path} is still in use: {_owner_text(owner)}, and deletes it itself when it has a checkpoint of its own. "
            "If that job will never run again, use --force."
        )
    SavepointDirectory(opened.storage).dispose()
    return opened


def _refuse_while_it_runs(opened: OpenedCheckpoint, job_id: str, storage: CheckpointStorage) -> None:
    """A checkpoint in the directory of a job that is running is that job's to drop."""
    if not opened.inside:
        return
    writer = opened.inside.partition("/")[0]
    if (writer, opened.storage.location) == (job_id, storage.location):
        return
    owner = Lease(opened.storage, writer).owner()
    if owner is not None:
        raise RestoreError(
            f"{opened.path} cannot be claimed: it belongs to job {writer}, which process {owner.pid} on {owner.host} "
            "runs right now. Restore it without --claim, or stop that job first."
        )


def _claim_path(opened: OpenedCheckpoint) -> str:
    return f"{opened.inside}/{CLAIM_FILE}" if opened.inside else CLAIM_FILE


def _owner_text(owner: Claim | None) -> str:
    if owner is None:
        return "another job was faster"
    return f"job {owner.job_id} ({owner.storage}) claimed it from {owner.host}"
