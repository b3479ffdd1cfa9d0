"""A real Kafka broker of one node (KRaft mode) for tests and demos: started, stopped, killed and started again.

    with KafkaBroker(Path(".services")) as broker:
        broker.create_topic("payments", partitions=2)
        KafkaSource.builder().set_bootstrap_servers(broker.bootstrap_servers)…

The jars come from Maven once and are kept below the given directory; data lives in a directory of its own that goes
when the broker is closed. Needs `mvn`, Java 17 or newer, and confluent-kafka.
"""

from __future__ import annotations

import base64
import contextlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from headrace.connectors.kafka.client import kafka
from headrace.errors import HeadraceError, retry
from headrace.runtime.spark.java import find_java
from headrace.testing.maven import fetch
from headrace.testing.ports import free_ports

KAFKA_VERSION = "4.3.1"
READY_WITHIN_S = 180.0
STOPPED_WITHIN_S = 30.0
PATIENCE_S = 120.0
"""For what a broker does in a moment, unless its machine is busy with something else."""
_CLEAN_EXITS = (0, 143)

_ARTIFACTS = (
    f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}",
    # Kafka comes without a logger, and fails in silence then.
    "org.slf4j:slf4j-simple:1.7.36",
)

_SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    # One node: without these, transactions and groups wait for replicas that never come.
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    # After SIGKILL the dead broker's session must end before it may come back. Shorter, and one that lives is shut out
    # by its own controller whenever the machine is busy for so long.
    "broker.session.timeout.ms": "6000",
    "broker.heartbeat.interval.ms": "300",
    "log.cleaner.dedupe.buffer.size": "8388608",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "log.retention.check.interval.ms": "1000",
}


class BrokerError(HeadraceError):
    """The broker did not do what was asked; the message has the end of its log."""

    recovery = retry("a broker of a test; no job raises it")


