"""The process of Spark's JVM: whether it is alive, why it died, and how PySpark forgets a dead one.

PySpark keeps one JVM for the life of a Python process and has no way to replace it: after its death every call fails
with "Connection refused". `forget` clears all that PySpark holds of it, so that the next session starts a new one.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from py4j.clientserver import SHUTDOWN_FINALIZER_WORKER
from pyspark import SparkContext, SparkFiles
from pyspark.sql import SparkSession, SQLContext

EXIT_ON_OUT_OF_MEMORY = "-XX:+ExitOnOutOfMemoryError"
"""Without it a JVM out of memory goes on with some of its threads dead, and the job hangs."""
_OUT_OF_MEMORY_CODES = frozenset(
    {
        3,  # EXIT_ON_OUT_OF_MEMORY
        52,  # Spark's own, where its handler saw the error first
    }
)
_CRASHES = frozenset({signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE})
_CONNECT_WITHIN_S = 5.0
_EXIT_WITHIN_S = 10.0
"""A dying process closes its sockets first; its exit status follows."""
CALL_WITHIN_S = 10.0

T = TypeVar("T")


class SparkJvm:
    """The JVM that a session was started in. Made while it is alive; every method may be called from any thread."""

    def __init__(self, gateway: Any) -> None:
        self._gateway = gateway
        # Py4J looks up unknown attributes in the JVM.
        self._process: subprocess.Popen[bytes] | None = gateway.__dict__.get("proc")
        self._kills_before = kernel_kills()

    @property
    def is_ours(self) -> bool:
        """Whether this Python process started it. spark-submit starts the JVM first, and Python from there."""
        return self._process is not None

    def death(self) -> str | None:
        """What the JVM died of, as one sentence; None if it is alive.

        May take some seconds for one that is dying, or that is alive and does not answer.
        """
        if self._process is None:
            return None if self._accepts() else "Spark's JVM does not accept connections any more."
        if self._process.poll() is None:
            if self._accepts():
                return None
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_EXIT_WITHIN_S)
        who = f"Spark's JVM (pid {self._process.pid})"
        code = self._process.returncode
        if code is None:
            return f"{who} does not accept connections any more."
        return f"{who} died: {words_for_exit(code, self._process.pid, kernel_kills() - self._kills_before)}"

    def forget(self, context: SparkContext | None) -> None:
        """Clear what PySpark holds of this JVM, which is dead, and of the application in it."""
        if context is not None:
            _forget_application(context)
        with SparkContext._lock:
            if SparkContext._gateway is not self._gateway:
                return
            SparkContext._gateway = None
            SparkContext._jvm = None
            SparkContext._active_spark_context = None
            SparkSession._instantiatedSession = None
            SparkSession._activeSession = None
            SQLContext._instantiatedContext = None
            SparkFiles._sc = None
        client = self._gateway._gateway_client
        # Objects of the dead JVM that are still referenced tell it when they go: not over the network any more.
        client.is_connected = False
        client.finalizer_deque.appendleft(SHUTDOWN_FINALIZER_WORKER)
        client.close()
        if self._gateway.__dict__.get("_callback_server") is not None:
            with contextlib.suppress(Exception):
                self._gateway.shutdown_callback_server()
        if self._process is not None:
            # One that closed its gateway may live on.
            self._process.kill()
            if self._process.stdin is not None:
                with contextlib.suppress(OSError):
                    self._process.stdin.close()

    def _accepts(self) -> bool:
        parameters = self._gateway.gateway_parameters
        try:
            socket.create_connection((parameters.address, parameters.port), _CONNECT_WITHIN_S).close()
        except ConnectionError:
            return False
        except OSError:
            # Too slow to answer, or no descriptor left on this side: no proof of a death.
            return True
        return True


def words_for_exit(code: int, pid: int, kernel_kills: int = 0) -> str:
    """What an exit status of a JVM says, and what to do about it. `kernel_kills`: see the function of that name."""
    if code in _OUT_OF_MEMORY_CODES:
        return (
            "it ran out of memory (java.lang.OutOfMemoryError). Raise spark.driver.memory, for example with "
            'PYSPARK_SUBMIT_ARGS="--driver-memory 2g pyspark-shell".'
        )
    if code >= 0:
        return f"it exited with code {code}."
    number = -code
    if number == signal.SIGKILL and kernel_kills > 0:
        return (
            "killed by signal 9, most likely by the kernel for lack of memory (since the JVM started it killed "
            f"{kernel_kills}). Give the host or container more memory, or lower spark.driver.memory."
        )
    if number in _CRASHES:
        report = Path.cwd() / f"hs_err_pid{pid}.log"
        where = f" Java's report is {report}." if report.exists() else ""
        return f"it crashed with signal {number} ({signal.Signals(number).name}).{where}"
    return f"killed by signal {number}."


def kernel_kills() -> int:
    """How many processes the kernel has killed for lack of memory: in this control group, or else on this host."""
    for path in (*_control_group_events(), Path("/proc/vmstat")):
        with contextlib.suppress(OSError, ValueError):
            for line in path.read_text().splitlines():
                name, _, value = line.partition(" ")
                if name == "oom_kill":
                    return int(value)
    return 0


def _control_group_events() -> list[Path]:
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            if line.startswith("0::"):
                return [Path("/sys/fs/cgroup") / line[3:].lstrip("/") / "memory.events"]
    return []


def within(call: Callable[[], T], otherwise: T, seconds: float = CALL_WITHIN_S) -> T:
    """What a call into the JVM returns; `otherwise` if it raises, or gives no answer in time.

    Use it where a JVM that is dead or hangs must not hold up the caller.
    """
    answer = otherwise
    done = threading.Event()

    def run() -> None:
        nonlocal answer
        with contextlib.suppress(Exception):
            answer = call()
        done.set()

    threading.Thread(target=run, name="spark-call", daemon=True).start()
    return answer if done.wait(seconds) else otherwise


def _forget_application(context: SparkContext) -> None:
    """What `SparkContext.stop` does, without the JVM."""
    context._jsc = None
    server = getattr(context, "_accumulatorServer", None)
    if server is not None:
        context._accumulatorServer = None
        with contextlib.suppress(OSError):
            server.shutdown()
    # The JVM would have removed it: shipped files and whatever tasks kept on disk. Never anything but Spark's own.
    home = Path(getattr(context, "_temp_dir", "")).parent
    if home.name.startswith("spark-"):
        shutil.rmtree(home, ignore_errors=True)
        sys.path[:] = [entry for entry in sys.path if not entry.startswith(f"{home}{os.sep}")]
