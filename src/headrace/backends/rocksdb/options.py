"""Settings of the RocksDB backend; light, because they travel to every task. RocksDB itself is not imported here."""

from __future__ import annotations

from dataclasses import dataclass, fields

from headrace.errors import ConfigurationError

_FLAGS = ("incremental", "merge_small_files", "compression")


@dataclass(frozen=True, slots=True)
class RocksDBOptions:
    """How one subtask's database and the object cache above it are sized. All sizes are per subtask."""

    incremental: bool = True
    """Upload only files that the last completed checkpoint does not have; False: all of them, every time."""
    merge_small_files: bool = True
    """Store small files of one checkpoint together, as one object."""
    compression: bool = False
    """Compress savepoints (zstd). The files of checkpoints are compressed by RocksDB in any case."""
    cache_entries: int = 1_000_000
    """Decoded entries kept in memory above the database, over all states, about 150 MB of numbers; every 64 bytes of a
    longer value count as one more."""
    dirty_limit: int = 200_000
    """Changed entries not yet in the database, over all states; at most half of `cache_entries`. At a barrier they are
    written beside the stream; lists, maps and objects changed in place are waited for, so a tenth of them may be."""
    timers_in_memory: int = 100_000
    """Timers of one time domain that are kept in memory, about 35 MB; later ones are in the database."""
    write_buffer_mb: int = 16
    """What RocksDB collects in memory before it makes a file; the barrier's background part flushes it."""
    block_cache_mb: int = 64
    """RocksDB's cache of uncompressed blocks, shared by all states."""
    block_size_kb: int = 4
    max_open_files: int = 256
    """Open files keep their index and filter in memory, outside of the block cache."""
    background_jobs: int = 2
    """Threads for flushes and compactions."""
    target_file_mb: int = 16
    """Size of the files that compaction makes; smaller ones are more often reused by the next checkpoint."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name not in _FLAGS and (not isinstance(value, int) or value < 1):
                raise ConfigurationError(
                    f"RocksDBOptions.{field.name} is {value!r}; it must be a whole number from 1 up."
                )
