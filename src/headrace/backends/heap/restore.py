"""Restoring heap state, from a table or from the files of a RocksDB database.

Called before any state is declared. Rows of the key groups that this subtask owns are taken in as bytes;
they are decoded when the program declares the state (see `layout`).
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.backends.elements import refuse_other_shape
from headrace.backends.heap.layout import HeapTable
from headrace.backends.rocksdb.restore import native_rows
from headrace.backends.rocksdb.snapshot import FORMAT as DATABASE
from headrace.backends.table import FORMAT, read_table, timers_of_rows
from headrace.checkpoint.handles import KeyedSnapshot
from headrace.errors import DamagedCheckpointError, UnsupportedFormatError
from headrace.state.backend import BackendContext, FileStore
from headrace.state.timers import HeapTimerQueue, Timer


def restore_heap(
    snapshots: Sequence[KeyedSnapshot],
    store: FileStore,
    context: BackendContext,
    tables: dict[str, HeapTable],
    timers: dict[str, HeapTimerQueue],
) -> None:
    """Fill `tables` and `timers` with what of the snapshots falls into the subtask's key groups."""
    due: dict[str, list[Timer]] = {}
    for number, snapshot in enumerate(snapshots):
        if snapshot.format not in (FORMAT, DATABASE):
            raise UnsupportedFormatError(
                f'Keyed state of operator "{context.uid}" is in the format "{snapshot.format}", which this release '
                f'does not read (it reads "{FORMAT}" and "{DATABASE}"). Restore with a newer release.'
            )
        if snapshot.format == FORMAT and len(snapshot.files) > 1:
            raise DamagedCheckpointError(
                f'The table of operator "{context.uid}" has {len(snapshot.files)} files instead of one. '
                "Restore from another checkpoint."
            )
        for shape in snapshot.shapes:
            if shape.kind != "timers":
                known = tables.setdefault(shape.name, HeapTable(shape))
                refuse_other_shape(context.uid, known.shape, shape, restored=True)
        if snapshot.format == DATABASE:
            folder = context.local_dir / f"restore-{number}"
            for shape, rows in native_rows(context, snapshot, store, folder, due):
                tables[shape.name].add_rows(rows)
            continue
        file = snapshot.files[0] if snapshot.files else None
        shapes = snapshot.shapes
        for _, state, rows in read_table(file, snapshot.details, len(shapes), store, context.key_groups):
            shape = shapes[state]
            if shape.kind == "timers":
                due.setdefault(shape.name, []).extend(timers_of_rows(rows))
            else:
                tables[shape.name].add_rows(rows)
    for domain, found in due.items():
        # Each snapshot is sorted within a key group only; the stable sort keeps the order of equal times.
        found.sort(key=lambda timer: timer[0])
        timers.setdefault(domain, HeapTimerQueue()).load(found)
