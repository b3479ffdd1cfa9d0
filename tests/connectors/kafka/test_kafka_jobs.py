"""Whole jobs from Kafka to Kafka: hard kills of worker, process tree and broker, seen by readers of committed ones."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from programs import Program, kill_an_executor
from sink_lives import Output

from headrace import FileSink, Time, TumblingEventTimeWindows, Types, WatermarkStrategy
from headrace.connectors.kafka import (
    DeliveryGuarantee,
    JsonRowDeserializationSchema,
    JsonRowSerializationSchema,
    KafkaDataLossError,
    KafkaOffsetsInitializer,
    KafkaRecordSerializationSchema,
    KafkaSink,
    KafkaSource,
    SimpleStringSchema,
)
from headrace.connectors.kafka.client import kafka
from headrace.testing.kafka_broker import KafkaBroker

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

PROGRAM = Path(__file__).parent / "kafka_job.py"
ACCOUNTS = 40
RECORDS = 200_000


class Reader:
    """Reads committed records from the start and goes on while the job runs, as a user's consumer would."""

    def __init__(self, servers: str, topic: str) -> None:
        self.lines: list[str] = []
        self._library = kafka("the test")
        config = {
            "bootstrap.servers": servers,
            "group.id": f"reader-{topic}",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "log_level": 2,
        }
        self._consumer = self._library.Consumer(config)
        partitions = self._consumer.list_topics(topic, timeout=30).topics[topic].partitions
        self._consumer.assign([self._library.TopicPartition(topic, p, 0) for p in partitions])
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.is_set():
            for message in self._consumer.consume(10_000, 0.1):
                if message.error() is None:
                    self.lines.append(message.value().decode())

    def wait_for(self, count: int, alive: Callable[[], Any]) -> None:
        deadline = time.monotonic() + 180
        while len(self.lines) < count:
            alive()
            assert time.monotonic() < deadline, f"only {len(self.lines)} of {count} records within 180 s"
            time.sleep(0.05)

    def close(self) -> None:
        self._over.set()
        self._thread.join(30)
        self._consumer.close()


def entries(first: int, last: int) -> list[tuple[str, str]]:
    """Entry n is the (n // ACCOUNTS)-th of its account."""
    return [(f"a{n % ACCOUNTS}", f'{{"account": "a{n % ACCOUNTS}", "n": {n // ACCOUNTS}}}') for n in range(first, last)]


