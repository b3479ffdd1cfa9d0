"""Reads partitions in a task: takes what the fetcher has, makes values of it, and knows the position behind each."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Literal, NamedTuple

import msgspec

from headrace.connectors.kafka.client import kafka
from headrace.connectors.kafka.fetcher import Chunk, Fetcher, OnDataLoss
from headrace.connectors.kafka.offsets import Partition
from headrace.connectors.kafka.settings import KafkaSettings
from headrace.connectors.kafka.split import UNBOUNDED, KafkaSplit
from headrace.connectors.kafka.values import DeserializationSchema
from headrace.connectors.metrics import RECORDS_LOST, RECORDS_SKIPPED, TOMBSTONES, Tally
from headrace.connectors.source import PollStatus, ReaderContext, SourceBatch, SourceReader
from headrace.errors import RecordError

log = logging.getLogger(__name__)

OnError = Literal["fail", "skip"]

LOOK_AGAIN_S = 0.25
"""The fetcher wakes the task; this is only for the case that it could not."""
_SHOWN = 200


class KafkaRecord(NamedTuple):
    """A whole record, for deserializers that want more than its value."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    """Milliseconds since 1970."""
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


RecordDeserializer = Callable[[KafkaRecord], Any]


class KafkaReader(SourceReader[KafkaSplit]):
    """Counts records that could not be read, those without a value, and those that were gone before they were read."""

    pauses_splits = True

    def __init__(
        self,
        context: ReaderContext,
        *,
        settings: KafkaSettings,
        values: DeserializationSchema | None,
        records: RecordDeserializer | None,
        bounded: bool,
        read_committed: bool,
        commits: bool,
        on_error: OnError,
        on_data_loss: OnDataLoss,
    ) -> None:
        self._context = context
        self._settings = settings
        self._values = values
        self._records = records
        self._bounded = bounded
        self._read_committed = read_committed
        self._commits = commits
        self._on_error = on_error
        self._on_data_loss: OnDataLoss = on_data_loss
        self._splits: dict[Partition, KafkaSplit] = {}
        self._no_more = False
        self._chunk: Chunk | None = None
        self._at = 0
        self._paused: set[Partition] = set()
        self._held: dict[Partition, deque[tuple[Chunk, int]]] = {}
        """Of partitions that are or were paused: what was fetched already, each from which message on."""
        self._ended: dict[Partition, int] = {}
        """Where partitions ended that are read to their end."""
        self._saved: dict[int, dict[Partition, int]] = {}
        self._skipped = Tally("Record skipped", context.metrics.counter(RECORDS_SKIPPED), log)
        self._tombstones = context.metrics.counter(TOMBSTONES)
        self._lost = context.metrics.counter(RECORDS_LOST)

    def client_settings(self) -> dict[str, Any]:
        """What the consumer of this reader is made with."""
        config = self._settings.merged(
            {
                # The default waits a second whenever enough is queued: 180 k records/s instead of over a million.
                "fetch.queue.backoff.ms": 5,
                "group.id": "headrace",
                "isolation.level": "read_committed" if self._read_committed else "read_uncommitted",
                "allow.auto.create.topics": False,
            },
            {
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": self._bounded,
                # A position that is gone is data loss, never a reason to begin somewhere else.
                "auto.offset.reset": "error",
            },
        )
        if (prefix := self._settings.get("client.id")) is not None:
            config["client.id"] = f"{prefix}-{self._context.subtask}"
        return config

    def open(self) -> None:
        message = kafka("KafkaSource").Message
        self._value_of, self._timestamp_of = message.value, message.timestamp
        self._fetcher = Fetcher(
            self.client_settings(),
            self._settings,
            on_data_loss=self._on_data_loss,
            wake=self._context.wake,
            lost=self._lost,
        )

    def add_splits(self, splits: Sequence[KafkaSplit]) -> None:
        for split in splits:
            self._splits[split.topic, split.partition] = msgspec.structs.replace(split)
        self._fetcher.assign({(split.topic, split.partition): split.offset for split in splits})

    def no_more_splits(self) -> None:
        self._no_more = True

    def poll(self, limit: int) -> SourceBatch | PollStatus:
        while True:
            if not self._splits:
                return PollStatus.ENDED if self._no_more else PollStatus.NEEDS_SPLIT
            chunk = self._chunk
            if chunk is None:
                chunk, self._at = self._taken()
                if chunk is None:
                    if self._fetcher.error is not None:
                        raise self._fetcher.error
                    return PollStatus.IDLE
                self._chunk = chunk
            split = self._splits.get(chunk.partition)
            if split is None:
                self._chunk = None  # it was read to its end already
                continue
            batch = self._next(split, chunk, limit)
            if batch is not None:
                return batch

    def pause_splits(self, paused: AbstractSet[str]) -> None:
        partitions = {partition for partition, split in self._splits.items() if split.split_id in paused}
        if self._chunk is not None and self._chunk.partition in partitions:
            # In front of what was held of it before: it was taken from there.
            self._held.setdefault(self._chunk.partition, deque()).appendleft((self._chunk, self._at))
            self._chunk = None
        self._fetcher.pause(partitions - self._paused)
        self._fetcher.resume(self._paused - partitions)
        self._paused = partitions

    def _taken(self) -> tuple[Chunk | None, int]:
        """The next chunk of a partition that is not paused, and where in it to go on."""
        for partition, held in self._held.items():
            if partition not in self._paused:
                first = held.popleft()
                if not held:
                    del self._held[partition]
                return first
        while (chunk := self._fetcher.take()) is not None:
            if chunk.partition not in self._paused:
                return chunk, 0
            # It was on its way when the partition was paused.
            self._held.setdefault(chunk.partition, deque()).append((chunk, 0))
        return None, 0

    def idle_until(self) -> float | None:
        return time.monotonic() + LOOK_AGAIN_S

    def snapshot(self) -> list[KafkaSplit]:
        return [msgspec.structs.replace(split) for split in self._splits.values()]

    def snapshot_for(self, checkpoint_id: int) -> None:
        if self._commits:
            reading = {partition: split.offset for partition, split in self._splits.items()}
            self._saved[checkpoint_id] = {**self._ended, **reading}

    def checkpoint_complete(self, checkpoint_id: int) -> None:
        positions = self._saved.get(checkpoint_id)
        self._saved = {c: saved for c, saved in self._saved.items() if c > checkpoint_id}
        if positions:
            self._fetcher.commit(positions)

    def close(self) -> None:
        self._skipped.tell()
        fetcher = getattr(self, "_fetcher", None)
        if fetcher is not None:
            fetcher.close()

    # Inside

    def _next(self, split: KafkaSplit, chunk: Chunk, limit: int) -> SourceBatch | None:
        """The next records of the chunk in hand; None if it holds none any more."""
        part = (
            chunk.messages[self._at : self._at + limit] if limit < len(chunk.messages) else chunk.messages[self._at :]
        )
        self._at += len(part)
        if self._at >= len(chunk.messages):
            self._chunk = None
        if not part:
            if chunk.end is not None and split.stop != UNBOUNDED and chunk.end >= split.stop:
                # The last records before the stop are of the kind that no reader sees.
                self._finish(chunk.partition)
            return None
        behind = part[-1].offset() + 1
        if split.stop != UNBOUNDED and behind >= split.stop:
            part = [message for message in part if message.offset() < split.stop]
            self._finish(chunk.partition)
        split.offset = behind
        if not part:
            return None
        return self._batch(split, part)

    def _finish(self, partition: Partition) -> None:
        self._ended[partition] = self._splits.pop(partition).stop
        self._paused.discard(partition)
        self._held.pop(partition, None)
        self._chunk = None
        self._fetcher.unassign(partition)

    def _batch(self, split: KafkaSplit, messages: list[Any]) -> SourceBatch | None:
        values: list[Any]
        if self._values is not None:
            raw = list(map(self._value_of, messages))
            try:
                values = self._values.deserialize_all(raw)
            except Exception:
                messages, values = self._one_by_one(split, messages)  # one of them is bad: find out which
        else:
            messages, values = self._one_by_one(split, messages)
        if not values:
            return None
        times = [time for _, time in map(self._timestamp_of, messages)] if self._context.wants_timestamps else None
        return SourceBatch(split.split_id, values=values, timestamps=times)

    def _one_by_one(self, split: KafkaSplit, messages: list[Any]) -> tuple[list[Any], list[Any]]:
        good: list[Any] = []
        values: list[Any] = []
        for message in messages:
            value = message.value()
            if value is None and self._values is not None:
                self._tombstones.inc()
                continue
            try:
                values.append(self._value(message))
                good.append(message)
            except Exception as error:
                self._bad(split, message, error)
        return good, values

    def _value(self, message: Any) -> Any:
        if self._values is not None:
            return self._values.deserialize(message.value())
        assert self._records is not None
        return self._records(
            KafkaRecord(
                message.topic(),
                message.partition(),
                message.offset(),
                message.timestamp()[1],
                message.key(),
                message.value(),
                tuple(message.headers() or ()),
            )
        )

    def _bad(self, split: KafkaSplit, message: Any, error: Exception) -> None:
        shown = repr(message.value())
        shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}… ({len(shown)} characters)"
        text = f"{split.topic}, partition {split.partition}, offset {message.offset()} cannot be read: {error}. "
        text += f"Its value is {shown}."
        if self._on_error == "fail" and not (self._values is not None and self._values.skips_bad_records):
            raise RecordError(
                f'{text} Repair the producer, or set_on_error("skip") to leave such records out.'
            ) from error
        self._skipped.add(text)
