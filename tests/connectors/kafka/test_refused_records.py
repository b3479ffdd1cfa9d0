"""Records that brokers will never take: the error names topic and record, before a checkpoint holds it if possible."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from sink_lives import Life, Output, numbers

from headrace.connectors.kafka import (
    DeliveryGuarantee,
    KafkaRecordSerializationSchema,
    KafkaRefusedError,
    KafkaSink,
    SimpleStringSchema,
)
from headrace.connectors.sink import SinkWriter, WriterContext
from headrace.testing.kafka_broker import KafkaBroker

NewTopic = Callable[..., str]
LARGE = f"large-{secrets.token_hex(4_000)}"
"""Does not get much smaller by compression."""


@pytest.fixture
def output(kafka_broker: KafkaBroker, new_topic: NewTopic) -> Iterator[Output]:
    out = Output(kafka_broker, new_topic("small", max_message_bytes="2000"))
    yield out
    out.close()


def limit(output: Output, size: int) -> None:
    """Change what the topic takes; returns when its broker acts on it, which is later than it tells of it."""
    admin = output.broker.admin()
    entry = ConfigEntry("max.message.bytes", str(size), incremental_operation=AlterConfigOpType.SET)
    place = ConfigResource(ResourceType.TOPIC, output.topic, incremental_configs=[entry])
    for altered in admin.incremental_alter_configs([place]).values():
        altered.result(90)
    servers, name = output.broker.bootstrap_servers, f"trying-{output.topic}"
    trying = Producer({"bootstrap.servers": servers, "transactional.id": name, "log_level": 2})
    trying.init_transactions(90)
    deadline = time.monotonic() + 90
    refused: list[bool] = []
    while refused[-1:] != [size < len(LARGE)]:
        assert time.monotonic() < deadline, f"the topic's limit is not {size}"
        trying.begin_transaction()
        trying.produce(output.topic, LARGE, on_delivery=lambda error, _: refused.append(error is not None))
        assert trying.flush(90) == 0
        trying.abort_transaction(90)


def write_until_told(writer: SinkWriter) -> None:
    """Small records, until the client has told what became of those before."""
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        writer.write("k-1", None)


def test_a_refused_record_fails_the_barrier_so_that_no_checkpoint_holds_it(output: Output) -> None:
    life = output.live(output.sink())
    life.write(*numbers(5))
    life.barrier(1)
    life.complete(1)
    life.write("k-1", LARGE, "k-2")
    with pytest.raises(KafkaRefusedError, match=rf"topic {output.topic} with key b'large' .* 8,006 bytes") as refused:
        life.barrier(2)
    assert "Raise max.message.bytes of the topic" in str(refused.value)
    assert "is complete" not in str(refused.value)
    assert (refused.value.topic, refused.value.key) == (output.topic, b"large")
    assert life.prepared == []
    life.close()
    output.wait_until_decided()
    assert output.shows(*numbers(5))


def test_a_refusal_that_is_known_fails_the_next_record_without_a_barrier(output: Output) -> None:
    life = output.live(output.sink())
    life.write(LARGE)
    with pytest.raises(KafkaRefusedError, match="key b'large'"):
        write_until_told(life.writers[0])


@pytest.mark.parametrize("kind", ["without a key", "from the far future", "for no topic"])
def test_what_brokers_refuse_besides(kafka_broker: KafkaBroker, new_topic: NewTopic, output: Output, kind: str) -> None:
    topics = {
        "without a key": new_topic("compacted", cleanup_policy="compact"),
        "from the far future": new_topic("timely", message_timestamp_after_max_ms="1000"),
        "for no topic": "no-such-topic",
    }
    messages = {
        "without a key": "with no key and a value of 3 bytes.*see that set_key gives one",
        "from the far future": "message.timestamp.after.max.ms of the topic",
        "for no topic": "Create it",
    }
    schema = KafkaRecordSerializationSchema.builder().set_topic_selector(lambda value: topics[kind])
    schema.set_value_serialization_schema(SimpleStringSchema())
    if kind != "without a key":
        schema.set_key(lambda value: "k")
    builder = output.builder().set_record_serializer(schema.build())
    life = output.live(builder.set_property("topic.metadata.propagation.max.ms", 500).build())
    far = int(time.time() * 1_000) + 3_600_000
    life.writers[0].write("k-1", far if kind == "from the far future" else None)
    with pytest.raises(KafkaRefusedError, match=messages[kind]) as refused:
        life.barrier(1)
    assert topics[kind] in str(refused.value)


def test_a_refused_record_of_a_complete_checkpoint_is_named_at_every_recovery_until_the_topic_takes_it(
    output: Output,
) -> None:
    limit(output, 100_000)
    first = output.live(output.sink())
    first.write("k-1", LARGE, "k-2")
    checkpoint = first.barrier(1)
    limit(output, 2_000)
    for attempt in (2, 3):
        with pytest.raises(
            KafkaRefusedError, match=r"key b'large' .* Checkpoint 1 holds it and is complete"
        ) as refused:
            output.live(output.sink(), attempt, checkpoint)
        assert "older checkpoint or savepoint with --from" in str(refused.value)
        output.wait_until_decided()
    assert output.seen() == []
    limit(output, 100_000)
    output.live(output.sink(), 4, checkpoint)
    assert output.shows("k-1", LARGE, "k-2")
    output.wait_until_decided()


def test_a_refused_record_is_named_by_the_owner_of_a_lost_transaction_too(output: Output) -> None:
    limit(output, 100_000)
    life = output.live(output.sink(timeout_ms=2_000))
    life.write("k-1", LARGE, "k-2")
    life.barrier(1)
    output.wait_until_decided()  # brokers have given the transaction up
    limit(output, 2_000)
    with pytest.raises(KafkaRefusedError, match=r"key b'large' .* Checkpoint 1 holds it and is complete"):
        life.complete(1)
    output.wait_until_decided()
    assert output.seen() == []


@pytest.mark.parametrize("guarantee", [DeliveryGuarantee.AT_LEAST_ONCE, DeliveryGuarantee.NONE])
def test_a_refused_record_surfaces_without_transactions(output: Output, guarantee: DeliveryGuarantee) -> None:
    sink: KafkaSink = output.builder().set_delivery_guarantee(guarantee).build()
    writer = sink.create_writer(WriterContext("job", "sink", 0, 1, 1))
    writer.open()
    writer.write(LARGE, None)
    told = writer.flush if guarantee is DeliveryGuarantee.AT_LEAST_ONCE else lambda: write_until_told(writer)
    with pytest.raises(KafkaRefusedError, match=rf"topic {output.topic} with key b'large' .* 8,006 bytes"):
        told()
    writer.close()


def test_a_batch_may_be_refused_though_each_of_its_records_is_small_enough(output: Output) -> None:
    """Brokers count a batch as one message."""
    records = [f"k-{secrets.token_hex(400)}" for _ in range(200)]

    def written(life: Life) -> None:
        life.write(*records)
        life.barrier(1)

    with pytest.raises(KafkaRefusedError, match=r'it was a batch: set_property\("batch.size"'):
        written(output.live(output.builder().set_property("linger.ms", 500).build()))
    small = output.live(output.builder().set_property("batch.size", 1_500).build(), 2)
    written(small)
    small.complete(1)
    assert output.shows(*records)
