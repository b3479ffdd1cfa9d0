"""Folding states on RocksDB: the cached object is folded in place and written with the other changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.backends.elements import StateRules
from headrace.backends.folding import Folding, folding_of, is_folding
from headrace.backends.rocksdb import states
from headrace.backends.rocksdb.cache import BYTES_PER_ENTRY, MISSING, CachedState, CacheKeeper
from headrace.backends.rocksdb.database import Family
from headrace.state.descriptors import StateDescriptor
from headrace.state.states import AggregatingState, ReducingState


class RocksFoldingState(states.SingleState, ReducingState[Any], AggregatingState[Any, Any]):
    """One value or accumulator per key, cached as the object it is."""

    __slots__ = ("_begin", "_copy_of", "_encoded", "_go_on", "_merge", "_result")

    def __init__(self, rules: StateRules, family: Family, keeper: CacheKeeper, folding: Folding) -> None:
        super().__init__(rules, family, keeper)
        self._encoded = 0
        """Bytes of values that were written beside the stream and do not count in the cache yet."""
        self._begin, self._go_on, self._merge = folding.begin, folding.go_on, folding.merge
        self._result, self._copy_of = folding.result, folding.copy_of

    def fold(self, value: Any) -> bool:
        key = self._context.key
        before = self._young.get(key, MISSING)
        if before is MISSING:
            before = self._load(key)
        after = self._begin(value) if before is None else self._go_on(before, value)
        # Loading and the user's function may have changed generations or written: the dicts are looked up again.
        self._young[key] = self._dirty[key] = after
        if len(self._dirty) > self._room:
            self._spill()
        return before is None

    def add(self, value: Any) -> None:
        self.fold(value)

    def get(self) -> Any:
        stored = self._stored()
        return None if stored is None else self._result(self._copy_of(stored))

    def take(self) -> Any:
        stored = self._stored()
        if stored is None:
            return None
        self.clear()
        return self._result(stored)

    def merge_namespaces(self, target: bytes, sources: Sequence[bytes]) -> None:
        key = self._key()
        for source in sources:
            self.set_namespace(source)
            moved = self._stored()
            if moved is not None:
                self.clear()
                self.set_namespace(target)
                before = self._stored()
                self._set(key, moved if before is None else self._merge(before, moved))
        self.set_namespace(target)

    def freeze(self, *, keep: bool) -> None:
        self._keeper.loaded += self._encoded // BYTES_PER_ENTRY
        self._encoded = 0
        # Never kept: what an object in the cache weighs is known when it is written.
        super().freeze(keep=False)

    def write_frozen(self) -> int:
        self._encoded = super().write_frozen()
        return self._encoded

    def _add_to(self, batch: Any, namespace: bytes, changes: list[tuple[Any, Any]]) -> None:
        to_bytes = self._to_bytes
        raws = self._keeper.prefixes([key for key, _ in changes], namespace)
        written = 0
        for raw, (_, stored) in sorted(zip(raws, changes, strict=True), key=_first):
            if stored is None:
                batch.delete(raw)
            else:
                data = to_bytes(stored)
                written += len(data)
                batch[raw] = data
        # What an object in the cache weighs is known only now that it has been encoded.
        self._keeper.loaded += written // BYTES_PER_ENTRY


def _first(pair: tuple[bytes, Any]) -> bytes:
    return pair[0]


def make_state(descriptor: StateDescriptor, rules: StateRules, family: Family, keeper: CacheKeeper) -> CachedState:
    """The state object for a descriptor, folding or not."""
    if not is_folding(descriptor):
        return states.make_state(descriptor, rules, family, keeper)
    return RocksFoldingState(rules, family, keeper, folding_of(descriptor, rules))
