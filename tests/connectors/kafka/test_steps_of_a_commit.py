"""Kafka in, a window, Kafka out, with checkpoints in the middle: what is saved, written and seen after each step."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import msgspec
from sink_lives import Output

from headrace import StreamExecutionEnvironment, Time, TumblingEventTimeWindows, Types, WatermarkStrategy
from headrace.connectors.kafka import (
    JsonRowDeserializationSchema,
    JsonRowSerializationSchema,
    KafkaRecordSerializationSchema,
    KafkaSource,
)
from headrace.connectors.kafka.prepared import header_of, records_of
from headrace.connectors.kafka.split import KafkaSplit
from headrace.testing import JobHarness, JobSnapshot
from headrace.testing.kafka_broker import KafkaBroker

ENTRY = Types.ROW_NAMED(["account", "amount", "ts"], [Types.STRING(), Types.LONG(), Types.LONG()])


def offsets(snapshot: JobSnapshot) -> list[int]:
    """Where a checkpoint has the source begin again."""
    (source,) = [operator for operator in snapshot.metadata.operators if operator.uid == "payments"]
    splits = [split for subtask in source.subtasks for split in subtask.splits]
    return [msgspec.msgpack.decode(split, type=KafkaSplit).offset for split in splits]


def prepared(snapshot: JobSnapshot) -> list[list[int]]:
    """The sums in each transaction that a checkpoint has prepared."""
    (sink,) = [operator for operator in snapshot.metadata.operators if operator.uid == "sink"]
    items = [item for subtask in sink.subtasks for item in subtask.prepared]
    assert [header_of(item.payload).checkpoint_id for item in items] == [item.checkpoint_id for item in items]
    return [[json.loads(record[1] or b"")["amount"] for record in records_of(item.payload)] for item in items]


def test_the_next_transaction_begins_at_the_barrier_and_commits_come_when_a_checkpoint_is_complete(
    kafka_broker: KafkaBroker, new_topic: Callable[..., str]
) -> None:
    source, output = new_topic("payments"), Output(kafka_broker, new_topic("sums"))
    # A window that began not long ago: records carry their event time, and brokers delete what is older than a week.
    base = int(time.time()) // 10 * 10_000
    windows_paid = 0

    def pay(*amounts: int) -> None:
        """Amounts of the next window; the one before it is over with the first of them."""
        nonlocal windows_paid
        start = base + 10_000 * windows_paid
        windows_paid += 1
        lines = [f'{{"account": "a", "amount": {amount}, "ts": {start}}}' for amount in amounts]
        kafka_broker.produce(source, [("a", line) for line in lines])

    def sums(*, committed: bool) -> list[int]:
        return [json.loads(value)["amount"] for value in output.seen(committed=committed)]

    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    reading = KafkaSource.builder().set_bootstrap_servers(kafka_broker.bootstrap_servers).set_topics(source)
    reading.set_value_only_deserializer(JsonRowDeserializationSchema(ENTRY))
    times = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda entry, _: entry.ts)
    payments = env.from_source(reading.build(), times, "payments").uid("payments")
    windows = payments.key_by("account").window(TumblingEventTimeWindows.of(Time.seconds(10)))
    total = windows.reduce(lambda a, b: type(a)(a.account, a.amount + b.amount, a.ts))
    schema = KafkaRecordSerializationSchema.builder().set_topic(output.topic)
    schema.set_value_serialization_schema(JsonRowSerializationSchema())
    sink = output.builder().set_record_serializer(schema.build()).build()
    sink.preflight()
    total.sink_to(sink).uid("sink")

    with JobHarness(env) as job:

        def written(count: int) -> None:
            """Until so many sums are in the topic, for readers who do not care about commits."""

            def there() -> bool:
                job.clock.advance(1_000)  # watermarks come by the clock
                return len(sums(committed=False)) >= count

            job.wait_until(there, f"{count} sums in the topic")

        pay(1, 2, 4)
        pay(8)
        written(1)  # the first record opens a transaction and is written, uncommitted
        assert output.open_transactions()

        first = job.checkpoint(complete=False)  # the barrier has passed; nobody is told that it is complete
        assert offsets(first) == [4]
        assert prepared(first) == [[7]]

        pay(16)
        written(2)  # in the next transaction, which did not wait for the commit of the first
        assert sums(committed=True) == [], "no checkpoint is complete"

        second = job.checkpoint()  # complete, and so both are committed, in order
        assert offsets(second) == [5]
        assert prepared(second) == [[7], [8]]
        output.wait_until_decided()
        assert sums(committed=True) == [7, 8]

        pay(32)
        written(3)
        assert sums(committed=True) == [7, 8]
        job.crash()  # the third is given up, and its record read and written again
        written(4)
        assert sums(committed=True) == [7, 8]
        third = job.checkpoint()
        assert offsets(third) == [6]
        assert prepared(third) == [[16]]
        output.wait_until_decided()
        assert sums(committed=True) == [7, 8, 16]
