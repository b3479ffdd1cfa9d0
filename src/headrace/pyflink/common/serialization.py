"""Bytes to values and back, under the names of `pyflink.common.serialization`."""

from __future__ import annotations

from headrace.connectors.files.encoders import Encoder
from headrace.connectors.kafka.values import DeserializationSchema, SerializationSchema, SimpleStringSchema
from headrace.pyflink.absence import absent

__all__ = [
    "DeserializationSchema",
    "Encoder",
    "SerializationSchema",
    "SimpleStringSchema",
]

__getattr__ = absent(
    __name__,
    {
        "BulkWriterFactory": "FileSink.for_bulk_format() takes a headrace.connectors.files.OutputFormat.",
        "RowDataBulkWriterFactory": "FileSink.for_bulk_format() takes a headrace.connectors.files.OutputFormat.",
    },
)
