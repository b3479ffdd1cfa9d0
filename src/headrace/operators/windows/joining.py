"""Window join and coGroup: both streams in one, each record with a mark of its side, grouped again when a window fires.

record = (side, value of the first stream or None, value of the second stream or None)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from headrace.operators.functions import Function, KeySelector, MapFunction, RuntimeContext, callable_of
from headrace.operators.windows.functions import FlatJoinFunction, WindowFunction

FIRST, SECOND = 0, 1


class TagFirst(MapFunction):
    """Marks the records of the first stream."""

    def map(self, value: Any) -> tuple[int, Any, None]:
        return FIRST, value, None


class TagSecond(MapFunction):
    """Marks the records of the second stream."""

    def map(self, value: Any) -> tuple[int, None, Any]:
        return SECOND, None, value


@dataclass(frozen=True)
class TaggedKey(KeySelector):
    """The key of a marked record, by the selector of its side."""

    first: Callable[[Any], Any]
    second: Callable[[Any], Any]

    def get_key(self, value: Any) -> Any:
        side, first, second = value
        return self.first(first) if side == FIRST else self.second(second)


class _BothSides(WindowFunction):
    """Opens and closes the user's function, and parts the elements of a window by side."""

    METHOD = ""

    def __init__(self, function: Any) -> None:
        self._function = function
        self._call = callable_of(function, self.METHOD)

    def open(self, runtime_context: RuntimeContext) -> None:
        if isinstance(self._function, Function):
            self._function.open(runtime_context)

    def close(self) -> None:
        if isinstance(self._function, Function):
            self._function.close()

    def apply(self, key: Any, window: Any, inputs: Iterable[Any]) -> Iterable[Any] | None:
        elements = list(inputs)
        firsts = [first for side, first, _ in elements if side == FIRST]
        seconds = [second for side, _, second in elements if side == SECOND]
        return self.combine(firsts, seconds)

    def combine(self, firsts: list[Any], seconds: list[Any]) -> Iterable[Any] | None:
        raise NotImplementedError


class CoGroupWindows(_BothSides):
    """A `CoGroupFunction`, or a callable of two lists."""

    METHOD = "co_group"

    def combine(self, firsts: list[Any], seconds: list[Any]) -> Iterable[Any] | None:
        return self._call(firsts, seconds)  # type: ignore[no-any-return]


class JoinWindows(_BothSides):
    """A `JoinFunction`, `FlatJoinFunction` or a callable of two records, for every pair."""

    METHOD = "join"

    def combine(self, firsts: list[Any], seconds: list[Any]) -> Iterator[Any]:
        call, flat = self._call, isinstance(self._function, FlatJoinFunction)
        for first in firsts:
            for second in seconds:
                if flat:
                    yield from call(first, second) or ()
                else:
                    yield call(first, second)
