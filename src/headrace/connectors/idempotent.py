"""The idempotent sink as a template: writes that may be repeated, because a key says what they overwrite."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Hashable
from typing import Any

from headrace.connectors.sink import Sink, SinkGuarantee, SinkWriter, WriterContext


class IdempotentSink(Sink):
    """Exactly-once output into anything that can put a value under a key. Extend it.

    After a failure, records since the last checkpoint are written again, under the same keys. Readers may see values
    run back for a moment while that happens; in the end the store holds what an undisturbed run leaves.

    That holds only if the key and what is written under it depend on the record alone, not on the clock or on chance.
    """

    guarantee = SinkGuarantee.IDEMPOTENT

    context: WriterContext
    """Which job, operator, subtask and attempt is writing. Set before `open`."""

    def open(self, context: WriterContext) -> None:
        """Called once per subtask and attempt in the task, before the first record: connect here."""

    @abstractmethod
    def key_of(self, value: Any) -> Hashable:
        """Under which key this record is put. Called once for each record, before `write`."""

    @abstractmethod
    def write(self, key: Hashable, value: Any, timestamp: int | None) -> None:
        """Put the value under the key, in place of what is there. May be buffered until `flush`."""

    def flush(self) -> None:
        """Make everything written so far durable. Called at every barrier: the checkpoint counts on it."""

    def close(self) -> None:
        """Called once, also after a failure. Releases what `open` took."""

    def create_writer(self, context: WriterContext) -> SinkWriter:
        # A copy for each subtask, so that what `open` puts on `self` belongs to one writer.
        own = copy.copy(self)
        own.context = context
        return _IdempotentWriter(own)


class _IdempotentWriter(SinkWriter):
    def __init__(self, sink: IdempotentSink) -> None:
        self._sink = sink

    def open(self) -> None:
        self._sink.open(self._sink.context)

    def write(self, value: Any, timestamp: int | None) -> None:
        self._sink.write(self._sink.key_of(value), value, timestamp)

    def flush(self) -> None:
        self._sink.flush()

    def close(self) -> None:
        self._sink.close()
