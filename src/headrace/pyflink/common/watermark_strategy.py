"""Timestamps and watermarks, under the names of `pyflink.common.watermark_strategy`."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.datastream.ignored import ignored
from headrace.durations import DurationLike
from headrace.operators import watermarks
from headrace.operators.watermarks import TimestampAssigner

__all__ = ["TimestampAssigner", "WatermarkStrategy"]


@dataclass(frozen=True, slots=True)
class WatermarkStrategy(watermarks.WatermarkStrategy):
    """Headrace's own, with the one method more that PyFlink's has."""

    def with_watermark_alignment(
        self,
        watermark_group: str,
        max_allowed_watermark_drift: DurationLike,
        update_interval: DurationLike | None = None,
    ) -> WatermarkStrategy:
        """In Flink, holds back sources that are ahead of the others of their group."""
        ignored(
            "with_watermark_alignment()",
            "a source that is ahead is held back by full buffers alone. Results are the same; state may be larger.",
        )
        return self
