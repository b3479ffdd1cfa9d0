"""A Spark DataFrame as a source: the settings. A query writes it into a spool, whose files are the splits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.connectors.dataframe.backlog import Backlog
from headrace.connectors.dataframe.enumerator import SpoolEnumerator
from headrace.connectors.dataframe.reader import SpoolReader
from headrace.connectors.dataframe.schema import row_type_of_spark
from headrace.connectors.dataframe.split import SpoolSplit
from headrace.connectors.dataframe.spool import Spool
from headrace.connectors.source import (
    Boundedness,
    EnumeratorContext,
    ReaderContext,
    Source,
    SourceReader,
    SplitEnumerator,
)
from headrace.errors import ConfigurationError, JobDefinitionError
from headrace.types.information import RowType, Types

DEFAULT_AHEAD_BYTES = 1024 * 1024 * 1024
_TRIGGERS = ("processingTime", "availableNow", "once")
_TIMES = (Types.INSTANT(), Types.SQL_TIMESTAMP(), Types.LONG(), Types.INT())


class DataFrameSource(Source[SpoolSplit]):
    """Made by `env.from_dataframe`. The frame itself stays in the driver; tasks know the spool and the row type."""

    split_type = SpoolSplit
    needs_spark_slot = True

    def __init__(
        self,
        frame: Any,
        *,
        trigger: Mapping[str, Any] | None = None,
        event_time: str | None = None,
        ahead_bytes: int = DEFAULT_AHEAD_BYTES,
        spark_checkpoint: str | None = None,
    ) -> None:
        """See `env.from_dataframe`."""
        self.frame = frame
        self.streaming = bool(frame.isStreaming)
        self.row_type: RowType = row_type_of_spark(frame.schema.jsonValue())
        self.trigger = _checked_trigger(trigger, self.streaming)
        self.event_time = _checked_time(event_time, self.row_type)
        if ahead_bytes < 0:
            raise ConfigurationError(f"from_dataframe() has ahead_bytes={ahead_bytes}. Give 0 or more bytes.")
        if spark_checkpoint is not None and not self.streaming:
            raise ConfigurationError(
                f"from_dataframe() has spark_checkpoint={spark_checkpoint!r}, but the DataFrame is no streaming one: "
                "its query keeps no checkpoint. Leave it out."
            )
        self.spark_checkpoint = spark_checkpoint
        self.ahead_bytes = ahead_bytes
        self.spool: Spool | None = None
        """Set by the runtime before each attempt."""
        self.backlog = Backlog(ahead_bytes)

    def __getstate__(self) -> dict[str, Any]:
        # A DataFrame is a handle into the driver's JVM.
        return {**self.__dict__, "frame": None, "backlog": None}

    @property
    def boundedness(self) -> Boundedness:
        ends = not self.streaming or "availableNow" in self.trigger or "once" in self.trigger
        return Boundedness.BOUNDED if ends else Boundedness.UNBOUNDED

    @property
    def produced_type(self) -> RowType:
        return self.row_type

    def bind(self, spool: Spool) -> None:
        """Read this spool in the attempt that begins. Called in the driver."""
        self.spool = spool
        self.backlog = Backlog(self.ahead_bytes)

    def create_enumerator(self, context: EnumeratorContext, restored: bytes | None) -> SplitEnumerator[SpoolSplit]:
        return SpoolEnumerator(context, self._bound(), str(self.row_type), self.backlog, restored)

    def create_reader(self, context: ReaderContext) -> SourceReader[SpoolSplit]:
        event_time = self.event_time if context.wants_timestamps else None
        return SpoolReader(self._bound(), self.row_type, event_time)

    def describe(self) -> str:
        if not self.streaming:
            return "a Spark DataFrame, by a spool that is written once"
        return "a streaming Spark DataFrame, by a spool of its micro-batches"

    def _bound(self) -> Spool:
        if self.spool is None:
            raise JobDefinitionError(
                "A DataFrame is read by a job on Spark: only there is its query run. Without Spark, test with "
                "env.from_collection() and rows of the same type."
            )
        return self.spool


def _checked_trigger(trigger: Mapping[str, Any] | None, streaming: bool) -> dict[str, Any]:
    chosen = dict(trigger or {})
    if chosen and not streaming:
        raise ConfigurationError("from_dataframe() has a trigger, but the DataFrame is no streaming one. Leave it out.")
    if len(chosen) > 1 or any(name not in _TRIGGERS for name in chosen):
        raise ConfigurationError(
            f"from_dataframe() has trigger={chosen}. Give one of {{'processingTime': '1 second'}} and "
            "{'availableNow': True}, as for Spark's writeStream.trigger()."
        )
    return chosen


def _checked_time(event_time: str | None, row_type: RowType) -> str | None:
    if event_time is None:
        return None
    if event_time not in row_type.names:
        raise JobDefinitionError(
            f'from_dataframe() has event_time="{event_time}", but the columns are {", ".join(row_type.names)}.'
        )
    found = row_type.types[row_type.names.index(event_time)]
    if found not in _TIMES:
        raise JobDefinitionError(
            f'from_dataframe() has event_time="{event_time}", which is {found}. Name a timestamp, or a number of '
            "milliseconds."
        )
    return event_time
