"""How much memory a job's Python workers need outside of the JVM. Pure arithmetic; the figures are upper ends.

A worker holds its interpreter, cells on their way, and for every subtask with keyed state a database with its caches
or, on the heap backend, the state itself. None of it is in the memory that Spark's own settings speak of, except as
the overhead of an executor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from headrace.backends.heap.options import HeapOptions
from headrace.backends.rocksdb.options import RocksDBOptions
from headrace.plan.graph import JobPlan
from headrace.plan.settings import BackendOptions

_MIB: Final = 1 << 20

DAEMON_BYTES: Final = 160 * _MIB
"""The process that workers are forked from, with everything imported: once in every executor."""
_WORKER_BYTES: Final = 64 * _MIB
"""What a forked worker does not share with it."""
_CELLS_BYTES: Final = 32 * _MIB
"""Read ahead, set aside in memory, being encoded and waiting to be written."""
_CACHED_ENTRY_BYTES: Final = 150
"""A decoded number in the object cache, with its key (`RocksDBOptions.cache_entries`)."""
_OPEN_FILE_BYTES: Final = 384 * 1024
"""Index and filter of a table file of the usual size."""
_TIMER_BYTES: Final = 350
_TIME_DOMAINS: Final = 2
_HEAP_ENTRY_BYTES: Final = 250
"""A short value and its key as objects in a dictionary, and once more as bytes while a snapshot is written."""


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Bytes outside of the JVM."""

    largest_worker: int
    """Of the worker that needs most."""
    workers: int
    """Of all workers together, without the processes they are forked from."""
    state_on_top: bool
    """The state itself comes on top: on the heap backend, where nobody has said how much there will be."""


def database_bytes(options: RocksDBOptions) -> int:
    """The most that one subtask's database and the object cache above it take, however large its state is."""
    return (
        options.cache_entries * _CACHED_ENTRY_BYTES
        + (options.block_cache_mb + 2 * options.write_buffer_mb) * _MIB
        + options.max_open_files * _OPEN_FILE_BYTES
        + _TIME_DOMAINS * options.timers_in_memory * _TIMER_BYTES
    )


def need_of_job(plan: JobPlan, backend: BackendOptions) -> MemoryNeed:
    """For a job with its plan."""
    keyed: Counter[tuple[int, int]] = Counter()
    for chain in plan.chains:
        states = sum(plan.graph.node(node).factory.keyed for node in chain.nodes)
        keyed.update(dict.fromkeys(((chain.level, slot) for slot in chain.slots), states))
    slots = [(level.index, slot) for level in plan.levels for slot in range(level.slots)]
    return _need([keyed[slot] for slot in slots], backend, None)


def need_of_slots(slots: int, backend: BackendOptions, entries: int | None = None) -> MemoryNeed:
    """For a job of so many slots, one operator with keyed state in each; `entries` in all of its state."""
    return _need([1] * slots, backend, entries)


def _need(keyed: Iterable[int], backend: BackendOptions, entries: int | None) -> MemoryNeed:
    """`keyed`: how many subtasks with keyed state each worker has."""
    subtasks = list(keyed)
    with_state = sum(subtasks)
    on_heap = isinstance(backend, HeapOptions)
    if isinstance(backend, HeapOptions):
        of_state = 0 if entries is None or not with_state else -(-entries * _HEAP_ENTRY_BYTES // with_state)
    else:
        of_state = database_bytes(backend)
    workers = [_WORKER_BYTES + _CELLS_BYTES + count * of_state for count in subtasks]
    return MemoryNeed(max(workers), sum(workers), on_heap and bool(with_state) and entries is None)
