"""Storage and the program's own functions that never return, on a real Spark: the job is heard, and can be ended."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from checkpoints import published
from ledger import Ledger, LedgerSink, ledger_stream

from headrace import Types
from headrace.errors import JobCanceledError

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

PATIENCE_S = 120.0


def until(condition: Any, job: Any) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, job.report
        time.sleep(0.02)


def test_a_publication_that_never_ends_stops_neither_the_stream_nor_cancel(bench: Any, start: Any, faults: Any) -> None:
    faults.plan("before_publish=hang@3")
    env = bench.env(interval=50)
    ledger_stream(env, Ledger(length=100_000, rate=2_000)).sink_to(LedgerSink(bench.directory / "out")).uid("sink")
    job = start(env)
    until(lambda: faults.happened, job)
    read = job.report.records_read
    until(lambda: job.report.records_read > read + 2_000, job)
    assert job.report.checkpoints_completed == 2
    job.client.cancel().result(PATIENCE_S)
    with pytest.raises(JobCanceledError):
        job.finish()
    assert job.report.status.value == "CANCELED"
    assert job.kinds("abandoned") == [], "its thread was free"
    assert published(bench) == []


def test_output_that_is_never_taken_stops_neither_the_detection_of_failures_nor_suspend(bench: Any, start: Any) -> None:
    called, go = threading.Event(), threading.Event()

    def never_returns(frame: Any, checkpoint: Any) -> None:
        called.set()
        go.wait(PATIENCE_S * 2)

    env = bench.env(interval=50, restarts=0)
    numbers = ledger_stream(env, Ledger(length=100_000, rate=2_000))
    pair = Types.ROW_NAMED(["text"], [Types.STRING()])
    numbers.map(lambda line: (str(line),), output_type=pair).sink_to_dataframe(never_returns).uid("out")
    job = start(env)
    try:
        until(called.is_set, job)
        done = job.report.checkpoints_completed
        until(lambda: job.report.checkpoints_completed > done + 3, job)
        job.client.suspend().result(PATIENCE_S)
        assert job.report.status.value == "SUSPENDED"
    finally:
        go.set()
