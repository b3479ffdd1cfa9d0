"""The exactly-once Kafka sink keeps the contract of sinks, on a real broker. The whole of it takes a while."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from sink_lives import Output

from headrace.connectors.kafka import KafkaRecordSerializationSchema, KafkaSink, SimpleStringSchema
from headrace.connectors.kafka.client import kafka
from headrace.connectors.kafka.committer import KafkaCommitter
from headrace.connectors.kafka.prepared import records_of
from headrace.connectors.sink import Committer, SinkWriter, WriterContext
from headrace.testing.kafka_broker import KafkaBroker
from headrace.testing.sink_contract import NewSink, SinkContract, SinkUnderTest

SUBTASKS = 4
"""As many as the suite has at most."""


class Watcher:
    """What a reader of committed records has seen of one topic, by a consumer that stays."""

    def __init__(self, servers: str, topic: str) -> None:
        library = kafka("the test")
        self._eof = library.KafkaError._PARTITION_EOF
        config = {
            "bootstrap.servers": servers,
            "group.id": "watcher",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 10,
            "log_level": 2,
        }
        self._consumer = library.Consumer(config)
        self._places = [library.TopicPartition(topic, partition, 0) for partition in range(SUBTASKS)]
        self._values: list[list[str]] = [[] for _ in range(SUBTASKS)]

    def look(self) -> list[str]:
        """Read up to the end as it is now; partition by partition."""
        self._consumer.assign(self._places)
        left = set(range(SUBTASKS))
        deadline = time.monotonic() + 90
        while left:
            message = self._consumer.poll(1.0)
            assert time.monotonic() < deadline
            if message is not None and message.error() is None:
                self._values[message.partition()].append(message.value().decode())
                self._places[message.partition()].offset = message.offset() + 1
            elif message is not None and message.error().code() == self._eof:
                left.discard(message.partition())
        return [value for values in self._values for value in values]

    def close(self) -> None:
        self._consumer.close()


WATCHERS: dict[str, Watcher] = {}
"""By topic: a sink travels to a task, its watcher stays."""


class PatientCommitter(KafkaCommitter):
    """Returns when a reader sees what was committed: a commit is decided when it returns, and seen a moment later."""

    def commit(self, items: Sequence[bytes]) -> None:
        super().commit(items)
        topic = self._sink.schema.topic
        assert topic is not None
        wanted = {str(record[1], "ascii") for item in items for record in records_of(item) if record[1] is not None}
        deadline = time.monotonic() + 90
        while not wanted <= set(WATCHERS[topic].look()):
            assert time.monotonic() < deadline, "committed, and not seen"


class PatientSink(KafkaSink):
    """A Kafka sink that commits patiently, and whose subtasks have a partition each.

    In one partition, a record is seen when all transactions that began before it are decided: the suite commits
    subtask by subtask, and looks each time.
    """

    def create_writer(self, context: WriterContext) -> SinkWriter:
        assert self.schema.topic is not None
        self.schema = schema_of(self.schema.topic, context.subtask)
        return super().create_writer(context)

    def create_committer(self) -> Committer | None:
        return PatientCommitter(self, self._shards)


def schema_of(topic: str, partition: int | None = None) -> KafkaRecordSerializationSchema:
    schema = KafkaRecordSerializationSchema.builder().set_topic(topic)
    if partition is not None:
        schema.set_partitioner(lambda value, key, count: partition)
    return schema.set_value_serialization_schema(SimpleStringSchema()).build()


@pytest.fixture
def new_sink(kafka_broker: KafkaBroker, new_topic: Callable[..., str]) -> Iterator[NewSink]:
    topics: list[str] = []

    def make() -> SinkUnderTest:
        output = Output(kafka_broker, new_topic("contract", partitions=SUBTASKS))
        topics.append(output.topic)
        watcher = WATCHERS[output.topic] = Watcher(kafka_broker.bootstrap_servers, output.topic)
        # Dead writers of two sinks in one partition hold each other up for so long.
        sink: Any = output.builder(timeout_ms=20_000).set_record_serializer(schema_of(output.topic)).build()
        sink.__class__ = PatientSink
        sink.preflight()

        def open_transactions() -> list[str]:
            output.wait_until_decided()
            return []

        return SinkUnderTest(
            sink,
            visible=lambda: [int(value) for value in watcher.look()],
            to_record=str,
            leftovers=open_transactions,
            single_owner=True,
        )

    yield make
    for topic in topics:
        WATCHERS.pop(topic).close()


@pytest.mark.slow
class TestKafkaSink(SinkContract):
    """All of it."""


class TestKafkaSinkInShort:
    """A crash of every kind, one after the other, and writers of two attempts at a time."""

    test_crashes = SinkContract.test_crash_after_crash_neither_loses_nor_repeats_a_record
    test_leftovers = SinkContract.test_recovery_gives_up_what_older_attempts_left_and_spares_its_own
