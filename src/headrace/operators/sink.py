"""The sink operator: a writer, and the ordered list of items that are prepared but not known to be committed."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from headrace.checkpoint.handles import PreparedItem, SubtaskSnapshot
from headrace.connectors.sink import Committer, Sink, SinkWriter, WriterContext
from headrace.errors import CommitFailedError, CommitOutcomeUnknownError
from headrace.operators.base import BackgroundWork, Operator, Restored, SubtaskWork, failure_in
from headrace.operators.checkpointed import CheckpointedFunction
from headrace.operators.context import InitializationContext, SnapshotContext
from headrace.operators.functions import CheckpointListener
from headrace.state.backend import FileStore

COMMIT_TRIES = 5

LARGEST_INLINE_ITEM = 16 * 1024
"""Prepared items above this size go into a file of the checkpoint instead of its `_metadata`."""


class SinkWork(SubtaskWork):
    """A sink's snapshot: large prepared items are written to files, in the background as state is."""

    __slots__ = ()

    def finish(self, store: FileStore) -> SubtaskSnapshot:
        snapshot = super().finish(store)
        return msgspec.structs.replace(snapshot, prepared=tuple(_stored(item, store) for item in snapshot.prepared))


def _stored(item: PreparedItem, store: FileStore) -> PreparedItem:
    # Each checkpoint that holds the item has a file of its own, so none depends on another's being kept. An item is
    # held by one checkpoint, or by two where its commit is slow, so that hardly ever writes anything twice.
    if len(item.payload) <= LARGEST_INLINE_ITEM:
        return item
    return PreparedItem(item.checkpoint_id, b"", store.write("prepared", [item.payload]))


def payload_of(item: PreparedItem, store: FileStore) -> bytes:
    """What the committer needs, wherever the checkpoint keeps it."""
    return item.payload if item.file is None else store.read(item.file)


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
        except Exception as error:
            raise failure_in(self, "(none: opening the sink)", error) from error

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
        return SinkWork(work.snapshot, work.keyed)

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

        def forget() -> None:
            committed = set(map(id, due))
            self._prepared = [item for item in self._prepared if id(item) not in committed]

        def commit() -> Any:
            # Checkpoints may complete faster than sinks commit: a committer serves one of them at a time.
            with self._committing:
                commit_with_retries(committer, [item.payload for item in due])
            return forget

        return commit

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
