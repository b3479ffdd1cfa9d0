"""Drivers and tasks of a Kafka sink that are paused (SIGSTOP) while a successor takes over, and then wake up.

The one that was overtaken ends with `FencedError`. Its successor's output is exact, and it goes on.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sink_lives import Life, Output, numbers

from headrace.checkpoint.handles import HistoryPoint
from headrace.connectors.sink import WriterContext
from headrace.errors import CommitOutcomeUnknownError, FencedError
from headrace.testing.kafka_broker import KafkaBroker

PROGRAM = Path(__file__).parent / "paused_life.py"
BEFORE_THE_CLAIM = ["start", "owner-read"]
STEPS = [*BEFORE_THE_CLAIM, "claimed", "ended", "markers-read", "initialised", "before-send", "sent"]


def steps(*quick: str) -> list[Any]:
    """All of them; the quick tier has those that differ most."""
    return [step if step in quick else pytest.param(step, marks=pytest.mark.slow) for step in STEPS]


pytestmark = pytest.mark.timeout(300)


class Paused:
    """A process that stops itself at one step, until it is resumed."""

    def __init__(self, output: Output, step: str, attempt: int, checkpoint: str = "", timeout_ms: int = 60_000) -> None:
        settings = {
            "servers": output.broker.bootstrap_servers,
            "topic": output.topic,
            "markers": output.markers,
            "attempt": attempt,
            "checkpoint": checkpoint,
            "history": "here",
            "timeout_ms": timeout_ms,
        }
        environment = {**os.environ, "HEADRACE_FAILPOINTS": f"sink_recovery=stop#{step}"}
        self._process = subprocess.Popen(
            [sys.executable, str(PROGRAM), json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def tell(self, order: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{order}\n")
        self._process.stdin.flush()

    def answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def asked(self, order: str) -> str:
        self.tell(order)
        return self.answer()

    def wait_until_it_has_stopped(self) -> None:
        deadline = time.monotonic() + 120
        stat = Path(f"/proc/{self._process.pid}/stat")
        while stat.read_text().rsplit(")", 1)[1].split()[0] != "T":
            assert self._process.poll() is None, "it ended"
            assert time.monotonic() < deadline, "it does not come to the step at which it stops"
            time.sleep(0.02)

    def resume(self) -> str:
        """Its answer to what it was doing."""
        os.kill(self._process.pid, signal.SIGCONT)
        return self.answer()

    def close(self) -> None:
        self._process.kill()
        self._process.wait(30)


@pytest.fixture
def output(kafka_broker: KafkaBroker, new_topic: Any) -> Iterator[Output]:
    out = Output(kafka_broker, new_topic("paused"))
    yield out
    out.close()


@pytest.fixture
def paused() -> Iterator[list[Paused]]:
    processes: list[Paused] = []
    yield processes
    for process in processes:
        process.close()


def kept(folder: Path, items: list[bytes]) -> str:
    folder.mkdir()
    for number, item in enumerate(items):
        (folder / f"{number}").write_bytes(item)
    return str(folder)


def a_life_with_a_checkpoint(output: Output) -> tuple[Life, list[bytes]]:
    """Attempt 1: twenty records are in a complete checkpoint, five more in the open transaction."""
    old = output.live(output.sink())
    old.write(*numbers(20))
    checkpoint = old.barrier(1)
    old.write(*numbers(5, 20))
    return old, checkpoint


@pytest.mark.parametrize("step", steps("owner-read", "claimed", "before-send"))
def test_a_driver_paused_in_recovery_takes_nothing_from_its_successor(
    output: Output, paused: list[Paused], tmp_path: Path, step: str
) -> None:
    _, checkpoint = a_life_with_a_checkpoint(output)
    zombie = Paused(output, step, 2, kept(tmp_path / "checkpoint", checkpoint))
    paused.append(zombie)
    zombie.wait_until_it_has_stopped()

    successor = output.live(output.sink(), 3, checkpoint)
    successor.write(*numbers(10, 20))
    successor.barrier(2)
    successor.write(*numbers(10, 30))  # one transaction is prepared, one is open
    assert zombie.resume().startswith("FencedError: Transactions of ")
    successor.complete(2)
    successor.write(*numbers(10, 40))
    last = successor.barrier(3)
    successor.complete(3)
    assert output.shows(*numbers(50))

    # Nor is the successor's successor left in doubt about anything.
    heir = output.live(output.sink(), 4, last)
    heir.write(*numbers(10, 50))
    heir.barrier(4)
    heir.complete(4)
    assert output.shows(*numbers(60))


@pytest.mark.parametrize("step", steps("claimed", "markers-read"))
def test_tasks_of_the_attempt_before_show_nothing_twice_while_a_driver_recovers(
    output: Output, paused: list[Paused], tmp_path: Path, step: str
) -> None:
    old, checkpoint = a_life_with_a_checkpoint(output)
    driver = Paused(output, step, 2, kept(tmp_path / "checkpoint", checkpoint))
    paused.append(driver)
    driver.wait_until_it_has_stopped()
    # The tasks of the attempt before are alive, and hear only now that their checkpoint is complete.
    if step in (*BEFORE_THE_CLAIM, "claimed"):
        old.complete(1)  # their transaction is not ended yet
    else:
        with pytest.raises(FencedError, match="belong to attempt 2 of job job now; attempt 1"):
            old.complete(1)
    assert driver.resume() == "done"
    assert driver.asked("write 20 10") == "done"
    assert driver.asked(f"barrier 2 {tmp_path / 'second'}") == "done"
    assert driver.asked("complete 2") == "done"
    assert output.shows(*numbers(30))


def test_a_task_paused_right_before_it_sends_again_is_fenced_off(
    output: Output, paused: list[Paused], tmp_path: Path
) -> None:
    zombie = Paused(output, "task-sends", 1, timeout_ms=1_500)
    paused.append(zombie)
    assert zombie.answer() == "done"
    assert zombie.asked("write 0 20") == "done"
    assert zombie.asked(f"barrier 1 {tmp_path / 'checkpoint'}") == "done"
    output.wait_until_decided()  # brokers have given its transaction up, so it is to be sent again
    zombie.tell("complete 1")
    zombie.wait_until_it_has_stopped()
    checkpoint = [path.read_bytes() for path in sorted((tmp_path / "checkpoint").iterdir())]
    successor = output.live(output.sink(), 2, checkpoint)
    assert output.shows(*numbers(20))
    assert zombie.resume().startswith("FencedError: Transactions of ")
    successor.write(*numbers(10, 20))
    successor.barrier(2)
    successor.complete(2)
    assert output.shows(*numbers(30))


def test_a_task_that_opens_late_does_not_pass_for_its_successor(output: Output) -> None:
    output.live(output.sink(), 1)
    output.live(output.sink(), 2)
    late = output.sink().create_writer(WriterContext("job", "sink", 0, 1, 1, "here"))
    late.open()
    with pytest.raises(FencedError, match="belong to attempt 2 of job job now; attempt 1"):
        late.write("k-1", None)
    late.close()


def test_a_driver_that_asks_what_was_committed_keeps_older_tasks_from_committing_more(output: Output) -> None:
    sink = output.sink()
    old = output.live(sink)
    old.write("k-1")
    old.barrier(5)
    committer = sink.create_committer()
    assert committer is not None
    committer.history = "here"
    assert committer.committed_since("job", "sink", HistoryPoint("here", 1, 4)) == []
    with pytest.raises(FencedError):
        old.complete(5)  # the answer would not be true any more
    assert output.seen() == []


def test_a_job_directory_that_was_superseded_does_not_take_the_prefix_back(output: Output) -> None:
    old = output.live(output.sink(), 1, history="old")
    old.write("k-1")
    old.barrier(1)
    old.complete(1)
    output.live(output.sink(), 1, history="new")  # begun anew in another directory
    with pytest.raises(FencedError, match=r"from another one.*take_over_prefix"):
        output.live(output.sink(), 2, history="old")
    back = output.live(output.builder().take_over_prefix().build(), 3, history="old")
    back.write("k-2")
    back.barrier(2)
    back.complete(2)
    assert output.shows("k-1", "k-2")
    with pytest.raises(FencedError):
        output.live(output.sink(), 2, history="new")


@pytest.mark.parametrize("committed", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_job_that_moves_to_another_directory_knows_what_was_committed(output: Output, committed: bool) -> None:
    first = output.live(output.sink(), 5, history="old")
    first.write(*numbers(10))
    savepoint = first.barrier(1)
    if committed:
        first.complete(1)
    # Its driver dies after recovery, and starts from the same savepoint once more.
    output.live(output.sink(), 1, savepoint, history="new")
    moved = output.live(output.sink(), 2, savepoint, history="new")
    moved.write(*numbers(10, 10))
    checkpoint = moved.barrier(1)
    heir = output.live(output.sink(), 3, checkpoint, history="new")
    assert output.shows(*numbers(20))
    heir.write(*numbers(10, 20))
    heir.barrier(2)
    heir.complete(2)
    assert output.shows(*numbers(30))
    # The old directory cannot tell any more, as its markers were replaced.
    with pytest.raises(CommitOutcomeUnknownError, match="was used by attempt 3 of job job since"):
        output.live(output.builder().take_over_prefix().build(), 6, savepoint, history="old")