class KafkaBroker:
    """One broker. `start` after `stop` or `kill` keeps port and data; `close` ends it and removes its data."""

    def __init__(self, cache: Path, settings: Mapping[str, str] | None = None) -> None:
        self._cache = cache
        self._settings = dict(settings or {})
        self._home = Path(tempfile.mkdtemp(prefix="headrace-kafka-"))
        self._process: subprocess.Popen[bytes] | None = None
        self.port, self._controller_port = free_ports(2)

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the broker runs"
        return self._process.pid

    def __enter__(self) -> KafkaBroker:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def start(self) -> None:
        """Start it, with its data if it ran before, and wait until it answers."""
        libs = download(self._cache)
        properties = self._home / "server.properties"
        if not properties.exists():
            properties.write_text("".join(f"{name}={value}\n" for name, value in self._properties().items()))
            first, *rest = uuid.uuid4().bytes
            # Its first bit is off: an id that began with "-" would be taken for an option.
            cluster = base64.urlsafe_b64encode(bytes([first & 0x7F, *rest])).decode().rstrip("=")
            self._java(libs, ["-Xmx128m"], "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(properties))
        flags = ["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        flags.append("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
        with open(self._home / "broker.log", "ab") as log:
            self._process = subprocess.Popen(
                [*_java_command(libs, flags), "kafka.Kafka", str(properties)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._wait_until_it_answers()

    def stop(self) -> None:
        """A clean end: what is open is closed, nothing is lost."""
        self._end(signal.SIGTERM)
        assert self._process is not None
        if self._process.returncode not in _CLEAN_EXITS:
            raise BrokerError(f"The broker ended with exit code {self._process.returncode}.{self._last_words()}")

    def kill(self) -> None:
        """SIGKILL."""
        self._end(signal.SIGKILL)

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._end(signal.SIGKILL)
        shutil.rmtree(self._home, ignore_errors=True)

    # What tests and demos do with it

    def admin(self) -> Any:
        return kafka("KafkaBroker").AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 2})

    def create_topic(self, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        new = kafka("KafkaBroker").NewTopic(topic, partitions, 1, config=dict(config or {}))
        admin = self.admin()  # kept: requests end with the client that made them
        for created in admin.create_topics([new]).values():
            created.result(PATIENCE_S)
        self._wait_for_leaders(topic, partitions)

    def delete_topic(self, topic: str) -> None:
        """Returns when no client is told of the topic any more."""
        admin = self.admin()
        for deleted in admin.delete_topics([topic]).values():
            deleted.result(PATIENCE_S)
        deadline = time.monotonic() + PATIENCE_S
        while topic in admin.list_topics(timeout=PATIENCE_S).topics:
            _patience(deadline, f"topic {topic} to go")

    def produce(self, topic: str, records: Sequence[tuple[Any, Any]], partition: int | None = None) -> None:
        """`(key, value)` records, each of text, bytes or None; returns when the broker has them."""
        producer = kafka("KafkaBroker").Producer({"bootstrap.servers": self.bootstrap_servers, "linger.ms": 5})
        failed: list[Any] = []

        def delivered(error: Any, message: Any) -> None:
            if error is not None:
                failed.append(error)

        more = {} if partition is None else {"partition": partition}
        for key, value in records:
            while True:
                try:
                    producer.produce(topic, value, key, on_delivery=delivered, **more)
                    break
                except BufferError:
                    producer.poll(0.1)
        if producer.flush(60) or failed:
            raise BrokerError(f"Producing to {topic} failed: {failed[:1]}.{self._last_words()}")

    def read(self, topic: str, *, committed: bool = True, timeout: float = 60.0) -> list[Any]:
        """All records of a topic in the order of their partitions, up to the end that a reader of that kind sees."""
        client = kafka("KafkaBroker")
        consumer = client.Consumer(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "group.id": "headrace-broker-read",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed" if committed else "read_uncommitted",
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 20,
                "log_level": 2,
            }
        )
        try:
            found = consumer.list_topics(topic, timeout=timeout).topics[topic]
            partitions = sorted(found.partitions)
            consumer.assign([client.TopicPartition(topic, p, 0) for p in partitions])
            records: dict[int, list[Any]] = {p: [] for p in partitions}
            ended: set[int] = set()
            deadline = time.monotonic() + timeout
            while len(ended) < len(partitions):
                _patience(deadline, f"the end of {topic}", pause=0.0)
                for message in consumer.consume(10_000, 0.2):
                    if message.error() is None:
                        records[message.partition()].append(message)
                    elif message.error().code() == client.KafkaError._PARTITION_EOF:
                        ended.add(message.partition())
            return [message for p in partitions for message in records[p]]
        finally:
            consumer.close()

    # Inside

    def _properties(self) -> dict[str, str]:
        listener = f"127.0.0.1:{self.port}"
        return {
            **_SETTINGS,
            "controller.quorum.voters": f"1@127.0.0.1:{self._controller_port}",
            "listeners": f"PLAINTEXT://{listener},CONTROLLER://127.0.0.1:{self._controller_port}",
            "advertised.listeners": f"PLAINTEXT://{listener}",
            "log.dirs": str(self._home / "data"),
            **self._settings,
        }

    def _wait_until_it_answers(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + READY_WITHIN_S
        while True:
            if self._process.poll() is not None:
                raise BrokerError(f"The broker ended with {self._process.returncode} at once.{self._last_words()}")
            if time.monotonic() > deadline:
                raise BrokerError(f"The broker did not answer within {READY_WITHIN_S:g} s.{self._last_words()}")
            # An open port first: a client that finds none writes a line about every try.
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1.0):
                break
            time.sleep(0.05)
        client = kafka("KafkaBroker")
        admin = self.admin()
        while True:
            with contextlib.suppress(client.KafkaException):
                if admin.list_topics(timeout=5).brokers:
                    return
            _patience(deadline, "the broker to answer")

    def _wait_for_leaders(self, topic: str, partitions: int) -> None:
        admin = self.admin()
        deadline = time.monotonic() + PATIENCE_S
        while True:
            found = admin.list_topics(timeout=PATIENCE_S).topics.get(topic)
            leaders = [] if found is None else [p.leader for p in found.partitions.values()]
            if len(leaders) == partitions and min(leaders) >= 0:
                return
            _patience(deadline, f"topic {topic} to have leaders")

    def _end(self, sign: signal.Signals) -> None:
        assert self._process is not None, "the broker was started"
        if self._process.poll() is None:
            self._process.send_signal(sign)
            try:
                self._process.wait(STOPPED_WITHIN_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(STOPPED_WITHIN_S)

    def _java(self, libs: Path, flags: list[str], *arguments: str) -> None:
        done = subprocess.run([*_java_command(libs, flags), *arguments], capture_output=True, text=True, timeout=120)
        if done.returncode != 0:
            raise BrokerError(
                f"{arguments[0]} failed with {done.returncode}: {done.stdout[-500:]}{done.stderr[-1000:]}"
            )

    def _last_words(self) -> str:
        log = self._home / "broker.log"
        text = log.read_text(errors="replace")[-2_000:] if log.exists() else ""
        return f" Its log ends:\n{text}" if text else ""


def download(cache: Path) -> Path:
    """The directory with the broker's jars, filled from Maven the first time. Safe to call from several processes."""
    return fetch(cache, f"kafka-{KAFKA_VERSION}", _ARTIFACTS)


def _java_command(libs: Path, flags: list[str]) -> list[str]:
    return [str(Path(find_java().home) / "bin" / "java"), *flags, "-cp", f"{libs}/*"]


def _patience(deadline: float, what: str, pause: float = 0.05) -> None:
    if time.monotonic() > deadline:
        raise BrokerError(f"Waited too long for {what}.")
    time.sleep(pause)
