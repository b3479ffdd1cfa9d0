"""What connectors share, under the names of `pyflink.datastream.connectors.base`."""

from __future__ import annotations

from headrace.connectors.kafka.sink import DeliveryGuarantee
from headrace.connectors.sink import Sink
from headrace.connectors.source import Source
from headrace.pyflink.absence import absent

__all__ = [
    "DeliveryGuarantee",
    "Sink",
    "Source",
]

__getattr__ = absent(
    __name__,
    {
        "StreamTransformer": "it is a part of Flink's bridge to Java. Write a function from a stream to a stream.",
        "SupportsPreprocessing": "it is a part of Flink's bridge to Java. Convert records with map() before the sink.",
    },
)
