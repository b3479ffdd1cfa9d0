"""From a value of the stream to a Kafka record: topic, key, value, headers, partition."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from headrace.connectors.kafka.values import SerializationSchema
from headrace.errors import ConfigurationError, RecordError

Header: TypeAlias = tuple[str, bytes | None]
OutRecord: TypeAlias = tuple[str, bytes | None, bytes | None, int | None, int | None, list[Header] | None]
"""Topic, value, key, partition, timestamp in milliseconds, headers. None: no key, Kafka's partitioner, now, none."""

TopicSelector = Callable[[Any], str]
"""What `set_topic_selector` takes; PyFlink's programs give it a `KafkaTopicSelector`."""
HeadersOf = Callable[[Any], Iterable[Header]]
Partitioner = Callable[[Any, "bytes | None", int], int]
"""`(value, key, number of partitions) -> partition`."""


class KafkaTopicSelector(ABC):
    """Names the topic of each record, as in PyFlink; a plain function of the value does the same. Extend it."""

    @abstractmethod
    def apply(self, data: Any) -> str:
        """The topic that this value goes to. Called once for each record."""


class KafkaRecordSerializationSchema:
    """How records are made; use `builder()`. Travels to the tasks, so it holds settings and opens nothing."""

    def __init__(
        self,
        *,
        topic: str | None,
        topic_selector: TopicSelector | None,
        key: SerializationSchema | None,
        value: SerializationSchema,
        headers: HeadersOf | None,
        partitioner: Partitioner | None,
    ) -> None:
        self.topic = topic
        self.topic_selector = topic_selector
        self.key = key
        self.value = value
        self.headers = headers
        self.partitioner = partitioner

    @staticmethod
    def builder() -> KafkaRecordSerializationSchemaBuilder:
        return KafkaRecordSerializationSchemaBuilder()

    def serializer(self, partitions_of: Callable[[str], int]) -> Callable[[Any, int | None], OutRecord]:
        """A function `(value, timestamp) -> record`; `partitions_of(topic)` is asked where a partitioner is set."""
        topic, select = self.topic, self.topic_selector
        to_key = None if self.key is None else self.key.serialize
        to_value, to_headers, to_partition = self.value.serialize, self.headers, self.partitioner
        if topic is not None and to_headers is None and to_partition is None:
            if to_key is None:
                return lambda value, timestamp: (topic, to_value(value), None, None, timestamp, None)
            key_of = to_key
            return lambda value, timestamp: (topic, to_value(value), key_of(value), None, timestamp, None)

        def serialize(value: Any, timestamp: int | None) -> OutRecord:
            target = topic if select is None else select(value)
            if not isinstance(target, str) or not target:
                raise RecordError(f"The topic selector gave {target!r}, which names no topic. Let it return a string.")
            key = None if to_key is None else to_key(value)
            headers = None if to_headers is None else [(str(n), v) for n, v in to_headers(value)]
            partition = None
            if to_partition is not None:
                count = partitions_of(target)
                partition = to_partition(value, key, count)
                if not 0 <= partition < count:
                    raise RecordError(
                        f"The partitioner chose partition {partition} of topic {target}, which has {count}. "
                        "Let it return a number from 0 on, below the third argument."
                    )
            return target, to_value(value), key, partition, timestamp, headers

        return serialize


class KafkaRecordSerializationSchemaBuilder:
    """PyFlink's builder, with headers and partitioner."""

    def __init__(self) -> None:
        self._topic: str | None = None
        self._topic_selector: TopicSelector | None = None
        self._key: SerializationSchema | None = None
        self._value: SerializationSchema | None = None
        self._headers: HeadersOf | None = None
        self._partitioner: Partitioner | None = None

    def set_topic(self, topic: str) -> KafkaRecordSerializationSchemaBuilder:
        self._topic, self._topic_selector = topic, None
        return self

    def set_topic_selector(self, topic_selector: TopicSelector | Any) -> KafkaRecordSerializationSchemaBuilder:
        """A function of the value, or a `KafkaTopicSelector`, that names the topic of each record."""
        self._topic, self._topic_selector = None, getattr(topic_selector, "apply", topic_selector)
        return self

    def set_key_serialization_schema(
        self, key_serialization_schema: SerializationSchema
    ) -> KafkaRecordSerializationSchemaBuilder:
        """Gets the whole value; records of one key go to one partition, in order."""
        self._key = key_serialization_schema
        return self

    def set_key(self, key: Callable[[Any], str | bytes | None]) -> KafkaRecordSerializationSchemaBuilder:
        """The same as a function of the value."""
        self._key = KeyOf(key)
        return self

    def set_value_serialization_schema(
        self, value_serialization_schema: SerializationSchema
    ) -> KafkaRecordSerializationSchemaBuilder:
        self._value = value_serialization_schema
        return self

    def set_headers(self, headers: HeadersOf) -> KafkaRecordSerializationSchemaBuilder:
        """A function of the value that gives (name, bytes) pairs."""
        self._headers = headers
        return self

    def set_partitioner(self, partitioner: Partitioner) -> KafkaRecordSerializationSchemaBuilder:
        """`(value, key, number of partitions) -> partition`. Without one, Kafka's own: by hash of the key, as Java."""
        self._partitioner = partitioner
        return self

    def build(self) -> KafkaRecordSerializationSchema:
        if self._topic is None and self._topic_selector is None:
            raise ConfigurationError(
                "KafkaRecordSerializationSchema has no topic. Call set_topic or set_topic_selector."
            )
        if self._value is None:
            raise ConfigurationError(
                "KafkaRecordSerializationSchema does not know how to write values. Call set_value_serialization_schema."
            )
        return KafkaRecordSerializationSchema(
            topic=self._topic,
            topic_selector=self._topic_selector,
            key=self._key,
            value=self._value,
            headers=self._headers,
            partitioner=self._partitioner,
        )


class KeyOf(SerializationSchema):
    """A key by a function of the value: text is encoded, bytes are taken as they are."""

    def __init__(self, function: Callable[[Any], str | bytes | None]) -> None:
        self._function = function

    def serialize(self, value: Any) -> bytes | None:
        key = self._function(value)
        if isinstance(key, str):
            return key.encode()
        if key is not None and not isinstance(key, bytes):
            raise RecordError(f"set_key gave a {type(key).__name__}. Let it return text, bytes or None.")
        return key
