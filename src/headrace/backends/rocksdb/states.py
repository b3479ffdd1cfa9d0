"""Value, reducing and aggregating state on RocksDB: one entry per key, cached as one object.

As on the heap, a value state's class is chosen by how its values are checked, so that an access to a cached
key is one lookup and an update two assignments. List and map state are in `lists` and `maps`.
"""

from __future__ import annotations

from typing import Any

from headrace.backends.elements import StateRules, reduce_function_of
from headrace.backends.expiring import has_expired
from headrace.backends.rocksdb.cache import BYTES_PER_ENTRY, LARGE_BYTES, MISSING, CachedState, CacheKeeper
from headrace.backends.rocksdb.database import Family
from headrace.backends.rocksdb.lists import RocksListState
from headrace.backends.rocksdb.maps import RocksMapState
from headrace.errors import JobDefinitionError
from headrace.state.descriptors import AggregatingStateDescriptor, ReducingStateDescriptor, StateDescriptor
from headrace.state.states import AggregatingState, ReducingState, ValueState


class SingleState(CachedState):
    """States with one stored value per key; in young and dirty None stands for none."""

    __slots__ = ()

    def __init__(self, rules: StateRules, family: Family, keeper: CacheKeeper) -> None:
        super().__init__(rules, family, keeper, freezable=not rules.elements.lent)

    def clear(self) -> None:
        self._set(self._key(), None)

    def _set(self, key: Any, stored: Any) -> None:
        self._young[key] = self._dirty[key] = stored
        if len(self._dirty) > self._room:
            self._spill()

    def expire(self, entries: list[bytes], horizon: bytes) -> None:
        stored = self._stored()
        if stored is not None and has_expired(stored, horizon):
            self._set(self._key(), None)

    def _stored(self) -> Any:
        value = self._young.get(self._context.key, MISSING)
        return self._load(self._context.key) if value is MISSING else value

    def _load(self, key: Any) -> Any:
        """The stored value of a key that is not in young: from the cache, or from the database."""
        if key is None:
            key = self._key()  # raises
        weight = 0
        stored = self._old.get(key, MISSING)
        if stored is MISSING:
            stored = self._dirty.get(key, MISSING)
            if stored is MISSING:
                stored = self._frozen.get(key, MISSING)
            if stored is MISSING:
                raw = self._get(self._prefix(key, self._namespace))
                if raw is None:
                    stored = None
                else:
                    weight = len(raw)
                    stored = self._from_bytes(raw)
        self._young[key] = stored
        self._loaded(weight)
        return stored

    def _add_to(self, batch: Any, namespace: bytes, changes: list[tuple[Any, Any]]) -> None:
        to_bytes = self._to_bytes
        raws = self._keeper.prefixes([key for key, _ in changes], namespace)
        # Keys of one namespace are unique, so a comparison never gets as far as the values.
        for raw, (_, stored) in sorted(zip(raws, changes, strict=True)):
            if stored is None:
                batch.delete(raw)
            else:
                batch[raw] = to_bytes(stored)


class RocksValueState(SingleState, ValueState[Any]):
    """Values that need a full check at every update: rows, tuples, dates, or anything with object reuse."""

    __slots__ = ()

    def value(self) -> Any:
        value = self._young.get(self._context.key, MISSING)
        if value is not MISSING:
            return value
        return self._load(self._context.key)

    def update(self, value: Any) -> None:
        self._set(self._key(), None if value is None else self._admit(value))


class ExactValueState(RocksValueState):
    """Values of one small Python class that fit without a further look: float, bool."""

    __slots__ = ("_exact",)

    def __init__(self, rules: StateRules, family: Family, keeper: CacheKeeper) -> None:
        super().__init__(rules, family, keeper)
        self._exact = rules.elements.exact

    def update(self, value: Any) -> None:
        key = self._context.key
        if type(value) is self._exact and key is not None:
            self._young[key] = self._dirty[key] = value
            if len(self._dirty) > self._room:
                self._spill()
        else:
            RocksValueState.update(self, value)


