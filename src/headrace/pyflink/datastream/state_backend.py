"""State backends, under the names of `pyflink.datastream.state_backend`."""

from __future__ import annotations

from enum import Enum
from typing import Any

from headrace.datastream import backends
from headrace.datastream.backends import (
    FsStateBackend,
    HashMapStateBackend,
    MemoryStateBackend,
    RocksDBStateBackend,
    StateBackend,
)
from headrace.datastream.ignored import ignored
from headrace.pyflink.absence import absent

__all__ = [
    "EmbeddedRocksDBStateBackend",
    "FsStateBackend",
    "HashMapStateBackend",
    "MemoryStateBackend",
    "PredefinedOptions",
    "RocksDBStateBackend",
    "StateBackend",
]


class PredefinedOptions(Enum):
    """Flink's profiles of RocksDB for kinds of disks."""

    DEFAULT = 0
    SPINNING_DISK_OPTIMIZED = 1
    SPINNING_DISK_OPTIMIZED_HIGH_MEM = 2
    FLASH_SSD_OPTIMIZED = 3


class EmbeddedRocksDBStateBackend(backends.EmbeddedRocksDBStateBackend):
    """Headrace's own, with the settings of Flink's that do nothing here. Sizes are `headrace.RocksDBOptions`."""

    def __init__(self, enable_incremental_checkpointing: bool | None = None) -> None:
        super().__init__(enable_incremental_checkpointing)
        self._paths: list[str] = []
        self._predefined = PredefinedOptions.DEFAULT
        self._factory: Any = None
        self._threads = 4

    def set_db_storage_paths(self, *paths: str) -> None:
        ignored("set_db_storage_paths()", "databases lie in the temporary directory of Spark's workers.")
        self._paths = list(paths)

    def get_db_storage_paths(self) -> list[str]:
        return list(self._paths)

    def set_predefined_options(self, options: PredefinedOptions) -> None:
        ignored("set_predefined_options()", "give headrace.RocksDBOptions or the state.backend.rocksdb settings.")
        self._predefined = PredefinedOptions(options)

    def get_predefined_options(self) -> PredefinedOptions:
        return self._predefined

    def set_options(self, options_factory_class_name: Any) -> None:
        ignored("EmbeddedRocksDBStateBackend.set_options()", "an options factory is a class of Java.")
        self._factory = options_factory_class_name

    def get_options(self) -> Any:
        return self._factory

    def set_number_of_transfer_threads(self, number_of_transfer_threads: int) -> None:
        ignored("set_number_of_transfer_threads()", "each subtask uploads its own files, one after the other.")
        self._threads = int(number_of_transfer_threads)

    def get_number_of_transfer_threads(self) -> int:
        return self._threads


__getattr__ = absent(
    __name__,
    {"CustomStateBackend": "it wraps a class of Java. Use HashMapStateBackend or EmbeddedRocksDBStateBackend."},
)
