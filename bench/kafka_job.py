"""Our side of the Kafka measures: one job, one JSON line.

    python -m bench.kafka_job --scratch DIR --workload balances --rows N --keys K --guarantee exactly-once
    python -m bench.kafka_job --scratch DIR --workload latency --rate N --keys K --seconds S --warm-up-seconds S
    python -m bench.kafka_job --scratch DIR --workload source --rows N

- balances: Kafka → key_by(account) → keyed state → Kafka, two partitions and two subtasks, a checkpoint every second.
  From all tasks running to the last balance in the output topic.
- latency: the same, unbounded; from a payment's creation to its balance at a reader of uncommitted records.
- source: the source alone, one partition, raw bytes into a sink that counts.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import threading
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench import kafka_topics as topics
from headrace import (
    HashMapStateBackend,
    KeyedProcessFunction,
    Sink,
    StreamExecutionEnvironment,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from headrace.connectors.kafka import (
    DeliveryGuarantee,
    JsonRowDeserializationSchema,
    KafkaOffsetsInitializer,
    KafkaRecordSerializationSchema,
    KafkaSink,
    KafkaSource,
    RawBytesSchema,
    SimpleStringSchema,
)
from headrace.connectors.sink import SinkWriter, WriterContext
from headrace.errors import JobCanceledError
from headrace.runtime.spark.session import obtain_session
from headrace.testing.kafka_broker import KafkaBroker

STARTED = time.time()
SLOTS = 6
WARM_UP_ROWS = 100_000
PAYMENT = Types.ROW_NAMED(["account", "amount", "created"], [Types.STRING(), Types.LONG(), Types.DOUBLE()])


class Balances(KeyedProcessFunction):
    """Counts and sums the payments of an account, and gives both for each of them."""

    def open(self, runtime_context: Any) -> None:
        kind = Types.TUPLE([Types.LONG(), Types.LONG()])
        self.balance = runtime_context.get_state(ValueStateDescriptor("balance", kind))

    def process_element(self, payment: Any, ctx: Any) -> Iterator[str]:
        number, total = self.balance.value() or (0, 0)
        number, total = number + 1, total + payment.amount
        self.balance.update((number, total))
        yield f"{payment.account}:{number}:{total}:{payment.created:.6f}"


class EndNote(Sink):
    """Counts, and notes when its writer was flushed last: at the end of its input."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def create_writer(self, context: WriterContext) -> SinkWriter:
        return _EndNoteWriter(self.path)


class _EndNoteWriter(SinkWriter):
    def __init__(self, path: Path) -> None:
        self._path = path
        self._count = 0

    def write(self, value: Any, timestamp: int | None) -> None:
        self._count += 1

    def flush(self) -> None:
        self._path.write_text(f"{self._count} {time.time()!r}")


def source_of(servers: str, topic: str, values: Any, *, bounded: bool) -> KafkaSource:
    builder = KafkaSource.builder().set_bootstrap_servers(servers).set_topics(topic).set_group_id(f"bench-{topic}")
    builder.set_starting_offsets(KafkaOffsetsInitializer.earliest()).set_value_only_deserializer(values)
    return (builder.set_bounded(KafkaOffsetsInitializer.latest()) if bounded else builder).build()


def sink_of(servers: str, topic: str, guarantee: str) -> KafkaSink:
    schema = KafkaRecordSerializationSchema.builder().set_topic(topic).set_key(lambda line: line.partition(":")[0])
    schema.set_value_serialization_schema(SimpleStringSchema())
    exact = guarantee == "exactly-once"
    delivery = DeliveryGuarantee.EXACTLY_ONCE if exact else DeliveryGuarantee.AT_LEAST_ONCE
    builder = KafkaSink.builder().set_bootstrap_servers(servers).set_record_serializer(schema.build())
    return builder.set_delivery_guarantee(delivery).build()


def environment(args: argparse.Namespace, name: str, parallelism: int) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(parallelism)
    env.set_state_backend(HashMapStateBackend())
    env.enable_checkpointing(args.checkpoint_interval_ms)
    env.get_checkpoint_config().set_checkpoint_storage(f"file://{args.scratch}/checkpoints-{name}")
    return env


def begin(args: argparse.Namespace, broker: KafkaBroker, name: str, source: str, sink: str, *, bounded: bool) -> Any:
    """Start payments → balances; the client, and when all tasks ran, once they do."""
    env = environment(args, name, topics.PARTITIONS)
    servers = broker.bootstrap_servers
    payments = env.from_source(
        source_of(servers, source, JsonRowDeserializationSchema(PAYMENT), bounded=bounded),
        WatermarkStrategy.no_watermarks(),
        "payments",
    )
    balances = payments.key_by("account").process(Balances(), output_type=Types.STRING())
    balances.sink_to(sink_of(servers, sink, args.guarantee)).uid("balances")
    return started(env, name)


