"""A savepoint: a directory of its own that can be moved, copied and restored anywhere.

    <root>/chk-000012/attempt-000003/...     state files, never shared with anything outside
    <root>/_metadata                         exclusive create; names files relative to <root>

The storage is rooted at the savepoint itself, so no path in it says where it lies.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable

from headrace.checkpoint.handles import AttemptId, CheckpointId
from headrace.checkpoint.metadata.codec import decode_metadata, encode_metadata
from headrace.checkpoint.metadata.model import CheckpointMetadata
from headrace.checkpoint.publication import publish_exclusively
from headrace.checkpoint.storage.base import CheckpointStorage, MissingFileError, storage_for
from headrace.checkpoint.storage.filesystem import FileSystemCheckpointStorage
from headrace.checkpoint.storage.paths import WriterScope
from headrace.errors import ConfigurationError, RestoreError, StorageError


class SavepointDirectory:
    """One savepoint in `storage`, whose root is the savepoint's directory. Kept until a person disposes of it."""

    def __init__(self, storage: CheckpointStorage) -> None:
        self.storage = storage

    def prefix_for(self, checkpoint_id: CheckpointId, attempt: AttemptId) -> str:
        """Where tasks store its files: the argument of `storage.file_store`."""
        return WriterScope("", checkpoint_id, attempt).prefix

    def publish(self, metadata: CheckpointMetadata) -> None:
        """Make it complete; errors mean the same as in `JobDirectory.publish`."""
        publish_exclusively(self.storage, "_metadata", encode_metadata(metadata))

    def load(self) -> CheckpointMetadata:
        """Its metadata, checked by hash."""
        where = f"{self.storage.location}/_metadata"
        try:
            return decode_metadata(self.storage.read("_metadata"), where)
        except MissingFileError as error:
            raise RestoreError(
                f"{self.storage.location} holds no savepoint: _metadata is missing. Name the directory that has it."
            ) from error

    def dispose(self) -> None:
        """Delete it. Metadata first, so that an interrupted disposal leaves no half savepoint.

        What a person put beside it is left alone, and the directory goes only if nothing is left in it. Does the
        same to what a savepoint that failed has left, and nothing if there is nothing.
        """
        self.storage.delete("_metadata")
        ours = {path.partition("/")[0] for path in self.storage.list("chk-") if "/attempt-" in path}
        for folder in sorted(ours):
            self.storage.delete_tree(folder)
        self.storage.delete(CLAIM_FILE)
        if isinstance(self.storage, FileSystemCheckpointStorage):
            with contextlib.suppress(OSError):
                self.storage.root.rmdir()


CLAIM_FILE = "_claimed"
"""Says which job took possession of a savepoint; see `claims`."""


def _wall_clock_s() -> float:
    return time.time()


def savepoint_name(job_id: str, *, clock_s: Callable[[], float] = _wall_clock_s) -> str:
    """A directory name that tells the job and the moment (UTC) and that nobody else comes up with."""
    moment = time.strftime("%Y%m%d-%H%M%S", time.gmtime(clock_s()))
    return f"savepoint-{job_id}-{moment}-{secrets.token_hex(3)}"


def savepoint_location(parent: str | None, storage: CheckpointStorage, job_id: str) -> str:
    """Where a new savepoint of the job goes: below `parent`, or beside the job's runs if nobody named a place.

    The place is tried at once: a savepoint that is to stop the job must not find out at its barrier.
    """
    if parent is None:
        if storage.location == "memory:":
            raise ConfigurationError(
                f"There is no place for a savepoint of job {job_id}: its checkpoints are in coordinator memory. Name a "
                "directory, or set execution.checkpointing.savepoint-dir."
            )
        parent = f"{storage.location.rstrip('/')}/{job_id}/savepoints"
    target = storage_for(f"{parent.rstrip('/') or '/'}/{savepoint_name(job_id)}")
    if target.location == "memory:":
        raise ConfigurationError(
            f"A savepoint cannot go to {parent}: it would be gone with the job. Name a directory or a URI of storage."
        )
    probe = f"_probe-{secrets.token_hex(6)}"
    try:
        target.create_exclusive(probe, b"headrace savepoint")
        target.delete(probe)
    except StorageError as error:
        raise StorageError(
            f"A savepoint cannot be written below {parent}: {error} Make it writable, or name another place."
        ) from error
    return target.location
