"""Compressed snapshots: smaller, and readable by every backend at every parallelism, whatever the reader is set to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from backend_workshop import BY_ITEM, COUNT, MAX_PARALLELISM, NAME, SEEN, Workshop, at, contents

from headrace.backends.heap.backend import HeapBackend
from headrace.backends.heap.options import HeapOptions
from headrace.backends.rocksdb.backend import RocksDBBackend
from headrace.backends.rocksdb.options import RocksDBOptions
from headrace.state.backend import BackendContext, KeyedStateBackend

KEYS = 600


def writer(kind: str, local: Path, *, compression: bool) -> KeyedStateBackend:
    local.mkdir()
    context = BackendContext("per-user", 0, range(MAX_PARALLELISM), MAX_PARALLELISM, local)
    match kind:
        case "copied":
            return HeapBackend(context, HeapOptions(compression=compression))
        case "forked":
            return HeapBackend(context, HeapOptions(fork_threshold=0, compression=compression))
        case "synchronous":
            return HeapBackend(context, HeapOptions(asynchronous_snapshots=False, compression=compression))
        case _:
            return RocksDBBackend(context, RocksDBOptions(compression=compression))


def fill(backend: Any) -> None:
    for key in range(KEYS):
        at(backend, key)
        backend.state(COUNT).update(key)
        backend.state(NAME).update(f"the name of sensor {key} in hall {key % 3}")
        backend.state(SEEN).add_all([key, key + 1])
        backend.state(BY_ITEM).put("item", key)
        backend.timers("event").register(key, key)


def everything(backend: Any) -> dict[str, dict[Any, Any]]:
    return {d.name: contents(backend, backend.state(d), d.name) for d in (COUNT, NAME, SEEN, BY_ITEM)} | {
        "timers": {time: len(backend.timers("event")) for time in (backend.timers("event").peek(),)}
    }


@pytest.mark.parametrize("kind", ["copied", "forked", "synchronous", "rocksdb"])
def test_a_compressed_savepoint_is_smaller_and_restores_in_both_backends(kind: str, tmp_path: Path) -> None:
    shop = Workshop("heap", tmp_path)
    sizes = {}
    for compression in (False, True):
        backend = writer(kind, tmp_path / f"writer-{compression}", compression=compression)
        fill(backend)
        snapshot = shop.snapshot(backend, canonical=True)
        wanted = everything(backend)
        backend.close()
        sizes[compression] = sum(file.size for file in snapshot.files)
        for flavour in ("heap", "rocksdb"):
            assert everything(shop.restored(snapshot, flavour=flavour)) == wanted
            halves = [shop.restored(snapshot, flavour=flavour, subtask=n, parallelism=2) for n in (0, 1)]
            found = [contents(half, half.state(COUNT), "count") for half in halves]
            assert found[0] | found[1] == wanted["count"]
            assert found[0]
            assert found[1]
    assert sizes[True] < sizes[False] / 2
    shop.close()
