"""Avro records, under the names of `pyflink.datastream.formats.avro`."""

from __future__ import annotations

from headrace.connectors.kafka.values import AvroRowDeserializationSchema, AvroRowSerializationSchema
from headrace.pyflink.absence import absent

__all__ = [
    "AvroRowDeserializationSchema",
    "AvroRowSerializationSchema",
]

__getattr__ = absent(
    __name__,
    {
        "AvroSchema": "Avro comes as records of Kafka; see AvroRowDeserializationSchema.",
        "AvroInputFormat": "Avro comes as records of Kafka; see AvroRowDeserializationSchema.",
        "AvroBulkWriters": "Avro comes as records of Kafka; see AvroRowDeserializationSchema.",
        "GenericRecordAvroTypeInfo": "Avro comes as records of Kafka; see AvroRowDeserializationSchema.",
    },
)
