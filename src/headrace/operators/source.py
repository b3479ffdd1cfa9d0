"""The source operator: polls a reader, gives its records timestamps, keeps a watermark for every split."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.connectors.source import PollStatus, ReaderContext, Source, SourceBatch, SourceReader
from headrace.errors import UserFunctionError
from headrace.operators.alignment import SplitAligner
from headrace.operators.base import BackgroundWork, Operator, failure_in
from headrace.operators.metrics import MetricGroup
from headrace.operators.timestamps import WATERMARK_INTERVAL_MS, WatermarkTracker
from headrace.operators.watermarks import MIN_WATERMARK, WatermarkStrategy
from headrace.types.columns import batch_to_values


class SourceOperator(Operator):
    """Runs a source reader. The task polls it while its control channel is not set aside."""

    _reader: SourceReader[Any]

    def __init__(self, source: Source[Any], strategy: WatermarkStrategy) -> None:
        super().__init__()
        self._source = source
        self._strategy = strategy
        self._split_decoder = msgspec.msgpack.Decoder(source.split_type)
        self._split_encoder = msgspec.msgpack.Encoder()
        self._trackers: dict[str, WatermarkTracker] = {}
        self._active: set[str] = set()
        self._emitted = MIN_WATERMARK
        self._is_idle = False
        self._next_watermark_ms = 0
        self._aligner: SplitAligner | None = None
        self.report: Callable[[str, int, int], None] = lambda uid, subtask, watermark: None
        """With watermark alignment: told how far the slowest split is, from time to time."""
        self.announce: Callable[[str, int, Sequence[bytes]], None] | None = None
        """Without checkpoints: told the positions behind a batch before the batch is emitted."""
        self.exhausted = False
        self.records = 0
        self.woken = False
        """The reader has said that records became available: it need not rest any longer."""

    def open(self) -> None:
        context = self.context
        self._tick_ms = WATERMARK_INTERVAL_MS
        alignment = self._strategy.alignment
        if alignment is not None:
            self._aligner = SplitAligner(alignment, lambda w: self.report(context.uid, context.subtask, w))
            self._tick_ms = min(self._tick_ms, alignment.update_interval_ms)
        self._next_watermark_ms = context.now_ms() + self._tick_ms
        try:
            self._reader = self._source.create_reader(
                ReaderContext(
                    subtask=context.subtask,
                    parallelism=context.parallelism,
                    wake=self._woken,
                    wants_timestamps=self._strategy.timestamp_field is None,
                    metrics=MetricGroup(context.metrics),
                )
            )
            self._reader.open()
        except Exception as error:
            raise failure_in(self, "(none: opening the source)", error) from error

    def _woken(self) -> None:
        """Called by a reader's own thread."""
        if not self.woken:
            self.woken = True
            self.context.wake()

    def assign(self, splits: Sequence[bytes]) -> None:
        decoded = [self._split_decoder.decode(s) for s in splits]
        for split in decoded:
            self._active.add(split.split_id)
            self._trackers.setdefault(split.split_id, WatermarkTracker(self._strategy))
        self._reader.add_splits(decoded)

    def no_more_splits(self) -> None:
        self._reader.no_more_splits()

    def no_split_now(self) -> None:
        """The enumerator has none for now: time must not wait for this reader.

        Not as soon as the reader asks: after a restore its split is on the way, and the timers of its keys must
        not fire before its records.
        """
        self._set_idle(True)

    def align_to(self, floor: int) -> None:
        """How far the slowest other subtask of the group is. Between records, when the driver has news."""
        if self._aligner is not None:
            self._aligner.hear(floor)
            self._align()

    def _align(self) -> None:
        aligner = self._aligner
        assert aligner is not None
        waited = aligner.waiting
        aligner.align(self._reader, self._trackers, self._active)
        if waited - aligner.waiting:
            self.woken = True

    def poll(self, limit: int) -> int | PollStatus:
        """Emit the next records of one split; their number, or why there are none."""
        if self._aligner is not None and self._aligner.all_wait(self._active):
            self.woken = False
            return PollStatus.IDLE
        # Before the look, so that what becomes available during it is not missed.
        self.woken = False
        try:
            batch = self._reader.poll(limit)
        except UserFunctionError:
            raise
        except Exception as error:
            raise failure_in(self, "(none: polling the source)", error) from error
        if isinstance(batch, PollStatus):
            if batch is PollStatus.ENDED:
                self.exhausted = True
                if self._aligner is not None:
                    self._aligner.end()
            elif batch is PollStatus.NEEDS_SPLIT:
                # Splits may be shorter than the interval, and follow each other without end.
                self._advance()
                self._active.clear()
                self._trackers.clear()
            return batch
        self._set_idle(False)
        if self.announce is not None:
            self.announce(self.context.uid, self.context.subtask, self.splits())
        count = self._emit_columns(batch) if batch.columns is not None else self._emit_values(batch)
        self.records += count
        if self._aligner is not None:
            self._align()
        return count

    def idle_until(self) -> float | None:
        if self._aligner is not None and self._aligner.all_wait(self._active):
            return time.monotonic() + self._tick_ms / 1_000
        return self._reader.idle_until()

    def _emit_values(self, batch: SourceBatch) -> int:
        values = batch.values or []
        tracker = self._tracker(batch.split_id)
        assigner, timestamps = self._strategy.assigner, batch.timestamps
        if assigner is None and (timestamps is None or not tracker.generator_sees_values):
            if timestamps:
                tracker.event(None, max(timestamps))
            self.outputs.emit_all(values, timestamps)
            return len(values)
        emit = self.emit
        for i, value in enumerate(values):
            timestamp = MIN_WATERMARK if timestamps is None else timestamps[i]
            if assigner is not None:
                try:
                    timestamp = assigner(value, timestamp)
                except Exception as error:
                    raise failure_in(self, value, error) from error
            tracker.event(value, timestamp)
            emit(value, timestamp)
        return len(values)

    def _emit_columns(self, batch: SourceBatch) -> int:
        columns = batch.columns
        assert columns is not None
        tracker = self._tracker(batch.split_id)
        timestamps = self._column_timestamps(batch)
        if timestamps is None and (self._strategy.assigner is not None or batch.timestamps is not None):
            return self._emit_values(SourceBatch(batch.split_id, self._rows(columns), None, batch.timestamps))
        if timestamps is not None and columns.num_rows:
            if tracker.generator_sees_values:
                for value, timestamp in zip(self._rows(columns), timestamps.to_pylist(), strict=True):
                    tracker.event(value, timestamp)
            else:
                tracker.event(None, pc.max(timestamps).as_py())
        self.outputs.emit_columns(columns, timestamps)
        return int(columns.num_rows)

    def _column_timestamps(self, batch: SourceBatch) -> pa.Array | None:
        """Timestamps as a whole column, where no user code has to look at each record."""
        if self._strategy.timestamp_field is not None:
            assert batch.columns is not None
            column = batch.columns.column(self._strategy.timestamp_field)
            return column if column.type == pa.int64() and column.null_count == 0 else None
        if self._strategy.assigner is None and batch.timestamps is not None:
            return pa.array(batch.timestamps, pa.int64())
        return None

    def _rows(self, columns: pa.RecordBatch) -> list[Any]:
        assert self._source.produced_type is not None, "a source of columns has a row type"
        return batch_to_values(self._source.produced_type, columns)

    def _tracker(self, split_id: str) -> WatermarkTracker:
        tracker = self._trackers.get(split_id)
        if tracker is None:
            tracker = self._trackers[split_id] = WatermarkTracker(self._strategy)
        self._active.add(split_id)
        tracker.seen()
        return tracker

    def process(self, value: Any, timestamp: int | None) -> None:
        raise AssertionError("a source has no input")

    def next_processing_time(self) -> int | None:
        return None if self.exhausted else self._next_watermark_ms

    def processing_time(self, now_ms: int) -> None:
        self._next_watermark_ms = now_ms + self._tick_ms
        if self._aligner is not None:
            self._align()
            self._aligner.tell(now_ms, self._trackers, self._active)
        self._advance()

    def _advance(self) -> None:
        """Emit the watermark that all splits together have reached, if it is a new one."""
        now = time.monotonic()
        trackers = [self._trackers[s] for s in self._active if s in self._trackers]
        awake = [t for t in trackers if not t.is_idle(now)]
        for tracker in trackers:
            tracker.advance()
        if not awake:
            if trackers:
                self._set_idle(True)
            return
        reached = min(t.watermark for t in awake)
        if reached > self._emitted:
            self._emitted = self.current_watermark = reached
            self.outputs.watermark(reached)

    def _set_idle(self, is_idle: bool) -> None:
        if is_idle != self._is_idle:
            self._is_idle = is_idle
            self.outputs.idle(is_idle)

    def prepare_snapshot(self, checkpoint_id: int) -> None:
        self._reader.snapshot_for(checkpoint_id)

    def splits(self) -> Sequence[bytes]:
        return [self._split_encoder.encode(split) for split in self._reader.snapshot()]

    def complete(self, checkpoint_id: int) -> BackgroundWork | None:
        self._reader.checkpoint_complete(checkpoint_id)
        return super().complete(checkpoint_id)

    def close(self) -> None:
        reader = getattr(self, "_reader", None)
        if reader is not None:
            reader.close()
