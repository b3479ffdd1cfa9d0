"""What may be deleted, gathered until the last removal is over: deciding is done here, deleting on an I/O thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from headrace.checkpoint.handles import CheckpointId
from headrace.checkpoint.lifecycle.lifecycle import CheckpointLifecycle
from headrace.checkpoint.metadata.model import CheckpointMetadata
from headrace.errors import StorageError
from headrace.runtime.coordinator.events import Removed
from headrace.runtime.coordinator.executor import Executor, Lane
from headrace.runtime.coordinator.ports import CheckpointStore, CoordinatedAttempt, Removal
from headrace.runtime.coordinator.savepoints import SavepointOrder

MAX_WAITING_FILES = 20_000
"""While storage deletes nothing, more are forgotten: they go with their checkpoint's directory later."""


class Removals:
    """Knows which checkpoints are retained. Used by the coordinator's thread; has one removal under way at a time."""

    def __init__(
        self,
        attempt: CoordinatedAttempt,
        lifecycle: CheckpointLifecycle,
        store: CheckpointStore,
        executor: Executor,
    ) -> None:
        self._attempt = attempt.number
        self._retain = attempt.lifecycle.retain
        self._lifecycle = lifecycle
        self._store = store
        self._executor = executor
        self._retained = {metadata.checkpoint_id: metadata for metadata in attempt.retained}
        """Every checkpoint of which anything may still be there."""
        self._checkpoints: set[CheckpointId] = set()
        self._files: dict[str, None] = {}
        self._savepoints: list[SavepointOrder] = []
        self._claimed: bool | None = False
        """Whether what the job was started from may go; None when that has been said."""
        self._under_way = False
        self._retry: set[CheckpointId] = set()
        """Could not be dropped: tried again with the next ones."""

    def retain(self, metadata: CheckpointMetadata) -> None:
        """The checkpoint is complete."""
        self._retained[metadata.checkpoint_id] = metadata
        if self._claimed is False and len(self._retained) >= self._retain:
            self._claimed = True
            self._next()

    def drop(self, checkpoint_ids: Iterable[CheckpointId]) -> None:
        self._checkpoints.update(checkpoint_ids)
        self._next()

    def discard(self, files: Iterable[str]) -> None:
        if len(self._files) < MAX_WAITING_FILES:
            self._files.update(dict.fromkeys(files))
            self._next()

    def dispose(self, order: SavepointOrder) -> None:
        """Remove what a savepoint has left that failed, and nothing if it may exist."""
        if not order.may_exist:
            self._savepoints.append(order)
            self._next()

    def over(self, checkpoint_ids: tuple[CheckpointId, ...], *, failed: bool) -> None:
        """The removal that was under way has ended."""
        self._under_way = False
        if failed:
            self._retry.update(checkpoint_ids)
        else:
            for checkpoint_id in checkpoint_ids:
                self._retained.pop(checkpoint_id, None)
        self._next()

    def finish(self) -> None:
        """The attempt is over: what is left goes to the lane at once."""
        self._under_way = False
        self._next()

    def _next(self) -> None:
        if self._under_way or not (self._checkpoints or self._files or self._savepoints or self._claimed):
            return
        if self._checkpoints:
            self._checkpoints |= self._retry
            self._retry.clear()
        removal = Removal(
            checkpoint_ids=tuple(sorted(self._checkpoints)),
            files=tuple(self._files),
            savepoints=tuple(self._savepoints),
            retained=tuple(m for number, m in self._retained.items() if number not in self._checkpoints),
            open_ids=(*self._lifecycle.open_ids, *self._lifecycle.undecided_ids),
            next_id=self._lifecycle.next_id,
            claimed=self._claimed is True,
        )
        self._checkpoints = set()
        self._files = {}
        self._savepoints = []
        self._claimed = None if self._claimed else self._claimed
        self._under_way = True
        self._executor.submit(Lane.REMOVE, self._work(removal))

    def _work(self, removal: Removal) -> Callable[[], Removed]:
        def work() -> Removed:
            try:
                self._store.remove(removal)
            except StorageError as error:
                return Removed(self._attempt, removal.checkpoint_ids, error)
            return Removed(self._attempt, removal.checkpoint_ids)

        return work
