"""Snapshots of RocksDB state.

*Native* (`format = "rocksdb"`): the files of the database. Steps, numbered as in the code:

    1  at the barrier: changed entries of the cache are frozen, or go into the database; hot ones and timers are copied
    2  on a thread of its own, at once: frozen entries go into the database, which is flushed and its files hard-linked
       into a folder beside it; until that is done nothing else is written to the database, and processing goes on in
       the cache
    3  in the background: upload. Table files (.sst) never change, so one that the last completed checkpoint has
       is named again instead of uploaded again (by its local name, which is good for this open database only);
       see `upload`
    4  the folder of links is removed, also when the checkpoint is aborted

`files` holds the database's files in the order of `DatabaseDetails.names`, then, if there is anything in memory that is
not in them, one table of it in the canonical format: hot entries (see `frozen`) and timers (those beyond are in the
database, see `timers`).

*Canonical* (savepoints): the table format, read from a view of each column family; the views are taken in step 2.
"""

from __future__ import annotations

import shutil
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from headrace.backends.expiring import has_expired
from headrace.backends.rocksdb.cache import CacheKeeper
from headrace.backends.rocksdb.database import Database, FrozenFamily
from headrace.backends.rocksdb.frozen import KeptChanges
from headrace.backends.rocksdb.layout import GROUP, POSITION, split
from headrace.backends.rocksdb.timers import rows_of_entries
from headrace.backends.rocksdb.upload import DatabaseUpload
from headrace.backends.snapshots import SnapshotLabel, cancelled
from headrace.backends.table import Rows, TableWriter, rows_of_timers, table_snapshot
from headrace.checkpoint.handles import KeyedSnapshot, StateFile
from headrace.state.backend import FileStore
from headrace.state.timers import FrozenTimers

FORMAT = "rocksdb"
VERSION = 1
WITH_TIMERS = 2
"""The version of snapshots with timers in the database, which earlier releases would leave there unread."""
WITH_CHANGES = 3
"""The version of snapshots with changes beside the database."""

_ROWS = 4096


class DatabaseDetails(msgspec.Struct, frozen=True):
    """What `details` of a native snapshot holds."""

    version: int
    names: tuple[str, ...]
    """Local names of the database's files, in the order of `KeyedSnapshot.files`."""
    positions: dict[str, int]
    """By list state: the number that the next element gets."""
    timers: bytes = b""
    """Index of the table of what was in memory, the last of the files; empty if there is none. It has timers, and
    changed entries (rows without values: entries that are gone), which are newer than those of the database."""
    headed: tuple[str, ...] = ()
    """List states of which every list has an element at position 0; others were written by releases before that."""


class DatabaseSnapshot(ABC):
    """Step 2, and what became of it."""

    def __init__(self, label: SnapshotLabel) -> None:
        self._label = label
        self._cancelled = False
        self._taken = threading.Event()
        self._failure: Exception | None = None

    @property
    @abstractmethod
    def finished(self) -> bool:
        """Whether nothing of the database is held on to."""

    def take(self, keeper: CacheKeeper) -> None:
        """Step 2. Runs on a thread of its own; sets `keeper.linked` when the database may be written again."""
        try:
            keeper.write_frozen()
            self._take(keeper.database)
        except Exception as error:
            self._failure = error
        finally:
            keeper.linked.set()
            self._taken.set()

    def _wait(self) -> None:
        """Until the database is taken; the error, if it could not be."""
        self._taken.wait()
        if self._failure is not None:
            raise self._failure

    @abstractmethod
    def _take(self, database: Database) -> None: ...

    @abstractmethod
    def write(self, store: FileStore) -> KeyedSnapshot: ...

    @abstractmethod
    def cancel(self) -> None: ...