def started(env: StreamExecutionEnvironment, name: str) -> tuple[Any, list[float]]:
    running_at: list[float] = []
    client = env.execute_async(name)
    client.listen(lambda event: running_at.append(event.at_ms / 1e3) if event.kind == "running" else None)
    return client, running_at


def balances(args: argparse.Namespace, broker: KafkaBroker) -> dict[str, Any]:
    line: dict[str, Any] = {}
    first: float | None = None
    for name, rows in (("warm-up", min(WARM_UP_ROWS, args.rows)), ("timed", args.rows)):
        payments = topics.Payments(rows, args.keys)
        source, sink = topics.create_topics(broker, name)
        payments.fill(broker, source)
        client, running_at = begin(args, broker, name, source, sink, bounded=True)
        result = client.get_job_execution_result().result()
        first = first or running_at[0]
        ended = payments.check(broker, sink, duplicates=args.guarantee != "exactly-once")
        line = {
            "records": result.records_read,
            "seconds_between_first_and_last_record": ended - running_at[0],
            "checkpoints_completed": result.checkpoints,
        }
    return line | {"started_at": first}


def latency(args: argparse.Namespace, broker: KafkaBroker) -> dict[str, Any]:
    source, sink = topics.create_topics(broker, "latency")
    client, running_at = begin(args, broker, "latency", source, sink, bounded=False)
    ended = threading.Event()
    client.get_job_execution_result().add_done_callback(lambda _: ended.set())

    def alive() -> None:
        if ended.is_set():
            client.get_job_execution_result().result()
            raise topics.WrongOutputError("The job ended too early.")

    probe = topics.LatencyProbe(broker, source, sink, args.rate, args.keys)
    probe.start()
    line = probe.measure(args.warm_up_seconds, args.seconds, alive)
    client.cancel().result(60)
    with contextlib.suppress(JobCanceledError):
        client.get_job_execution_result().result()
    return line | {"started_at": running_at[0]}


def source_alone(args: argparse.Namespace, broker: KafkaBroker) -> dict[str, Any]:
    line: dict[str, Any] = {}
    first: float | None = None
    for name, rows in (("warm-up", min(WARM_UP_ROWS, args.rows)), ("timed", args.rows)):
        topic = f"raw-{name}"
        broker.create_topic(topic)
        fill_raw(broker, topic, rows)
        env = environment(args, name, 1)
        note = args.scratch / f"note-{name}"
        source = source_of(broker.bootstrap_servers, topic, RawBytesSchema(), bounded=True)
        env.from_source(source, WatermarkStrategy.no_watermarks(), "raw").sink_to(EndNote(note)).uid("count")
        client, running_at = started(env, name)
        client.get_job_execution_result().result()
        count, ended = note.read_text().split()
        if int(count) != rows:
            raise topics.WrongOutputError(f"{count} records came of {rows}.")
        first = first or running_at[0]
        line = {"records": int(count), "seconds_between_first_and_last_record": float(ended) - running_at[0]}
    return line | {"started_at": first}


def fill_raw(broker: KafkaBroker, topic: str, rows: int) -> None:
    """Values of 100 bytes, no keys."""
    producer = topics.bulk_producer(broker)
    value = b"x" * 100
    for _ in range(rows):
        topics.produce(producer, topic, value)
    producer.flush(120)


WORKLOADS = {"balances": balances, "latency": latency, "source": source_alone}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--workload", choices=sorted(WORKLOADS), required=True)
    parser.add_argument("--guarantee", choices=["exactly-once", "at-least-once"], default="exactly-once")
    parser.add_argument("--checkpoint-interval-ms", type=int, default=1_000)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--rate", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--warm-up-seconds", type=float, default=20.0)
    args = parser.parse_args()

    # Held open, so that the timed job finds it as the warm-up left it.
    handle = obtain_session(None, SLOTS, topics.PARTITIONS, "bench", None)
    try:
        with topics.broker() as broker:
            line = WORKLOADS[args.workload](args, broker)
    finally:
        handle.stop()
    started_at = line.pop("started_at")
    print(
        json.dumps(
            {
                "peer": "headrace-kafka",
                "variant": f"{args.workload}, {args.guarantee}",
                **line,
                "startup_seconds": started_at - STARTED,
                "versions": {name: version(name) for name in ("headrace", "pyspark", "confluent-kafka")},
            }
        )
    )


if __name__ == "__main__":
    main()
