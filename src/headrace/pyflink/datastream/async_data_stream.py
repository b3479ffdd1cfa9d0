"""Async I/O, under the name of `pyflink.datastream.async_data_stream`."""

from headrace.datastream.async_stream import AsyncDataStream

__all__ = [
    "AsyncDataStream",
]
