"""What a window keeps of its elements, and how its result comes out of it.

| contents | keeps, for each key and window | made for |
| --- | --- | --- |
| `FoldedContents` | one value or accumulator | `reduce`, `aggregate` |
| `ListedContents` | every element | `apply`, `process` |
| `EvictingContents` | every element with its timestamp | any of them, with an evictor |
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

from headrace.operators.functions import AggregateFunction, callable_of
from headrace.operators.windows.contexts import merge_namespaces
from headrace.operators.windows.evictors import Evictor, EvictorContext, TimestampedValue
from headrace.state.backend import KeyedStateBackend
from headrace.state.descriptors import ListStateDescriptor, StateDescriptor
from headrace.state.folding import FoldingAggregatingDescriptor, FoldingReducingDescriptor, FoldingState
from headrace.types.information import TypeInformation, Types

STATE_NAME = "_window"

Deliver = Callable[[Sequence[Any]], None]
"""Calls the window function with these elements and emits what it gives."""


class WindowContents(ABC):
    """The contents of the operator's windows; one object per operator, moved from window to window by `enter`."""

    @abstractmethod
    def open(self, backend: KeyedStateBackend) -> None:
        """Called once, before anything else."""

    @abstractmethod
    def enter(self, namespace: bytes) -> None:
        """Speak of that window of the current key from now on."""

    @abstractmethod
    def add(self, value: Any, timestamp: int | None) -> bool:
        """Take an element in; False if the window is known to have had contents before."""

    @abstractmethod
    def fire(self, window: Any, context: EvictorContext, deliver: Deliver, *, last: bool) -> None:
        """Deliver what there is, if there is anything. `last`: `clear` follows at once, so nothing need be copied."""

    @abstractmethod
    def states(self) -> Sequence[StateDescriptor]:
        """What `open` asks the backend for."""

    @abstractmethod
    def clear(self) -> None: ...

    @abstractmethod
    def merge(self, target: bytes, sources: Sequence[bytes]) -> None:
        """Windows of the current key become one."""


class FoldedContents(WindowContents):
    """One value per key and window, folded as the elements come."""

    state: FoldingState

    def __init__(self, descriptor: FoldingReducingDescriptor | FoldingAggregatingDescriptor) -> None:
        self._descriptor = descriptor

    def states(self) -> Sequence[StateDescriptor]:
        return (self._descriptor,)

    def open(self, backend: KeyedStateBackend) -> None:
        self.state = backend.state(self._descriptor)

    def enter(self, namespace: bytes) -> None:
        self.state.set_namespace(namespace)

    def add(self, value: Any, timestamp: int | None) -> bool:
        return self.state.fold(value)

    def fire(self, window: Any, context: EvictorContext, deliver: Deliver, *, last: bool) -> None:
        result = self.state.take() if last else self.state.get()
        if result is not None:
            deliver((result,))

    def clear(self) -> None:
        self.state.clear()

    def merge(self, target: bytes, sources: Sequence[bytes]) -> None:
        self.state.merge_namespaces(target, sources)


class ListedContents(WindowContents):
    """Every element, in order of arrival."""

    _state: Any

    def __init__(self, element_type: TypeInformation) -> None:
        self._element_type = element_type

    def descriptor(self) -> StateDescriptor:
        return ListStateDescriptor(STATE_NAME, self._element_type)

    def states(self) -> Sequence[StateDescriptor]:
        return (self.descriptor(),)

    def open(self, backend: KeyedStateBackend) -> None:
        self._state = backend.state(self.descriptor())

    def enter(self, namespace: bytes) -> None:
        self._state.set_namespace(namespace)

    def add(self, value: Any, timestamp: int | None) -> bool:
        self._state.add(value)
        return True

    def fire(self, window: Any, context: EvictorContext, deliver: Deliver, *, last: bool) -> None:
        elements = self._state.get()
        if elements:
            deliver(elements)

    def clear(self) -> None:
        self._state.clear()

    def merge(self, target: bytes, sources: Sequence[bytes]) -> None:
        merge_namespaces(self._state, target, sources)


class EvictingContents(ListedContents):
    """Every element with its timestamp; what the evictor takes out is gone for good."""

    def __init__(
        self, element_type: TypeInformation, evictor: Evictor, fold: Callable[[Sequence[Any]], Sequence[Any]] | None
    ) -> None:
        super().__init__(Types.TUPLE([element_type, Types.LONG()]))
        self._evictor = evictor
        self._fold = fold

    def add(self, value: Any, timestamp: int | None) -> bool:
        self._state.add((value, timestamp))
        return True

    def fire(self, window: Any, context: EvictorContext, deliver: Deliver, *, last: bool) -> None:
        elements = [TimestampedValue(value, timestamp) for value, timestamp in self._state.get()]
        if not elements:
            return
        count = len(elements)
        self._evictor.evict_before(elements, count, window, context)
        values = [element.value for element in elements]
        if values and self._fold is not None:
            values = list(self._fold(values))
        if values:
            deliver(values)
        self._evictor.evict_after(elements, len(elements), window, context)
        if len(elements) != count:
            self._state.update([tuple(element) for element in elements])


def fold_by_reduce(function: Any) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """What `reduce` is where the elements are kept."""
    call = callable_of(function, "reduce")
    return lambda values: (reduce(call, values),)


def fold_by_aggregate(function: AggregateFunction) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """What `aggregate` is where the elements are kept."""

    def fold(values: Sequence[Any]) -> Sequence[Any]:
        accumulator = function.create_accumulator()
        for value in values:
            accumulator = function.add(value, accumulator)
        return (function.get_result(accumulator),)

    return fold
