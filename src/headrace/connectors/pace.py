"""Holding a generator to a rate by the clock, so that it neither drifts nor bursts without bound."""

from __future__ import annotations

import time
from collections.abc import Callable

from headrace.errors import ConfigurationError

CATCH_UP_SECONDS = 1.0
GRAIN_SECONDS = 0.001


class Pace:
    """How many records are due by now, at `per_second` from the moment of the first question on.

    What a stalled reader missed is caught up, but at most `catch_up` seconds of it: after a long stall the
    rate goes on from now instead of flooding the job. `None` as the rate means: all that is asked for.
    """

    __slots__ = ("_anchor", "_catch_up", "_clock", "_emitted", "_per_second")

    def __init__(
        self,
        per_second: float | None,
        *,
        catch_up: float = CATCH_UP_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._per_second = per_second
        self._catch_up = catch_up
        self._clock = clock
        self._anchor: float | None = None
        self._emitted = 0

    def due(self, limit: int) -> int:
        """Records that may be emitted now, at most `limit`. Tell `emitted` how many were."""
        if self._per_second is None:
            return limit
        now = self._clock()
        if self._anchor is None:
            # The first record is due at once: a rate of one an hour should not begin with an hour of silence.
            self._anchor = now - 1.0 / self._per_second
        due = (now - self._anchor) * self._per_second - self._emitted
        allowed = max(1.0, self._catch_up * self._per_second)
        if due > allowed:
            self._anchor = now - (self._emitted + allowed) / self._per_second
            due = allowed
        # A hair's breadth, so that a clock read exactly at `next_due` is not rounded to "not yet".
        return min(limit, int(due + 1e-6))

    def emitted(self, count: int) -> None:
        """`count` records went out."""
        self._emitted += count

    def next_due(self) -> float:
        """The clock's time at which the next record is due, at least a millisecond from now."""
        now = self._clock()
        if self._per_second is None or self._anchor is None:
            return now
        return max(now + GRAIN_SECONDS, self._anchor + (self._emitted + 1) / self._per_second)


def check_rate(rate: float | None, source: str) -> None:
    """Refuse a rate that could never emit anything."""
    if rate is not None and not rate > 0:
        raise ConfigurationError(f"{source} has rate={rate!r}. Give records per second above 0, or None for no limit.")
