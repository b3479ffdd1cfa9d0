"""A topic read by Spark's own Kafka source, through `from_dataframe`: every record once, whatever fails meanwhile."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from programs import Program
from tests.services.kafka import CACHE

from headrace.connectors.kafka.client import kafka
from headrace.testing.kafka_broker import KafkaBroker
from headrace.testing.spark_kafka import ARTIFACTS, connector

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

PROGRAM = Path(__file__).parent / "spark_source_job.py"
ACCOUNTS = 7
FIRST = 1_000
CHUNK = 50
AHEAD = 800


class Producer:
    """Puts records into a topic, numbered from 0 on."""

    def __init__(self, broker: KafkaBroker, topic: str) -> None:
        self._broker = broker
        self._topic = topic
        self.produced = 0

    def produce(self, count: int) -> None:
        numbers = range(self.produced, self.produced + count)
        self._broker.produce(self._topic, [(f"a{n % ACCOUNTS}", str(n)) for n in numbers])
        self.produced += count

    def give_up(self, count: int) -> None:
        """Records of a transaction that is aborted: nobody is to see them."""
        client = kafka("the test")
        config = {"bootstrap.servers": self._broker.bootstrap_servers, "transactional.id": self._topic}
        producer = client.Producer(config)
        producer.init_transactions(90)
        producer.begin_transaction()
        for n in range(count):
            producer.produce(self._topic, str(-1 - n), f"a{n % ACCOUNTS}")
        assert producer.flush(90) == 0
        producer.abort_transaction(90)

    @contextmanager
    def trickling(self, arrived: Callable[[], int]) -> Iterator[None]:
        """A few records every moment, on a thread of its own, but not far ahead of a slow job; some at the end."""
        over = threading.Event()

        def run() -> None:
            while not over.wait(0.1):
                if self.produced - arrived() < AHEAD:
                    self.produce(CHUNK)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(90)
        self.produce(CHUNK)


def lines_in(folder: Path) -> list[tuple[str, int, int]]:
    """`(account, number, how many there were of the account)` of every line that a reader sees."""
    files = [path for path in folder.glob("*") if path.is_file()]
    fields = [line.split(":") for path in files for line in path.read_text().splitlines()]
    return [(account, int(n), int(count)) for account, n, count in fields]


def problems(lines: list[tuple[str, int, int]], records: int) -> list[str]:
    """What is wrong with the output: every record once, every account counted from 1 to its last record."""
    wrong = []
    found = Counter((account, n) for account, n, _ in lines)
    expected = Counter((f"a{n % ACCOUNTS}", n) for n in range(records))
    if found != expected:
        wrong.append(f"{(expected - found).total()} lost, {(found - expected).total()} double")
    for account in {account for account, _ in expected}:
        counts = sorted(count for each, _, count in lines if each == account)
        if counts != list(range(1, len(counts) + 1)):
            wrong.append(f"{account} was counted wrong")
    return wrong


def test_the_check_notices_losses_doubles_and_wrong_counts() -> None:
    right = [(f"a{n % ACCOUNTS}", n, n // ACCOUNTS + 1) for n in range(100)]
    assert problems(right, 100) == []
    assert problems(right[1:], 100)
    assert problems([*right, right[7]], 100)
    assert problems([*right[:-1], ("a1", 99, 16)], 100)


def test_the_guide_names_the_jars_that_are_used_here() -> None:
    guide = (Path(__file__).parents[3] / "docs" / "guides" / "spark-dataframes.md").read_text()
    assert "\n".join(["```text", *ARTIFACTS, "```"]) in guide


def test_a_query_that_fails_behind_its_batch_and_a_killed_worker_leave_every_record_of_the_topic_once(
    kafka_broker: KafkaBroker, new_topic: Callable[..., str], tmp_path: Path, programs: list[Program], faults: Any
) -> None:
    """Records come before, between and after the failures; a batch read of the topic goes before, in the same process.

    The query fails where a batch is in the spool and Spark has not noted its offsets yet, at the eighth publication:
    one is that of the batch read, four or five hold the first records. So it happens among those that come later.
    """
    topic = new_topic("entries", partitions=2)
    producer = Producer(kafka_broker, topic)
    producer.give_up(20)
    producer.produce(FIRST)
    faults.plan("spool_published=raise@8")
    settings = {
        "directory": str(tmp_path),
        "servers": kafka_broker.bootstrap_servers,
        "topic": topic,
        "jars": ",".join(map(str, connector(CACHE))),
    }
    job = Program(settings, faults.environment(), PROGRAM)
    programs.append(job)

    def wait_for_all() -> None:
        deadline = time.monotonic() + 180
        while len({n for _, n, _ in lines_in(tmp_path / "stream")}) < producer.produced:
            assert job.process.poll() is None, job.tail()
            assert time.monotonic() < deadline, f"{problems(lines_in(tmp_path / 'stream'), producer.produced)}"
            time.sleep(0.05)

    wait_for_all()
    assert faults.happened == []
    with producer.trickling(lambda: len(lines_in(tmp_path / "stream"))):
        status = job.wait_until(lambda status: status["restarts"] >= 1 and status["status"] == "RUNNING")
        assert len(faults.happened) == 1
        os.kill(next(iter(status["task_pids"].values())), signal.SIGKILL)
        job.wait_until(lambda status: status["restarts"] >= 2 and status["status"] == "RUNNING")
    wait_for_all()
    completed = job.status()["checkpoints_completed"]
    job.wait_until(lambda status: status["checkpoints_completed"] >= completed + 2)
    os.kill(job.process.pid, signal.SIGINT)
    assert job.finish() == 130, job.tail()

    assert problems(lines_in(tmp_path / "stream"), producer.produced) == []
    assert problems(lines_in(tmp_path / "batch"), FIRST) == []
