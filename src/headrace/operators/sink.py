"""The sink operator: a writer, and the ordered list of items that are prepared but not known to be committed."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from headrace.checkpoint.handles import PreparedItem, SubtaskSnapshot
from headrace.checkpoint.local_files import PREPARED
from headrace.connectors.sink import Committer, Sink, SinkWriter, WriterContext
from headrace.errors import CommitFailedError, CommitOutcomeUnknownError
from headrace.operators.base import BackgroundWork, Operator, Restored, SubtaskWork, failure_in
from headrace.operators.checkpointed import CheckpointedFunction
from headrace.operators.context import InitializationContext, SnapshotContext
from headrace.operators.functions import CheckpointListener
from headrace.operators.metrics import MetricGroup
from headrace.state.backend import FileStore, SnapshotWork

COMMIT_TRIES = 5

LARGEST_INLINE_ITEM = 16 * 1024
"""Prepared items above this size go into a file of the checkpoint instead of its `_metadata`."""

MAX_UNCOMMITTED_BYTES = 64 << 20
"""Bytes of uncommitted output, if it is of more than one checkpoint, above which a subtask takes no input."""
UNCOMMITTED_CHECKPOINTS = "uncommitted_checkpoints"
UNCOMMITTED_BYTES = "uncommitted_bytes"
"""Metrics of a sink whose commits lag; absent while they do not."""


class SinkWork(SubtaskWork):
    """A sink's snapshot: large prepared items are written to files, in the background as state is.

    An item goes with every checkpoint until it is committed. The first one stores it in a file of its own, which goes
    with that checkpoint: usually that is all. What a later checkpoint finds uncommitted it stores as a shared file,
    and those after it name the same file again: however long commits lag, an item is stored twice at most. Each
    checkpoint names all files it needs, so collection keeps them as long as one of them is retained.
    """

    __slots__ = ("_shared_before",)

    def __init__(self, snapshot: SubtaskSnapshot, keyed: SnapshotWork | None, shared_before: int = 0) -> None:
        """Items of checkpoints below `shared_before` are stored as shared files."""
        super().__init__(snapshot, keyed)
        self._shared_before = shared_before

    def finish(self, store: FileStore) -> SubtaskSnapshot:
        snapshot = super().finish(store)
        return msgspec.structs.replace(
            snapshot, prepared=tuple(self._stored(item, store) for item in snapshot.prepared)
        )

    def _stored(self, item: PreparedItem, store: FileStore) -> PreparedItem:
        if len(item.payload) <= LARGEST_INLINE_ITEM:
            return item
        if item.checkpoint_id >= self._shared_before:
            return PreparedItem(item.checkpoint_id, b"", store.write(PREPARED, [item.payload]))
        with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
            path = Path(folder, PREPARED)
            path.write_bytes(item.payload)
            return PreparedItem(item.checkpoint_id, b"", store.write_shared(path))


def payload_of(item: PreparedItem, store: FileStore) -> bytes:
    """What the committer needs, wherever the checkpoint keeps it."""
    return item.payload if item.file is None else store.read(item.file)


@dataclass(frozen=True, slots=True)
class Lag:
    """Output of complete checkpoints that is not committed yet."""

    checkpoints: int = 0
    size: int = 0

    def is_too_far(self, max_checkpoints: int) -> bool:
        return self.checkpoints > max_checkpoints or (self.checkpoints > 1 and self.size > MAX_UNCOMMITTED_BYTES)

    def shown(self, number: int) -> Any:
        """The number for the status; None while at most one checkpoint is being committed, as it always is."""
        return number if self.checkpoints > 1 else None


class SinkOperator(Operator):
    """Every snapshot holds all prepared items; completion of checkpoint c commits those ≤ c, in order."""

    _writer: SinkWriter

    def __init__(self, sink: Sink) -> None:
        super().__init__()
        self._sink = sink
        self._prepared: list[PreparedItem] = []
        self._restored_state: bytes | None = None
        self._committer: Committer | None = None
        self._committing = threading.Lock()
        self._opened = False
        self._completed = 0
        """The newest checkpoint that is known to be complete."""
        self._lag = Lag()
        self.records = 0

    def restore(self, restored: Restored, store: FileStore) -> None:
        # Items of the restored checkpoint were committed by the driver before this task began.
        super().restore(restored, store)
        self._restored_state = restored.extra

    def open(self) -> None:
        context = self.context
        try:
            self._writer = self._sink.create_writer(
                WriterContext(
                    job_id=context.job_id,
                    uid=context.uid,
                    subtask=context.subtask,
                    parallelism=context.parallelism,
                    attempt=context.attempt,
                    history=context.history,
                )
            )
            if isinstance(self._writer, CheckpointedFunction):
                self._writer.initialize_state(InitializationContext(self))
            elif self._restored_state:
                self._writer.restore_state(self._restored_state)
            self._writer.open()
            self._opened = True
            self._committer = self._sink.create_committer()
            if self._committer is not None:
                metrics = MetricGroup(context.metrics)
                metrics.gauge(UNCOMMITTED_CHECKPOINTS, lambda: self._lag.shown(self._lag.checkpoints))
                metrics.gauge(UNCOMMITTED_BYTES, lambda: self._lag.shown(self._lag.size))
        except Exception as error:
            raise failure_in(self, "(none: opening the sink)", error) from error

    def has_room(self) -> bool:
        # Only output of complete checkpoints counts: its commit is under way, and ends or fails. Were output counted
        # that waits for a checkpoint, that checkpoint's barrier could wait behind the input that is not taken.
        return not self._lag.is_too_far(self._sink.max_uncommitted_checkpoints)

    def process(self, value: Any, timestamp: int | None) -> None:
        self.records += 1
        try:
            self._writer.write(value, timestamp)
        except Exception as error:
            raise failure_in(self, value, error) from error

    def finish(self) -> None:
        self._flush()
        if not self.context.checkpointing and self._committer is not None:
            # Without checkpoints the end of the input is the only moment at which output can be shown.
            self._prepare(0)
            commit_with_retries(self._committer, [item.payload for item in self._prepared])
            self._prepared.clear()

    def prepare_snapshot(self, checkpoint_id: int) -> None:
        self._flush()
        self._prepare(checkpoint_id)

    def _flush(self) -> None:
        try:
            self._writer.flush()
        except Exception as error:
            raise failure_in(self, "(none: flushing the sink)", error) from error

    def _prepare(self, checkpoint_id: int) -> None:
        try:
            payloads = self._writer.prepare_commit(checkpoint_id)
        except Exception as error:
            raise failure_in(self, f"(none: preparing checkpoint {checkpoint_id})", error) from error
        self._prepared.extend(PreparedItem(checkpoint_id, payload) for payload in payloads)

    def prepared(self) -> Sequence[PreparedItem]:
        return self._prepared

    def snapshot(self, checkpoint_id: int, *, canonical: bool) -> SubtaskWork:
        if isinstance(self._writer, CheckpointedFunction):
            try:
                self._writer.snapshot_state(SnapshotContext(checkpoint_id))
            except Exception as error:
                raise failure_in(self, f"(none: in snapshot_state() of checkpoint {checkpoint_id})", error) from error
        work = super().snapshot(checkpoint_id, canonical=canonical)
        # A savepoint shares nothing, so that it can be moved as a whole.
        return SinkWork(work.snapshot, work.keyed, 0 if canonical else checkpoint_id)

    def extra(self) -> bytes:
        # A writer that keeps operator state has no bytes besides: both ways are called `snapshot_state`.
        return b"" if isinstance(self._writer, CheckpointedFunction) else self._writer.snapshot_state()

    def complete(self, checkpoint_id: int) -> BackgroundWork | None:
        super().complete(checkpoint_id)
        if isinstance(self._writer, CheckpointListener):
            self._writer.notify_checkpoint_complete(checkpoint_id)
        due = [item for item in self._prepared if item.checkpoint_id <= checkpoint_id]
        committer = self._committer
        if not due or committer is None:
            return None
        self._completed = max(self._completed, checkpoint_id)
        self._measure_lag()

        def forget() -> None:
            committed = set(map(id, due))
            self._prepared = [item for item in self._prepared if id(item) not in committed]
            self._measure_lag()

        def commit() -> Any:
            # Checkpoints may complete faster than sinks commit: a committer serves one of them at a time.
            with self._committing:
                commit_with_retries(committer, [item.payload for item in due])
            return forget

        return commit

    def _measure_lag(self) -> None:
        due = [item for item in self._prepared if item.checkpoint_id <= self._completed]
        self._lag = Lag(len({item.checkpoint_id for item in due}), sum(len(item.payload) for item in due))

    def aborted(self, checkpoint_id: int) -> None:
        if isinstance(self._writer, CheckpointListener):
            self._writer.notify_checkpoint_aborted(checkpoint_id)

    def close(self) -> None:
        if self._opened:
            self._writer.close()
        if self._committer is not None:
            self._committer.close()


def commit_with_retries(committer: Committer, payloads: Sequence[bytes]) -> None:
    """Commit, trying again while the sink says that nothing happened or cannot tell.

    Trying again is safe in both cases, because a committer takes the same item any number of times.
    """
    for attempt in range(1, COMMIT_TRIES + 1):
        try:
            committer.commit(payloads)
            return
        except (CommitFailedError, CommitOutcomeUnknownError):
            if attempt == COMMIT_TRIES:
                raise
            time.sleep(min(0.1 * 2**attempt, 2.0))
