"""Drives a source by hand, in one process and on one thread: enumerator, readers, snapshots and restores.

    driver = SourceDriver(source, parallelism=2)
    driver.run(records=100)
    snapshot = driver.snapshot()
    rest = SourceDriver(source, parallelism=3, restored=snapshot).run()

Sources of your own can be tested with it without Spark: what was read before a snapshot and what is read after
restoring it must together be the whole input, each record once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from headrace.connectors.metrics import OwnMetrics
from headrace.connectors.source import PollStatus, ReaderContext, Source, SourceBatch, SourceReader
from headrace.types.columns import batch_to_values


@dataclass(frozen=True, slots=True)
class SourceSnapshot:
    """What a checkpoint keeps of a source: bytes only, as in a real one."""

    enumerator: bytes
    splits: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """A record as it came out of a reader."""

    subtask: int
    split_id: str
    value: Any
    timestamp: int | None


class SourceDriver:
    """One attempt of a source. Never sleeps and never calls `discover` by itself; call `discover` to look for splits.

    `records` holds everything read so far, in order; `batches` the sizes of what `poll` gave; `metrics.counts` what
    all readers together have counted.
    """

    def __init__(self, source: Source[Any], *, parallelism: int = 1, restored: SourceSnapshot | None = None) -> None:
        self.source = source
        self.parallelism = parallelism
        self.records: list[ReadRecord] = []
        self.batches: list[int] = []
        self._assigned: list[tuple[int, Sequence[Any]]] = []
        self._no_more: set[int] = set()
        self._ended: set[int] = set()
        self._turn = 0
        self._sent = 0
        self.metrics = OwnMetrics()
        context = _Context(self)
        self.enumerator = source.create_enumerator(context, None if restored is None else restored.enumerator)
        if restored is not None:
            self.enumerator.add_splits_back([self._decode(split) for split in restored.splits])
        self.enumerator.start()
        self.readers: list[SourceReader[Any]] = [
            source.create_reader(ReaderContext(subtask, parallelism, metrics=self.metrics))
            for subtask in range(parallelism)
        ]
        for reader in self.readers:
            reader.open()
        self._deliver()

    @property
    def ended(self) -> bool:
        """Whether every reader has said that its input is over."""
        return len(self._ended) == self.parallelism

    @property
    def values(self) -> list[Any]:
        """The records read so far, without where and when."""
        return [record.value for record in self.records]

    def poll(self, subtask: int, limit: int = 100) -> SourceBatch | PollStatus:
        """One poll of one reader; its request for a split is handed on and its records are kept."""
        answer = self.readers[subtask].poll(limit)
        if answer is PollStatus.NEEDS_SPLIT:
            self.enumerator.handle_split_request(subtask)
            self._deliver()
        elif answer is PollStatus.ENDED:
            self._ended.add(subtask)
        elif isinstance(answer, SourceBatch):
            self._keep(subtask, answer)
        return answer

    def run(self, *, records: int | None = None, limit: int = 100) -> list[ReadRecord]:
        """Poll the readers in turn until all have ended, none has anything, or about `records` were read.

        Gives the records that this call has read.
        """
        before = len(self.records)
        fruitless = 0
        # Twice around without a record or a new split: then only time or `discover` could bring more.
        while not self.ended and fruitless < 2 * self.parallelism:
            if records is not None and len(self.records) - before >= records:
                break
            subtask = self._turn
            self._turn = (self._turn + 1) % self.parallelism
            if subtask in self._ended:
                continue
            sent = self._sent
            answer = self.poll(subtask, limit if records is None else min(limit, records))
            fruitless = 0 if isinstance(answer, SourceBatch) or self._sent > sent else fruitless + 1
        return self.records[before:]

    def discover(self) -> None:
        """One look for new splits, as the driver's timer would do it."""
        self.enumerator.discover()
        self._deliver()

    def snapshot(self) -> SourceSnapshot:
        """What a checkpoint would keep at this moment."""
        splits = [split for reader in self.readers for split in reader.snapshot()]
        return SourceSnapshot(self.enumerator.snapshot_state(), tuple(msgspec.msgpack.encode(s) for s in splits))

    def close(self) -> None:
        """Close readers and enumerator, as at the end of an attempt."""
        for reader in self.readers:
            reader.close()
        self.enumerator.close()

    def _decode(self, split: bytes) -> Any:
        return msgspec.msgpack.decode(split, type=self.source.split_type)

    def _deliver(self) -> None:
        # Through bytes, as a split travels in a job: a reader never shares a split with the enumerator.
        assigned, self._assigned = self._assigned, []
        self._sent += len(assigned)
        for subtask, splits in assigned:
            self.readers[subtask].add_splits([self._decode(msgspec.msgpack.encode(split)) for split in splits])
        no_more, self._no_more = self._no_more, set()
        for subtask in no_more:
            self.readers[subtask].no_more_splits()

    def _keep(self, subtask: int, batch: SourceBatch) -> None:
        if batch.columns is not None:
            produced = self.source.produced_type
            assert produced is not None, "a source that gives columns says of which type they are"
            values = batch_to_values(produced, batch.columns)
        else:
            values = list(batch.values or ())
        times: Sequence[int | None] = batch.timestamps if batch.timestamps is not None else [None] * len(values)
        self.batches.append(len(values))
        self.records += [
            ReadRecord(subtask, batch.split_id, value, timestamp)
            for value, timestamp in zip(values, times, strict=True)
        ]


class _Context:
    """Collects what the enumerator wants sent; it is delivered when the enumerator is done."""

    def __init__(self, driver: SourceDriver) -> None:
        self._driver = driver

    @property
    def parallelism(self) -> int:
        return self._driver.parallelism

    def assign(self, subtask: int, splits: Sequence[Any]) -> None:
        self._driver._assigned.append((subtask, list(splits)))

    def no_more_splits(self, subtask: int) -> None:
        self._driver._no_more.add(subtask)
