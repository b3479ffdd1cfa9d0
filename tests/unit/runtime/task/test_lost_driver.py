"""A task whose driver is gone ends its process, whatever its user function does."""

from __future__ import annotations

import queue
import subprocess
import sys
import time
from pathlib import Path

from task_program import SECRET

from headrace.runtime.control import messages as msg
from headrace.runtime.control.server import ControlServer, ServerEvent, TaskJoined

PATIENCE_S = 60.0


def test_a_task_that_is_still_opening_notices_that_its_driver_is_gone(tmp_path: Path) -> None:
    events: queue.SimpleQueue[ServerEvent] = queue.SimpleQueue()
    server = ControlServer("127.0.0.1", 0, SECRET, 1, events.put)
    opening = tmp_path / "opening"
    program = Path(__file__).with_name("task_program.py")
    process = subprocess.Popen([sys.executable, str(program), str(server.port), str(opening)])
    try:
        joined = events.get(timeout=PATIENCE_S)
        assert isinstance(joined, TaskJoined)
        server.send(joined.task, msg.Deploy(restored=False))
        deadline = time.monotonic() + PATIENCE_S
        while not opening.exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        server.close()
        assert process.wait(PATIENCE_S) == 1
    finally:
        process.kill()
        process.wait()
