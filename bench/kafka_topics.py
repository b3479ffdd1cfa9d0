"""What all Kafka programs of the bench share: a broker of their own, filled topics, and a reader from outside.

Payments are JSON, `{"account":"a000017","amount":3,"created":1700000000.123456}`, keyed by account, dealt over two
partitions by it. Every payment gives one balance, as text: `a000017:<payments so far>:<sum so far>:<created>`. So the
output is known from the input: the last balance of each account holds its number of payments and their sum.

Output topics have the broker's own time of arrival as timestamp (LogAppendTime): the end of a run is read from there,
by the same clock for everybody.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from headrace.connectors.kafka.client import kafka
from headrace.testing.kafka_broker import KafkaBroker

SERVICES = Path(__file__).parents[1] / ".services"
SOURCE, SINK = "payments", "balances"
PARTITIONS = 2
DRAIN_SECONDS = 180.0


class WrongOutputError(RuntimeError):
    """The output is not what the input makes it: the run has no speed."""


@contextmanager
def broker() -> Iterator[KafkaBroker]:
    """A broker with empty topics."""
    with KafkaBroker(SERVICES) as running:
        yield running


def create_topics(running: KafkaBroker, suffix: str, partitions: int = PARTITIONS) -> tuple[str, str]:
    """A topic for payments and one for balances."""
    source, sink = f"{SOURCE}-{suffix}", f"{SINK}-{suffix}"
    running.create_topic(source, partitions)
    running.create_topic(sink, partitions, {"message.timestamp.type": "LogAppendTime"})
    return source, sink


def payment(account: int, amount: int, created: float) -> bytes:
    return b'{"account":"a%06d","amount":%d,"created":%.6f}' % (account, amount, created)


class Payments:
    """So many payments of so many accounts, the same for everybody."""

    def __init__(self, rows: int, keys: int, seed: int = 42) -> None:
        generator = np.random.default_rng(seed)
        self.accounts = generator.integers(0, keys, rows)
        self.amounts = generator.integers(1, 100, rows)
        self.rows = rows
        self.keys = keys

    def fill(self, running: KafkaBroker, topic: str) -> None:
        producer = bulk_producer(running)
        now = time.time()
        for account, amount in zip(self.accounts.tolist(), self.amounts.tolist(), strict=True):
            produce(producer, topic, payment(account, amount, now), b"a%06d" % account)
        producer.flush(120)

    def check(self, running: KafkaBroker, topic: str, *, duplicates: bool) -> float:
        """Raise unless the topic holds every balance; when its last record came, in seconds since the epoch.

        `duplicates`: some may be there twice, as at-least-once output may be after a failure.
        """
        counts, sums = np.zeros(self.keys, np.int64), np.zeros(self.keys, np.int64)
        np.add.at(counts, self.accounts, 1)
        np.add.at(sums, self.accounts, self.amounts)
        found: dict[str, tuple[int, int]] = {}
        records, last = 0, 0
        for message in read_committed(running, topic):
            account, number, total, _ = message.value().decode().split(":")
            found[account] = max(found.get(account, (0, 0)), (int(number), int(total)))
            records += 1
            last = max(last, message.timestamp()[1])
        wanted = {f"a{n:06d}": (int(counts[n]), int(sums[n])) for n in range(self.keys) if counts[n]}
        if found != wanted or (records != self.rows and not (duplicates and records > self.rows)):
            wrong = sum(found.get(account) != balance for account, balance in wanted.items())
            raise WrongOutputError(f"{records} balances of {self.rows} payments, {wrong} accounts end wrongly.")
        return last / 1_000


def bulk_producer(running: KafkaBroker) -> Any:
    settings = {"linger.ms": 20, "batch.size": 1_000_000, "queue.buffering.max.messages": 1_000_000, "acks": 1}
    return kafka("the bench").Producer({"bootstrap.servers": running.bootstrap_servers, **settings})


def produce(producer: Any, topic: str, value: bytes, key: bytes | None = None) -> None:
    while True:
        try:
            producer.produce(topic, value, key)
            return
        except BufferError:
            producer.poll(0.05)


def consumer(running: KafkaBroker, topic: str, *, committed: bool) -> Any:
    """A client that reads all partitions, without a group to wait for."""
    library = kafka("the bench")
    made = library.Consumer(
        {
            "bootstrap.servers": running.bootstrap_servers,
            "group.id": "bench",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            # Without it a client pauses for a second whenever enough is queued.
            "fetch.queue.backoff.ms": 5,
            "fetch.wait.max.ms": 5,
        }
    )
    partitions = made.list_topics(topic, timeout=30).topics[topic].partitions
    made.assign([library.TopicPartition(topic, number, 0) for number in partitions])
    return made


def read_committed(running: KafkaBroker, topic: str) -> Iterator[Any]:
    """Every record that a reader of committed ones sees, to the end."""
    reading = consumer(running, topic, committed=True)
    left = len(reading.assignment())
    try:
        while left:
            for message in reading.consume(10_000, 1.0):
                if message.error() is None:
                    yield message
                else:
                    left -= 1
    finally:
        reading.close()


class LatencyProbe:
    """Sends payments at an even rate, and stamps their balances when a reader of uncommitted records has them."""

    def __init__(self, running: KafkaBroker, source: str, sink: str, rate: int, keys: int) -> None:
        self._running = running
        self._source = source
        self._sink = sink
        self._rate = rate
        self._keys = keys
        self._sent = 0
        self._sent_all = threading.Event()
        self._over = threading.Event()
        self.samples: list[tuple[float, float]] = []
        """When it was created, and how long it took, in seconds."""
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._send, self._read)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def _send(self) -> None:
        generator = random.Random(42)
        settings = {"bootstrap.servers": self._running.bootstrap_servers, "linger.ms": 0, "acks": 1}
        producer = kafka("the bench").Producer(settings)
        begun = time.monotonic()
        while not self._sent_all.is_set():
            wait = begun + self._sent / self._rate - time.monotonic()
            if wait > 0:
                time.sleep(wait)
            account = generator.randrange(self._keys)
            produce(producer, self._source, payment(account, 1, time.time()), b"a%06d" % account)
            producer.poll(0)
            self._sent += 1
        producer.flush(30)

    def _read(self) -> None:
        reading = consumer(self._running, self._sink, committed=False)
        while not self._over.is_set():
            message = reading.poll(0.1)
            if message is not None and message.error() is None:
                created = float(message.value().rpartition(b":")[2])
                self.samples.append((created, time.time() - created))
        reading.close()

    def _wait_for(self, balances: int, alive: Any) -> None:
        deadline = time.monotonic() + DRAIN_SECONDS
        while len(self.samples) < balances:
            alive()
            if time.monotonic() > deadline:
                raise WrongOutputError(f"{len(self.samples)} of {balances} balances came in {DRAIN_SECONDS:.0f} s.")
            time.sleep(0.05)

    def measure(self, warm_up_s: float, seconds: float, alive: Any) -> dict[str, Any]:
        """Wait for the first balance, then for the warm-up, then until all that was created after it has come out."""
        self._wait_for(1, alive)
        begun = time.time() + warm_up_s
        end = begun + seconds
        while time.time() < end:
            alive()
            time.sleep(0.05)
        # What is still on its way counts too, or the slowest would be left out.
        self._sent_all.set()
        self._threads[0].join(60)
        self._wait_for(self._sent, alive)
        self._over.set()
        self._threads[1].join(30)
        took = np.array([latency for created, latency in self.samples if begun <= created < end]) * 1_000
        return {
            "records": len(took),
            "seconds_between_first_and_last_record": seconds,
            "latency_p50_ms": float(np.percentile(took, 50)),
            "latency_p99_ms": float(np.percentile(took, 99)),
            "latency_samples": len(took),
        }
