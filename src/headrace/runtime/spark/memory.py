"""Whether there is room for the Python workers beside the JVM: advice, never a refusal, because needs are reckoned.

On one machine, workers and JVM share its memory. On a cluster an executor has its overhead for them, and a cluster
manager that keeps to it kills an executor that goes beyond.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from headrace.plan.memory import DAEMON_BYTES, MemoryNeed
from headrace.runtime.spark.machine import Finding

NAME = "Memory of workers"
OVERHEAD = "spark.executor.memoryOverhead"

_MIB = 1 << 20
_UNITS = {"b": 1, "k": 1 << 10, "m": _MIB, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"(\d+)\s*([bkmgt])?b?", re.IGNORECASE)
_SMALLEST_OVERHEAD = 384 * _MIB
_GROUPS = (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"))


def memory_on_this_machine(need: MemoryNeed, available: int | None) -> Finding:
    """For `local[N]`: `available` is what the machine, or the container around it, has left."""
    wanted = _wanted(need.workers + DAEMON_BYTES, need)
    if available is None:
        return Finding(NAME, True, "not known on this machine", wanted)
    found = f"{_text(available)} free on this machine"
    if available >= need.workers + DAEMON_BYTES:
        return Finding(NAME, True, found, wanted)
    remedy = (
        "The machine may swap, or kill a worker, when state and caches are full: lower the parallelism, or "
        "state.backend.rocksdb.object-cache.entries, or give it more memory."
    )
    return Finding(NAME, True, found, wanted, remedy)


def memory_of_an_executor(need: MemoryNeed, settings: Mapping[str, str], master: str, slots: int) -> Finding:
    """For a cluster: what is left beside the JVM of one executor when it runs as many tasks as it has cores."""
    cores = settings.get("spark.executor.cores", "")
    tasks = min(int(cores), slots) if cores.isdecimal() and int(cores) else slots
    overhead = _overhead(settings, master)
    needed = tasks * need.largest_worker + DAEMON_BYTES
    wanted = _wanted(needed, need)
    found = f"{_text(overhead)} beside the JVM of an executor, for {tasks} tasks"
    if overhead >= needed:
        return Finding(NAME, True, found, wanted)
    remedy = (
        f"Set {OVERHEAD}={-(-needed // _MIB)}m: Python workers, heap state and caches live outside of the JVM, and a "
        "cluster manager kills an executor that takes more than it asked for."
    )
    return Finding(NAME, True, found, wanted, remedy)


def available_memory(root: Path = Path("/")) -> int | None:
    """Bytes that can still be had here without swapping: the machine's or, if less, those of the container."""
    found = []
    try:
        meminfo = (root / "proc/meminfo").read_text()
    except OSError:
        return None
    if match := re.search(r"^MemAvailable:\s+(\d+) kB", meminfo, re.MULTILINE):
        found.append(int(match[1]) * 1024)
    for limit_file, usage_file in _GROUPS:
        try:
            limit = (root / "sys/fs/cgroup" / limit_file).read_text().strip()
            usage = (root / "sys/fs/cgroup" / usage_file).read_text().strip()
        except OSError:
            continue
        # "max" stands for no limit.
        if limit.isdecimal() and usage.isdecimal():
            found.append(max(0, int(limit) - int(usage)))
    return min(found, default=None)


def _overhead(settings: Mapping[str, str], master: str) -> int:
    """As Spark reckons it. What is set apart for Python comes on top."""
    python = _bytes(settings.get("spark.executor.pyspark.memory"), 0)
    explicit = settings.get(OVERHEAD)
    if explicit is not None:
        return _bytes(explicit, 0) + python
    heap = _bytes(settings.get("spark.executor.memory"), 1 << 30)
    # On Kubernetes, Spark leaves programs that are not Java alone more room.
    usual = "0.4" if master.startswith("k8s://") else "0.1"
    factor = float(settings.get("spark.executor.memoryOverheadFactor", usual))
    smallest = _bytes(settings.get("spark.executor.minMemoryOverhead"), _SMALLEST_OVERHEAD)
    return max(int(heap * factor), smallest) + python


def _bytes(text: str | None, default: int) -> int:
    match = _SIZE.fullmatch(text.strip()) if text else None
    return default if match is None else int(match[1]) * _UNITS[(match[2] or "m").lower()]


def _wanted(needed: int, need: MemoryNeed) -> str:
    return f"about {_text(needed)} outside of the JVM{', and the state itself' if need.state_on_top else ''}"


def _text(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB" if size >= 1 << 30 else f"{size / _MIB:.0f} MiB"