def problems(lines: list[str], records: int) -> list[str]:
    """What is wrong with the output: every entry once, in the order of its account, with an exact count."""
    wrong = []
    expected = Counter((f"a{n % ACCOUNTS}", n // ACCOUNTS) for n in range(records))
    seen: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for line in lines:
        account, n, count = line.split(":")
        seen[account].append((int(n), int(count)))
    found = Counter((account, n) for account, pairs in seen.items() for n, _ in pairs)
    if found != expected:
        wrong.append(f"{(expected - found).total()} lost, {(found - expected).total()} double")
    for account, pairs in seen.items():
        if [n for n, _ in pairs] != sorted(n for n, _ in pairs):
            wrong.append(f"{account} is out of order")
        if any(count != n + 1 for n, count in pairs):
            wrong.append(f"{account} was counted wrong")
    return wrong


def test_the_check_notices_losses_doubles_disorder_and_wrong_counts() -> None:
    right = [f"a{n % ACCOUNTS}:{n // ACCOUNTS}:{n // ACCOUNTS + 1}" for n in range(200)]
    assert problems(right, 200) == []
    assert problems(right[1:], 200)
    assert problems([*right, right[7]], 200)
    assert problems([*right[ACCOUNTS:], *right[:ACCOUNTS]], 200)
    assert problems([*right[:-1], "a39:4:6"], 200)


def test_kills_of_worker_process_tree_and_broker_leave_every_record_once_and_in_order(
    kafka_broker: KafkaBroker, new_topic: Callable[..., str], tmp_path: Path, programs: list[Program]
) -> None:
    source, sink = new_topic("entries", partitions=2), new_topic("counts", partitions=2)
    settings = {"directory": str(tmp_path), "servers": kafka_broker.bootstrap_servers, "source": source, "sink": sink}
    reader = Reader(kafka_broker.bootstrap_servers, sink)
    quarter = RECORDS // 4

    def begin() -> Program:
        programs.append(Program(settings, program=PROGRAM))
        return programs[-1]

    def alive() -> None:
        assert programs[-1].process.poll() is None, programs[-1].tail()

    try:
        kafka_broker.produce(source, entries(0, quarter))
        job = begin()
        reader.wait_for(quarter // 2, alive)
        worker = next(iter(job.status()["task_pids"].values()))
        os.kill(worker, signal.SIGKILL)
        kafka_broker.produce(source, entries(quarter, 2 * quarter))
        job.wait_until(lambda status: status["restarts"] >= 1 and status["status"] == "RUNNING")
        reader.wait_for(quarter + quarter // 2, alive)

        job.kill_tree()
        kafka_broker.produce(source, entries(2 * quarter, 3 * quarter))
        job = begin()
        reader.wait_for(2 * quarter + quarter // 2, alive)

        kafka_broker.kill()
        kafka_broker.start()
        kafka_broker.produce(source, entries(3 * quarter, RECORDS))
        reader.wait_for(RECORDS, alive)

        completed = job.status()["checkpoints_completed"]
        job.wait_until(lambda status: status["checkpoints_completed"] >= completed + 2)
        os.kill(job.process.pid, signal.SIGINT)
        assert job.finish() == 130, job.tail()
    finally:
        reader.close()
    assert problems(reader.lines, RECORDS) == [], "the reader that was there all the time"
    # Whoever was killed, no transaction of his stays open: readers get to the very end.
    Output(kafka_broker, sink).wait_until_decided()
    again = [message.value().decode() for message in kafka_broker.read(sink)]
    assert problems(again, RECORDS) == [], "a reader that comes afterwards"


@pytest.mark.cluster
@pytest.mark.parametrize("kills", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_executors_killed_one_after_the_other_leave_every_record_once_and_in_order(
    kafka_broker: KafkaBroker, new_topic: Callable[..., str], tmp_path: Path, programs: list[Program], kills: int
) -> None:
    source, sink = new_topic("entries", partitions=2), new_topic("counts", partitions=2)
    settings = {
        "directory": str(tmp_path),
        "servers": kafka_broker.bootstrap_servers,
        "source": source,
        "sink": sink,
        "master": "local-cluster[2,4,1024]",
    }
    reader = Reader(kafka_broker.bootstrap_servers, sink)
    job = Program(settings, program=PROGRAM)
    programs.append(job)
    part = 20_000
    records = part * (kills + 1)

    def alive() -> None:
        assert job.process.poll() is None, job.tail()

    try:
        for killed in range(kills + 1):
            kafka_broker.produce(source, entries(killed * part, (killed + 1) * part))
            # In the middle of the new records, as far as a reader sees.
            reader.wait_for(killed * part + 1, alive)
            if killed < kills:
                job.wait_until(lambda status: status["status"] == "RUNNING")
                kill_an_executor(job)
                job.wait_until(lambda status, wanted=killed + 1: status["restarts"] >= wanted)  # type: ignore[misc]
        reader.wait_for(records, alive)
        completed = job.status()["checkpoints_completed"]
        job.wait_until(lambda status: status["checkpoints_completed"] >= completed + 2)
        os.kill(job.process.pid, signal.SIGINT)
        assert job.finish() == 130, job.tail()
    finally:
        reader.close()
    assert problems(reader.lines, records) == [], "the reader that was there all the time"
    Output(kafka_broker, sink).wait_until_decided()
    again = [message.value().decode() for message in kafka_broker.read(sink)]
    assert problems(again, records) == [], "a reader that comes afterwards"


ENTRY = Types.ROW_NAMED(["account", "amount", "ts"], [Types.STRING(), Types.LONG(), Types.LONG()])


def test_source_window_and_sink_step_by_step(
    kafka_broker: KafkaBroker, new_topic: Callable[..., str], bench: Any, start: Any
) -> None:
    """The input has 12 records or it does not end, and no checkpoint is taken before: the steps wait for the test."""
    source, sink = new_topic("payments"), new_topic("sums")
    servers = kafka_broker.bootstrap_servers
    # A window that began not long ago: records carry their event time, and brokers delete what is older than a week.
    base = int(time.time()) // 10 * 10_000

    def pay(*payments: tuple[int, int]) -> None:
        lines = [f'{{"account": "a", "amount": {amount}, "ts": {base + ts}}}' for amount, ts in payments]
        kafka_broker.produce(source, [("a", line) for line in lines])

    def sums(*, committed: bool) -> list[tuple[int, int]]:
        found = [json.loads(message.value()) for message in kafka_broker.read(sink, committed=committed)]
        return [(total["amount"], total["ts"] - base) for total in found]

    def wait_for_uncommitted(count: int) -> None:
        deadline = time.monotonic() + 90
        while len(sums(committed=False)) < count:
            assert time.monotonic() < deadline, f"{job.report}"
            time.sleep(0.05)

    env = bench.env(parallelism=1, interval=3_600_000)
    reading = KafkaSource.builder().set_bootstrap_servers(servers).set_topics(source)
    reading.set_bounded(KafkaOffsetsInitializer.offsets({(source, 0): 12}))
    reading.set_value_only_deserializer(JsonRowDeserializationSchema(ENTRY))
    times = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda entry, _: entry.ts)
    payments = env.from_source(reading.build(), times, "payments")
    windows = payments.key_by("account").window(TumblingEventTimeWindows.of(Time.seconds(10)))
    total = windows.reduce(lambda a, b: type(a)(a.account, a.amount + b.amount, a.ts))
    schema = KafkaRecordSerializationSchema.builder().set_topic(sink)
    schema.set_value_serialization_schema(JsonRowSerializationSchema())
    writing = KafkaSink.builder().set_bootstrap_servers(servers).set_record_serializer(schema.build())
    total.sink_to(writing.set_delivery_guarantee(DeliveryGuarantee.EXACTLY_ONCE).build()).uid("sink")
    job = start(env)

    pay((1, 1_000), (2, 2_000), (4, 3_000), (8, 11_000))
    wait_for_uncommitted(1)  # the window has fired: the first record opened a transaction and is written, uncommitted
    assert sums(committed=False) == [(7, 1_000)]
    assert sums(committed=True) == []

    os.kill(next(iter(job.report.task_pids.values())), signal.SIGKILL)
    job.wait_for("running", lambda detail: detail["attempt"] == 2)
    wait_for_uncommitted(2)  # replayed from the start: written again, in a transaction of its own
    assert sums(committed=True) == [], "the transaction of the dead was given up, the new one is not committed"

    pay(*[(1, 20_000 + n) for n in range(8)])
    job.finish()  # the end of the input: a checkpoint, and when it is complete, the commit
    deadline = time.monotonic() + 90
    while len(sums(committed=True)) < 3 and time.monotonic() < deadline:
        time.sleep(0.05)  # decided when the job ends, and seen a moment later
    assert sums(committed=True) == [(7, 1_000), (8, 11_000), (8, 20_000)]
    assert len(sums(committed=False)) == 4, "a reader of uncommitted records sees what was given up as well"
    assert job.report.restarts == 1


def test_records_that_retention_deleted_end_the_job_with_kafkas_own_error_and_no_restart(
    kafka_broker: KafkaBroker, new_topic: Callable[..., str], bench: Any, start: Any
) -> None:
    topic = new_topic("payments")

    def begin() -> Any:
        env = bench.env(parallelism=1, interval=50)
        reading = KafkaSource.builder().set_bootstrap_servers(kafka_broker.bootstrap_servers).set_topics(topic)
        source = reading.set_value_only_deserializer(SimpleStringSchema()).build()
        payments = env.from_source(source, WatermarkStrategy.no_watermarks(), "payments").uid("payments")
        payments.sink_to(FileSink.text(bench.directory / "out")).uid("out")
        return start(env)

    kafka_broker.produce(topic, [("a", f"{n}") for n in range(100)])
    job = begin()
    job.wait_until_read(100)
    job.suspend()
    kafka_broker.produce(topic, [("a", f"{n}") for n in range(100, 200)])
    library = kafka("the test")
    admin = kafka_broker.admin()  # kept: its answers end with it
    for deleted in admin.delete_records([library.TopicPartition(topic, 0, 150)]).values():
        deleted.result(90)

    again = begin()
    with pytest.raises(KafkaDataLossError) as loss:
        again.finish()

    error = loss.value
    assert (error.topic, error.partition, error.wanted, error.first, error.end) == (topic, 0, 100, 150, 200)
    assert 'Operator "payments" (uid "payments"' in str(error)
    assert "50 records were deleted by retention" in str(error)
    assert again.report.restarts == 0
    (failure,) = again.kinds("failure")
    assert failure["error"] == "KafkaDataLossError"
