"""Durations as users write them: int milliseconds, `timedelta`, `Time` or `Duration`, all alike.

Public settings take any of them and keep a `timedelta`; hot paths keep integer milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TypeAlias

from headrace.errors import ConfigurationError


@dataclass(frozen=True, slots=True, order=True)
class Duration:
    """A length of time in whole milliseconds, built by `of_seconds`, `of_minutes` and their kin."""

    millis: int

    @classmethod
    def of_millis(cls, n: int) -> Duration:
        return cls(int(n))

    @classmethod
    def of_nanos(cls, n: int) -> Duration:
        return cls(int(n) // 1_000_000)

    @classmethod
    def of_seconds(cls, n: float) -> Duration:
        return cls(round(n * 1_000))

    @classmethod
    def of_minutes(cls, n: float) -> Duration:
        return cls(round(n * 60_000))

    @classmethod
    def of_hours(cls, n: float) -> Duration:
        return cls(round(n * 3_600_000))

    @classmethod
    def of_days(cls, n: float) -> Duration:
        return cls(round(n * 86_400_000))

    def to_milliseconds(self) -> int:
        return self.millis


@dataclass(frozen=True, slots=True, order=True)
class Time:
    """Flink's window and TTL length, built by `seconds`, `minutes` and their kin."""

    millis: int

    @classmethod
    def milliseconds(cls, n: int) -> Time:
        return cls(int(n))

    @classmethod
    def seconds(cls, n: float) -> Time:
        return cls(round(n * 1_000))

    @classmethod
    def minutes(cls, n: float) -> Time:
        return cls(round(n * 60_000))

    @classmethod
    def hours(cls, n: float) -> Time:
        return cls(round(n * 3_600_000))

    @classmethod
    def days(cls, n: float) -> Time:
        return cls(round(n * 86_400_000))

    def to_milliseconds(self) -> int:
        return self.millis


DurationLike: TypeAlias = int | timedelta | Time | Duration


def to_millis(value: DurationLike, setting: str) -> int:
    """Whole milliseconds of `value`; `setting` names the place in the error."""
    match value:
        case bool():
            pass
        case int():
            return value
        case timedelta():
            return round(value.total_seconds() * 1_000)
        case Time() | Duration():
            return value.millis
    raise ConfigurationError(
        f"{setting} is {value!r}, which is no duration. Give int milliseconds, a timedelta, Time or Duration."
    )


_YEAR_S = 365 * 86_400


def duration(seconds: float) -> str:
    """Short, for people.

    >>> [duration(s) for s in (0.0004, 0.0123, 0.12, 3.44, 75, 7_300, 90_000, 40_000_000)]
    ['0.4 ms', '12 ms', '120 ms', '3.4 s', '1 min 15 s', '2 h 1 min', '1 d 1 h', '1.3 years']
    """
    if seconds < 0.001:
        return f"{seconds * 1_000:.1f} ms"
    if seconds < 0.9995:
        return f"{seconds * 1_000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    if seconds >= _YEAR_S:
        return f"{seconds / _YEAR_S:.1f} years"
    whole = round(seconds)
    for unit, name, smaller, small in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= unit:
            rest = whole % unit // smaller
            return f"{whole // unit} {name} {rest} {small}" if rest else f"{whole // unit} {name}"
    raise AssertionError(seconds)
