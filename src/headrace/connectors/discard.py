"""A sink that counts records and forgets them, for benchmarks and for streams run for their side effects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.connectors.sink import Sink, SinkGuarantee, SinkWriter, WriterContext


class DiscardSink(Sink):
    """Takes everything and shows nothing. Whatever is written twice is gone twice, hence idempotent."""

    guarantee = SinkGuarantee.IDEMPOTENT

    def create_writer(self, context: WriterContext) -> DiscardWriter:
        return DiscardWriter()

    def describe(self) -> str:
        return "discard"


class DiscardWriter(SinkWriter):
    """`count` is the number of records since the start of the attempt."""

    def __init__(self) -> None:
        self.count = 0

    def write(self, value: Any, timestamp: int | None) -> None:
        self.count += 1

    def write_batch(self, values: Sequence[Any], timestamps: Sequence[int] | None) -> None:
        self.count += len(values)
