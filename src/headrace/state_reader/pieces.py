"""Shares of one state that can be read apart from each other, on any machine that reaches the storage.

A table is read by ranges of key groups: each reader seeks to its own. The files of a RocksDB database belong
together, so there one subtask of the job that wrote it is one piece.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import msgspec

from headrace.backends.rocksdb.restore import native_rows
from headrace.backends.rocksdb.snapshot import FORMAT as DATABASE
from headrace.backends.table import FORMAT as TABLE
from headrace.backends.table import Rows, read_table, rows_of_timers
from headrace.checkpoint.handles import KeyedSnapshot, StateShape
from headrace.checkpoint.metadata.model import OperatorRecord
from headrace.errors import DamagedCheckpointError, UnsupportedFormatError
from headrace.state.backend import BackendContext, FileStore
from headrace.state.timers import Timer


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """The key groups `first_group..last_group` of one subtask's snapshot."""

    subtask: int
    first_group: int
    last_group: int

    @property
    def groups(self) -> range:
        return range(self.first_group, self.last_group + 1)


def pieces_of(record: OperatorRecord, count: int, groups: range | None = None) -> list[Piece]:
    """At least one piece for each subtask with any of the groups; about `count` in all where that can be."""
    found: list[Piece] = []
    snapshots = [s for s in record.subtasks if s.keyed is not None]
    each = max(1, -(-count // max(1, len(snapshots))))
    for subtask in snapshots:
        keyed = subtask.keyed
        assert keyed is not None
        first, last = keyed.first_group, keyed.last_group
        if groups is not None:
            first, last = max(first, groups.start), min(last, groups.stop - 1)
        if first > last:
            continue
        parts = 1 if keyed.format == DATABASE else min(each, last - first + 1)
        size = last - first + 1
        bounds = [first + size * n // parts for n in range(parts + 1)]
        found += [Piece(subtask.subtask, a, b - 1) for a, b in pairwise(bounds)]
    return found


def read_piece(
    record: OperatorRecord, piece: Piece, store: FileStore, wanted: str
) -> Iterator[tuple[StateShape, Rows]]:
    """Rows of the state called `wanted` (for timers: the time domain) within the piece."""
    keyed = next((s.keyed for s in record.subtasks if s.subtask == piece.subtask), None)
    if keyed is None:
        raise DamagedCheckpointError(f"Subtask {piece.subtask} of operator {record.uid} has no keyed state.")
    if keyed.format == TABLE:
        yield from _table_rows(record.uid, keyed, piece.groups, store, wanted)
    elif keyed.format == DATABASE:
        yield from _database_rows(record, keyed, piece, store, wanted)
    else:
        raise UnsupportedFormatError(
            f'Keyed state of operator "{record.uid}" is in the format "{keyed.format}", which this release does not '
            f'read (it reads "{TABLE}" and "{DATABASE}"). Read it with a newer release.'
        )


def _table_rows(
    uid: str, keyed: KeyedSnapshot, groups: range, store: FileStore, wanted: str
) -> Iterator[tuple[StateShape, Rows]]:
    if len(keyed.files) > 1:
        raise DamagedCheckpointError(f'The table of operator "{uid}" has {len(keyed.files)} files instead of one.')
    file = keyed.files[0] if keyed.files else None
    for _, state, rows in read_table(file, keyed.details, len(keyed.shapes), store, groups):
        if keyed.shapes[state].name == wanted:
            yield keyed.shapes[state], rows


def _database_rows(
    record: OperatorRecord, keyed: KeyedSnapshot, piece: Piece, store: FileStore, wanted: str
) -> Iterator[tuple[StateShape, Rows]]:
    with tempfile.TemporaryDirectory(prefix="headrace-state-") as folder:
        local = Path(folder)
        context = BackendContext(record.uid, piece.subtask, piece.groups, record.max_parallelism, local)
        timers: dict[str, list[Timer]] = {}
        for shape, rows in native_rows(context, keyed, store, local / "db", timers):
            if shape.name == wanted:
                yield shape, rows
        domain = next((s for s in keyed.shapes if s.kind == "timers" and s.name == wanted), None)
        if domain is not None:
            for rows in rows_of_timers(timers.get(wanted, ()), record.max_parallelism).values():
                yield domain, rows
