"""Lengths and points of time, under the names of `pyflink.common.time`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Self

from headrace.durations import Duration, Time

__all__ = [
    "Duration",
    "Instant",
    "Time",
]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Instant(datetime):
    """A point of time as seconds and nanoseconds since 1970, UTC; a `datetime`, so it is a value of `Types.INSTANT()`.

    Whole microseconds are kept. What comes out of state and out of a typed stream is a `datetime` of the same time:
    `Instant.of(that)` makes an Instant of it.
    """

    def __new__(cls, seconds: Any, nanos: Any = 0, *rest: Any, **more: Any) -> Self:
        if rest or more:
            # Arithmetic on dates makes its results from year, month, day and so on.
            return super().__new__(cls, seconds, nanos, *rest, **more)
        return cls.of(_EPOCH + timedelta(seconds=seconds, microseconds=nanos // 1_000))

    @classmethod
    def of(cls, time: datetime) -> Self:
        """The same point of time."""
        at = time.astimezone(UTC)
        return super().__new__(cls, at.year, at.month, at.day, at.hour, at.minute, at.second, at.microsecond, UTC)

    @staticmethod
    def of_epoch_milli(epoch_milli: int) -> Instant:
        return Instant(epoch_milli // 1_000, epoch_milli % 1_000 * 1_000_000)

    def to_epoch_milli(self) -> int:
        return self._since_epoch() // timedelta(milliseconds=1)

    @property
    def seconds(self) -> int:
        return self._since_epoch() // timedelta(seconds=1)

    def _since_epoch(self) -> timedelta:
        return datetime.__sub__(self, _EPOCH)

    @property
    def nanos(self) -> int:
        return self.microsecond * 1_000

    def __reduce__(self) -> Any:
        return Instant, (self.seconds, self.nanos)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.__reduce__()

    def __repr__(self) -> str:
        return f"Instant<{self.seconds}, {self.nanos}>"