class WholeValueState(RocksValueState):
    """Whole numbers of a bounded size."""

    __slots__ = ("_high", "_low")

    def __init__(self, rules: StateRules, family: Family, keeper: CacheKeeper) -> None:
        super().__init__(rules, family, keeper)
        self._low, self._high = rules.elements.bounds or (0, 0)

    def update(self, value: Any) -> None:
        key = self._context.key
        if type(value) is int and key is not None and self._low <= value <= self._high:
            self._young[key] = self._dirty[key] = value
            if len(self._dirty) > self._room:
                self._spill()
        else:
            RocksValueState.update(self, value)


class SizedValueState(RocksValueState):
    """Strings and bytes, which may be large."""

    __slots__ = ()

    def update(self, value: Any) -> None:
        key = self._key()
        stored = None if value is None else self._admit(value)
        self._set(key, stored)
        if stored is not None:
            size = len(stored)
            if size > LARGE_BYTES:
                self._weigh(size)
            else:
                self._keeper.loaded += size // BYTES_PER_ENTRY


class PackedValueState(SizedValueState):
    """Mutable values, cached as bytes so that nobody outside shares an object with the state."""

    __slots__ = ()

    def value(self) -> Any:
        packed = self._young.get(self._context.key, MISSING)
        if packed is MISSING:
            packed = self._load(self._context.key)
        return None if packed is None else self._release(packed)


class RocksReducingState(SingleState, ReducingState[Any]):
    """One folded value per key."""

    __slots__ = ("_reduce",)

    def __init__(
        self, rules: StateRules, family: Family, keeper: CacheKeeper, descriptor: ReducingStateDescriptor
    ) -> None:
        super().__init__(rules, family, keeper)
        self._reduce = reduce_function_of(descriptor.reduce_function)

    def get(self) -> Any:
        stored = self._stored()
        return None if stored is None else self._release(stored)

    def add(self, value: Any) -> None:
        before = self._stored()
        admitted = self._admit(value)
        if before is not None:
            # Through the stored form: the function gets what the state would hold, on every backend alike.
            admitted = self._admit(self._reduce(self._release(before), self._release(admitted)))
        self._set(self._key(), admitted)


class RocksAggregatingState(SingleState, AggregatingState[Any, Any]):
    """One accumulator per key."""

    __slots__ = ("_function",)

    def __init__(
        self, rules: StateRules, family: Family, keeper: CacheKeeper, descriptor: AggregatingStateDescriptor
    ) -> None:
        super().__init__(rules, family, keeper)
        self._function = descriptor.agg_function

    def get(self) -> Any:
        stored = self._stored()
        return None if stored is None else self._function.get_result(self._release(stored))

    def add(self, value: Any) -> None:
        stored = self._stored()
        accumulator = self._function.create_accumulator() if stored is None else self._release(stored)
        self._set(self._key(), self._admit(self._function.add(value, accumulator)))


def make_state(descriptor: StateDescriptor, rules: StateRules, family: Family, keeper: CacheKeeper) -> CachedState:
    """The state object for a descriptor, of the class that does least per access."""
    elements = rules.elements
    if rules.unstamped is not None and descriptor.KIND not in ("list", "map"):
        # The wrapper folds, above one stamped value.
        return PackedValueState(rules, family, keeper)
    match descriptor.KIND:
        case "value":
            if elements.packed:
                return PackedValueState(rules, family, keeper)
            if elements.bounds is not None:
                return WholeValueState(rules, family, keeper)
            if elements.exact in (float, bool):
                return ExactValueState(rules, family, keeper)
            sized = elements.is_text or elements.exact is bytes
            return (SizedValueState if sized else RocksValueState)(rules, family, keeper)
        case "list":
            return RocksListState(rules, family, keeper)
        case "map":
            return RocksMapState(rules, family, keeper)
    if isinstance(descriptor, ReducingStateDescriptor):
        return RocksReducingState(rules, family, keeper, descriptor)
    if isinstance(descriptor, AggregatingStateDescriptor):
        return RocksAggregatingState(rules, family, keeper, descriptor)
    raise JobDefinitionError(f"{rules.where}: there is no keyed state of kind {descriptor.KIND!r}.")
