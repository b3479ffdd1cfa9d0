"""Edge writers: route the records of one subtask to the subtasks of the next operator, and coalesce them into cells."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.errors import InvalidKeyError, JobDefinitionError, TypeMismatchError
from headrace.operators.base import Operator, failure_in
from headrace.plan.graph import Broadcast, Custom, Edge, Forward, Hash, KeySpec, Rebalance, Rescale, Shuffle
from headrace.runtime.task.cells import Address, end_cell, idle_cell, records_header, watermark_cell
from headrace.runtime.task.output import OutputQueue
from headrace.runtime.task.records import EdgeCodec
from headrace.runtime.task.routing import Router, consumers
from headrace.state.key_groups import key_group, key_groups_of_ints, key_groups_of_string_array
from headrace.state.keys import stored_form
from headrace.types.columns import batch_to_values

CELL_BYTES = 96 * 1024
MOST_CELL_BYTES = 120 * 1024
MOST_RECORDS = 16_384
COLUMNS_FROM = 256
"""Below this many records for each target, splitting columns costs more than routing them one by one."""


class _Buffer:
    """Records for one target subtask that have not left yet: Python values or Arrow columns, never both."""

    __slots__ = ("address", "born_us", "column_bytes", "columns", "keys", "slot", "times", "timestamps", "values")

    def __init__(self, address: Address, slot: int) -> None:
        self.address = address
        self.slot = slot
        self.values: list[Any] = []
        self.keys: list[Any] = []
        self.timestamps: list[int] = []
        self.columns: list[pa.RecordBatch] = []
        self.times: list[pa.Array] = []
        self.column_bytes = 0
        self.born_us = 0


class EdgeWriter:
    """One out-edge of one subtask."""

    def __init__(
        self,
        edge: Edge,
        *,
        level: int,
        producer: int,
        producers: int,
        target_parallelism: int,
        target_max_parallelism: int,
        router: Router,
        queue: OutputQueue,
        clock: Clock,
    ) -> None:
        self._edge = edge
        self._queue = queue
        self._clock = clock
        self._codec = EdgeCodec(edge)
        self._targets = consumers(edge, producer, producers, target_parallelism)
        self._parallelism = target_parallelism
        self._max_parallelism = target_max_parallelism
        self._buffers = {
            target: _Buffer(Address(edge.id, producer, target), router.next_slot(level, edge.id, producer, target))
            for target in self._targets
        }
        self._all = list(self._buffers.values())
        self._record_bytes = 64.0
        self._flush_at = 64
        self._next = producer % len(self._targets)
        self._random = random.Random(producer)
        self._keyed = isinstance(edge.partitioning, Hash)
        self._group_cache: dict[Any, int] = {}
        self.append: Callable[[Any, int | None], None] = self._appender()
        self.unflushed_since: float | None = None
        self.records = 0

    operator: Operator | None = None
    """Whose output this is, so that an error on the way out names it; set when the chain is built."""

    @property
    def tag(self) -> str | None:
        return self._edge.tag

    # -- records

    def _appender(self) -> Callable[[Any, int | None], None]:
        match self._edge.partitioning:
            case Hash(key):
                select = key.selector
                cache, limit = self._group_cache, 65_536
                p, m = self._parallelism, self._max_parallelism
                buffers = self._buffers

                def to_key(value: Any, timestamp: int | None) -> None:
                    try:
                        stored = stored_form(select(value))
                    except Exception as error:
                        raise self._failure(value, error) from error
                    target = cache.get(stored)
                    if target is None:
                        target = key_group(stored, m) * p // m
                        if len(cache) >= limit:
                            cache.clear()
                        cache[stored] = target
                    buffer = buffers[target]
                    buffer.keys.append(stored)
                    self._add(buffer, value, timestamp)

                return to_key
            case Broadcast():

                def to_all(value: Any, timestamp: int | None) -> None:
                    for buffer in self._all:
                        self._add(buffer, value, timestamp)

                return to_all
            case Custom(partition, key):

                def to_chosen(value: Any, timestamp: int | None) -> None:
                    try:
                        buffer = self._chosen(partition, key.selector(value))
                    except Exception as error:
                        raise self._failure(value, error) from error
                    self._add(buffer, value, timestamp)

                return to_chosen
            case Shuffle():
                return lambda value, timestamp: self._add(self._random.choice(self._all), value, timestamp)
            case Forward():
                only = self._all[0]
                return lambda value, timestamp: self._add(only, value, timestamp)
            case Rebalance() | Rescale():

                def to_next(value: Any, timestamp: int | None) -> None:
                    self._next = (self._next + 1) % len(self._all)
                    self._add(self._all[self._next], value, timestamp)

                return to_next

    def _chosen(self, partition: Callable[[Any, int], int], key: Any) -> _Buffer:
        target = partition(key, self._parallelism)
        buffer = self._buffers.get(target)
        if buffer is None:
            raise JobDefinitionError(
                f"The partitioner sent key {key!r} to subtask {target!r}, but there are {self._parallelism}. "
                f"Return an index from 0 to {self._parallelism - 1}."
            )
        return buffer

    def _add(self, buffer: _Buffer, value: Any, timestamp: int | None) -> None:
        if buffer.columns:
            self._flush(buffer)
        values = buffer.values
        if not values:
            buffer.born_us = self._clock.born_us
            if self.unflushed_since is None:
                self.unflushed_since = self._clock.now
        values.append(value)
        if timestamp is not None:
            if len(buffer.timestamps) != len(values) - 1:
                # Records with and without timestamps do not share a cell.
                self._split_before_last(buffer)
                values = buffer.values
            buffer.timestamps.append(timestamp)
        elif buffer.timestamps:
            self._split_before_last(buffer)
            values = buffer.values
        if len(values) >= self._flush_at:
            self._flush(buffer)

    def _split_before_last(self, buffer: _Buffer) -> None:
        last = buffer.values.pop()
        key = buffer.keys.pop() if self._keyed else None
        self._flush(buffer)
        buffer.values.append(last)
        if self._keyed:
            buffer.keys.append(key)

    # -- columns

    @property
    def columns_from(self) -> int | None:
        """As many records at once are better appended as columns of the edge's type; None: never."""
        match self._edge.partitioning:
            case Hash(key) if not key.single or not self._codec.key_fields:
                return None
            case Custom():
                return None
        return COLUMNS_FROM * len(self._all) if self._codec.takes_columns else None

    def append_columns(self, batch: pa.RecordBatch, timestamps: pa.Array | None) -> None:
        """Records as Arrow columns: split by target without making a Python object of any of them."""
        if not batch.num_rows:
            return
        partitioning = self._edge.partitioning
        if not self._codec.takes_columns:
            self._append_rows(batch, timestamps)
            return
        match partitioning:
            case Hash(key) if (targets := self._column_targets(batch, key)) is not None:
                self._split(batch, timestamps, targets)
            case Forward():
                self._add_columns(self._all[0], batch, timestamps)
            case Broadcast():
                for buffer in self._all:
                    self._add_columns(buffer, batch, timestamps)
            case Rebalance() | Rescale() | Shuffle():
                count = len(self._all)
                targets = (np.arange(batch.num_rows) + self._next + 1) % count
                self._next = int((self._next + batch.num_rows) % count)
                by_place = np.array(list(self._targets))[targets]
                self._split(batch, timestamps, by_place)
            case _:
                self._append_rows(batch, timestamps)

    def _append_rows(self, batch: pa.RecordBatch, timestamps: pa.Array | None) -> None:
        assert self._edge.type is not None
        rows = batch_to_values(self._edge.type, batch)
        times = [None] * len(rows) if timestamps is None else timestamps.to_pylist()
        for row, timestamp in zip(rows, times, strict=True):
            self.append(row, timestamp)

    def _column_targets(self, batch: pa.RecordBatch, key: KeySpec) -> Any | None:
        """The target subtask of every row, or None where the key is no plain column."""
        if not key.single or not key.fields:
            return None
        column = batch.column(key.fields[0])
        if column.null_count:
            null = InvalidKeyError(
                f'The key field "{key.fields[0]}" holds a null, and None cannot be a key. Filter such records out '
                "before key_by, or give them a key of their own."
            )
            first = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
            assert self._edge.type is not None
            raise self._failure(batch_to_values(self._edge.type, batch.slice(first, 1))[0], null)
        m = self._max_parallelism
        if pa.types.is_string(column.type):
            groups = key_groups_of_string_array(column, m)
        elif pa.types.is_integer(column.type):
            groups = key_groups_of_ints(column.to_numpy().astype(np.int64), m)
        else:
            return None
        return groups * self._parallelism // m

    def _split(self, batch: pa.RecordBatch, timestamps: pa.Array | None, targets: Any) -> None:
        for target, buffer in self._buffers.items():
            places = np.flatnonzero(targets == target)
            if len(places) == batch.num_rows:
                self._add_columns(buffer, batch, timestamps)
                return
            if len(places):
                chosen = pa.array(places)
                self._add_columns(buffer, batch.take(chosen), None if timestamps is None else timestamps.take(chosen))

    def _add_columns(self, buffer: _Buffer, batch: pa.RecordBatch, timestamps: pa.Array | None) -> None:
        if buffer.values or (buffer.columns and (timestamps is None) != (not buffer.times)):
            self._flush(buffer)
        if not buffer.columns:
            buffer.born_us = self._clock.born_us
            if self.unflushed_since is None:
                self.unflushed_since = self._clock.now
        buffer.columns.append(batch)
        buffer.column_bytes += batch.nbytes
        if timestamps is not None:
            buffer.times.append(timestamps)
        if buffer.column_bytes >= CELL_BYTES:
            self._flush(buffer)

    # -- leaving

    def flush(self) -> None:
        """Send everything that waits for company."""
        if self.unflushed_since is not None:
            for buffer in self._all:
                self._flush(buffer)
            self.unflushed_since = None

    def _flush(self, buffer: _Buffer) -> None:
        if buffer.columns:
            self._flush_columns(buffer)
        if not buffer.values:
            return
        values, keys, timestamps = buffer.values, buffer.keys, buffer.timestamps
        try:
            flags, parts = self._codec.encode(values, keys if self._keyed else None, timestamps or None)
        except Exception as error:
            raise self._failure(self._misfit(values), error) from error
        size = self._send(buffer, flags, parts, len(values))
        # Cells aim at CELL_BYTES; how many records that is, the last cells tell.
        self._record_bytes = 0.7 * self._record_bytes + 0.3 * size / len(values)
        self._flush_at = max(1, min(MOST_RECORDS, int(CELL_BYTES / self._record_bytes)))
        buffer.values, buffer.keys, buffer.timestamps = [], [], []

    def _misfit(self, values: list[Any]) -> Any:
        """The first of them that the edge's type cannot hold."""
        for value in values:
            try:
                if self._edge.type is not None:
                    self._edge.type.check(value, "")
            except TypeMismatchError:
                return value
        return f"(one of {len(values)} records)"

    def _failure(self, record: Any, error: Exception) -> Exception:
        return error if self.operator is None else failure_in(self.operator, record, error)

    def _flush_columns(self, buffer: _Buffer) -> None:
        parts, times = buffer.columns, buffer.times
        batch = parts[0] if len(parts) == 1 else pa.concat_batches(parts)
        timestamps = None if not times else (times[0] if len(times) == 1 else pa.concat_arrays(times))
        buffer.columns, buffer.times, buffer.column_bytes = [], [], 0
        # In equal parts no larger than a network buffer of Spark's, which a larger cell would overflow.
        rows = max(1, -(-batch.num_rows // -(-batch.nbytes // MOST_CELL_BYTES)))
        for start in range(0, batch.num_rows, rows):
            piece = batch.slice(start, rows)
            cut = None if timestamps is None else timestamps.slice(start, rows)
            flags, payload = self._codec.encode_columns(piece, None, cut)
            self._send(buffer, flags, payload, piece.num_rows)

    def _send(self, buffer: _Buffer, flags: int, parts: Any, count: int) -> int:
        cell = b"".join((records_header(buffer.address, flags, buffer.born_us, count), *parts))
        self._queue.put(buffer.slot, cell)
        self.records += count
        return len(cell)

    def watermark(self, time_ms: int) -> None:
        self._control(lambda address: watermark_cell(address, time_ms))

    def idle(self, is_idle: bool) -> None:
        self._control(lambda address: idle_cell(address, is_idle))

    def end(self) -> None:
        self._control(end_cell)

    def _control(self, make: Callable[[Address], bytes]) -> None:
        self.flush()
        for buffer in self._all:
            self._queue.put(buffer.slot, make(buffer.address))


class Clock:
    """The time as the mailbox last looked at it, and when the records in hand were born."""

    __slots__ = ("born_us", "now")

    def __init__(self) -> None:
        self.now = time.monotonic()
        self.born_us = 0

    def tick(self) -> float:
        self.now = time.monotonic()
        return self.now

    def wall_ms(self) -> int:
        """Processing time, by which timers fire."""
        return time.time_ns() // 1_000_000
