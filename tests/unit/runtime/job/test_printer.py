"""Printed lines and the live line on streams that are healthy, slow or blocked: real pipes, real threads."""

from __future__ import annotations

import io
import os
import re
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TextIO

import pytest

from headrace.plan.settings import JobSettings
from headrace.runtime.job.background_watcher import BackgroundWatcher
from headrace.runtime.job.live_line import LogLines
from headrace.runtime.job.printer import Printer
from headrace.runtime.job.status import JobStatus, StatusBoard, StatusReport

PATIENCE_S = 60.0
STALL_S = 0.2


@dataclass
class Pipe:
    """A stream that accepts what its buffer holds, and more only when `read` is called."""

    stream: TextIO
    end: int

    def read(self, until: str) -> str:
        """Everything up to the end of the line that contains `until`."""
        text = ""
        deadline = time.monotonic() + PATIENCE_S
        while until not in text or not text.endswith("\n"):
            assert time.monotonic() < deadline, f"{until!r} never came: {text[-300:]}"
            if select.select([self.end], [], [], 0.1)[0]:
                text += os.read(self.end, 1 << 16).decode()
        return text

    @property
    def is_full(self) -> bool:
        return not select.select([], [self.stream], [], 0)[1]


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    end, write = os.pipe()
    with open(write, "w", newline="") as stream:
        yield Pipe(stream, end)
        os.close(end)


def test_lines_of_a_healthy_stream_come_whole_and_in_order() -> None:
    out = io.StringIO()
    printer = Printer(lambda: out)
    lines = [f"line {n} {'ä' * (n % 3_000)}" for n in range(3_000)]
    for start in range(0, len(lines), 7):
        printer.put(lines[start : start + 7])
    assert printer.flush(PATIENCE_S)
    assert out.getvalue().splitlines() == lines


def test_a_slow_reader_loses_nothing(pipe: Pipe) -> None:
    """The queue is a hundred times smaller than what is printed, so `put` has to wait for the reader."""
    printer = Printer(lambda: pipe.stream, queue_chars=2_000, stall_s=PATIENCE_S)
    lines = [f"line {n}" for n in range(20_000)]
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read(lines[-1])), daemon=True)
    reader.start()
    printer.put(lines)
    reader.join(PATIENCE_S)
    assert read[0].splitlines() == lines


def test_a_blocked_stream_drops_the_oldest_lines_and_counts_them(pipe: Pipe) -> None:
    printer = Printer(lambda: pipe.stream, queue_chars=10_000, stall_s=STALL_S)
    lines = [f"line {n}" for n in range(50_000)]
    for start in range(0, len(lines), 10):
        printer.put(lines[start : start + 10])
    assert pipe.is_full
    assert not printer.flush(PATIENCE_S), "it returns although nobody reads"

    shown = pipe.read(lines[-1]).splitlines()

    notes = [line for line in shown if "dropped" in line]
    dropped = sum(int(re.sub(r"\D", "", note)) for note in notes)
    assert dropped > 0
    assert dropped + len(shown) - len(notes) == len(lines)
    assert shown[0] == lines[0]
    assert shown[-1] == lines[-1]
    assert printer.flush(PATIENCE_S)


def test_a_reader_that_is_gone_and_a_stream_that_is_closed_are_no_error(pipe: Pipe) -> None:
    streams: list[TextIO | None] = [pipe.stream]
    printer = Printer(lambda: streams[0])
    closed = io.StringIO()
    closed.close()
    out = io.StringIO()
    for stream in (None, closed, out):
        streams[0] = stream
        printer.put(["a line"])
        assert printer.flush(PATIENCE_S)
    assert out.getvalue() == "a line\n"


def test_a_process_with_a_blocked_stdout_ends_with_its_own_exit_code() -> None:
    """Python aborts a process whose daemon thread is inside of a write to `sys.stdout` at the end."""
    program = (
        "import sys\n"
        "from headrace.runtime.job.printer import STDOUT\n"
        "for n in range(3_000): STDOUT.put([f'{n} ' + 'x' * 1_000])\n"
        "STDOUT.flush()\n"
        "sys.exit(7)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.wait(PATIENCE_S) == 7, process.stderr and process.stderr.read()


def test_a_blocked_terminal_does_not_delay_those_who_report(pipe: Pipe) -> None:
    pipe.stream.write("x" * 65_535 + "\n")
    pipe.stream.flush()
    assert pipe.is_full
    board = StatusBoard(StatusReport(job_id="alerts", name="alerts", status=JobStatus.RUNNING))
    settings = JobSettings("alerts", "alerts")
    watcher = BackgroundWatcher(board, pipe.stream, lambda seen: LogLines(settings, seen, pipe.stream))
    board.listeners.append(watcher.on_report)
    board.event_listeners.append(watcher.on_event)
    for number in range(1, 400):
        board.update(attempt=number)
        board.event("failure", error="E", message="m" * 500)
    watcher.close()

    shown = pipe.read("0 restarts").splitlines()

    assert 'job "alerts" starting' in shown[1]
    told = [line.partition("lost attempt ")[2].partition(":")[0] for line in shown if "lost attempt" in line]
    assert told == [str(number) for number in range(1, 400)], "each event with the report of its time"
    assert 'job "alerts" running after' in shown[-1]


def test_a_stream_that_goes_on_while_somebody_asks_whether_it_is_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The printer's thread may note that the stream accepts output again between any two looks at it."""
    seen = iter([0.0, None, None])
    printer = Printer(lambda: None)
    monkeypatch.setattr(Printer, "_blocked_from", property(lambda self: next(seen)), raising=False)
    assert printer._blocked
