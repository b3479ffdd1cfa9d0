"""Timestamps and watermarks: per split in sources, and in the middle of a stream."""

from __future__ import annotations

import time
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.operators.base import Operator, failure_in
from headrace.operators.watermarks import MIN_WATERMARK, WatermarkStrategy

WATERMARK_INTERVAL_MS = 200
"""Flink's default for how often periodic watermarks leave a source."""


class WatermarkTracker:
    """Watermark and idleness of one input (a split, or a whole stream)."""

    __slots__ = ("_generator", "_idleness", "_last_seen", "generator_sees_values", "watermark")

    def __init__(self, strategy: WatermarkStrategy) -> None:
        self._generator = strategy.create_generator()
        self._idleness = None if strategy.idleness_ms is None else strategy.idleness_ms / 1_000
        self._last_seen = time.monotonic()
        self.watermark = MIN_WATERMARK
        self.generator_sees_values = not self._generator.only_timestamps

    def event(self, value: Any, timestamp: int) -> None:
        self._generator.on_event(value, timestamp)

    def seen(self) -> None:
        self._last_seen = time.monotonic()

    def advance(self) -> int:
        """The watermark as of now; it never goes back."""
        now = self._generator.on_periodic_emit()
        if now is not None and now > self.watermark:
            self.watermark = now
        return self.watermark

    def is_idle(self, now: float) -> bool:
        return self._idleness is not None and now - self._last_seen >= self._idleness


class TimestampsOperator(Operator):
    """`assign_timestamps_and_watermarks`: watermarks from upstream are swallowed, all but the last."""

    def __init__(self, strategy: WatermarkStrategy) -> None:
        super().__init__()
        self._strategy = strategy
        self._assigner = strategy.assigner
        self._emitted = MIN_WATERMARK
        self._is_idle = False

    def open(self) -> None:
        self._tracker = WatermarkTracker(self._strategy)
        self._next_ms = self.context.now_ms() + WATERMARK_INTERVAL_MS

    def process(self, value: Any, timestamp: int | None) -> None:
        try:
            if self._assigner is not None:
                timestamp = self._assigner(value, MIN_WATERMARK if timestamp is None else timestamp)
            if timestamp is not None:
                self._tracker.event(value, timestamp)
        except Exception as error:
            raise failure_in(self, value, error) from error
        self._tracker.seen()
        if self._is_idle:
            self._is_idle = False
            self.outputs.idle(False)
        self.emit(value, timestamp)

    def process_columns(self, batch: pa.RecordBatch, timestamps: pa.Array | None) -> bool:
        """Whole columns, where no user code has to look at each record."""
        field = self._strategy.timestamp_field
        if self._tracker.generator_sees_values or (self._assigner is not None and field is None):
            return False
        if field is not None:
            timestamps = batch.column(field)
            if timestamps.type != pa.int64() or timestamps.null_count:
                return False
        if timestamps is not None and batch.num_rows:
            self._tracker.event(None, pc.max(timestamps).as_py())
        self._tracker.seen()
        if self._is_idle:
            self._is_idle = False
            self.outputs.idle(False)
        self.outputs.emit_columns(batch, timestamps)
        return True

    def next_processing_time(self) -> int | None:
        return self._next_ms

    def processing_time(self, now_ms: int) -> None:
        self._next_ms = now_ms + WATERMARK_INTERVAL_MS
        reached = self._tracker.advance()
        if reached > self._emitted:
            self._emitted = self.current_watermark = reached
            self.outputs.watermark(reached)
        if not self._is_idle and self._tracker.is_idle(time.monotonic()):
            self._is_idle = True
            self.outputs.idle(True)

    def watermark(self, time_ms: int) -> None:
        # Event time begins anew here; only the end of the stream passes through.
        if time_ms == 2**63 - 1:
            super().watermark(time_ms)
