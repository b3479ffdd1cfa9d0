"""Everything that has to be right before a job starts, as findings with a remedy each.

The same findings stop a job at its start (`require`) and fill the table of `headrace doctor`. What needs no Spark is in
`machine.py`.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping

from headrace.plan.memory import MemoryNeed
from headrace.runtime.spark.errors import SettingMismatch
from headrace.runtime.spark.java import OLDEST_JAVA
from headrace.runtime.spark.machine import DEPENDENCIES, Finding, check_machine, is_working_version, require
from headrace.runtime.spark.memory import available_memory, memory_of_an_executor, memory_on_this_machine
from headrace.runtime.spark.pipelined import JavaObject, has_pipelined_exchange
from headrace.runtime.spark.session import SparkHandle, settings_of
from headrace.runtime.spark.settings import STATIC_SETTINGS, WORKING_VERSIONS, wrong_settings

__all__ = ["Finding", "check_machine", "preflight", "require"]

EXECUTORS_WITHIN_S = 60.0
"""How long executors may take to come before their slots count as missing. On a busy host each takes half a minute."""
_LOOK_EVERY_S = 0.1
_WORKER_MODULES = ("headrace", *DEPENDENCIES)


def preflight(
    target: SparkHandle | Mapping[str, str], slots_needed: int, memory: MemoryNeed | None = None, query_slots: int = 0
) -> list[Finding]:
    """Check a Spark application for a job that needs this many slots at once, and so much memory in its workers.

    `query_slots` of the slots are for Spark queries at the ends of the job. With only the settings of an application
    to be (a mapping), only those are checked.
    """
    if not isinstance(target, SparkHandle):
        return _settings(target)
    findings = _settings(settings_of(target.context))
    findings.append(_java_of(target))
    findings.append(_pipelined(target))
    findings.append(_slots(target, slots_needed, query_slots))
    findings.append(_worker(target))
    if memory is not None:
        findings.append(_memory(target, slots_needed, memory))
    return findings


def _settings(found: Mapping[str, str]) -> list[Finding]:
    """One finding for each setting that stands against a job, or a single one that all is well.

    Sizes depend on the shape of a job and are checked when the session is taken, so they are no part of this.
    """
    wanted = {name: value for name, value in STATIC_SETTINGS.items() if not name.startswith("spark.shuffle.streaming.")}
    wrong = wrong_settings(found, wanted)
    if not wrong:
        return [Finding("Spark settings", True, f"all {len(wanted)} as wanted", "those of headrace.spark_conf()")]
    return [_setting(mismatch) for mismatch in wrong]


def _setting(mismatch: SettingMismatch) -> Finding:
    return Finding(
        mismatch.name,
        False,
        "not set" if mismatch.found is None else mismatch.found,
        mismatch.wanted,
        "Set it where the session is built: see headrace.spark_conf().",
    )


def _java_of(handle: SparkHandle) -> Finding:
    jvm: JavaObject = handle.user_session._jvm
    version = int(jvm.java.lang.Runtime.version().feature())
    home = jvm.java.lang.System.getProperty("java.home")
    ok = version >= OLDEST_JAVA
    return Finding(
        "Java of Spark",
        ok,
        f"{version} at {home}",
        f"{OLDEST_JAVA} or newer",
        "" if ok else "Set JAVA_HOME before Spark starts.",
    )


def _pipelined(handle: SparkHandle) -> Finding:
    has_it = has_pipelined_exchange(handle.session)
    ok = has_it and is_working_version(handle.session.version)
    return Finding(
        "Pipelined shuffle",
        ok,
        f"Spark {handle.session.version} {'has it' if has_it else 'lacks it'}",
        f"PySpark {WORKING_VERSIONS}",
        "" if ok else f'Install it with: pip install "pyspark=={WORKING_VERSIONS}.*"',
    )


def _slots(handle: SparkHandle, needed: int, for_queries: int) -> Finding:
    """Slots that other work holds now may come free while the job waits for them; too few in all never will."""
    if not handle.is_local:
        # A standalone master does not know how many executors to expect, so Spark goes on before the first has come.
        _await_slots(handle, needed)
    total, free = handle.total_slots(), handle.free_slots()
    ok = total >= needed
    return Finding(
        "Spark task slots",
        ok,
        f"{free} of {total} free",
        f"{needed} at once" + (f", {for_queries} of them for Spark queries" if for_queries else ""),
        "" if ok else f"Lower the parallelism, or give Spark {needed} cores (master local[{needed}]).",
    )


def _await_slots(handle: SparkHandle, needed: int, clock: Callable[[], float] = time.monotonic) -> None:
    deadline = clock() + EXECUTORS_WITHIN_S
    while handle.total_slots() < needed and clock() < deadline:
        time.sleep(_LOOK_EVERY_S)


def _memory(handle: SparkHandle, slots: int, need: MemoryNeed) -> Finding:
    if handle.is_local:
        return memory_on_this_machine(need, available_memory())
    return memory_of_an_executor(need, settings_of(handle.context), handle.context.master, slots)


def _worker(handle: SparkHandle) -> Finding:
    """Whether the Python that Spark starts for tasks can load what they need."""
    wanted = f"a Python {sys.version_info[0]}.{sys.version_info[1]} with {', '.join(_WORKER_MODULES)}"
    remedy = "Set PYSPARK_PYTHON to the interpreter of this environment before Spark starts."
    executable = handle.context.pythonExec
    if not handle.is_local:
        return _remote_worker(handle, executable, wanted)
    if os.path.abspath(executable) == os.path.abspath(sys.executable):
        return Finding("Python worker", True, executable, wanted)
    same = f"assert sys.version_info[:2] == {sys.version_info[:2]!r}, sys.version"
    check = f"import sys, {', '.join(_WORKER_MODULES)}; {same}"
    try:
        run = subprocess.run([executable, "-c", check], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        return Finding("Python worker", False, f"{executable} does not run ({error})", wanted, remedy)
    if run.returncode != 0:
        reason = run.stderr.strip().splitlines()[-1] if run.stderr.strip() else f"exit code {run.returncode}"
        return Finding("Python worker", False, f"{executable}: {reason}", wanted, remedy)
    return Finding("Python worker", True, executable, wanted)


def _remote_worker(handle: SparkHandle, executable: str, wanted: str) -> Finding:
    """Ask one executor, by a job of one task that imports what a task imports."""
    try:
        [version] = handle.context.parallelize([0], 1).mapPartitions(_import_in_worker).collect()
    except Exception as error:
        text = str(error)
        reason = next((line for line in text.splitlines() if "Error" in line), text[:200])
        remedy = "Install headrace on every executor, for the interpreter that spark.pyspark.python names."
        return Finding("Python worker", False, f"{executable} on an executor: {reason.strip()}", wanted, remedy)
    return Finding("Python worker", True, f"{executable} on an executor: {version}", wanted)


def _import_in_worker(_: Iterable[int]) -> list[str]:
    for name in _WORKER_MODULES:
        importlib.import_module(name)
    return [f"Python {sys.version_info[0]}.{sys.version_info[1]}.{sys.version_info[2]}"]
