"""State backends as programs choose them, under Flink's present and older names.

A backend says where state lives while the job runs; storage says where checkpoints go. The older names choose
both at once: `MemoryStateBackend`, `FsStateBackend`, `RocksDBStateBackend`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace

from headrace.backends.heap.options import HeapOptions
from headrace.backends.rocksdb.options import RocksDBOptions
from headrace.checkpoint.storage.base import CheckpointStorage, storage_for
from headrace.checkpoint.storage.memory import JobManagerCheckpointStorage
from headrace.plan.settings import BackendOptions


class StateBackend(ABC):
    """What `env.set_state_backend` takes."""

    storage: CheckpointStorage | None = None
    """Checkpoint storage that comes with it; None for the present names, which leave it alone."""

    @abstractmethod
    def options(self, heap: HeapOptions, rocksdb: RocksDBOptions) -> BackendOptions:
        """Settings for the tasks; `heap` and `rocksdb` hold where the program did not say."""


class HashMapStateBackend(StateBackend):
    """Objects in the worker's memory. The default.

    `asynchronous_snapshots=False` makes processing wait until each snapshot is written. None leaves it to the
    configuration (`state.backend.heap.asynchronous-snapshots`), which says yes.
    """

    def __init__(self, asynchronous_snapshots: bool | None = None) -> None:
        self._asynchronous = asynchronous_snapshots

    def options(self, heap: HeapOptions, rocksdb: RocksDBOptions) -> BackendOptions:
        return heap if self._asynchronous is None else replace(heap, asynchronous_snapshots=self._asynchronous)


class EmbeddedRocksDBStateBackend(StateBackend):
    """RocksDB on the worker's local disk: state may be larger than memory.

    `enable_incremental_checkpointing`: upload only files that the last completed checkpoint did not have. None leaves
    it to the configuration (`execution.checkpointing.incremental`), which says yes. `options` has the sizes.
    """

    def __init__(
        self, enable_incremental_checkpointing: bool | None = None, *, options: RocksDBOptions | None = None
    ) -> None:
        self._incremental = enable_incremental_checkpointing
        self._options = options

    def is_incremental_checkpoints_enabled(self) -> bool:
        """What holds unless the configuration says otherwise."""
        chosen = RocksDBOptions() if self._options is None else self._options
        return chosen.incremental if self._incremental is None else self._incremental

    def options(self, heap: HeapOptions, rocksdb: RocksDBOptions) -> BackendOptions:
        chosen = rocksdb if self._options is None else self._options
        return chosen if self._incremental is None else replace(chosen, incremental=self._incremental)


class MemoryStateBackend(HashMapStateBackend):
    """Older name: state on the heap, checkpoints in the coordinator's memory, `max_state_size` bytes for each state."""

    def __init__(self, max_state_size: int | None = None, asynchronous_snapshots: bool | None = None) -> None:
        super().__init__(asynchronous_snapshots)
        self.storage = JobManagerCheckpointStorage(max_state_size=max_state_size)


class FsStateBackend(HashMapStateBackend):
    """Older name: state on the heap, checkpoints in a directory."""

    def __init__(self, checkpoint_path: str, asynchronous_snapshots: bool | None = None) -> None:
        super().__init__(asynchronous_snapshots)
        self.storage = storage_for(checkpoint_path)


class RocksDBStateBackend(EmbeddedRocksDBStateBackend):
    """Older name: state in RocksDB, checkpoints in a directory."""

    def __init__(self, checkpoint_path: str, enable_incremental_checkpointing: bool | None = None) -> None:
        super().__init__(enable_incremental_checkpointing)
        self.storage = storage_for(checkpoint_path)
