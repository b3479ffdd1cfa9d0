"""Evictors: take elements out of a window before or after its function sees them.

An evictor needs the elements, so a window with one keeps them all, even under `reduce` and `aggregate`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from headrace.durations import DurationLike, to_millis
from headrace.errors import JobDefinitionError
from headrace.operators.windows.windows import Window


class TimestampedValue(NamedTuple):
    """An element of a window as an evictor sees it."""

    value: Any
    timestamp: int | None
    """Event time of the record; None if it had none."""


class EvictorContext(ABC):
    """What an evictor may ask. Valid only during the call."""

    @abstractmethod
    def get_current_processing_time(self) -> int: ...

    @abstractmethod
    def get_current_watermark(self) -> int: ...


class Evictor(ABC):  # noqa: B024 - either method may be left out
    """Takes elements out of the list that it is handed, in place. What it leaves is what the window keeps."""

    def evict_before(  # noqa: B027 - optional for implementers
        self, elements: list[TimestampedValue], size: int, window: Window, evictor_context: EvictorContext
    ) -> None:
        """Called when the window fires, before its function. `size` is the number of elements."""

    def evict_after(  # noqa: B027 - optional for implementers
        self, elements: list[TimestampedValue], size: int, window: Window, evictor_context: EvictorContext
    ) -> None:
        """Called when the window fires, after its function."""


class _OneSided(Evictor):
    """Evicts either before or after the function."""

    do_evict_after: bool

    def evict_before(
        self, elements: list[TimestampedValue], size: int, window: Window, evictor_context: EvictorContext
    ) -> None:
        if not self.do_evict_after:
            self.evict(elements)

    def evict_after(
        self, elements: list[TimestampedValue], size: int, window: Window, evictor_context: EvictorContext
    ) -> None:
        if self.do_evict_after:
            self.evict(elements)

    @abstractmethod
    def evict(self, elements: list[TimestampedValue]) -> None: ...


@dataclass(frozen=True)
class CountEvictor(_OneSided):
    """Keeps the last `max_count` elements."""

    max_count: int
    do_evict_after: bool = False

    @staticmethod
    def of(max_count: int, do_evict_after: bool = False) -> CountEvictor:
        if max_count < 0:
            raise JobDefinitionError(f"CountEvictor.of() got {max_count}. Give the number of elements to keep.")
        return CountEvictor(max_count, do_evict_after)

    def evict(self, elements: list[TimestampedValue]) -> None:
        if len(elements) > self.max_count:
            del elements[: len(elements) - self.max_count]


@dataclass(frozen=True)
class TimeEvictor(_OneSided):
    """Keeps the elements that are less than `window_size` milliseconds older than the newest one."""

    window_size: int
    do_evict_after: bool = False

    @staticmethod
    def of(window_size: DurationLike, do_evict_after: bool = False) -> TimeEvictor:
        return TimeEvictor(to_millis(window_size, "TimeEvictor.of()"), do_evict_after)

    def evict(self, elements: list[TimestampedValue]) -> None:
        if not elements or elements[0].timestamp is None:
            return
        times = [element.timestamp for element in elements if element.timestamp is not None]
        cutoff = max(times) - self.window_size
        elements[:] = [e for e in elements if e.timestamp is None or e.timestamp > cutoff]


@dataclass(frozen=True)
class DeltaEvictor(_OneSided):
    """Keeps the elements whose distance to the last one is below `threshold`."""

    threshold: float
    delta_function: Callable[[Any, Any], float]
    """`(element, last element) -> distance`"""
    do_evict_after: bool = False

    @staticmethod
    def of(threshold: float, delta_function: Any, do_evict_after: bool = False) -> DeltaEvictor:
        call = getattr(delta_function, "get_delta", delta_function)
        if not callable(call):
            raise JobDefinitionError(f"DeltaEvictor.of() got {delta_function!r}; wanted a function of two elements.")
        return DeltaEvictor(threshold, call, do_evict_after)

    def evict(self, elements: list[TimestampedValue]) -> None:
        if elements:
            last = elements[-1].value
            elements[:] = [e for e in elements if self.delta_function(e.value, last) < self.threshold]
