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
