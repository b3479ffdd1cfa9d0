"""Spark DataFrames as sources and sinks: `env.from_dataframe(df)` and `stream.sink_to_dataframe(fn)`.

Nothing here knows Spark: the runtime runs the queries, and files in a spool or in a checkpoint lie between them and the
job.
"""

from headrace.connectors.dataframe.sink import DataFrameSink, OutputId
from headrace.connectors.dataframe.source import DataFrameSource

__all__ = ["DataFrameSink", "DataFrameSource", "OutputId"]
