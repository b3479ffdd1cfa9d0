"""Kafka as input and output, exactly once. Needs confluent-kafka: `pip install "headrace[kafka]"`."""

from headrace.connectors.kafka.errors import (
    KafkaDataLossError,
    KafkaRefusedError,
    KafkaTopicError,
    KafkaUnavailableError,
)
from headrace.connectors.kafka.offsets import KafkaOffsetResetStrategy, KafkaOffsetsInitializer
from headrace.connectors.kafka.reader import KafkaRecord
from headrace.connectors.kafka.records import KafkaRecordSerializationSchema, KafkaTopicSelector
from headrace.connectors.kafka.sink import DeliveryGuarantee, KafkaSink, KafkaSinkBuilder
from headrace.connectors.kafka.source import KafkaSource, KafkaSourceBuilder
from headrace.connectors.kafka.values import (
    AvroRowDeserializationSchema,
    AvroRowSerializationSchema,
    DeserializationSchema,
    JsonRowDeserializationSchema,
    JsonRowSerializationSchema,
    RawBytesSchema,
    SerializationSchema,
    SimpleStringSchema,
)

__all__ = [
    "AvroRowDeserializationSchema",
    "AvroRowSerializationSchema",
    "DeliveryGuarantee",
    "DeserializationSchema",
    "JsonRowDeserializationSchema",
    "JsonRowSerializationSchema",
    "KafkaDataLossError",
    "KafkaOffsetResetStrategy",
    "KafkaOffsetsInitializer",
    "KafkaRecord",
    "KafkaRecordSerializationSchema",
    "KafkaRefusedError",
    "KafkaSink",
    "KafkaSinkBuilder",
    "KafkaSource",
    "KafkaSourceBuilder",
    "KafkaTopicError",
    "KafkaTopicSelector",
    "KafkaUnavailableError",
    "RawBytesSchema",
    "SerializationSchema",
    "SimpleStringSchema",
]
