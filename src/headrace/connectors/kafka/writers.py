"""Writers of the Kafka sink: in transactions, or plainly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from headrace.connectors.kafka.client import ANSWER_WITHIN_S, failure_code, kafka, serving
from headrace.connectors.kafka.errors import KafkaTopicError, KafkaUnavailableError
from headrace.connectors.kafka.records import KafkaRecordSerializationSchema, OutRecord
from headrace.connectors.kafka.refusals import Undelivered, is_refusal, refusal
from headrace.connectors.kafka.settings import KafkaSettings
from headrace.connectors.kafka.shard import Shard
from headrace.connectors.kafka.transactions import SERVE_EVERY, plain_producer, send
from headrace.connectors.sink import SinkWriter

FLUSHED_WITHIN_S = 120.0


class PartitionCounts:
    """How many partitions topics have, asked once for each."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._counts: dict[str, int] = {}

    def __call__(self, topic: str) -> int:
        count = self._counts.get(topic)
        if count is None:
            admin = kafka("KafkaSink").AdminClient(self._settings.for_admin())
            found = admin.list_topics(topic, timeout=ANSWER_WITHIN_S).topics.get(topic)
            if found is None or found.error is not None:
                raise KafkaTopicError(f"Topic {topic}, which the topic selector chose, does not exist. Create it.")
            count = self._counts[topic] = len(found.partitions)
        return count


class ExactlyOnceWriter(SinkWriter):
    """Into an open transaction, and into the log that goes with the checkpoint."""

    def __init__(
        self,
        shard: Shard,
        schema: KafkaRecordSerializationSchema,
        settings: KafkaSettings,
        closed: Callable[[Shard], None],
    ) -> None:
        self._shard = shard
        self._serialize = schema.serializer(PartitionCounts(settings))
        self._closed = closed

    def open(self) -> None:
        self._shard.open()

    def write(self, value: Any, timestamp: int | None) -> None:
        self._shard.write(self._serialize(value, timestamp))

    def flush(self) -> None:
        self._shard.flush()

    def prepare_commit(self, checkpoint_id: int) -> Sequence[bytes]:
        payload = self._shard.prepare(checkpoint_id)
        return () if payload is None else (payload,)

    def close(self) -> None:
        try:
            self._shard.close()
        finally:
            self._closed(self._shard)


class PlainWriter(SinkWriter):
    """Visible at once. With `at_least_once`, a barrier waits until brokers have everything before it."""

    def __init__(self, schema: KafkaRecordSerializationSchema, settings: KafkaSettings, *, at_least_once: bool) -> None:
        self._settings = settings
        self._serialize = schema.serializer(PartitionCounts(settings))
        self._at_least_once = at_least_once
        self._undelivered = Undelivered()
        self._since_served = 0

    def open(self) -> None:
        self._producer = plain_producer(self._settings, self._undelivered.told)

    def write(self, value: Any, timestamp: int | None) -> None:
        record: OutRecord = self._serialize(value, timestamp)
        try:
            send(self._producer, record)
        except kafka("KafkaSink").KafkaException as error:
            self._undelivered.note(failure_code(error), record)
        self._since_served += 1
        if self._since_served >= SERVE_EVERY or self._undelivered.failure is not None:
            self._since_served = 0
            with serving():
                self._producer.poll(0)
            self._check()

    def flush(self) -> None:
        if self._at_least_once:
            with serving():
                left = self._producer.flush(FLUSHED_WITHIN_S)
            self._check()
            if left:
                raise KafkaUnavailableError(
                    f"Kafka at {self._settings.bootstrap_servers} has not taken {left} records within "
                    f"{FLUSHED_WITHIN_S:g} s, so no checkpoint can say that it has. See that brokers run."
                )

    def close(self) -> None:
        producer = getattr(self, "_producer", None)
        if producer is not None:
            producer.flush(5.0)

    def _check(self) -> None:
        failure, records = self._undelivered.failure, self._undelivered.records
        if failure is None:
            return
        self._undelivered.forget()
        if is_refusal(failure):
            raise refusal(failure, records, self._settings)
        raise KafkaUnavailableError(
            f"Kafka at {self._settings.bootstrap_servers} did not take a record for topic {records[0][0]}: "
            f"{self._settings.redact(str(failure))}."
        )
