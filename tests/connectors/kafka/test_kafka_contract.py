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
from headrace.connectors.sink import Committer
from headrace.testing.kafka_broker import KafkaBroker
from headrace.testing.sink_contract import NewSink, SinkContract, SinkUnderTest


class Watcher:
    """What a reader of committed records has seen of one topic with one partition, by a consumer that stays."""

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
        self._place = library.TopicPartition(topic, 0, 0)
        self.values: list[str] = []

    def look(self) -> list[str]:
        """Read up to the end as it is now."""
        self._consumer.assign([self._place])
        deadline = time.monotonic() + 90
        while True:
            message = self._consumer.poll(1.0)
            assert time.monotonic() < deadline
            if message is not None and message.error() is None:
                self.values.append(message.value().decode())
                self._place.offset = message.offset() + 1
            elif message is not None and message.error().code() == self._eof:
                return self.values

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
    """A Kafka sink that commits patiently."""

    def create_committer(self) -> Committer | None:
        return PatientCommitter(self, self._shards)


@pytest.fixture
def new_sink(kafka_broker: KafkaBroker, new_topic: Callable[..., str]) -> Iterator[NewSink]:
    topics: list[str] = []

    def make() -> SinkUnderTest:
        output = Output(kafka_broker, new_topic("contract"))
        topics.append(output.topic)
        watcher = WATCHERS[output.topic] = Watcher(kafka_broker.bootstrap_servers, output.topic)
        # Without a function of the test's own: the suite has the sink travel as plain pickles do.
        schema = KafkaRecordSerializationSchema.builder().set_topic(output.topic)
        schema.set_value_serialization_schema(SimpleStringSchema())
        sink: Any = output.builder().set_record_serializer(schema.build()).build()
        sink.__class__ = PatientSink
        sink.preflight()

        def open_transactions() -> list[str]:
            output.wait_until_decided()
            return []

        return SinkUnderTest(
            sink, visible=lambda: [int(value) for value in watcher.look()], to_record=str, leftovers=open_transactions
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
