"""Ctrl-C, once and again, without a job around it."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.runtime.job.interrupts import Interrupts
from headrace.runtime.job.status import JobStatus, StatusBoard, StatusReport

PROGRAM = """
import signal, time
from headrace import StreamExecutionEnvironment
from headrace.runtime.job.interrupts import Interrupts
from headrace.runtime.job.status import StatusBoard, StatusReport

env = StreamExecutionEnvironment.get_execution_environment()
env.from_collection([1]).print()
plan, settings = env._taken("stuck")
board = StatusBoard(StatusReport("stuck", "stuck"))
interrupts = Interrupts(board, settings, lambda: None)
signal.raise_signal(signal.SIGINT)
interrupts.look()
print("suspending", flush=True)
while True:
    signal.raise_signal(signal.SIGINT)
    interrupts.look()
    print("still here", flush=True)
"""


class Pressed:
    """A board without a job, and how often it was asked to suspend."""

    def __init__(self) -> None:
        self.board = StatusBoard(StatusReport("job", "job", status=JobStatus.RUNNING))
        self.said: list[str] = []
        self.board.event_listeners.append(lambda event: self.said.append(event.kind))
        self.suspensions = 0
        settings: Any = None  # read only where the process ends
        self.interrupts = Interrupts(self.board, settings, self._suspend)

    def _suspend(self) -> None:
        self.suspensions += 1


@pytest.fixture
def pressed() -> Iterator[Pressed]:
    before = signal.getsignal(signal.SIGINT)
    pressed = Pressed()
    yield pressed
    pressed.interrupts.undo()
    assert signal.getsignal(signal.SIGINT) is before


def test_the_first_suspends_and_says_so_once(pressed: Pressed) -> None:
    signal.raise_signal(signal.SIGINT)
    assert pressed.suspensions == 1
    assert pressed.said == []
    pressed.interrupts.look()
    pressed.interrupts.look()
    assert pressed.said == ["suspending"]
    assert not pressed.interrupts.suspended()
    pressed.board.update(status=JobStatus.SUSPENDED)
    assert pressed.interrupts.suspended()


def test_one_that_is_delivered_twice_is_one(pressed: Pressed) -> None:
    for _ in range(3):
        signal.raise_signal(signal.SIGINT)
    pressed.interrupts.look()
    assert pressed.suspensions == 1
    assert pressed.said == ["suspending"]


def test_a_second_one_behind_the_end_of_the_job_changes_nothing(pressed: Pressed) -> None:
    signal.raise_signal(signal.SIGINT)
    pressed.interrupts.look()
    pressed.board.update(status=JobStatus.SUSPENDED)
    signal.raise_signal(signal.SIGINT)
    pressed.interrupts.look()
    assert pressed.interrupts.suspended()


def test_a_handler_that_spark_puts_in_its_place_is_replaced_again(pressed: Pressed) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pressed.interrupts.look()
    signal.raise_signal(signal.SIGINT)
    assert pressed.suspensions == 1


def test_the_second_ends_the_process_at_once_and_says_from_where_the_same_command_goes_on() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 130, ended.stderr
    assert ended.stdout.splitlines() == ["suspending"]
    assert 'job "stuck" ended at once by the second Ctrl-C, without waiting for its tasks.' in ended.stderr
    assert "the same command begins from the beginning" in ended.stderr
