"""A process that changes state at random and takes snapshots until somebody kills it.

    python killed_writer.py FLAVOUR ROOT SEED

The operations are a function of the seed alone, so whoever knows the number of the last one knows the state. Each
finished snapshot is published by a rename, as `ROOT/published`, with that number.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
from backend_workshop import BY_ITEM, COUNT, FLAVOURS, MAX_PARALLELISM, SEEN
from local_store import LocalStore

from headrace.checkpoint.handles import KeyedSnapshot
from headrace.state.backend import BackendContext, KeyedStateBackend

KEYS = 300
SNAPSHOT_EVERY = 400


class Published(msgspec.Struct):
    """A snapshot and the number of operations it holds."""

    operations: int
    snapshot: KeyedSnapshot


def operations(seed: int) -> Iterator[tuple[str, str, int]]:
    """(kind, key, number) without end; the same for the same seed."""
    chance = random.Random(seed)
    number = 0
    while True:
        number += 1
        yield chance.choice(["count", "seen", "item", "drop"]), f"key-{chance.randrange(KEYS)}", number


def context(root: Path, name: str) -> BackendContext:
    local = root / name
    local.mkdir(parents=True, exist_ok=True)
    return BackendContext("killed", 0, range(MAX_PARALLELISM), MAX_PARALLELISM, local)


def apply(backend: KeyedStateBackend, kind: str, key: str, number: int) -> None:
    backend.key_context.key = key
    match kind:
        case "count":
            state = backend.state(COUNT)
            state.update((state.value() or 0) + number)
        case "seen":
            backend.state(SEEN).add(number)
        case "item":
            backend.state(BY_ITEM).put(str(number % 7), number)
        case "drop":
            backend.state(COUNT).clear()
            backend.state(BY_ITEM).remove(str(number % 7))


def main(flavour: str, root: Path, seed: int) -> None:
    store = LocalStore(root / "store")
    backend = FLAVOURS[flavour](context(root, f"local-{os.getpid()}"))
    for kind, key, number in operations(seed):
        apply(backend, kind, key, number)
        if number % SNAPSHOT_EVERY == 0:
            snapshot = backend.snapshot(number).write(store)
            temporary = root / f"published.{os.getpid()}"
            temporary.write_bytes(msgspec.msgpack.encode(Published(number, snapshot)))
            os.replace(temporary, root / "published")
            backend.checkpoint_complete(number)
            print(number, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
