"""A clock that stands still until a test moves it."""

from __future__ import annotations

from headrace.durations import DurationLike, to_millis


class ManualClock:
    """Processing time in milliseconds. Calling it tells the time; only `advance` and `set` change it."""

    def __init__(self, now_ms: int = 0) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms

    def advance(self, by: DurationLike) -> int:
        """Move on; gives the new time."""
        return self.set(self.now_ms + to_millis(by, "the step of a clock"))

    def set(self, now_ms: int) -> int:
        """Move to a point in time, which must not lie in the past."""
        if now_ms < self.now_ms:
            raise ValueError(f"The clock stands at {self.now_ms}; it cannot go back to {now_ms}.")
        self.now_ms = now_ms
        return now_ms