class NativeSnapshot(DatabaseSnapshot):
    """The files of the database as of the barrier, and what of its state was in memory."""

    def __init__(
        self,
        label: SnapshotLabel,
        folder: Path,
        kept: list[KeptChanges],
        timers: list[FrozenTimers],
        positions: dict[str, int],
        headed: tuple[str, ...],
        max_parallelism: int,
        known: dict[str, StateFile] | None,
        remember: Callable[[int, dict[str, StateFile]], None],
        *,
        merge: bool = True,
        with_timers: bool = False,
    ) -> None:
        """`kept`: what belongs to it and is not in the database. `known`: table files of the last completed checkpoint
        by local name; None: nothing is shared. `merge`: small files go into packs. `with_timers`: some are in the
        database."""
        super().__init__(label)
        self._folder = folder
        self._kept = kept
        self._timers = timers
        self._positions = positions
        self._headed = headed
        self._max_parallelism = max_parallelism
        self._known = known
        self._remember = remember
        self._merge = merge
        self._version = WITH_TIMERS if with_timers else VERSION
        self._writer = TableWriter()
        self._memory: list[bytes] = []
        self._lock = threading.Lock()
        self._writing = False
        self._removed = False

    @property
    def finished(self) -> bool:
        """Whether the folder of links is gone."""
        return self._removed

    def take(self, keeper: CacheKeeper) -> None:
        super().take(keeper)
        with self._lock:
            if self._cancelled and not self._writing:
                self._remove()

    def _take(self, database: Database) -> None:
        # First, and then let go: what is held of old values makes new ones slower.
        kept, self._kept = self._kept, []
        self._memory = list(_memory_chunks(self._writer, self._label, kept, self._timers, self._max_parallelism))
        if kept:
            self._version = WITH_CHANGES
        del kept
        database.link(self._folder)

    def write(self, store: FileStore) -> KeyedSnapshot:
        label = self._label
        with self._lock:
            if self._cancelled:
                raise cancelled(label)
            self._writing = True
        try:
            self._wait()
            return self._upload(store)
        except OSError:
            # Closing the backend takes the links away under an upload that was cancelled.
            if self._cancelled:
                raise cancelled(label) from None
            raise
        finally:
            with self._lock:
                self._remove()  # Step 4

    def _upload(self, store: FileStore) -> KeyedSnapshot:
        """Step 3."""
        label, known = self._label, self._known
        upload = DatabaseUpload(
            store, label.file_name, known, merge=self._merge, stop_if_cancelled=self._stop_if_cancelled
        )
        found = upload.run(self._folder)
        files = list(found.values())
        if self._memory:
            files.append(store.write(f"{label.file_name}-memory", self._memory))
        index = self._writer.index() if self._memory else b""
        details = DatabaseDetails(self._version, tuple(found), self._positions, index, self._headed)
        self._remember(label.checkpoint_id, {name: file for name, file in found.items() if upload.is_shared(name)})
        groups = label.groups
        return KeyedSnapshot(
            FORMAT, groups.start, groups.stop - 1, label.shapes, tuple(files), msgspec.msgpack.encode(details)
        )

    def _stop_if_cancelled(self) -> None:
        if self._cancelled:
            raise cancelled(self._label)

    def cancel(self) -> None:
        with self._lock:
            self._cancelled = True
            if self._taken.is_set() and not self._writing:
                self._remove()

    def _remove(self) -> None:
        if not self._removed:
            self._removed = True
            shutil.rmtree(self._folder, ignore_errors=True)


def _memory_chunks(
    writer: TableWriter,
    label: SnapshotLabel,
    kept: list[KeptChanges],
    timers: list[FrozenTimers],
    max_parallelism: int,
) -> Iterator[bytes]:
    """A table of changed entries and of timers, with the states' numbers as in a table of everything."""
    numbers = {shape.name: number for number, shape in enumerate(label.shapes) if shape.kind != "timers"}
    columns = {numbers[changes.state]: changes.rows(max_parallelism) for changes in kept}
    for state, frozen in enumerate(timers, len(label.shapes) - len(timers)):
        columns[state] = {group: [rows] for group, rows in rows_of_timers(frozen, max_parallelism).items()}
    for group in label.groups:
        states = ((state, rows) for state in sorted(columns) for rows in columns[state].get(group, ()))
        yield from writer.group(group, states)


