"""When a file is closed and the next one begun.

Every file is closed at the barrier of a checkpoint, under every policy: only then is it complete, can it be committed
with that checkpoint, and be carried over to another parallelism. A policy can only close files earlier than that.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.durations import DurationLike, to_millis
from headrace.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class RollingPolicy:
    """Close a file at the barrier, and before that when it is so large or so old."""

    max_bytes: int | None = None
    max_age_ms: int | None = None

    @staticmethod
    def on_checkpoint_rolling_policy() -> RollingPolicy:
        """At the barrier only. The default."""
        return RollingPolicy()

    @staticmethod
    def default_rolling_policy(
        part_size: int = 128 * 1024 * 1024,
        rollover_interval: DurationLike = 60_000,
        inactivity_interval: DurationLike | None = None,
    ) -> RollingPolicy:
        """At this size or age too. `inactivity_interval` is PyFlink's; the barrier comes sooner than it."""
        age = to_millis(rollover_interval, "RollingPolicy rollover_interval")
        if part_size < 1 or age < 1:
            raise ConfigurationError(
                f"RollingPolicy has part_size={part_size} and rollover_interval={age} ms. Both must be above 0."
            )
        return RollingPolicy(max_bytes=part_size, max_age_ms=age)

    def is_full(self, size: int, age_ms: float) -> bool:
        """Whether the next record belongs into a new file. Asked before each batch of records."""
        too_large = self.max_bytes is not None and size >= self.max_bytes
        return too_large or (self.max_age_ms is not None and age_ms >= self.max_age_ms)
