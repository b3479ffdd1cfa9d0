"""Nobody reads what the job prints (`| less`): checkpoints go on, and the job can be cancelled."""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from typing import Any

import pytest
from ledger import Ledger, ledger_stream

from headrace.runtime.job.printer import STDOUT

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

PATIENCE_S = 120.0


def test_blocked_standard_streams_stop_neither_checkpoints_nor_cancel(
    bench: Any, start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    end, write = os.pipe()
    monkeypatch.setenv("HEADRACE_LOG", "info")
    with open(write, "w", newline="") as nobody_reads:
        monkeypatch.setattr(sys, "stdout", nobody_reads)
        monkeypatch.setattr(sys, "stderr", nobody_reads)
        env = bench.env(interval=50)
        ledger_stream(env, Ledger(length=100_000, rate=2_000)).map(lambda line: str(line) * 50).print()
        job = start(env)
        deadline = time.monotonic() + PATIENCE_S
        while select.select([], [nobody_reads], [], 0)[1]:
            assert time.monotonic() < deadline, job.report
            time.sleep(0.02)
        done = job.report.checkpoints_completed
        while job.report.checkpoints_completed < done + 10:
            assert time.monotonic() < deadline, job.report
            time.sleep(0.02)
        job.client.cancel().result(PATIENCE_S)
        assert job.report.status.value == "CANCELED"
        threading.Thread(target=_read_to_the_end, args=(end,), daemon=True).start()
        while not STDOUT.flush():
            assert time.monotonic() < deadline, "what is left comes out as soon as somebody reads"
        monkeypatch.undo()


def _read_to_the_end(end: int) -> None:
    with open(end, "rb") as lines:
        while lines.read(1 << 16):
            pass
