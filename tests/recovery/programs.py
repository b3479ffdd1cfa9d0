"""Whole programs under test: started, watched through their status file, and killed with all their children."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


class Program:
    """One process that runs the ledger job, or another of that name. What it prints goes beside its checkpoints."""

    def __init__(
        self,
        settings: dict[str, Any],
        environment: dict[str, str] | None = None,
        program: Path = HERE / "ledger_job.py",
    ) -> None:
        self.directory = Path(settings["directory"])
        self.directory.mkdir(parents=True, exist_ok=True)
        self.status_file = self.directory / "status" / "ledger.json"
        self.output = self.directory / "output.log"
        inherited = {k: v for k, v in os.environ.items() if k not in ("HEADRACE_FAILPOINTS", "HEADRACE_FAULT_LOG")}
        with open(self.output, "a") as output:
            self.process = subprocess.Popen(
                [sys.executable, str(program), json.dumps(settings)],
                env=inherited | {"HEADRACE_STATE_DIR": str(self.status_file.parent)} | (environment or {}),
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def wait_until(self, condition: Callable[[dict[str, Any]], bool], timeout: float = 240) -> dict[str, Any]:
        """Look at the status until it is as wanted; fails if the program ends before."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            status = self.status()
            if status.get("pid") == self.process.pid and condition(status):
                return status
            assert self.process.poll() is None, f"it ended with {self.process.returncode}: {self.tail()}"
            time.sleep(0.02)
        raise AssertionError(f"not within {timeout} s: {self.status()} {self.tail()}")

    def wait_until_stopped(self, timeout: float = 240) -> None:
        """Until it has stopped itself."""
        deadline = time.monotonic() + timeout
        while Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            assert self.process.poll() is None, f"it ended with {self.process.returncode}: {self.tail()}"
            assert time.monotonic() < deadline, f"not within {timeout} s: {self.status()} {self.tail()}"
            time.sleep(0.02)

    def status(self) -> dict[str, Any]:
        with contextlib.suppress(OSError, ValueError):
            return json.loads(self.status_file.read_text())  # type: ignore[no-any-return]
        return {}

    def tail(self) -> str:
        return self.output.read_text()[-3_000:]

    def finish(self, timeout: float = 300) -> int:
        return self.process.wait(timeout)

    def finish_unless(self, happened: Callable[[], bool], timeout: float = 300) -> int | None:
        """Its exit code, or None as soon as that has happened while it runs."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            code = self.process.poll()
            if code is not None:
                return code
            if happened():
                # A process that is about to end by itself is given a moment to do so.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    return self.process.wait(0.3)
                return None
            time.sleep(0.02)
        raise AssertionError(f"neither within {timeout} s: {self.status()} {self.tail()}")

    def tree(self) -> list[int]:
        """Its own pid and those of all its descendants: JVM, worker daemon, workers."""
        return [self.process.pid, *descendants_of(self.process.pid)]

    def kill_tree(self) -> None:
        """SIGKILL to every process of it, the driver first, so that nobody has time to tidy up."""
        for pid in self.tree():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(60)


def descendants_of(pid: int) -> list[int]:
    """Children of that process, and theirs, and so on."""
    parents: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                stat = Path(f"/proc/{entry}/stat").read_text()
                parents[int(entry)] = int(stat.rpartition(")")[2].split()[1])
    found = [pid]
    for known in found:
        found.extend(child for child, parent in parents.items() if parent == known)
    return found[1:]


def jvm_of(program: Program) -> int:
    """The pid of Spark's JVM."""
    found = []
    for pid in program.tree()[1:]:
        with contextlib.suppress(OSError):
            if os.path.basename(os.readlink(f"/proc/{pid}/exe")) == "java":
                found.append(pid)
    [jvm] = found
    return jvm


def executors_of(program: Program) -> list[int]:
    """Pids of the executors, where they are processes of their own."""
    found = []
    for pid in program.tree():
        with contextlib.suppress(OSError):
            if "CoarseGrainedExecutorBackend" in Path(f"/proc/{pid}/cmdline").read_bytes().decode():
                found.append(pid)
    return found


def kill_an_executor(program: Program) -> None:
    """The one that runs most tasks: Spark may have put all of them on one."""
    workers = set(program.status()["task_pids"].values())
    os.kill(max(executors_of(program), key=lambda pid: len(workers & set(descendants_of(pid)))), signal.SIGKILL)
