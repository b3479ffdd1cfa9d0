"""Incremental cleanup on the heap: every access to a state looks at a few of its keys and drops what has expired."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from headrace.backends.expiring import Expiry, has_expired
from headrace.backends.heap.layout import HeapTable


class HeapSweep:
    """Goes round and round over the keys of one table, `size` of them at each call."""

    __slots__ = ("_expiry", "_round", "_size", "_state", "_table")

    def __init__(self, table: HeapTable, state: Any, expiry: Expiry, size: int) -> None:
        self._table = table
        self._state = state
        self._expiry = expiry
        self._size = size
        self._round: Iterator[tuple[dict[Any, Any], Any]] = iter(())

    def __call__(self) -> None:
        keys = list(islice(self._round, self._size))
        if not keys:
            self._round = self._places()
            return
        horizon = self._expiry.horizon()
        kind = self._table.shape.kind
        for data, key in keys:
            held = data.get(key)
            if held is None:
                continue
            if kind == "list":
                alive = [stored for stored in held if not has_expired(stored, horizon)]
                if len(alive) < len(held):
                    held[:] = alive
            elif kind == "map":
                for entry in [entry for entry, stored in held.items() if has_expired(stored, horizon)]:
                    del held[entry]
            elif has_expired(held, horizon):
                held = None
            if not held:
                del data[key]

    def _places(self) -> Iterator[tuple[dict[Any, Any], Any]]:
        """Every key of one round. Keys are listed as a round reaches their namespace, since dicts may change."""
        spaces = self._table.spaces
        for namespace in list(spaces):
            data = spaces.get(namespace)
            if data is None:
                continue
            for key in list(data):
                yield data, key
            # The state keeps hold of the dict of its own namespace.
            if not data and namespace and namespace != self._state.namespace:
                spaces.pop(namespace, None)
