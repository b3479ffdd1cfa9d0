"""User metrics: counters, gauges, meters and distributions, reported with the job's status."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from headrace.operators import functions


class Counter(functions.Counter):
    """A plain integer; only its own task touches it."""

    def __init__(self) -> None:
        self._count = 0

    def inc(self, n: int = 1) -> None:
        self._count += n

    def dec(self, n: int = 1) -> None:
        self._count -= n

    def get_count(self) -> int:
        return self._count


class Distribution(functions.Distribution):
    """Smallest, largest, mean and number of what was reported."""

    def __init__(self) -> None:
        self.count, self.total = 0, 0
        self.smallest: int | None = None
        self.largest: int | None = None

    def update(self, value: int) -> None:
        self.count += 1
        self.total += value
        self.smallest = value if self.smallest is None else min(self.smallest, value)
        self.largest = value if self.largest is None else max(self.largest, value)


class Meter(functions.Meter):
    """How often something happens, over a span of seconds."""

    def __init__(self, span_seconds: int) -> None:
        self._span = span_seconds
        self._count = 0
        self._since = time.monotonic()
        self._rate = 0.0

    def mark_event(self, value: int = 1) -> None:
        self._count += value
        passed = time.monotonic() - self._since
        if passed >= self._span:
            self._rate = self._count / passed
            self._count, self._since = 0, time.monotonic()

    def get_count(self) -> int:
        return self._count

    def get_rate(self) -> float:
        passed = time.monotonic() - self._since
        return self._rate or (self._count / passed if passed > 0 else 0.0)


class MetricGroup(functions.MetricGroup):
    """A named place for metrics; groups nest. Asking twice for a name gives the same metric."""

    def __init__(self, registry: dict[str, Any], prefix: str = "") -> None:
        self._registry = registry
        self._prefix = prefix

    def add_group(self, name: str, extra: str | None = None) -> MetricGroup:
        part = name if extra is None else f"{name}.{extra}"
        return MetricGroup(self._registry, f"{self._prefix}{part}.")

    def counter(self, name: str) -> Counter:
        return self._registry.setdefault(self._prefix + name, Counter())  # type: ignore[no-any-return]

    def gauge(self, name: str, obj: Callable[[], int]) -> None:
        self._registry[self._prefix + name] = obj

    def meter(self, name: str, time_span_in_seconds: int = 60) -> Meter:
        return self._registry.setdefault(  # type: ignore[no-any-return]
            self._prefix + name, Meter(time_span_in_seconds)
        )

    def distribution(self, name: str) -> Distribution:
        return self._registry.setdefault(self._prefix + name, Distribution())  # type: ignore[no-any-return]


def reading(metric: Any) -> float | int | None:
    """One number for a metric, as the status shows it."""
    match metric:
        case Counter():
            return metric.get_count()
        case Meter():
            return metric.get_rate()
        case Distribution():
            return metric.total / metric.count if metric.count else None
        case _:
            value = metric()
            return value if isinstance(value, int | float) else None
