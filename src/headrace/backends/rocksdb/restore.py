"""Restoring RocksDB state.

The snapshot of exactly these key groups is a database already: its files are fetched and opened. At another
parallelism the largest of the old databases is taken over as a whole and *clipped*: a range deletion hides what is
another subtask's, and later compactions give its space back. What the others hold of the subtask's key groups is copied
into it, as are the rows of a table (a savepoint, a checkpoint of the heap backend).

A clipped database holds entries of groups outside of its snapshot's range, hidden or not yet: so nothing outside of
that range is ever read from a snapshot.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from headrace.backends.elements import refuse_other_shape
from headrace.backends.rocksdb.database import Database, Family
from headrace.backends.rocksdb.layout import (
    BEYOND,
    FIRST,
    HEAD,
    POSITION,
    Prefix,
    group_bounds,
    prefix_for,
    timers_family,
)
from headrace.backends.rocksdb.options import RocksDBOptions
from headrace.backends.rocksdb.snapshot import FORMAT, VERSION, WITH_CHANGES, WITH_TIMERS, DatabaseDetails, rows_of
from headrace.backends.rocksdb.timers import decode_timer, encoder_for
from headrace.backends.snapshots import DOMAINS
from headrace.backends.table import FORMAT as TABLE
from headrace.backends.table import Rows, read_table, timers_of_rows
from headrace.checkpoint.handles import KeyedSnapshot, StateFile, StateShape
from headrace.checkpoint.storage.parts import reading_parts
from headrace.errors import DamagedCheckpointError, StorageError, UnsupportedFormatError
from headrace.state.backend import BackendContext, FileStore
from headrace.state.timers import Timer

_BATCH = 1000
_THREADS = 4
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")
_decode_details = msgspec.msgpack.Decoder(DatabaseDetails).decode


class DatabaseRestore:
    """Brings snapshots into a database of one subtask. Used once."""

    def __init__(self, context: BackendContext, options: RocksDBOptions, path: Path, store: FileStore) -> None:
        self._context = context
        self._options = options
        self._path = path
        self._store: FileStore = reading_parts(store)
        self._prefix: Prefix = prefix_for(context.max_parallelism)
        self.shapes: dict[str, StateShape] = {}
        """Of every restored state, by name."""
        self.positions: dict[str, int] = {}
        """By list state: the number that the next element gets."""
        self.headless: set[str] = set()
        """List states with a list that has no element at position 0; see `lists`."""
        self._timers: dict[str, list[Timer]] = {}

    def run(self, snapshots: Sequence[KeyedSnapshot]) -> Database:
        """The database with all entries of the subtask's key groups. `timers` gives the timers that are not in it."""
        for snapshot in snapshots:
            if snapshot.format not in (FORMAT, TABLE):
                raise UnsupportedFormatError(
                    f'Keyed state of operator "{self._context.uid}" is in the format "{snapshot.format}", which this '
                    f'release does not read (it reads "{FORMAT}" and "{TABLE}"). Restore with a newer release.'
                )
            for shape in snapshot.shapes:
                if shape.kind != "timers":
                    known = self.shapes.setdefault(shape.name, shape)
                    refuse_other_shape(self._context.uid, known, shape, restored=True)
        groups = self._context.key_groups
        if (
            len(snapshots) == 1
            and snapshots[0].format == FORMAT
            and (snapshots[0].first_group, snapshots[0].last_group) == (groups.start, groups.stop - 1)
        ):
            database = self._whole(snapshots[0])
        else:
            base = max((s for s in snapshots if s.format == FORMAT), key=_size, default=None)
            database = Database(self._path, self._options) if base is None else self._whole(base)
            try:
                if base is not None:
                    self._clip(database, base)
                for number, snapshot in enumerate(snapshots):
                    if snapshot is base:
                        continue
                    if snapshot.format == FORMAT:
                        self._part(snapshot, database, self._path.with_name(f"restore-{number}"))
                    else:
                        self._rows(snapshot, database)
            except BaseException:
                database.close()
                raise
        return database

    def timers(self, domain: str) -> list[Timer]:
        """Of that time domain, earliest first."""
        # Sorted within a key group only; the stable sort keeps the order of equal times.
        return sorted(self._timers.get(domain, ()), key=lambda timer: timer[0])

    def _whole(self, snapshot: KeyedSnapshot) -> Database:
        details = self._fetch(snapshot, self._path)
        self.positions.update(details.positions)
        self._take_heads(snapshot, details)
        database = self._open(self._path)
        try:
            self._take_memory(snapshot, details, database)
        except BaseException:
            database.close()
            raise
        return database

    def _clip(self, database: Database, snapshot: KeyedSnapshot) -> None:
        """Hide what a database taken over as a whole holds of other subtasks' key groups."""
        start, stop = group_bounds(_common(snapshot, self._context.key_groups))
        for family in database.families.values():
            if start > FIRST:
                family.delete_range(FIRST, start)
            family.delete_range(stop, BEYOND)

    def _part(self, snapshot: KeyedSnapshot, database: Database, folder: Path) -> None:
        """Copy the wanted key groups of another subtask's database."""
        try:
            details = self._fetch(snapshot, folder)
            for state, position in details.positions.items():
                self.positions[state] = max(position, self.positions.get(state, 0))
            self._take_heads(snapshot, details)
            source = self._open(folder, read_only=True)
            try:
                start, stop = group_bounds(_common(snapshot, self._context.key_groups))
                for name, family in source.families.items():
                    _copy(database, database.family(name), family.scan(start, stop))
            finally:
                source.close()
            self._take_memory(snapshot, details, database)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _rows(self, snapshot: KeyedSnapshot, database: Database) -> None:
        """Insert the wanted key groups of a table."""
        if len(snapshot.files) > 1:
            raise DamagedCheckpointError(
                f'The table of operator "{self._context.uid}" has {len(snapshot.files)} files instead of one. '
                "Restore from another checkpoint."
            )
        file = snapshot.files[0] if snapshot.files else None
        shapes = snapshot.shapes
        wanted = read_table(file, snapshot.details, len(shapes), self._store, self._context.key_groups)
        owner: Any = None
        for _, state, rows in wanted:
            shape = shapes[state]
            if shape.kind == "timers":
                self._take_rows_of_timers(shape.name, rows, database)
                continue
            if shape.kind == "list" and rows.entries:
                # Entries of one list are in order, and no other snapshot holds the same key.
                last = max(int.from_bytes(entry, "big") for entry in rows.entries)
                if last >= 1 << 63 or any(len(entry) != POSITION.size for entry in rows.entries):
                    raise DamagedCheckpointError(f'An element of list state "{shape.name}" has no valid position.')
                self.positions[shape.name] = max(last + 1, self.positions.get(shape.name, 0))
                owner = self._look_for_heads(shape.name, rows, owner)
            _copy(database, database.family(shape.name), self._entries(rows, shape))

    def _look_for_heads(self, name: str, rows: Rows, before: Any) -> Any:
        """Every list should begin at 0; `before` is whose list the rows before these ended with, and the result whose
        these end with."""
        assert rows.entries is not None
        spaces = rows.namespaces or [b""] * len(rows.keys)
        owner = before
        for key, space, entry in zip(rows.keys, spaces, rows.entries, strict=True):
            if owner != (owner := (name, key, space)) and entry != HEAD:
                self.headless.add(name)
        return owner

    def _entries(self, rows: Rows, shape: StateShape) -> Iterator[tuple[bytes, bytes]]:
        count = len(rows.keys)
        if rows.values is None or (rows.entries is None) == (shape.kind in ("list", "map")):
            raise DamagedCheckpointError(
                f'Rows of state "{shape.name}" lack the columns of a {shape.kind} state. '
                "Restore from another checkpoint."
            )
        namespaces = rows.namespaces or [b""] * count
        entries = rows.entries or [b""] * count
        prefix = self._prefix
        for key, namespace, entry, value in zip(rows.keys, namespaces, entries, rows.values, strict=True):
            yield prefix(key, namespace) + entry, value

    def _fetch(self, snapshot: KeyedSnapshot, folder: Path) -> DatabaseDetails:
        """Bring the files of a native snapshot into a folder that is made for it."""
        try:
            details = _decode_details(snapshot.details)
        except msgspec.MsgspecError as error:
            raise DamagedCheckpointError(
                f'The file list of operator "{self._context.uid}" cannot be decoded ({error}). '
                "Restore from another checkpoint."
            ) from error
        if details.version not in (VERSION, WITH_TIMERS, WITH_CHANGES):
            raise UnsupportedFormatError(
                f'RocksDB state of operator "{self._context.uid}" has format version {details.version}; this release '
                f"of Headrace reads versions {VERSION} to {WITH_CHANGES}. Restore it with the release that wrote it, "
                "or a newer one."
            )
        if len(snapshot.files) != len(details.names) + bool(details.timers):
            raise DamagedCheckpointError(
                f'Operator "{self._context.uid}" names {len(details.names)} database files but has '
                f"{len(snapshot.files)}. Restore from another checkpoint."
            )
        for name in details.names:
            if not _FILE_NAME.match(name):
                raise DamagedCheckpointError(
                    f"{name!r} is no name of a database file. Restore from another checkpoint."
                )
        folder.mkdir(parents=True)
        wanted = [(file, folder / name) for name, file in zip(details.names, snapshot.files, strict=False)]
        # Reading, hashing and writing all let other threads run; a store elsewhere answers several at once.
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="restore") as pool:
            fetching = [pool.submit(self._store.fetch, file, to) for file, to in wanted]
            try:
                for fetched in fetching:
                    fetched.result()
            finally:
                for waiting in fetching:
                    waiting.cancel()
        return details

    def _take_heads(self, snapshot: KeyedSnapshot, details: DatabaseDetails) -> None:
        lists = {shape.name for shape in snapshot.shapes if shape.kind == "list"}
        self.headless.update(lists.difference(details.headed))

    def _take_memory(self, snapshot: KeyedSnapshot, details: DatabaseDetails, database: Database) -> None:
        """Keep the timers, and bring changed entries into the database, which has older ones or none."""
        if not details.timers:
            return
        file: StateFile = snapshot.files[-1]
        shapes = snapshot.shapes
        groups = self._context.key_groups
        for _, state, rows in read_table(file, details.timers, len(shapes), self._store, groups):
            shape = shapes[state]
            if shape.kind == "timers":
                self._timers.setdefault(shape.name, []).extend(timers_of_rows(rows))
            elif rows.values is None:
                self._remove(rows, database, database.family(shape.name))
            else:
                _copy(database, database.family(shape.name), self._entries(rows, shape))

    def _remove(self, rows: Rows, database: Database, family: Family) -> None:
        batch = database.batch(family)
        for key, namespace in zip(rows.keys, rows.namespaces or [b""] * len(rows.keys), strict=True):
            batch.delete(self._prefix(key, namespace))
        database.write(batch)

    def _take_rows_of_timers(self, domain: str, rows: Rows, database: Database) -> None:
        """Keep them, and put them into the database when they have become more than memory should hold."""
        waiting = self._timers.setdefault(domain, [])
        waiting.extend(timers_of_rows(rows))
        if len(waiting) > self._options.timers_in_memory:
            encoded = sorted(map(encoder_for(self._context.max_parallelism), waiting))
            _copy(database, database.family(timers_family(domain)), ((raw, b"") for raw in encoded))
            waiting.clear()

    def _open(self, folder: Path, *, read_only: bool = False) -> Database:
        try:
            return Database(folder, self._options, read_only=read_only)
        except StorageError as error:
            raise DamagedCheckpointError(
                f'The database of operator "{self._context.uid}" was fetched whole but cannot be opened: {error}. '
                "Restore from another checkpoint."
            ) from error


