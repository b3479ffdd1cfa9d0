"""JSON records, under the names of `pyflink.datastream.formats.json`."""

from headrace.connectors.kafka.values import JsonRowDeserializationSchema, JsonRowSerializationSchema

__all__ = [
    "JsonRowDeserializationSchema",
    "JsonRowSerializationSchema",
]
