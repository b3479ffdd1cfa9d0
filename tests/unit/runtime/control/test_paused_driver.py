"""A driver that is stopped and goes on (SIGSTOP, SIGCONT) loses none of its tasks by its own pause."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from control_examples import PATIENCE_S, SECRET, hello

from headrace.runtime.control import messages as msg
from headrace.runtime.control.client import ControlClient
from headrace.runtime.control.heartbeats import Heartbeats

DRIVER_TIMEOUT_S = 2.0
PAUSE_S = 3.0

pytestmark = pytest.mark.thorough


def test_a_paused_driver_goes_on_with_the_same_tasks() -> None:
    program = Path(__file__).with_name("driver_program.py")
    driver = subprocess.Popen(
        [sys.executable, str(program), "0.05", str(DRIVER_TIMEOUT_S)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert driver.stdout is not None
        port = int(driver.stdout.readline())
        client = ControlClient("127.0.0.1", port, SECRET, Heartbeats(0.05, PATIENCE_S))
        client.send(hello())
        assert driver.stdout.readline() == "TaskJoined\n"
        lost: list[str] = []
        threading.Thread(target=client.listen, args=(lambda message: None, lost.append), daemon=True).start()

        os.kill(driver.pid, signal.SIGSTOP)
        time.sleep(PAUSE_S)
        client.send(msg.Committed(7))
        os.kill(driver.pid, signal.SIGCONT)

        assert driver.stdout.readline() == "TaskSaid\n"
        heard, deadline = client._connection.bytes_received, time.monotonic() + PATIENCE_S
        # Long enough that the driver has looked at the silence of its task many times.
        while client._connection.bytes_received < heard + 60 * 30:
            assert time.monotonic() < deadline, lost
            time.sleep(0.02)
        client.send(msg.Drained())
        assert driver.stdout.readline() == "TaskSaid\n"
        assert not lost
    finally:
        os.kill(driver.pid, signal.SIGCONT)
        driver.communicate("", timeout=PATIENCE_S)