def native_rows(
    context: BackendContext, snapshot: KeyedSnapshot, store: FileStore, folder: Path, timers: dict[str, list[Timer]]
) -> Iterator[tuple[StateShape, Rows]]:
    """The wanted key groups of a native snapshot as rows, for a backend that is no database; `timers` are added to.

    The files are fetched into `folder`, which is removed at the end.
    """
    restore = DatabaseRestore(context, RocksDBOptions(), folder, store)
    try:
        details = restore._fetch(snapshot, folder)
        database = restore._open(folder)
        try:
            restore._take_memory(snapshot, details, database)
            for domain, found in restore._timers.items():
                timers.setdefault(domain, []).extend(found)
            start, stop = group_bounds(_common(snapshot, context.key_groups))
            for domain in DOMAINS:
                if timers_family(domain) in database.families:
                    distant = database.family(timers_family(domain)).scan(start, stop)
                    timers.setdefault(domain, []).extend(decode_timer(raw) for raw, _ in distant)
            for shape in snapshot.shapes:
                if shape.kind != "timers" and shape.name in database.families:
                    for rows in rows_of(database.family(shape.name).scan(start, stop), shape.kind):
                        yield shape, rows
        finally:
            database.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _size(snapshot: KeyedSnapshot) -> int:
    return sum(file.size for file in snapshot.files)


def _common(snapshot: KeyedSnapshot, groups: range) -> range:
    """Of the wanted key groups those that the snapshot is of."""
    start = max(groups.start, snapshot.first_group)
    return range(start, max(start, min(groups.stop, snapshot.last_group + 1)))


def convert_family(database: Database, family: Family, convert: Callable[[bytes], bytes], key_groups: range) -> None:
    """Give every value of a state the form in which the program now declares it."""
    entries = family.scan(*group_bounds(key_groups))
    _copy(database, family, ((raw, convert(value)) for raw, value in entries))


def _copy(database: Database, family: Family, entries: Iterator[tuple[bytes, bytes]]) -> None:
    batch: Any = None
    count = 0
    for raw, value in entries:
        if batch is None:
            batch = database.batch(family)
        batch[raw] = value
        count += 1
        if count == _BATCH:
            database.write(batch)
            batch, count = None, 0
    if batch is not None:
        database.write(batch)
