"""Spark DataFrames at both ends of a stream: `env.from_dataframe` and `stream.sink_to_dataframe`.

Mixins of the environment and of streams. Nothing of Spark is imported: a DataFrame is known by what it answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headrace.connectors.dataframe.sink import DataFrameSink, HandOverFunction
from headrace.connectors.dataframe.source import DEFAULT_AHEAD_BYTES, DataFrameSource
from headrace.datastream.sink import DataStreamSink
from headrace.errors import JobDefinitionError
from headrace.operators.factories import SinkFactory
from headrace.operators.watermarks import WatermarkStrategy
from headrace.types.information import TypeLike, type_of

if TYPE_CHECKING:
    from headrace.datastream.environment import StreamExecutionEnvironment
    from headrace.datastream.streams import DataStream


class FromDataFrames:
    """The part of the environment that begins with DataFrames."""

    def from_dataframe(  # type: ignore[misc]  # mixed into the environment alone
        self: StreamExecutionEnvironment,
        df: Any,
        watermark_strategy: WatermarkStrategy | None = None,
        source_name: str = "dataframe",
        *,
        event_time: str | None = None,
        trigger: Mapping[str, Any] | None = None,
        ahead_bytes: int = DEFAULT_AHEAD_BYTES,
        spark_checkpoint: str | None = None,
    ) -> DataStream:
        """The rows of a Spark DataFrame, batch or streaming, as typed rows.

        A Spark query in the DataFrame's own session writes them into a spool beside the checkpoints, where the source
        reads them; it needs one slot besides those of the job. A batch DataFrame is computed once in the life of the
        job and read when that is done; a streaming one is read micro-batch by micro-batch.

        `event_time` names the column that holds each row's time: a timestamp, or a number of milliseconds.
        `trigger` is Spark's own, such as `{"processingTime": "1 second"}`; with `{"availableNow": True}` the stream
        ends. The query waits while more than `ahead_bytes` are in the spool that no subtask has begun to read.
        `spark_checkpoint` is where Spark keeps the checkpoint of a streaming query, if not in the spool.
        """
        if type(df).__module__.startswith("pyspark.sql.connect"):
            raise JobDefinitionError(
                "from_dataframe() got a DataFrame of Spark Connect, which has no access to the scheduler that a job "
                "runs on. Make it in a classic session: SparkSession.builder.master(...), without .remote(...)."
            )
        if not (hasattr(df, "isStreaming") and hasattr(df, "schema") and hasattr(df, "sparkSession")):
            raise JobDefinitionError(f"from_dataframe() got {df!r}; wanted a Spark DataFrame.")
        source = DataFrameSource(
            df, trigger=trigger, event_time=event_time, ahead_bytes=ahead_bytes, spark_checkpoint=spark_checkpoint
        )
        self.use_session(df.sparkSession)
        return self.from_source(source, watermark_strategy or WatermarkStrategy.no_watermarks(), source_name)


class ToDataFrames:
    """The part of a stream that ends in DataFrames."""

    def sink_to_dataframe(  # type: ignore[misc]  # mixed into DataStream alone
        self: DataStream,
        function: HandOverFunction,
        type_info: TypeLike | None = None,
        *,
        idempotent: bool = False,
    ) -> DataStreamSink:
        """Call `function(df, id)` in the driver with the output of each checkpoint, as a Spark DataFrame.

        Called when the checkpoint is complete, if it has any output; in the order of ids, one call at a time. `id` is
        an `int` that grows, with a text `id.marker` that is unique over all runs. The same marker always comes with the
        same rows. A call that returned is not repeated; where the driver died in the middle of one, or right behind it,
        the next start makes it again. What the function raises fails the attempt, and the call is made again.

        `idempotent=True` says that such a second call changes nothing, because the function looks whether it has seen
        the id; then the output is exactly-once, else at-least-once. `type_info` is for streams without a type.
        """
        declared = self.get_type() if type_info is None else type_of(type_info)
        if declared is None:
            raise JobDefinitionError(
                "sink_to_dataframe() needs to know the columns, but the stream has no type. Give the operator before "
                "it an output_type, or this one type_info=Types.ROW_NAMED([names], [types])."
            )
        sink = DataFrameSink(function, declared, idempotent=idempotent)
        return DataStreamSink(self._declare("dataframe", SinkFactory(sink), None))
