"""One RocksDB database of one subtask: opened once, one column family per state, no write-ahead log.

A crash loses the database, and the job goes back to its last checkpoint: so nothing is logged, and what
counts is in checkpoint storage. `rocksdict` is used in raw mode only (bytes in, bytes out; it would pickle
other values) and imported only when a backend is made.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from headrace.backends.rocksdb.layout import FAMILY_PREFIX, NOT_A_STATE, TIMERS_PREFIX, after, family_of
from headrace.backends.rocksdb.options import RocksDBOptions
from headrace.errors import MissingDependencyError, StorageError

TABLE_PREFIX = "table-"
"""Begins the names of table files beside the database that it has not taken in yet."""

_MB = 1 << 20


def load_rocksdict() -> Any:
    """The `rocksdict` module, or an error that says how to get it."""
    try:
        import rocksdict
    except ImportError as error:
        raise MissingDependencyError(
            "The RocksDB state backend needs the package rocksdict, which cannot be imported here: "
            'pip install "headrace[rocksdb]", or choose the heap backend (HashMapStateBackend).'
        ) from error
    return rocksdict


class FrozenFamily:
    """The entries of one state as they were when it was frozen. Used by one thread, which need not be the maker's.

    Made of an iterator, which sees the database as of its creation; `rocksdict`'s own snapshots freeze single
    reads but not iteration.
    """

    __slots__ = ("_iterator",)

    def __init__(self, iterator: Any) -> None:
        self._iterator = iterator

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Entries with start ≤ key < stop, in order of key."""
        iterator = self._iterator
        iterator.seek(start)
        while iterator.valid():
            key = iterator.key()
            if key >= stop:
                return
            yield key, iterator.value()
            iterator.next()
        iterator.status()  # raises if it ended for another reason than the end


class Family:
    """The entries of one state, by bytes."""

    __slots__ = ("_database", "_dict", "get", "handle", "name")

    def __init__(self, database: Database, name: str, handle: Any, column: Any) -> None:
        self._database = database
        self._dict = column
        self.name = name
        self.handle = handle
        self.get: Callable[[bytes], bytes | None] = column.get
        """The value under a key, or None."""

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Entries with start ≤ key < stop as of now, in order of key."""
        bounds = self._database.bounds(stop)
        # A generator of our own, because RocksDB reads the bound from `bounds` and rocksdict does not keep it alive.
        yield from self._dict.items(from_key=start, read_opt=bounds)

    def under(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Entries whose key begins with `prefix`, in order of key."""
        return self.scan(prefix, after(prefix))

    def freeze(self) -> FrozenFamily:
        """A view that later writes do not change."""
        return FrozenFamily(self._dict.iter())

    @contextmanager
    def table(self) -> Iterator[Any]:
        """A table file to fill, in order of key and with one entry at least; the family takes it in when that is done.

        What is in it is newer than what the family had. If anything fails, the family has nothing of it.
        """
        with self._database.table() as (path, table):
            yield table
            table.finish()
            self._dict.ingest_external_file([str(path)], self._database.ingestion)

    def delete_range(self, start: bytes, stop: bytes) -> None:
        """Hide all entries with start ≤ key < stop. Costs nothing now; compactions remove them later."""
        self._dict.delete_range(start, stop, self._database.write_options)

    def estimated_count(self) -> int:
        return int(self._dict.property_int_value("rocksdb.estimate-num-keys") or 0)

    def flush(self) -> None:
        """Make files of what is in memory. Lets other threads run meanwhile."""
        self._dict.flush()

    def compact(self, start: bytes, stop: bytes) -> None:
        """Give the space of deleted entries with start ≤ key < stop back. Lets other threads run meanwhile."""
        self._dict.compact_range(start, stop)

    def close(self) -> None:
        self._dict.close()
        # It holds on to the database, as states hold on to their family: open, it would still write files.
        self.handle = None


