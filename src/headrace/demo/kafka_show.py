"""The Kafka demo: starts a broker, feeds payments, kills everything twice, and proves the topic.

    python -m headrace.demo.kafka_show --payments 60000 --out demo-out/kafka

DIR/checkpoints/     the job's checkpoints
DIR/job.log          what it said, in all its processes
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.demo import kafka_job
from headrace.demo.kafka_payments import KafkaVerdict, Payment, expected_alerts, judge, payments
from headrace.demo.processes import kill_tree
from headrace.errors import ConfigurationError, HeadraceError, JobFailedError
from headrace.testing.kafka_broker import KafkaBroker

PATIENCE_S = 300.0
SEEN_WITHIN_S = 10.0
_MARK = ".headrace-demo"
LOOK_EVERY_S = 0.05
FEEDS = 100
"""Payments are fed in so many portions, spread over the time."""


@dataclass(frozen=True, slots=True)
class KafkaStory:
    """What the demo is asked to do."""

    payments: int
    seconds: float
    seed: int
    out: Path
    cache: Path


class KafkaDemo:
    """Made for one run; whatever happens, no process is left behind."""

    def __init__(self, story: KafkaStory, say: Callable[[str], None]) -> None:
        self._story = story
        self._say = say
        self._started = time.monotonic()
        self._driver: subprocess.Popen[bytes] | None = None
        self._payments = list(payments(story.payments, kafka_job.PARTITIONS, story.seed))
        self._feeding: threading.Thread | None = None
        self._feeding_failed: Exception | None = None
        self._broker = KafkaBroker(story.cache)

    def run(self) -> KafkaVerdict:
        _make_room(self._story.out)
        try:
            self._broker.start()
            self._note(f"started a Kafka broker at {self._broker.bootstrap_servers}, process {self._broker.pid}")
            for topic in (kafka_job.PAYMENTS, kafka_job.ALERTS):
                self._broker.create_topic(topic, kafka_job.PARTITIONS)
            return self._play()
        finally:
            if self._driver is not None and self._driver.poll() is None:
                kill_tree(self._driver)
            self._broker.close()

    def _play(self) -> KafkaVerdict:
        third = self._story.payments // 3
        self._feed(0, third)
        self._start()
        self._wait_for_alerts(1)
        self._kill_everything()
        self._start()
        self._feed(third, 2 * third)
        self._wait_for_alerts(len(expected_alerts(self._payments[: third + third // 4])))
        # A payment is fed once: the feeder is no part of what is proven, so it must not be in the middle of one.
        self._join_feeding()
        self._broker.kill()
        self._note("SIGKILL for the broker")
        self._kill_everything()
        self._broker.start()
        self._note("the broker is back")
        self._start()
        self._feed(2 * third, self._story.payments)
        self._join_feeding()
        self._wait_for_the_end()
        expected = expected_alerts(self._payments)
        deadline = time.monotonic() + SEEN_WITHIN_S
        # A commit is decided when it returns, and seen a moment later.
        while len(received := self._alerts()) < len(expected) and time.monotonic() < deadline:
            time.sleep(LOOK_EVERY_S)
        self._note(f"read the topic to its end, committed records only: {len(received):,} alerts")
        return judge(expected, received)

    # -- the steps

    def _feed(self, first: int, last: int) -> None:
        """Write payments on a thread of its own, a portion at a time, while the job runs and is killed."""
        portion = max(1, (last - first) * 3 // FEEDS)

        def feed() -> None:
            try:
                for start in range(first, last, portion):
                    self._produce(self._payments[start : min(start + portion, last)])
                    time.sleep(self._story.seconds / FEEDS)
            except Exception as error:
                self._feeding_failed = error

        self._feeding = threading.Thread(target=feed, name="payments", daemon=True)
        self._feeding.start()
        self._note(f"feeding payments {first:,} to {last:,}")

    def _join_feeding(self) -> None:
        if self._feeding is not None:
            self._feeding.join(PATIENCE_S)
        if self._feeding_failed is not None:
            raise self._feeding_failed

    def _produce(self, some: list[Payment]) -> None:
        for partition in range(kafka_job.PARTITIONS):
            records = [(payment.account, payment.encode()) for payment in some if payment.partition == partition]
            self._broker.produce(kafka_job.PAYMENTS, records, partition)

    def _start(self) -> None:
        """The same command every time."""
        story = self._story
        command = [sys.executable, "-m", "headrace.cli", "run", kafka_job.__file__]
        command += ["--checkpoint-dir", str(story.out / "checkpoints"), "--"]
        command += [self._broker.bootstrap_servers, str(story.payments // kafka_job.PARTITIONS)]
        environment = dict(os.environ, HEADRACE_STATE_DIR=str(story.out / "state"), HEADRACE_LOG="info")
        with open(story.out / "job.log", "ab") as log:
            self._driver = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
            )
        self._note(f"started the job: headrace run kafka_job.py, process {self._driver.pid}")

    def _kill_everything(self) -> None:
        assert self._driver is not None
        if self._driver.poll() is not None:
            raise JobFailedError(f"The job had ended before it could be killed.{self._last_words()}")
        count = kill_tree(self._driver)
        self._note(f"SIGKILL for the job's whole process tree: {count} processes")

    def _wait_for_alerts(self, count: int) -> None:
        self._wait(lambda: len(self._alerts()) >= count, f"{count} alerts were in the topic")
        self._note(f"{len(self._alerts()):,} alerts are in the topic")

    def _wait_for_the_end(self) -> None:
        driver = self._driver
        assert driver is not None
        deadline = time.monotonic() + PATIENCE_S
        while driver.poll() is None:
            if time.monotonic() > deadline:
                raise JobFailedError(f"The job did not come to its end.{self._last_words()}")
            time.sleep(LOOK_EVERY_S)
        if driver.returncode != 0:
            raise JobFailedError(f"The job ended with exit code {driver.returncode}.{self._last_words()}")
        self._note("the job finished")

    def _wait(self, seen: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not seen():
            if self._feeding_failed is not None:
                raise self._feeding_failed
            if self._driver is not None and self._driver.poll() is not None:
                code = self._driver.returncode
                raise JobFailedError(f"The job ended with exit code {code} before {what}.{self._last_words()}")
            if time.monotonic() > deadline:
                raise JobFailedError(f"It took too long before {what}.{self._last_words()}")
            time.sleep(LOOK_EVERY_S)

    # -- what is known

    def _alerts(self) -> list[tuple[str, int, int]]:
        found: list[dict[str, Any]] = [json.loads(m.value()) for m in self._broker.read(kafka_job.ALERTS)]
        return [(alert["account"], alert["number"], alert["balance"]) for alert in found]

    def _last_words(self) -> str:
        lines = (self._story.out / "job.log").read_text(errors="replace").splitlines()[-15:]
        return "\n".join(["", f"The end of {self._story.out / 'job.log'}:", *(f"  {line}" for line in lines)])

    def _note(self, text: str) -> None:
        self._say(f"{time.monotonic() - self._started:6.1f} s  {text}")


def _make_room(out: Path) -> None:
    """An empty directory. Only what an earlier demo left is removed."""
    if out.exists() and any(out.iterdir()) and not (out / _MARK).exists():
        raise ConfigurationError(f"--out {out} holds other files; the demo wants a directory of its own.")
    out.mkdir(parents=True, exist_ok=True)
    (out / _MARK).touch()
    for name in ("checkpoints", "state"):
        shutil.rmtree(out / name, ignore_errors=True)
    (out / "job.log").unlink(missing_ok=True)


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0 if every alert is in the topic exactly once, in order."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--payments", type=int, default=60_000)
    parser.add_argument("--seconds", type=float, default=12.0, help="over which payments are fed")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--out", type=Path, default=Path("demo-out/kafka"))
    parser.add_argument("--cache", type=Path, default=Path(".services"), help="where the broker's jars are kept")
    given = parser.parse_args(arguments)
    whole = given.payments - given.payments % kafka_job.PARTITIONS
    story = KafkaStory(whole, given.seconds, given.seed, given.out, given.cache)
    try:
        verdict = KafkaDemo(story, lambda line: print(line, flush=True)).run()
    except HeadraceError as error:
        print(error, file=sys.stderr)
        return 1
    print(
        f"\n{verdict.received:,} of {verdict.expected:,} alerts from {whole:,} payments: lost {verdict.lost}, "
        f"double {verdict.duplicated}, accounts out of order {verdict.out_of_order}"
    )
    print("exactly once" if verdict.exactly_once else "NOT exactly once")
    return 0 if verdict.exactly_once else 1


if __name__ == "__main__":
    sys.exit(main())
