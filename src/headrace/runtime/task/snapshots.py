"""The background of a task: writes snapshots, completes channel state, acknowledges; and commits sinks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from headrace import failpoints
from headrace.checkpoint.handles import ChannelSnapshot, TaskSnapshot
from headrace.checkpoint.local_copies import LocalCopies
from headrace.checkpoint.local_files import KeepingFileStore
from headrace.checkpoint.metadata.model import subtask_files
from headrace.checkpoint.storage.base import CheckpointStorage, FileStore, storage_for
from headrace.checkpoint.storage.paths import WriterScope
from headrace.errors import CheckpointError, CheckpointFailure, StorageError
from headrace.operators.base import SubtaskWork
from headrace.plan.graph import Edge
from headrace.runtime.control.messages import Acknowledge, Decline, Message
from headrace.runtime.task.in_flight import edges_with_records, frames
from headrace.runtime.task.spill import Queued
from headrace.state.object_batches import UNTYPED_PICKLES, RecordPickles


@dataclass(slots=True)
class RunningSnapshot:
    """A snapshot whose synchronous part is over."""

    checkpoint_id: int
    work: list[SubtaskWork]
    alignment_s: float
    sync_s: float
    logged: list[Queued]
    is_savepoint: bool = False
    """Its files go to the place that `SnapshotWriter.aim` names, not into the job's own storage."""
    log_complete: threading.Event = field(default_factory=threading.Event)
    cancelled: threading.Event = field(default_factory=threading.Event)


class SnapshotWriter:
    """Runs the asynchronous part of snapshots, several at a time if need be."""

    def __init__(
        self,
        *,
        level: int,
        slot: int,
        storage: CheckpointStorage,
        home: str,
        attempt: int,
        send: Callable[[Message], None],
        copies: LocalCopies | None = None,
        edges: Iterable[Edge] = (),
        pickles: RecordPickles = UNTYPED_PICKLES,
    ) -> None:
        """`copies`: where files of checkpoints are kept on this host too, for a restart; None: nowhere.

        `edges`: all of the program, for the records in flight on them.
        """
        self._edges = {edge.id: edge for edge in edges}
        self._pickles = pickles
        self._level = level
        self._slot = slot
        self._storage = storage
        self._home = home
        self._attempt = attempt
        self._send = send
        self._copies = copies
        self._pool = ThreadPoolExecutor(max_workers=4, thread_name_prefix="snapshot")
        self._running: dict[int, RunningSnapshot] = {}
        self._targets: dict[int, str] = {}
        self._aimed = threading.Condition()
        self.known_shared: frozenset[str] = frozenset()

    def begin(self, snapshot: RunningSnapshot) -> None:
        self._running[snapshot.checkpoint_id] = snapshot
        self._pool.submit(self._write, snapshot, self.known_shared)

    def completed(self, checkpoint_id: int, shared: frozenset[str]) -> None:
        """The checkpoint is durable; its shared files need not be stored again while it is retained."""
        self.known_shared = shared
        if self._copies is not None:
            # Deleting large files takes a while, which the mailbox has not got.
            self._pool.submit(self._copies.completed, checkpoint_id)

    def aim(self, checkpoint_id: int, location: str) -> None:
        """The place of a savepoint. Called by the control thread, perhaps after the savepoint's barrier came."""
        with self._aimed:
            self._targets[checkpoint_id] = location
            self._aimed.notify_all()

    def log_complete(self, checkpoint_id: int, cells: list[Queued]) -> None:
        """The rest of the cells in flight."""
        snapshot = self._running.get(checkpoint_id)
        if snapshot is not None:
            snapshot.logged.extend(cells)
            snapshot.log_complete.set()

    def abort(self, checkpoint_id: int) -> None:
        snapshot = self._running.pop(checkpoint_id, None)
        if snapshot is not None:
            snapshot.cancelled.set()
            snapshot.log_complete.set()
            for work in snapshot.work:
                work.cancel()
        if self._copies is not None:
            self._pool.submit(self._copies.aborted, checkpoint_id)
        with self._aimed:
            self._targets.pop(checkpoint_id, None)
            self._aimed.notify_all()

    def close(self) -> None:
        for checkpoint_id in list(self._running):
            self.abort(checkpoint_id)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _write(self, snapshot: RunningSnapshot, known_shared: frozenset[str]) -> None:
        checkpoint_id = snapshot.checkpoint_id
        scope = f"{self._level}.{self._slot}"
        started = time.monotonic()
        try:
            failpoints.hit("after_snapshot_local", scope)
            store = self._store(snapshot, known_shared)
            if store is None:
                return
            subtasks = tuple(work.finish(store) for work in snapshot.work)
            if self._copies is not None and not snapshot.is_savepoint:
                self._copies.carry_over(checkpoint_id, (file for s in subtasks for file in subtask_files(s)))
            snapshot.log_complete.wait()
            if snapshot.cancelled.is_set():
                return
            channels = None
            if snapshot.logged:
                cells = store.write(
                    f"channels-{self._level}-{self._slot}", frames(snapshot.logged, self._edges, self._pickles)
                )
                channels = ChannelSnapshot(
                    self._level, self._slot, cells, len(snapshot.logged), edges_with_records(snapshot.logged)
                )
            failpoints.hit("after_upload", scope)
            if snapshot.is_savepoint:
                failpoints.hit("savepoint_written", scope)
            files = [file for subtask in subtasks for file in subtask_files(subtask)]
            if channels is not None:
                files.append(channels.cells)
            failpoints.hit("before_ack", scope)
            self._send(
                Acknowledge(
                    checkpoint_id,
                    TaskSnapshot(
                        level=self._level,
                        slot=self._slot,
                        subtasks=subtasks,
                        channels=channels,
                        alignment_ms=round(snapshot.alignment_s * 1_000),
                        sync_ms=round(snapshot.sync_s * 1_000),
                        async_ms=round((time.monotonic() - started) * 1_000),
                        bytes_total=sum(file.size for file in files),
                        bytes_uploaded=sum(file.size for file in files if file.path not in known_shared),
                    ),
                )
            )
        except CheckpointError as error:
            self._decline(snapshot, error.failure, error.detail)
        except StorageError as error:
            self._decline(snapshot, CheckpointFailure.STORAGE, str(error))
        except Exception as error:
            self._decline(snapshot, CheckpointFailure.TASK_FAILED, f"{type(error).__name__}: {error}")
        finally:
            self._running.pop(checkpoint_id, None)

    def _store(self, snapshot: RunningSnapshot, known_shared: frozenset[str]) -> FileStore | None:
        """Where its files go; None if it was given up meanwhile."""
        checkpoint_id = snapshot.checkpoint_id
        if not snapshot.is_savepoint:
            prefix = WriterScope(self._home, checkpoint_id, self._attempt).prefix
            store = self._storage.file_store(prefix, known_shared)
            return store if self._copies is None else KeepingFileStore(store, self._copies, checkpoint_id)
        with self._aimed:
            self._aimed.wait_for(lambda: snapshot.cancelled.is_set() or checkpoint_id in self._targets)
            location = self._targets.pop(checkpoint_id, None)
        if location is None:
            return None
        # A savepoint is its own root and shares nothing, so that it can be moved as a whole.
        return storage_for(location).file_store(WriterScope("", checkpoint_id, self._attempt).prefix)

    def _decline(self, snapshot: RunningSnapshot, failure: CheckpointFailure, detail: str) -> None:
        if not snapshot.cancelled.is_set():
            self._send(Decline(snapshot.checkpoint_id, failure.name, detail))