class CanonicalSnapshot(DatabaseSnapshot):
    """A savepoint's table, read from frozen views of the column families."""

    def __init__(
        self,
        label: SnapshotLabel,
        states: list[str],
        timers: list[FrozenTimers],
        max_parallelism: int,
        horizons: list[bytes | None],
        distant: list[str | None],
        *,
        compression: bool = False,
    ) -> None:
        """`states` are families in the order of the label's shapes; so are `horizons`: where a state has one, entries
        that expired by it are left out. `distant` are the families of timers that are not in memory, by domain."""
        super().__init__(label)
        self._horizons = horizons
        self._families = states, distant
        self._views: list[FrozenFamily] = []
        self._distant: list[FrozenFamily | None] = []
        self._compression = compression
        self._timers = timers
        self._max_parallelism = max_parallelism
        self._written = False

    @property
    def finished(self) -> bool:
        return self._written

    def _take(self, database: Database) -> None:
        states, distant = self._families
        self._views = [database.family(name).freeze() for name in states]
        self._distant = [None if name is None else database.family(name).freeze() for name in distant]

    def write(self, store: FileStore) -> KeyedSnapshot:
        label = self._label
        writer = TableWriter(compression=self._compression)
        try:
            self._wait()
            chunks = self._chunks(writer)
            first = next(chunks, None)
            files = () if first is None else (store.write(f"{label.file_name}.table", _joined(first, chunks)),)
            return table_snapshot(label.groups, label.shapes, files, writer.index())
        finally:
            # A view keeps old files of the database alive.
            self._views = []
            self._distant = []
            self._written = True

    def _chunks(self, writer: TableWriter) -> Iterator[bytes]:
        columns = [rows_of_timers(frozen, self._max_parallelism) for frozen in self._timers]
        for group in self._label.groups:
            yield from writer.group(group, self._group(group, columns))

    def _group(self, group: int, columns: list[dict[int, Rows]]) -> Iterator[tuple[int, Rows]]:
        start, stop = GROUP.pack(group), GROUP.pack(group + 1)
        for state, view in enumerate(self._views):
            items: Iterable[tuple[bytes, bytes]] = view.scan(start, stop)
            horizon = self._horizons[state]
            if horizon is not None:
                items = _unexpired(items, horizon)
            for rows in rows_of(items, self._label.shapes[state].kind):
                if self._cancelled:
                    raise cancelled(self._label)
                yield state, rows
        for state, (near, distant) in enumerate(zip(columns, self._distant, strict=True), len(self._views)):
            if group in near:
                yield state, near[group]
            if distant is not None:
                yield from ((state, rows) for rows in rows_of_entries(distant.scan(start, stop)))

    def cancel(self) -> None:
        self._cancelled = True


def _unexpired(items: Iterable[tuple[bytes, bytes]], horizon: bytes) -> Iterator[tuple[bytes, bytes]]:
    return (item for item in items if not has_expired(item[1], horizon))


def _joined(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest


def rows_of(items: Iterable[tuple[bytes, bytes]], kind: str) -> Iterator[Rows]:
    """Rows of database entries, some thousand at a time; elements of a list are numbered from 0."""
    has_entries = kind in ("list", "map")
    keys: list[Any] = []
    namespaces: list[bytes] = []
    entries: list[bytes] = []
    values: list[bytes] = []
    owner: tuple[Any, bytes] | None = None
    position = 0
    for raw, value in items:
        key, namespace, entry = split(raw)
        if kind == "list":
            position = position + 1 if owner == (key, namespace) else 0
            owner = (key, namespace)
            entry = POSITION.pack(position)
        keys.append(key)
        namespaces.append(namespace)
        entries.append(entry)
        values.append(value)
        if len(keys) == _ROWS:
            yield Rows(keys, namespaces if any(namespaces) else None, entries if has_entries else None, values)
            keys, namespaces, entries, values = [], [], [], []
    if keys:
        yield Rows(keys, namespaces if any(namespaces) else None, entries if has_entries else None, values)
