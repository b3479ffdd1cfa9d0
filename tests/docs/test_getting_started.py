"""The tutorial is true: its job is killed with all its processes, started again, and every alert is there once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pages import DOCS, blocks_of

from headrace import SensorSource

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(400)]

COMMAND = [sys.executable, "-m", "headrace.cli", "run", "alerts.py"]


def start(folder: Path, events: Path | None = None) -> subprocess.Popen[bytes]:
    environment = dict(os.environ)
    if events is not None:
        environment["HEADRACE_EVENT_LOG"] = str(events)
    # A session of its own: the kill below takes the driver, the JVM and all workers, and nothing else.
    return subprocess.Popen(COMMAND, cwd=folder, env=environment, start_new_session=True)


def test_after_a_kill_of_every_process_the_same_command_ends_with_each_alert_once(tmp_path: Path) -> None:
    program, last_line = blocks_of(DOCS / "getting-started.md", "python")
    (tmp_path / "alerts.py").write_text(program.text)
    # A pipe, so that reading it is waiting for the job.
    events = tmp_path / "events"
    os.mkfifo(events)

    job = start(tmp_path, events)
    with open(events) as log:
        checkpoints = (line for line in log if json.loads(line)["kind"] == "checkpoint")
        next(checkpoints)
        next(checkpoints)
        os.killpg(job.pid, signal.SIGKILL)
    assert job.wait() == -signal.SIGKILL
    assert list(tmp_path.glob("checkpoints/alerts/run-000001/chk-*/_metadata")), "there is a checkpoint to go on from"

    assert start(tmp_path).wait() == 0

    alerts = [line for file in sorted(tmp_path.glob("alerts/*.jsonl")) for line in file.read_text().splitlines()]
    assert "readings=200_000, sensors=100, rate=20_000" in last_line.text
    assert len(set(alerts)) == len(alerts) == SensorSource(200_000, 100, 20_000).expected_alerts(1.7)
    assert set(json.loads(alerts[0])) == {"id", "timestamp", "temperature", "last"}
