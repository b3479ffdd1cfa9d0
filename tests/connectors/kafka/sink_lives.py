"""A job with a Kafka sink, without Spark: what driver and tasks call on the sink, with deaths in between."""

from __future__ import annotations

import copy
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from headrace.connectors.kafka import (
    DeliveryGuarantee,
    KafkaRecordSerializationSchema,
    KafkaSink,
    KafkaSinkBuilder,
    SimpleStringSchema,
)
from headrace.connectors.kafka.client import kafka
from headrace.connectors.sink import Committer, SinkWriter, WriterContext
from headrace.operators.sink import commit_with_retries
from headrace.testing.kafka_broker import KafkaBroker


def sink_builder(servers: str, topic: str, markers: str, *, timeout_ms: int = 60_000) -> KafkaSinkBuilder:
    schema = KafkaRecordSerializationSchema.builder().set_topic(topic)
    schema.set_key(lambda value: value.split("-")[0]).set_value_serialization_schema(SimpleStringSchema())
    builder = KafkaSink.builder().set_bootstrap_servers(servers).set_record_serializer(schema.build())
    builder.set_delivery_guarantee(DeliveryGuarantee.EXACTLY_ONCE).set_marker_topic(markers)
    return builder.set_property("transaction.timeout.ms", timeout_ms)


class Life:
    """One attempt: recovers from the checkpoint it is given, then writes."""

    def __init__(
        self,
        sink: KafkaSink,
        attempt: int = 1,
        checkpoint: list[bytes] | None = None,
        *,
        parallelism: int = 1,
        job: str = "job",
        uid: str = "sink",
        history: str = "here",
    ) -> None:
        # As it travels to a process: without what belongs to another one.
        self.sink = copy.copy(sink)
        self.attempt = attempt
        sink.preflight()
        self._in_driver(lambda committer: self._recover(committer, job, uid, parallelism, checkpoint or [], history))
        self.writers: list[SinkWriter] = []
        for subtask in range(parallelism):
            writer = self.sink.create_writer(WriterContext(job, uid, subtask, parallelism, attempt, history))
            writer.open()
            self.writers.append(writer)
        committer = self.sink.create_committer()
        assert committer is not None
        self.committer = committer
        self.prepared: list[tuple[int, bytes]] = []

    def _in_driver(self, act: Callable[[Committer], None]) -> None:
        committer = copy.copy(self.sink).create_committer()
        assert committer is not None
        try:
            act(committer)
        finally:
            committer.close()

    def _recover(self, committer: Any, job: str, uid: str, parallelism: int, items: list[bytes], history: str) -> None:
        committer.history = history
        committer.attempt_starts(job, uid, self.attempt, parallelism)
        if items:
            commit_with_retries(committer, items)
        committer.abort_leftovers(job, uid, self.attempt, items)

    def write(self, *values: str, subtask: int = 0) -> None:
        for value in values:
            self.writers[subtask].write(value, None)

    def barrier(self, checkpoint_id: int) -> list[bytes]:
        """What the checkpoint holds of the sink."""
        for writer in self.writers:
            writer.flush()
            self.prepared += [(checkpoint_id, payload) for payload in writer.prepare_commit(checkpoint_id)]
        return [payload for _, payload in self.prepared]

    def complete(self, checkpoint_id: int) -> None:
        due = [payload for made_for, payload in self.prepared if made_for <= checkpoint_id]
        commit_with_retries(self.committer, due)
        self.prepared = [item for item in self.prepared if item[0] > checkpoint_id]

    def close(self) -> None:
        for writer in self.writers:
            writer.close()
        self.committer.close()


def numbers(count: int, start: int = 0, keys: int = 3) -> list[str]:
    return [f"k{n % keys}-{n}" for n in range(start, start + count)]


class Output:
    """A topic under test with markers of its own, and the lives that wrote to it."""

    def __init__(self, broker: KafkaBroker, topic: str) -> None:
        self.broker = broker
        self.topic = topic
        self.markers = f"{topic}-markers"
        self._lives: list[Life] = []

    def builder(self, timeout_ms: int = 60_000) -> KafkaSinkBuilder:
        return sink_builder(self.broker.bootstrap_servers, self.topic, self.markers, timeout_ms=timeout_ms)

    def sink(self, timeout_ms: int = 60_000) -> KafkaSink:
        return self.builder(timeout_ms).build()

    def live(self, sink: KafkaSink, *args: Any, **more: Any) -> Life:
        life = Life(sink, *args, **more)
        self._lives.append(life)
        return life

    def seen(self, *, committed: bool = True) -> list[str]:
        return [message.value().decode() for message in self.broker.read(self.topic, committed=committed)]

    def shows(self, *records: str) -> bool:
        """Whether readers see exactly these, in order. A commit is decided when it returns, and seen a moment later."""
        deadline = time.monotonic() + 90
        while len(seen := self.seen()) < len(records) and time.monotonic() < deadline:
            time.sleep(0.05)
        return seen == list(records)

    def shows_in_any_order(self, *records: str) -> bool:
        self.shows(*records)
        return Counter(self.seen()) == Counter(records)

    def open_transactions(self) -> bool:
        """Whether readers of committed records are held up anywhere: the last stable offset is not the end."""
        library = kafka("the test")
        admin = self.broker.admin()
        places = [
            library.TopicPartition(self.topic, p) for p in admin.list_topics(self.topic).topics[self.topic].partitions
        ]

        def ends(level: Any) -> list[int]:
            asked = {place: library.OffsetSpec.latest() for place in places}
            found = admin.list_offsets(asked, isolation_level=level)
            return [future.result(90).offset for future in found.values()]

        return ends(library.IsolationLevel.READ_COMMITTED) != ends(library.IsolationLevel.READ_UNCOMMITTED)

    def wait_until_decided(self) -> None:
        deadline = time.monotonic() + 30  # shorter than the timeout of transactions that nobody ends
        while self.open_transactions():
            assert time.monotonic() < deadline, "a transaction stays open"
            time.sleep(0.1)

    def close(self) -> None:
        for life in self._lives:
            life.close()
