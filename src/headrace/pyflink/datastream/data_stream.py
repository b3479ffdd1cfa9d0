"""Streams, under the names of `pyflink.datastream.data_stream`."""

from __future__ import annotations

from headrace.datastream.collect import CloseableIterator
from headrace.datastream.connected import BroadcastConnectedStream, BroadcastStream, ConnectedStreams
from headrace.datastream.sink import DataStreamSink
from headrace.datastream.streams import DataStream, KeyedStream
from headrace.datastream.windowed import AllWindowedStream, WindowedStream
from headrace.pyflink.absence import absent

__all__ = [
    "AllWindowedStream",
    "BroadcastConnectedStream",
    "BroadcastStream",
    "CloseableIterator",
    "ConnectedStreams",
    "DataStream",
    "DataStreamSink",
    "KeyedStream",
    "WindowedStream",
]

__getattr__ = absent(
    __name__,
    {
        "CachedDataStream": "no results are kept between jobs. Write them with sink_to() and read them again.",
    },
)
