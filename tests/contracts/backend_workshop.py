"""What the contract suite of keyed backends works with: backends in a roomy and in a cramped form, and states."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from local_store import LocalStore

from headrace.backends.heap.backend import HeapBackend
from headrace.backends.heap.options import HeapOptions
from headrace.backends.rocksdb.backend import RocksDBBackend
from headrace.backends.rocksdb.options import RocksDBOptions
from headrace.checkpoint.handles import KeyedSnapshot
from headrace.state.backend import BackendContext, KeyedStateBackend
from headrace.state.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from headrace.state.key_groups import group_range
from headrace.state.keys import raw_key, stored_form
from headrace.testing.clock import ManualClock
from headrace.types.information import Types

MAX_PARALLELISM = 16

FLAVOURS = {
    "heap": lambda context: HeapBackend(context),
    "heap-forking": lambda context: HeapBackend(context, HeapOptions(fork_threshold=0)),
    "heap-synchronous": lambda context: HeapBackend(context, HeapOptions(asynchronous_snapshots=False)),
    "rocksdb": lambda context: RocksDBBackend(context),
    # So small that nearly every access goes through eviction, a write and a read of the database.
    "rocksdb-cramped": lambda context: RocksDBBackend(
        context, RocksDBOptions(cache_entries=4, dirty_limit=2, timers_in_memory=3)
    ),
    "rocksdb-full": lambda context: RocksDBBackend(context, RocksDBOptions(incremental=False)),
}

LAST = ValueStateDescriptor("last", Types.DOUBLE())
COUNT = ValueStateDescriptor("count", Types.LONG())
NAME = ValueStateDescriptor("name", Types.STRING())
BLOB = ValueStateDescriptor("blob", Types.PRIMITIVE_ARRAY(Types.BYTE()))
PAIR = ValueStateDescriptor("pair", Types.TUPLE([Types.STRING(), Types.LONG()]))
BAG = ValueStateDescriptor("bag", Types.LIST(Types.LONG()))
THING = ValueStateDescriptor("thing", Types.PICKLED_BYTE_ARRAY())
SEEN = ListStateDescriptor("seen", Types.LONG())
BAGS = ListStateDescriptor("bags", Types.LIST(Types.LONG()))
BY_ITEM = MapStateDescriptor("by-item", Types.STRING(), Types.LONG())
BY_RATIO = MapStateDescriptor("by-ratio", Types.DOUBLE(), Types.STRING())
BAG_BY_ITEM = MapStateDescriptor("bag-by-item", Types.STRING(), Types.LIST(Types.LONG()))
TOTAL = ReducingStateDescriptor("total", lambda a, b: a + b, Types.LONG())


class Mean:
    """An aggregate function with a mutable accumulator."""

    def create_accumulator(self) -> list[float]:
        return [0.0, 0.0]

    def add(self, value: float, accumulator: list[float]) -> list[float]:
        accumulator[0] += value
        accumulator[1] += 1
        return accumulator

    def get_result(self, accumulator: list[float]) -> float:
        return accumulator[0] / accumulator[1]


MEAN = AggregatingStateDescriptor("mean", Mean(), Types.LIST(Types.DOUBLE()))


@dataclass
class Workshop:
    """Makes backends of one flavour that share a store, and closes them all at the end."""

    flavour: str
    root: Path

    def __post_init__(self) -> None:
        self.store = LocalStore(self.root / "store")
        self.clock = ManualClock(1_000_000)
        self.made: list[KeyedStateBackend] = []
        self._numbers: Iterator[int] = count(1)

    def backend(
        self, subtask: int = 0, parallelism: int = 1, *, flavour: str | None = None, object_reuse: bool = False
    ) -> Any:
        local = self.root / f"local-{next(self._numbers)}"
        local.mkdir()
        groups = group_range(subtask, parallelism, MAX_PARALLELISM)
        context = BackendContext("per-user", subtask, groups, MAX_PARALLELISM, local, object_reuse, self.clock)
        backend = FLAVOURS[flavour or self.flavour](context)
        self.made.append(backend)
        return backend

    def snapshot(self, backend: KeyedStateBackend, checkpoint_id: int = 1, *, canonical: bool = False) -> KeyedSnapshot:
        return backend.snapshot(checkpoint_id, canonical=canonical).write(self.store)

    def restored(self, *snapshots: KeyedSnapshot, **where: Any) -> Any:
        backend = self.backend(**where)
        backend.restore(snapshots, self.store)
        return backend

    def close(self) -> None:
        for backend in self.made:
            backend.close()
        for local in self.root.glob("local-*"):
            left = sorted(str(path.relative_to(local)) for path in local.rglob("*"))
            assert not left, f"a backend leaves its directory empty, and not {left}"


def at(backend: KeyedStateBackend, key: Any) -> None:
    """Scope the backend to a key, as the runtime does for every record."""
    backend.key_context.key = stored_form(key)


def contents(backend: KeyedStateBackend, state: Any, name: str, namespace: bytes = b"") -> dict[Any, Any]:
    """Everything in a state by key (the stored form where the key is not hashable as itself)."""
    state.set_namespace(namespace)
    found = {}
    for key in list(backend.keys(name, namespace)):
        backend.key_context.key = key
        found[key if type(key) is tuple else raw_key(key)] = _reading(state)
    state.set_namespace(b"")
    return found


def _reading(state: Any) -> Any:
    if hasattr(state, "value"):
        return state.value()
    if hasattr(state, "items"):
        return dict(state.items())
    return state.get()
