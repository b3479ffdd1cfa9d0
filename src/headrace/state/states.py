"""States as user functions see them: five that speak of the current record's key, and broadcast state without a key."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Generic, TypeVar

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
IN = TypeVar("IN")
OUT = TypeVar("OUT")


class State(ABC):
    """Base of all keyed states."""

    @abstractmethod
    def clear(self) -> None:
        """Forget everything under the current key."""


class ValueState(State, Generic[T]):
    """One value."""

    @abstractmethod
    def value(self) -> T | None:
        """The value, or None if there is none."""

    @abstractmethod
    def update(self, value: T | None) -> None:
        """Set the value; None clears it."""


class ListState(State, Generic[T]):
    """A list in order of addition."""

    @abstractmethod
    def get(self) -> Iterable[T]: ...

    @abstractmethod
    def add(self, value: T) -> None: ...

    @abstractmethod
    def add_all(self, values: Iterable[T]) -> None: ...

    @abstractmethod
    def update(self, values: Iterable[T]) -> None:
        """Replace the whole list."""

    def __iter__(self) -> Iterator[T]:
        return iter(self.get())


class _ReadableMap(State, Generic[K, V]):
    """What may be asked of a map, by its methods or as a mapping."""

    @abstractmethod
    def get(self, key: K) -> V | None: ...

    @abstractmethod
    def contains(self, key: K) -> bool: ...

    @abstractmethod
    def items(self) -> Iterable[tuple[K, V]]: ...

    @abstractmethod
    def keys(self) -> Iterable[K]: ...

    @abstractmethod
    def values(self) -> Iterable[V]: ...

    @abstractmethod
    def is_empty(self) -> bool: ...

    def __getitem__(self, key: K) -> V:
        value = self.get(key)
        if value is None and not self.contains(key):
            raise KeyError(key)
        return value  # type: ignore[return-value]  # a stored None is a legal value

    def __contains__(self, key: K) -> bool:
        return self.contains(key)

    def __iter__(self) -> Iterator[K]:
        return iter(self.keys())


class _WritableMap(_ReadableMap[K, V]):
    """What may be done to a map besides."""

    @abstractmethod
    def put(self, key: K, value: V) -> None: ...

    @abstractmethod
    def put_all(self, entries: Mapping[K, V]) -> None: ...

    @abstractmethod
    def remove(self, key: K) -> None: ...

    def __setitem__(self, key: K, value: V) -> None:
        self.put(key, value)

    def __delitem__(self, key: K) -> None:
        if not self.contains(key):
            raise KeyError(key)
        self.remove(key)


class MapState(_WritableMap[K, V]):
    """A map; also usable as a mapping (`m[k]`, `k in m`, `del m[k]`, iteration over keys)."""


class ReducingState(State, Generic[T]):
    """One value, folded at every `add`."""

    @abstractmethod
    def get(self) -> T | None: ...

    @abstractmethod
    def add(self, value: T) -> None: ...


class AggregatingState(State, Generic[IN, OUT]):
    """One accumulator; `get` gives the aggregate function's result."""

    @abstractmethod
    def get(self) -> OUT | None: ...

    @abstractmethod
    def add(self, value: IN) -> None: ...


class ReadOnlyBroadcastState(_ReadableMap[K, V]):
    """A map that all subtasks hold alike, to be read; also usable as a mapping (`m[k]`, `k in m`, iteration)."""


class BroadcastState(_WritableMap[K, V], ReadOnlyBroadcastState[K, V]):
    """The same where it may be changed: on the side of the broadcast, which every subtask sees alike."""
