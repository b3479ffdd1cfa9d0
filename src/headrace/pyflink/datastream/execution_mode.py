"""Streaming or batch, under the name of `pyflink.datastream.execution_mode`."""

from headrace.datastream.batch import RuntimeExecutionMode

__all__ = [
    "RuntimeExecutionMode",
]
