"""The job's directory as one attempt uses it, from the I/O threads of its coordinator.

Why a removal that was decided some time ago deletes nothing that is needed now. The coordinator has one removal under
way, and decides the next one when the last is over. A shared file is needed by

- a checkpoint that is retained: its files are named by metadata that the decision holds;
- a checkpoint that was open or undecided at the decision and has *stored* the file: its id is in the file's name, and
  among the ids that the decision holds;
- a checkpoint that was triggered after the decision and has stored the file: its id is not less than `next_id`;
- a checkpoint that *reuses* the file, which an older one has stored. A task reuses only what a completed checkpoint
  names, and its files live from the snapshot that first names them to the one that last does, without a gap. So the
  newest completed checkpoint at the decision names it too, and that one is always retained.

A file that is none of these is deleted when an earlier removal, at least the grace period ago, has found the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from headrace import failpoints
from headrace.checkpoint.handles import AttemptId
from headrace.checkpoint.job_directory import JobDirectory, PublishOutcomeUnknownError
from headrace.checkpoint.metadata.model import CheckpointMetadata, shared_files_of
from headrace.errors import StorageError
from headrace.runtime.coordinator.ports import Removal
from headrace.runtime.coordinator.savepoints import SavepointOrder


class Spools(Protocol):
    """What lies beside the checkpoints and is needed as long as they are: the input that Spark queries have written."""

    def pin(self, savepoint: CheckpointMetadata) -> None:
        """Keep what this savepoint needs."""

    def unpin(self, savepoint: CheckpointMetadata) -> None:
        """That savepoint never came to be."""

    def collect(self, retained: Iterable[CheckpointMetadata]) -> None:
        """Remove what no retained checkpoint and no savepoint needs any more."""


class Claimed(Protocol):
    """Removes the checkpoint or savepoint that the job was started from and owns."""

    def __call__(self) -> object: ...


class AttemptStore:
    """Writes and deletes for one attempt, each time after a look whether it is still the newest.

    One lane publishes and another one removes, so this holds nothing that changes.
    """

    def __init__(
        self,
        directory: JobDirectory,
        attempt: AttemptId,
        spools: Spools | None = None,
        remove_claimed: Claimed | None = None,
    ) -> None:
        # A view of its own: when the next attempt claims its number, ours must not pass for it.
        self._directory = directory.for_attempt(attempt)
        self._attempt = attempt
        self._spools = spools
        self._remove_claimed = remove_claimed

    def publish(self, metadata: CheckpointMetadata) -> None:
        failpoints.hit("after_all_acks")
        failpoints.hit("before_publish")
        self._directory.publish(metadata)
        failpoints.hit("after_publish")

    def publish_savepoint(self, order: SavepointOrder, metadata: CheckpointMetadata) -> None:
        failpoints.hit("after_all_acks")
        # Before it exists: nothing that it refers to may be removed from the moment it does.
        if self._spools is not None:
            self._spools.pin(metadata)
        failpoints.hit("before_publish")
        try:
            self._publish_outside(order, metadata)
        except PublishOutcomeUnknownError:
            raise
        except StorageError:
            if self._spools is not None:
                self._spools.unpin(metadata)
            raise
        failpoints.hit("savepoint_published")
        failpoints.hit("after_publish")

    def _publish_outside(self, order: SavepointOrder, metadata: CheckpointMetadata) -> None:
        if order.stop:
            # Announced before it exists, because its sinks commit once it does.
            self._directory.record_stopping(self._attempt, metadata.checkpoint_id, order.location)
        else:
            self._directory.assert_current(self._attempt)
        order.directory.publish(metadata)
        try:
            self._directory.assert_current(self._attempt)
        except StorageError as error:
            raise PublishOutcomeUnknownError(
                f"{order.location} was published, but whether attempt {self._attempt} still owned the job is not "
                f"known: {error}"
            ) from error

    def remove(self, removal: Removal) -> None:
        if removal.files:
            self._directory.discard(removal.files)
        if removal.checkpoint_ids:
            failpoints.hit("gc_marked")
            self._directory.drop(removal.checkpoint_ids)
            failpoints.hit("gc_deleted")
            self._directory.collect_shared(
                removal.retained,
                self._attempt,
                pending=removal.open_ids,
                known_shared={path for metadata in removal.retained for path in shared_files_of(metadata)},
                next_id=removal.next_id,
            )
            if self._spools is not None:
                self._spools.collect(removal.retained)
        if removal.claimed or removal.savepoints:
            self._directory.assert_current(self._attempt)
        if removal.claimed and self._remove_claimed is not None:
            self._remove_claimed()
        for order in removal.savepoints:
            order.directory.dispose()
