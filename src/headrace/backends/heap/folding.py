"""Folding states on the heap: one dict lookup, one call of the user's function and one assignment per value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.backends.elements import StateRules
from headrace.backends.folding import Folding, folding_of, is_folding
from headrace.backends.heap import states
from headrace.backends.heap.layout import HeapTable
from headrace.state.backend import KeyContext
from headrace.state.descriptors import StateDescriptor
from headrace.state.folding import FoldingAggregatingDescriptor
from headrace.state.states import AggregatingState, ReducingState


class HeapFoldingState(states._HeapState, ReducingState[Any], AggregatingState[Any, Any]):
    """One value or accumulator per key, kept as the object it is."""

    __slots__ = ("_begin", "_copy_of", "_go_on", "_merge", "_result")

    def __init__(self, rules: StateRules, table: HeapTable, context: KeyContext, folding: Folding) -> None:
        super().__init__(rules, table, context)
        self._begin, self._go_on, self._merge = folding.begin, folding.go_on, folding.merge
        self._result, self._copy_of = folding.result, folding.copy_of

    def fold(self, value: Any) -> bool:
        key = self._context.key
        data = self._data
        before = data.get(key)
        if before is None:
            data[self._key()] = self._begin(value)
            return True
        data[key] = self._go_on(before, value)
        return False

    def add(self, value: Any) -> None:
        self.fold(value)

    def get(self) -> Any:
        stored = self._data.get(self._key())
        return None if stored is None else self._result(self._copy_of(stored))

    def take(self) -> Any:
        stored = self._data.pop(self._key(), None)
        return None if stored is None else self._result(stored)

    def merge_namespaces(self, target: bytes, sources: Sequence[bytes]) -> None:
        key = self._key()
        self.set_namespace(target)
        spaces, data = self._table.spaces, self._data
        for source in sources:
            found = spaces.get(source)
            moved = None if found is None else found.pop(key, None)
            if found is not None and not found and source:
                del spaces[source]
            if moved is not None:
                before = data.get(key)
                data[key] = moved if before is None else self._merge(before, moved)


class HeapAccumulatorState(HeapFoldingState):
    """Mutable accumulators: the function is called straight, without a step between."""

    __slots__ = ("_add",)

    def __init__(self, rules: StateRules, table: HeapTable, context: KeyContext, folding: Folding, add: Any) -> None:
        super().__init__(rules, table, context, folding)
        self._add = add

    def fold(self, value: Any) -> bool:
        key = self._context.key
        data = self._data
        before = data.get(key)
        if before is None:
            data[self._key()] = self._begin(value)
            return True
        data[key] = self._add(value, before)
        return False


class HeapCheckedAccumulatorState(HeapAccumulatorState):
    """Immutable accumulators, each of which is checked against its type."""

    __slots__ = ()

    def fold(self, value: Any) -> bool:
        key = self._context.key
        data = self._data
        before = data.get(key)
        if before is None:
            data[self._key()] = self._begin(value)
            return True
        data[key] = self._admit(self._add(value, before))
        return False


def make_state(descriptor: StateDescriptor, rules: StateRules, table: HeapTable, context: KeyContext) -> Any:
    """The state object for a descriptor, folding or not."""
    if not is_folding(descriptor):
        return states.make_state(descriptor, rules, table, context)
    folding = folding_of(descriptor, rules)
    if isinstance(descriptor, FoldingAggregatingDescriptor):
        kind = HeapCheckedAccumulatorState if descriptor.element_type.immutable else HeapAccumulatorState
        return kind(rules, table, context, folding, descriptor.agg_function.add)
    return HeapFoldingState(rules, table, context, folding)
