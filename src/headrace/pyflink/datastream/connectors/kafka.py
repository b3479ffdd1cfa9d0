"""Kafka, under the names of `pyflink.datastream.connectors.kafka`. Needs confluent-kafka: `headrace[kafka]`."""

from __future__ import annotations

from typing import NamedTuple

from headrace.connectors.kafka import (
    DeliveryGuarantee,
    KafkaOffsetResetStrategy,
    KafkaOffsetsInitializer,
    KafkaRecordSerializationSchema,
    KafkaSink,
    KafkaSinkBuilder,
    KafkaSource,
    KafkaSourceBuilder,
    KafkaTopicSelector,
)
from headrace.pyflink.absence import absent

__all__ = [
    "DeliveryGuarantee",
    "KafkaOffsetResetStrategy",
    "KafkaOffsetsInitializer",
    "KafkaRecordSerializationSchema",
    "KafkaSink",
    "KafkaSinkBuilder",
    "KafkaSource",
    "KafkaSourceBuilder",
    "KafkaTopicPartition",
    "KafkaTopicSelector",
]


class KafkaTopicPartition(NamedTuple):
    """One partition of a topic; Headrace's own calls take a plain `(topic, partition)` as well."""

    topic: str
    partition: int


__getattr__ = absent(
    __name__,
    {
        "FlinkKafkaConsumer": "it is gone from Flink 2 too. Use KafkaSource.builder().",
        "FlinkKafkaProducer": "it is gone from Flink 2 too. Use KafkaSink.builder().",
        "KafkaRecordSerializationSchemaBuilder": "KafkaRecordSerializationSchema.builder() gives it.",
    },
)
