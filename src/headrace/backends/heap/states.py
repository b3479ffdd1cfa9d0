"""The five keyed states on the heap. Which class a state gets is decided once, by `make_state`.

`value()` and `update()` of a value state run once per record, so there is a class for each way a value
can be checked, and no access branches over what was known when the state was declared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from headrace.backends.elements import StateRules, reduce_function_of, without_key
from headrace.backends.heap.layout import VOID, HeapTable
from headrace.errors import JobDefinitionError
from headrace.state.backend import KeyContext
from headrace.state.descriptors import (
    AggregatingStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
)
from headrace.state.states import AggregatingState, ListState, MapState, ReducingState, State, ValueState


class _HeapState(State):
    """What all five share: the dict of the current namespace and the key to look up in it."""

    __slots__ = ("_admit", "_context", "_data", "_namespace", "_release", "_rules", "_table")

    def __init__(self, rules: StateRules, table: HeapTable, context: KeyContext) -> None:
        self._rules = rules
        self._table = table
        self._context = context
        self._namespace = VOID
        self._data = table.spaces[VOID]
        self._admit = rules.elements.admit
        self._release = rules.elements.release

    def set_namespace(self, namespace: bytes) -> None:
        """Scope all later accesses to that namespace (a window). The operator calls it, never the user."""
        spaces = self._table.spaces
        # A dict is made on arrival, since most visits write; one that stayed empty goes on departure.
        if not self._data and self._namespace:
            spaces.pop(self._namespace, None)
        data = spaces.get(namespace)
        if data is None:
            data = spaces[namespace] = {}
        self._namespace = namespace
        self._data = data

    @property
    def namespace(self) -> bytes:
        return self._namespace

    def clear(self) -> None:
        key = self._context.key
        if key is None:
            raise without_key(self._rules.where)
        self._data.pop(key, None)

    def _key(self) -> Any:
        key = self._context.key
        if key is None:
            raise without_key(self._rules.where)
        return key


class HeapValueState(_HeapState, ValueState[Any]):
    """Values that need a full check at every update: rows, tuples, dates, or anything with object reuse."""

    __slots__ = ()

    def value(self) -> Any:
        value = self._data.get(self._context.key)
        if value is None and self._context.key is None:
            raise without_key(self._rules.where)
        return value

    def update(self, value: Any) -> None:
        key = self._context.key
        if value is None or key is None:
            self.clear()
        else:
            self._data[key] = self._admit(value)


class ExactValueState(HeapValueState):
    """Values of one Python class that fit without a further look: float, bool, bytes."""

    __slots__ = ("_exact",)

    def __init__(self, rules: StateRules, table: HeapTable, context: KeyContext) -> None:
        super().__init__(rules, table, context)
        self._exact = rules.elements.exact

    def update(self, value: Any) -> None:
        key = self._context.key
        if type(value) is self._exact and key is not None:
            self._data[key] = value
        else:
            HeapValueState.update(self, value)


class WholeValueState(HeapValueState):
    """Whole numbers of a bounded size."""

    __slots__ = ("_high", "_low")

    def __init__(self, rules: StateRules, table: HeapTable, context: KeyContext) -> None:
        super().__init__(rules, table, context)
        self._low, self._high = rules.elements.bounds or (0, 0)

    def update(self, value: Any) -> None:
        key = self._context.key
        if type(value) is int and key is not None and self._low <= value <= self._high:
            self._data[key] = value
        else:
            HeapValueState.update(self, value)


class TextValueState(HeapValueState):
    """Strings; those of ASCII alone need no look for characters that UTF-8 cannot write."""

    __slots__ = ()

    def update(self, value: Any) -> None:
        key = self._context.key
        if type(value) is str and key is not None and value.isascii():
            self._data[key] = value
        else:
            HeapValueState.update(self, value)


class PackedValueState(HeapValueState):
    """Mutable values, held as bytes so that nobody outside shares an object with the state."""

    __slots__ = ()

    def value(self) -> Any:
        packed = self._data.get(self._context.key)
        if packed is not None:
            return self._release(packed)
        if self._context.key is None:
            raise without_key(self._rules.where)
        return None


class HeapListState(_HeapState, ListState[Any]):
    """A Python list per key. An empty list is no entry."""

    __slots__ = ()

    def get(self) -> list[Any]:
        values = self._data.get(self._key())
        return [] if values is None else values.copy()

    def add(self, value: Any) -> None:
        admitted = self._admit(value)
        key = self._key()
        values = self._data.get(key)
        if values is None:
            self._data[key] = [admitted]
        else:
            values.append(admitted)

    def add_all(self, values: Iterable[Any]) -> None:
        # All are checked before any is added: a misfit leaves the list as it was.
        admitted = list(map(self._admit, values))
        if admitted:
            self._data.setdefault(self._key(), []).extend(admitted)

    def update(self, values: Iterable[Any]) -> None:
        admitted = list(map(self._admit, values or ()))
        if admitted:
            self._data[self._key()] = admitted
        else:
            self.clear()


class PackedListState(HeapListState):
    """A list of mutable values, each held as bytes."""

    __slots__ = ()

    def get(self) -> list[Any]:
        return list(map(self._release, self._data.get(self._key(), ())))


class HeapMapState(_HeapState, MapState[Any, Any]):
    """A Python dict per key. An empty map is no entry."""

    __slots__ = ("_admit_key", "_release_key")

    def __init__(self, rules: StateRules, table: HeapTable, context: KeyContext) -> None:
        super().__init__(rules, table, context)
        assert rules.map_keys is not None
        self._admit_key = rules.map_keys.admit
        self._release_key = rules.map_keys.release

    def _entries(self) -> dict[Any, Any]:
        return self._data.get(self._key()) or {}

    def get(self, key: Any) -> Any:
        entries = self._data.get(self._key())
        if entries is None:
            return None
        stored_key = self._admit_key(key)
        return self._release(entries[stored_key]) if stored_key in entries else None

    def put(self, key: Any, value: Any) -> None:
        stored_key = self._admit_key(key)
        admitted = self._admit(value)
        scope = self._key()
        entries = self._data.get(scope)
        if entries is None:
            self._data[scope] = {stored_key: admitted}
        else:
            entries[stored_key] = admitted

    def put_all(self, entries: Mapping[Any, Any]) -> None:
        admitted = {self._admit_key(key): self._admit(value) for key, value in entries.items()}
        if admitted:
            self._data.setdefault(self._key(), {}).update(admitted)

    def remove(self, key: Any) -> None:
        scope = self._key()
        entries = self._data.get(scope)
        if entries is not None:
            entries.pop(self._admit_key(key), None)
            if not entries:
                del self._data[scope]

    def contains(self, key: Any) -> bool:
        return self._admit_key(key) in self._entries()

    def items(self) -> list[tuple[Any, Any]]:
        release_key, release = self._release_key, self._release
        return [(release_key(key), release(value)) for key, value in self._entries().items()]

    def keys(self) -> list[Any]:
        return list(map(self._release_key, self._entries()))

    def values(self) -> list[Any]:
        return list(map(self._release, self._entries().values()))

    def is_empty(self) -> bool:
        return not self._entries()


class HeapReducingState(_HeapState, ReducingState[Any]):
    """One folded value per key."""

    __slots__ = ("_reduce",)

    def __init__(
        self, rules: StateRules, table: HeapTable, context: KeyContext, descriptor: ReducingStateDescriptor
    ) -> None:
        super().__init__(rules, table, context)
        self._reduce = reduce_function_of(descriptor.reduce_function)

    def get(self) -> Any:
        value = self._data.get(self._key())
        return None if value is None else self._release(value)

    def add(self, value: Any) -> None:
        key = self._key()
        before = self._data.get(key)
        admitted = self._admit(value)
        if before is not None:
            # Through the stored form: the function gets what the state would hold, on every backend alike.
            admitted = self._admit(self._reduce(self._release(before), self._release(admitted)))
        self._data[key] = admitted


class HeapAggregatingState(_HeapState, AggregatingState[Any, Any]):
    """One accumulator per key."""

    __slots__ = ("_function",)

    def __init__(
        self, rules: StateRules, table: HeapTable, context: KeyContext, descriptor: AggregatingStateDescriptor
    ) -> None:
        super().__init__(rules, table, context)
        self._function = descriptor.agg_function

    def get(self) -> Any:
        accumulator = self._data.get(self._key())
        return None if accumulator is None else self._function.get_result(self._release(accumulator))

    def add(self, value: Any) -> None:
        key = self._key()
        stored = self._data.get(key)
        accumulator = self._function.create_accumulator() if stored is None else self._release(stored)
        self._data[key] = self._admit(self._function.add(value, accumulator))


def make_state(descriptor: StateDescriptor, rules: StateRules, table: HeapTable, context: KeyContext) -> Any:
    """The state object for a descriptor, of the class that does least per access."""
    elements = rules.elements
    if rules.unstamped is not None and descriptor.KIND not in ("list", "map"):
        # The wrapper folds, above one stamped value.
        return PackedValueState(rules, table, context)
    match descriptor.KIND:
        case "value":
            if elements.packed:
                return PackedValueState(rules, table, context)
            if elements.exact is not None:
                return ExactValueState(rules, table, context)
            if elements.bounds is not None:
                return WholeValueState(rules, table, context)
            return (TextValueState if elements.is_text else HeapValueState)(rules, table, context)
        case "list":
            return (PackedListState if elements.packed else HeapListState)(rules, table, context)
        case "map":
            return HeapMapState(rules, table, context)
    if isinstance(descriptor, ReducingStateDescriptor):
        return HeapReducingState(rules, table, context, descriptor)
    if isinstance(descriptor, AggregatingStateDescriptor):
        return HeapAggregatingState(rules, table, context, descriptor)
    raise JobDefinitionError(f"{rules.where}: there is no keyed state of kind {descriptor.KIND!r}.")
