"""States whose entries expire: a wrapper around the states of either backend, which store stamped values.

A value, a list element, a map value or an accumulator is stored with its own time stamp, so lists and maps expire
entry by entry. Reducing and aggregating states fold here, above a value state. An entry has expired when
last use + time-to-live ≤ now. Semantics are Flink's:

    read of an expired entry    it is removed; with ReturnExpiredIfNotCleanedUp it is given out once more
    OnReadAndWrite              a read of an entry that is alive writes it again, with a new stamp
    fold onto an expired value  begins anew (with ReturnExpiredIfNotCleanedUp: goes on)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.backends.elements import STAMP, Elements, Stamped, reduce_function_of
from headrace.state.descriptors import AggregatingStateDescriptor, ReducingStateDescriptor, StateDescriptor
from headrace.state.states import AggregatingState, ListState, MapState, ReducingState, State, ValueState
from headrace.state.ttl import StateTtlConfig, StateVisibility, UpdateType

_STAMP_BYTES = STAMP.size


@dataclass(frozen=True, slots=True)
class Expiry:
    """When stored values of one state have expired."""

    ttl_ms: int
    now_ms: Callable[[], int]

    def horizon(self) -> bytes:
        """Stored values that begin with these bytes or smaller ones have expired as of now."""
        oldest = self.now_ms() - self.ttl_ms
        return STAMP.pack(oldest) if oldest >= 0 else b""


def has_expired(stored: bytes, horizon: bytes) -> bool:
    return stored[:_STAMP_BYTES] <= horizon


class _Expiring(State):
    """What all five share. `on_access` runs the backend's cleanup, a little at a time."""

    __slots__ = ("_inner", "_now_ms", "_on_access", "_returns_expired", "_touches", "_ttl_ms")

    def __init__(self, inner: Any, config: StateTtlConfig, expiry: Expiry, on_access: Callable[[], None]) -> None:
        self._inner = inner
        self._ttl_ms = expiry.ttl_ms
        self._now_ms = expiry.now_ms
        self._touches = config.update_type is UpdateType.OnReadAndWrite
        self._returns_expired = config.visibility is StateVisibility.ReturnExpiredIfNotCleanedUp
        self._on_access = on_access

    def set_namespace(self, namespace: bytes) -> None:
        """Scope all later accesses to that namespace (a window). The operator calls it, never the user."""
        self._inner.set_namespace(namespace)

    def clear(self) -> None:
        self._inner.clear()


class _ExpiringSingle(_Expiring):
    """States with one stamped value per key."""

    __slots__ = ()

    def _read(self) -> Any:
        self._on_access()
        held = self._inner.value()
        if held is None:
            return None
        stamp, value = held
        now = self._now_ms()
        if stamp + self._ttl_ms <= now:
            self._inner.clear()
            return value if self._returns_expired else None
        if self._touches:
            self._inner.update((now, value))
        return value

    def _base(self, now: int) -> Any:
        """What a fold begins with, or None."""
        held = self._inner.value()
        if held is None or (not self._returns_expired and held[0] + self._ttl_ms <= now):
            return None
        return held[1]


class ExpiringValueState(_ExpiringSingle, ValueState[Any]):
    __slots__ = ()

    def value(self) -> Any:
        return self._read()

    def update(self, value: Any) -> None:
        self._on_access()
        self._inner.update(None if value is None else (self._now_ms(), value))


class ExpiringReducingState(_ExpiringSingle, ReducingState[Any]):
    __slots__ = ("_as_stored", "_reduce")

    def __init__(
        self,
        inner: Any,
        config: StateTtlConfig,
        expiry: Expiry,
        on_access: Callable[[], None],
        reduce: Callable[[Any, Any], Any],
        as_stored: Callable[[Any], Any],
    ) -> None:
        super().__init__(inner, config, expiry, on_access)
        self._reduce = reduce
        self._as_stored = as_stored

    def get(self) -> Any:
        return self._read()

    def add(self, value: Any) -> None:
        self._on_access()
        now = self._now_ms()
        before = self._base(now)
        if before is not None:
            # Through the stored form: the function gets what the state would hold, on every backend alike.
            value = self._reduce(before, self._as_stored(value))
        self._inner.update((now, value))


