"""Topic selector, key, headers, partitioner, raw bytes and Avro, written first and sent again after a death."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sink_lives import Output

from headrace import Row
from headrace.connectors.kafka import (
    AvroRowDeserializationSchema,
    AvroRowSerializationSchema,
    KafkaRecordSerializationSchema,
    RawBytesSchema,
)
from headrace.testing.kafka_broker import KafkaBroker

NUMBER = json.dumps({"type": "record", "name": "Number", "fields": [{"name": "n", "type": "long"}]})
PARTITIONS = 3
SENT = range(12)


@pytest.fixture
def outputs(kafka_broker: KafkaBroker, new_topic: Callable[..., str]) -> Iterator[list[Output]]:
    made = [Output(kafka_broker, new_topic(name, partitions=PARTITIONS)) for name in ("even", "odd")]
    yield made
    for output in made:
        output.close()


def schema_of(kind: str, topics: list[str]) -> Any:
    """`n` goes to one of two topics and to partition `n % 3`, with a key for every second one and two headers."""
    number: Callable[[Any], int] = (lambda value: value.n) if kind == "avro" else int
    schema = KafkaRecordSerializationSchema.builder().set_topic_selector(lambda value: topics[number(value) % 2])
    schema.set_key(lambda value: None if number(value) % 4 > 1 else f"key-{number(value)}")
    schema.set_headers(lambda value: [("n", b"%d" % number(value)), ("nothing", None), ("n", b"again")])
    schema.set_partitioner(lambda value, key, count: number(value) % count)
    values = AvroRowSerializationSchema(NUMBER) if kind == "avro" else RawBytesSchema()
    return schema.set_value_serialization_schema(values).build()


def value_of(kind: str, n: int) -> Any:
    return Row(n=n) if kind == "avro" else b"%d" % n


@pytest.mark.parametrize("kind", ["raw bytes", "avro"])
@pytest.mark.parametrize("again", [False, True], ids=["written", "sent again"])
def test_records_arrive_as_they_were_made(outputs: list[Output], kind: str, again: bool) -> None:
    even, odd = outputs
    base = int(time.time() * 1_000)  # brokers delete what is older than a week
    builder = even.builder().set_record_serializer(schema_of(kind, [even.topic, odd.topic]))
    sink = builder.build()
    first = even.live(sink)
    for n in SENT:
        first.writers[0].write(value_of(kind, n), base + n)
    checkpoint = first.barrier(1)
    if again:
        even.live(sink, 2, checkpoint)  # the first one is dead, and its transaction with it
    else:
        first.complete(1)

    for output in outputs:
        output.wait_until_decided()
    read = AvroRowDeserializationSchema(NUMBER).deserialize if kind == "avro" else int
    found = {}
    for output in outputs:
        for message in output.broker.read(output.topic):
            number = read(message.value())
            n = number.n if kind == "avro" else number
            assert n not in found, "seen twice"
            place = message.topic(), message.partition(), message.key(), message.timestamp()[1] - base
            found[n] = (*place, message.headers())
    assert found == {
        n: (
            (even.topic, odd.topic)[n % 2],
            n % PARTITIONS,
            None if n % 4 > 1 else b"key-%d" % n,
            n,
            [("n", b"%d" % n), ("nothing", None), ("n", b"again")],
        )
        for n in SENT
    }
