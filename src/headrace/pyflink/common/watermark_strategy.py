"""Timestamps and watermarks, under the names of `pyflink.common.watermark_strategy`."""

from __future__ import annotations

from headrace.operators.watermarks import TimestampAssigner, WatermarkStrategy

__all__ = ["TimestampAssigner", "WatermarkStrategy"]