class ExpiringAggregatingState(_ExpiringSingle, AggregatingState[Any, Any]):
    __slots__ = ("_function",)

    def __init__(
        self, inner: Any, config: StateTtlConfig, expiry: Expiry, on_access: Callable[[], None], function: Any
    ) -> None:
        super().__init__(inner, config, expiry, on_access)
        self._function = function

    def get(self) -> Any:
        accumulator = self._read()
        return None if accumulator is None else self._function.get_result(accumulator)

    def add(self, value: Any) -> None:
        self._on_access()
        now = self._now_ms()
        before = self._base(now)
        accumulator = self._function.create_accumulator() if before is None else before
        self._inner.update((now, self._function.add(value, accumulator)))


class ExpiringListState(_Expiring, ListState[Any]):
    """Every element has its own time."""

    __slots__ = ()

    def get(self) -> list[Any]:
        self._on_access()
        held: list[Stamped] = self._inner.get()
        if not held:
            return []
        now = self._now_ms()
        oldest = now - self._ttl_ms
        alive = [value for stamp, value in held if stamp > oldest]
        if not alive:
            self._inner.clear()
        elif self._touches:
            self._inner.update([(now, value) for value in alive])
        return [value for _, value in held] if self._returns_expired else alive

    def add(self, value: Any) -> None:
        self._on_access()
        self._inner.add((self._now_ms(), value))

    def add_all(self, values: Iterable[Any]) -> None:
        self._on_access()
        now = self._now_ms()
        self._inner.add_all([(now, value) for value in values])

    def update(self, values: Iterable[Any]) -> None:
        self._on_access()
        now = self._now_ms()
        self._inner.update([(now, value) for value in values or ()])


class ExpiringMapState(_Expiring, MapState[Any, Any]):
    """Every entry has its own time."""

    __slots__ = ()

    def get(self, key: Any) -> Any:
        held = self._visible(key)
        return None if held is None else held[1]

    def contains(self, key: Any) -> bool:
        return self._visible(key) is not None

    def put(self, key: Any, value: Any) -> None:
        self._on_access()
        self._inner.put(key, (self._now_ms(), value))

    def put_all(self, entries: Mapping[Any, Any]) -> None:
        self._on_access()
        now = self._now_ms()
        self._inner.put_all({key: (now, value) for key, value in entries.items()})

    def remove(self, key: Any) -> None:
        self._on_access()
        self._inner.remove(key)

    def items(self) -> list[tuple[Any, Any]]:
        self._on_access()
        now = self._now_ms()
        oldest = now - self._ttl_ms
        seen = []
        touched = {}
        for key, (stamp, value) in self._inner.items():
            if stamp > oldest:
                if self._touches:
                    touched[key] = (now, value)
            else:
                self._inner.remove(key)
                if not self._returns_expired:
                    continue
            seen.append((key, value))
        if touched:
            self._inner.put_all(touched)
        return seen

    def keys(self) -> list[Any]:
        return [key for key, _ in self.items()]

    def values(self) -> list[Any]:
        return [value for _, value in self.items()]

    def is_empty(self) -> bool:
        self._on_access()
        if self._returns_expired:
            return bool(self._inner.is_empty())
        oldest = self._now_ms() - self._ttl_ms
        return not any(stamp > oldest for stamp, _ in self._inner.values())

    def _visible(self, key: Any) -> Stamped | None:
        self._on_access()
        held: Stamped | None = self._inner.get(key)
        if held is None:
            return None
        now = self._now_ms()
        if held[0] + self._ttl_ms <= now:
            self._inner.remove(key)
            return held if self._returns_expired else None
        if self._touches:
            self._inner.put(key, (now, held[1]))
        return held


def expiring(
    descriptor: StateDescriptor, inner: Any, elements: Elements, expiry: Expiry, on_access: Callable[[], None]
) -> Any:
    """The state that the program gets. `inner` keeps stamped values: a list or map state, else a value state.

    `elements` are the rules of the values without a stamp.
    """
    config = descriptor.active_ttl
    assert config is not None
    match descriptor.KIND:
        case "list":
            return ExpiringListState(inner, config, expiry, on_access)
        case "map":
            return ExpiringMapState(inner, config, expiry, on_access)
    if isinstance(descriptor, ReducingStateDescriptor):
        reduce = reduce_function_of(descriptor.reduce_function)
        return ExpiringReducingState(
            inner, config, expiry, on_access, reduce, lambda value: elements.release(elements.admit(value))
        )
    if isinstance(descriptor, AggregatingStateDescriptor):
        return ExpiringAggregatingState(inner, config, expiry, on_access, descriptor.agg_function)
    return ExpiringValueState(inner, config, expiry, on_access)


def no_cleanup() -> None:
    """For states whose program switched cleanup off."""
