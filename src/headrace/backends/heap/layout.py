"""How heap state lies in memory, and as rows in a snapshot.

    table   = namespace -> key -> value         one table per state; keys in stored form; void namespace b""
    value   = stored value                      value, reducing and aggregating states
            | list of stored values             list states
            | {stored map key: stored value}    map states

A dict per namespace, not keys of (key, namespace): the current namespace's dict is picked once by
`set_namespace`, and every access of any namespace is then one lookup by key alone. Key groups are not
kept; they are reckoned when a snapshot is written.

A table that was restored but not yet declared holds the bytes of the snapshot as values (its codec is
chosen by the program, not by the file). `claim` turns them into values; a table that is never claimed goes
into the next snapshot as it came.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, repeat
from struct import Struct
from typing import Any

import msgspec
import numpy as np

from headrace.backends.elements import StateRules
from headrace.backends.expiring import Expiry, has_expired
from headrace.backends.table import BLOCK_ROWS, Rows, groups_of, rows_by_group
from headrace.checkpoint.handles import StateShape
from headrace.errors import DamagedCheckpointError

_POSITION = Struct(">Q")
VOID = b""


class HeapTable:
    """All entries of one state of one subtask."""

    __slots__ = ("_key_to_bytes", "_to_bytes", "_to_column", "claimed", "expiry", "lends_objects", "shape", "spaces")

    def __init__(self, shape: StateShape) -> None:
        self.shape = shape
        self.claimed = False
        self.spaces: dict[bytes, dict[Any, Any]] = {VOID: {}}
        self.expiry: Expiry | None = None
        """Entries that have expired by it are left out of snapshots."""
        self._to_bytes: Callable[[Any], bytes] | None = None
        self._to_column: Callable[[Any], msgspec.Raw] | None = None
        self._key_to_bytes: Callable[[Any], bytes] | None = None
        self.lends_objects = False
        """The program holds values of this table too, and may change them: a copy of the table is no frozen view."""

    def convert(self, shape: StateShape, convert: Callable[[bytes], bytes]) -> None:
        """The program declares the state in another shape: its restored values become of that; before `claim`."""
        self.shape = shape
        for data in self.spaces.values():
            for key, held in data.items():
                if shape.kind == "list":
                    data[key] = list(map(convert, held))
                elif shape.kind == "map":
                    data[key] = {entry: convert(value) for entry, value in held.items()}
                else:
                    data[key] = convert(held)

    def claim(self, rules: StateRules) -> None:
        """The program declared the state: decode what was restored, once."""
        self.claimed = True
        elements, map_keys = rules.elements, rules.map_keys
        # Packed values are held as bytes, so there is nothing to encode or decode.
        from_bytes = None if elements.packed else elements.from_bytes
        self._to_bytes = None if elements.packed else elements.to_bytes
        self._to_column = elements.to_column
        self.lends_objects = elements.lent
        self._key_to_bytes = None if map_keys is None else map_keys.to_bytes
        for data in self.spaces.values():
            if map_keys is not None:
                key_from = map_keys.from_bytes
                value_from = elements.from_bytes
                for key, entries in data.items():
                    data[key] = {key_from(k): value_from(v) for k, v in entries.items()}
            elif from_bytes is not None:
                if self.shape.kind == "list":
                    for key, values in data.items():
                        data[key] = list(map(from_bytes, values))
                else:
                    for key, value in data.items():
                        data[key] = from_bytes(value)

    def frozen(self) -> HeapTable:
        """A copy that later changes of this table do not touch; not of values that are lent."""
        copy = HeapTable(self.shape)
        copy.expiry = self.expiry
        copy._to_bytes, copy._to_column, copy._key_to_bytes = self._to_bytes, self._to_column, self._key_to_bytes
        if self.shape.kind in ("list", "map"):
            copy.spaces = {space: {k: held.copy() for k, held in data.items()} for space, data in self.spaces.items()}
        else:
            copy.spaces = {space: data.copy() for space, data in self.spaces.items()}
        return copy

    def entry_count(self, enough: int | None = None) -> int:
        """How many entries there are; may stop counting once `enough` are found."""
        count = sum(map(len, self.spaces.values()))
        if self.shape.kind not in ("list", "map"):
            return count
        if enough is not None and count > enough:
            return count
        count = 0
        for data in self.spaces.values():
            for entries in data.values():
                count += len(entries)
                if enough is not None and count > enough:
                    return count
        return count

    def add_rows(self, rows: Rows) -> None:
        """Take in restored rows; the table must not be claimed yet."""
        namespaces = rows.namespaces or [VOID] * len(rows.keys)
        values = rows.values
        if values is None or ((rows.entries is None) == (self.shape.kind in ("list", "map"))):
            raise DamagedCheckpointError(
                f'Rows of state "{self.shape.name}" lack the columns of a {self.shape.kind} state. '
                "Restore from another checkpoint."
            )
        if rows.entries is None and rows.namespaces is None:
            self.spaces[VOID].update(zip(rows.keys, values, strict=True))
            return
        spaces = self.spaces
        for i, (key, namespace) in enumerate(zip(rows.keys, namespaces, strict=True)):
            data = spaces.get(namespace)
            if data is None:
                data = spaces[namespace] = {}
            if rows.entries is None:
                data[key] = values[i]
            elif self.shape.kind == "list":
                # Rows of a list come in the order of their positions.
                data.setdefault(key, []).append(values[i])
            else:
                data.setdefault(key, {})[rows.entries[i]] = values[i]

    def rows_by_group(self, max_parallelism: int) -> dict[int, Rows]:
        """All entries by key group, values not yet encoded. Runs in the forked child: no locks, no imports."""
        keys: list[Any] = []
        values: list[Any] = []
        counts: list[int] = []
        entries: list[Any] | None = [] if self.shape.kind in ("list", "map") else None
        spaces = self.spaces if self.expiry is None else self._alive(self.expiry.horizon())
        has_namespaces = any(data for namespace, data in spaces.items() if namespace)
        namespaces: list[bytes] | None = [] if has_namespaces else None
        for namespace, data in spaces.items():
            keys.extend(data)
            if entries is None:
                values.extend(data.values())
            else:
                for held in data.values():
                    counts.append(len(held))
                    if self.shape.kind == "list":
                        entries.extend(map(_POSITION.pack, range(len(held))))
                        values.extend(held)
                    else:
                        entries.extend(held)
                        values.extend(held.values())
            if namespaces is not None:
                namespaces.extend([namespace] * len(data))
        groups = groups_of(keys, max_parallelism)
        if entries is not None:
            groups = np.repeat(groups, counts)
            keys = _repeated(keys, counts)
            namespaces = None if namespaces is None else _repeated(namespaces, counts)
        return rows_by_group(Rows(keys, namespaces, entries, values), groups)

    def _alive(self, horizon: bytes) -> dict[bytes, dict[Any, Any]]:
        """All entries that have not expired."""
        kept: dict[bytes, dict[Any, Any]] = {}
        for namespace, data in self.spaces.items():
            alive: dict[Any, Any]
            if self.shape.kind == "list":
                alive = {key: [v for v in held if not has_expired(v, horizon)] for key, held in data.items()}
            elif self.shape.kind == "map":
                alive = {
                    key: {k: v for k, v in held.items() if not has_expired(v, horizon)} for key, held in data.items()
                }
            else:
                alive = {key: held for key, held in data.items() if not has_expired(held, horizon)}
            kept[namespace] = alive
        return kept

    def encode_rows(self, rows: Rows) -> Rows:
        """The same rows with map keys and values as bytes; the rows are changed in place."""
        if self._key_to_bytes is not None and rows.entries is not None:
            rows.entries = list(map(self._key_to_bytes, rows.entries))
        if self._to_column is not None and len(rows.keys) <= BLOCK_ROWS:
            rows.column, rows.values = self._to_column(rows.values or []), None
        elif self._to_bytes is not None and rows.values is not None:
            rows.values = list(map(self._to_bytes, rows.values))
        return rows


def _repeated(column: list[Any], counts: list[int]) -> list[Any]:
    return list(chain.from_iterable(map(repeat, column, counts)))