class Database:
    """An open database under `path`, made if it is not there."""

    def __init__(self, path: Path, options: RocksDBOptions, *, read_only: bool = False) -> None:
        self._rocks = load_rocksdict()
        self.path = path
        # Kept for the database's life: column families that are made later share this one cache.
        self._settings = _settings(self._rocks, options)
        self.write_options = self._rocks.WriteOptions()
        self.write_options.disable_wal = True
        self.ingestion = self._rocks.IngestExternalFileOptions()
        self.ingestion.set_move_files(True)
        self._tables = count()
        self.families: dict[str, Family] = {}
        """By state name; families that are no state's by names that no state has."""
        try:
            found = self._rocks.Rdict.list_cf(str(path), self._settings) if (path / "CURRENT").exists() else []
            access = self._rocks.AccessType.read_only(False) if read_only else self._rocks.AccessType.read_write()
            columns = dict.fromkeys(found, self._settings)
            self._root = self._rocks.Rdict(str(path), self._settings, columns or None, access)
        except Exception as error:
            raise StorageError(f"The RocksDB database at {path} cannot be opened: {error}") from error
        for name in found:
            if name.startswith(FAMILY_PREFIX):
                self._attach(name.removeprefix(FAMILY_PREFIX), self._root.get_column_family(name))
            elif name.startswith(TIMERS_PREFIX):
                self._attach(NOT_A_STATE + name, self._root.get_column_family(name))

    def family(self, state_name: str) -> Family:
        """The column family of a state, made at first use."""
        family = self.families.get(state_name)
        if family is None:
            try:
                column = self._root.create_column_family(family_of(state_name), self._settings)
            except Exception as error:
                raise StorageError(f'No column family for state "{state_name}" in {self.path}: {error}') from error
            family = self._attach(state_name, column)
        return family

    def _attach(self, state_name: str, column: Any) -> Family:
        handle = self._root.get_column_family_handle(family_of(state_name))
        family = self.families[state_name] = Family(self, state_name, handle, column)
        return family

    def batch(self, family: Family) -> Any:
        """An empty batch of changes to one family, for `write`."""
        batch = self._rocks.WriteBatch(raw_mode=True)
        batch.set_default_column_family(family.handle)
        return batch

    def write(self, batch: Any) -> None:
        """Apply a batch as one. Other Python threads stand still meanwhile, so batches are kept small."""
        try:
            self._root.write(batch, self.write_options)
        except Exception as error:
            raise StorageError(f"The RocksDB database at {self.path} refused to write: {error}") from error

    @contextmanager
    def table(self) -> Iterator[tuple[Path, Any]]:
        """A table file beside the database, and what writes it. It is gone afterwards, if no family has taken it."""
        path = self.path.with_name(f"{TABLE_PREFIX}{next(self._tables)}.sst")
        try:
            table = self._rocks.SstFileWriter(self._settings)
            table.open(str(path))
            yield path, table
        except Exception as error:
            raise StorageError(
                f"The RocksDB database at {self.path} could not take a table file in: {error}"
            ) from error
        finally:
            path.unlink(missing_ok=True)

    def bounds(self, stop: bytes) -> Any:
        """Read options that end a scan before `stop`: it spares a walk over deleted entries of the keys that follow."""
        options = self._rocks.ReadOptions()
        options.set_iterate_upper_bound(stop)
        return options

    def link(self, target: Path) -> None:
        """Hard-link a consistent copy into `target`, which must not exist.

        Families are flushed one by one before, because that lets other threads run and the linking, which
        would flush too, does not.
        """
        try:
            for family in list(self.families.values()):
                family.flush()
            self._rocks.Checkpoint(self._root).create_checkpoint(str(target))
        except Exception as error:
            shutil.rmtree(target, ignore_errors=True)
            raise StorageError(f"RocksDB could not link its files into {target}: {error}") from error

    def close(self) -> None:
        """Close all handles; a second call does nothing."""
        families, self.families = self.families, {}
        for family in families.values():
            family.close()
        self._root.close()


def _settings(rocks: Any, options: RocksDBOptions) -> Any:
    table = rocks.BlockBasedOptions()
    table.set_block_cache(rocks.Cache(options.block_cache_mb * _MB))
    table.set_block_size(options.block_size_kb << 10)
    table.set_bloom_filter(10, False)
    # Index and filter blocks in a small block cache push each other out: 289 µs a get instead of 7.
    table.set_cache_index_and_filter_blocks(False)
    table.set_format_version(5)
    # Measured with a million keys, together with the memtable's filter and blocks of 4 KiB: a get in half the time.
    table.set_data_block_index_type(rocks.DataBlockIndexType.binary_and_hash())
    table.set_data_block_hash_ratio(0.75)
    settings = rocks.Options(raw_mode=True)
    settings.create_if_missing(True)
    settings.set_block_based_table_factory(table)
    settings.set_write_buffer_size(options.write_buffer_mb * _MB)
    # Over all families: many states must not multiply the memory.
    settings.set_db_write_buffer_size(2 * options.write_buffer_mb * _MB)
    settings.set_max_write_buffer_number(3)
    settings.set_memtable_whole_key_filtering(True)
    settings.set_memtable_prefix_bloom_ratio(0.1)
    settings.set_max_open_files(options.max_open_files)
    settings.set_max_background_jobs(options.background_jobs)
    settings.set_target_file_size_base(options.target_file_mb * _MB)
    settings.set_max_bytes_for_level_base(4 * options.target_file_mb * _MB)
    settings.set_level_compaction_dynamic_level_bytes(True)
    settings.set_compression_type(rocks.DBCompressionType.lz4())
    # A manifest is uploaded with every checkpoint, so it starts afresh before it grows large.
    settings.set_max_manifest_file_size(1 * _MB)
    settings.set_keep_log_file_num(1)
    settings.set_max_log_file_size(1 * _MB)
    settings.set_stats_dump_period_sec(0)
    settings.set_stats_persist_period_sec(0)
    return settings
