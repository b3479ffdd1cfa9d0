"""Changed entries as they were at a barrier: on their way into the database beside the stream, or into the checkpoint.

Into the database they go as one table file, which it takes in as it is: that costs half of what writing them to its
memory and flushing that memory costs. A table file wants its entries in order of key; they are sorted one key group at
a time, since a sort holds the interpreter.

Where most of what was changed at one barrier has changed again at the next (*hot* entries), even that would be in vain.
They stay in the cache, and every checkpoint takes a copy along, as rows of the canonical table: a quarter of the cost.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, TypeAlias

from headrace.backends.rocksdb.database import Database, Family
from headrace.backends.rocksdb.layout import prefixes_by_group
from headrace.backends.table import Rows, groups_of, rows_by_group

Spaces: TypeAlias = dict[bytes, dict[Any, Any]]
"""By namespace: stored key -> stored value, or None where there is none any more."""

_SAMPLE = 500
_FEW_WINDOWS = 100
"""Of more namespaces a copy takes the barrier too long; and many are short-lived ones."""


def write_frozen(
    database: Database, family: Family, spaces: Spaces, to_bytes: Callable[[Any], bytes], max_parallelism: int
) -> int:
    """Bring the changes of one state into the database; how many bytes their values have. `StorageError` if it fails:
    then the database has none of them.
    """
    keys, values = _flat(spaces)
    if not keys:
        return 0
    counts = {namespace: len(changes) for namespace, changes in spaces.items()}
    written = 0
    # Entries in the database's memory would be flushed by the import, which does not let other threads run.
    family.flush()
    with family.table() as table:
        for prefixes, places in prefixes_by_group(keys, counts, max_parallelism):
            entries = dict(zip(prefixes, [values[place] for place in places], strict=True))
            for prefix in sorted(entries):
                stored = entries[prefix]
                if stored is None:
                    del table[prefix]
                else:
                    data = to_bytes(stored)
                    written += len(data)
                    table[prefix] = data
    return written


@dataclass(frozen=True, slots=True)
class KeptChanges:
    """A copy of changes of one state that the database does not have at a barrier; another thread encodes it."""

    state: str
    keys: list[Any]
    namespaces: list[bytes] | None
    values: list[Any] | array[float]
    to_bytes: Callable[[Any], bytes]

    @classmethod
    def of(cls, state: str, spaces: Spaces, to_bytes: Callable[[Any], bytes], *, floats: bool) -> KeptChanges:
        keys, objects = _flat(spaces)
        values: list[Any] | array[float] = objects
        if floats and None not in values:
            # As long as the old objects are held, new ones are scattered over fresh memory, which slows down
            # everything that is done with them.
            values = array("d", values)
        windows = any(spaces)
        namespaces = [name for name, changes in spaces.items() for _ in changes] if windows else None
        return cls(state, keys, namespaces, values, to_bytes)

    def rows(self, max_parallelism: int) -> dict[int, list[Rows]]:
        """By key group: rows of changed entries; and rows without values, of those that are gone."""
        values: list[Any] = list(self.values)
        rows = Rows(self.keys, self.namespaces, None, values)
        return {
            group: list(self._encoded(found))
            for group, found in rows_by_group(rows, groups_of(self.keys, max_parallelism)).items()
        }

    def _encoded(self, rows: Rows) -> Iterator[Rows]:
        to_bytes, values = self.to_bytes, rows.values
        assert values is not None
        if None not in values:
            rows.values = [to_bytes(stored) for stored in values]
            yield rows
            return
        for gone in (False, True):
            some = [place for place, stored in enumerate(values) if (stored is None) is gone]
            if some:
                spaces = None if rows.namespaces is None else [rows.namespaces[place] for place in some]
                encoded = None if gone else [to_bytes(values[place]) for place in some]
                yield Rows([rows.keys[place] for place in some], spaces, None, encoded)


class Sample:
    """Some of what was dirty at the last barrier: whether most of it has changed since."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: list[tuple[bytes, Any, Any]] = []

    def is_hot(self, spaces: Spaces) -> bool:
        """Asked once at every barrier, with what is dirty then."""
        again = 0
        for namespace, key, before in self._entries:
            changes = spaces.get(namespace)
            # What was written since is gone, and what was not changed is still the same object.
            again += changes is not None and changes.get(key, before) is not before
        hot = 2 * again > len(self._entries)
        if len(spaces) > _FEW_WINDOWS:
            self._entries = []
            return False
        # From all ages: what came first may be what changes most.
        step = 1 + sum(map(len, spaces.values())) // _SAMPLE
        self._entries = [
            (namespace, key, changes[key])
            for namespace, changes in spaces.items()
            for key in islice(changes, 0, None, step)
        ]
        return hot


def _flat(spaces: Spaces) -> tuple[list[Any], list[Any]]:
    """Keys and values, in one order, namespace by namespace."""
    return list(chain.from_iterable(spaces.values())), list(chain.from_iterable(map(dict.values, spaces.values())))
