"""What a coordinator reports, put on the job's status board."""

from __future__ import annotations

from headrace.checkpoint.handles import CheckpointId, RestoredBytes
from headrace.checkpoint.lifecycle.lifecycle import UNCOUNTED
from headrace.checkpoint.metadata.model import CheckpointMetadata
from headrace.clocks import Clocks
from headrace.errors import CheckpointFailure, HeadraceError, StorageError
from headrace.runtime.coordinator.savepoints import SavepointOrder
from headrace.runtime.job.status import CheckpointReport, JobStatus, StatusBoard


class BoardReporter:
    """Made for one attempt. `storage`: where its checkpoints go; `restored`: the checkpoint it began from."""

    def __init__(
        self, board: StatusBoard, attempt: int, storage: str, restored: CheckpointId | None, clocks: Clocks
    ) -> None:
        self._board = board
        self._attempt = attempt
        self._storage = storage
        self._restored = restored
        self._clocks = clocks

    def starting(self, progress: str) -> None:
        self._board.update(starting=progress)

    def running(self, pids: dict[str, int], started_in_ms: int, restored: RestoredBytes) -> None:
        self._board.update(
            status=JobStatus.RUNNING,
            attempt=self._attempt,
            task_pids=pids,
            starting="",
            storage=self._storage,
            restored_bytes=restored.as_json(),
        )
        self._board.event(
            "running",
            attempt=self._attempt,
            restored=self._restored,
            started_in_ms=started_in_ms,
            bytes=restored.as_json(),
        )

    def tick(self) -> None:
        self._board.tick()

    def failing(self, error: HeadraceError) -> None:
        self._board.update(status=JobStatus.FAILING, last_failure=str(error), starting="")

    def cancelling(self) -> None:
        self._board.update(status=JobStatus.CANCELLING)

    def checkpoint_completed(self, metadata: CheckpointMetadata, duration_ms: int) -> None:
        report = CheckpointReport(
            checkpoint_id=metadata.checkpoint_id,
            kind=metadata.kind,
            completed_at_ms=self._clocks.wall_ms(),
            duration_ms=duration_ms,
            size_bytes=metadata.bytes_total,
            uploaded_bytes=metadata.bytes_uploaded,
            alignment_ms=max((task.alignment_ms for task in metadata.tasks), default=0),
            sync_ms=max((task.sync_ms for task in metadata.tasks), default=0),
            channel_bytes=sum(c.cells.size for c in metadata.channels),
        )
        completed = self._board.report.checkpoints_completed + 1
        self._board.update(last_checkpoint=report, checkpoints_completed=completed, tolerated_failures=0)
        self._board.event(
            "checkpoint",
            checkpoint_id=report.checkpoint_id,
            duration_ms=duration_ms,
            bytes=report.size_bytes,
            uploaded=report.uploaded_bytes,
            alignment_ms=report.alignment_ms,
            sync_ms=report.sync_ms,
            channel_bytes=report.channel_bytes,
        )

    def checkpoint_declined(self, checkpoint_id: CheckpointId, reason: str) -> None:
        self._board.event("checkpoint-declined", checkpoint_id=checkpoint_id, reason=reason)

    def checkpoint_failed(
        self, checkpoint_id: CheckpointId, failure: CheckpointFailure, detail: str, in_a_row: int
    ) -> None:
        reason = f"{failure.value}: {detail}" if detail else failure.value
        failed = self._board.report.checkpoints_failed + 1
        if failure in UNCOUNTED:
            self._board.update(checkpoints_failed=failed, tolerated_failures=in_a_row)
        else:
            last = f"Checkpoint {checkpoint_id} failed: {reason}"
            self._board.update(checkpoints_failed=failed, tolerated_failures=in_a_row, last_failure=last)
        # `reason` is one of a closed list, for programs; `detail` is for people.
        self._board.event("checkpoint-failed", checkpoint_id=checkpoint_id, reason=failure.value, detail=detail)

    def savepoint_completed(self, order: SavepointOrder, metadata: CheckpointMetadata, duration_ms: int) -> None:
        completed = self._board.report.savepoints_completed + 1
        self._board.update(savepoints_completed=completed, last_savepoint=order.location)
        self._board.event(
            "savepoint",
            checkpoint_id=metadata.checkpoint_id,
            path=order.location,
            duration_ms=duration_ms,
            bytes=metadata.bytes_total,
            stop=order.stop,
        )

    def savepoint_failed(self, order: SavepointOrder, reason: str) -> None:
        self._board.event("savepoint-failed", reason=reason, path=order.location)

    def storage_trouble(self, error: StorageError) -> None:
        self._board.event("storage-trouble", reason=str(error))
