"""What list and map state on RocksDB share: an entry in the database per element, whole collections in the cache."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headrace.backends.elements import StateRules
from headrace.backends.rocksdb.cache import BYTES_PER_ENTRY, LARGE_BYTES, CachedState, CacheKeeper
from headrace.backends.rocksdb.database import Family

LARGE = 10_000
"""Collections of more elements are not cached."""


class Collection(CachedState):
    """Counts changed elements, not changed keys: one key may gather many."""

    __slots__ = ("_pending", "_sized")

    def __init__(self, rules: StateRules, family: Family, keeper: CacheKeeper) -> None:
        self._pending = 0
        """Changed elements and keys, over all namespaces."""
        elements = rules.elements
        self._sized = elements.packed or elements.is_text or elements.exact is bytes
        super().__init__(rules, family, keeper)

    def _fit_room(self) -> None:
        self._room = self._limit

    def _dirty_total(self) -> int:
        return self._pending

    def _changed(self, count: int, values: Iterable[Any] = ()) -> None:
        """So many elements and keys more are dirty; `values` are stored elements among them."""
        self._pending += count
        if self._pending > self._room:
            self._spill()
        if self._sized:
            size = sum(len(value) for value in values if value is not None)
            if size > LARGE_BYTES:
                self._weigh(size)
            else:
                self._keeper.loaded += size // BYTES_PER_ENTRY

    def _blind(self, written: int) -> int:
        return 0  # elements are counted as they are added

    def _erase(self, batch: Any, prefix: bytes) -> None:
        # One by one: a range deletion per key would burden every later read of the family.
        for raw, _ in self.family.under(prefix):
            batch.delete(raw)
