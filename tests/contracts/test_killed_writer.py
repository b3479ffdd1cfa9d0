"""A process that is killed in the middle of its work leaves a snapshot that is whole and of one moment."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import pytest
from backend_workshop import BY_ITEM, COUNT, FLAVOURS, SEEN
from killed_writer import KEYS, Published, context, operations
from local_store import LocalStore


def state_after(seed: int, count: int) -> dict[str, tuple[Any, list[int], dict[str, int]]]:
    """The state by a plain model: what the first `count` operations leave."""
    model: dict[str, tuple[Any, list[int], dict[str, int]]] = {f"key-{i}": (None, [], {}) for i in range(KEYS)}
    for kind, key, number in islice(operations(seed), count):
        total, seen, items = model[key]
        match kind:
            case "count":
                total = (total or 0) + number
            case "seen":
                seen = [*seen, number]
            case "item":
                items = {**items, str(number % 7): number}
            case "drop":
                total, items = None, {k: v for k, v in items.items() if k != str(number % 7)}
        model[key] = (total, seen, items)
    return model


@pytest.mark.parametrize(
    "kills",
    [pytest.param(3, marks=pytest.mark.thorough), pytest.param(50, marks=[pytest.mark.slow, pytest.mark.timeout(900)])],
)
@pytest.mark.parametrize("flavour", ["heap-forking", "rocksdb", "rocksdb-cramped"])
def test_what_a_killed_process_published_restores_to_exactly_that_moment(
    flavour: str, kills: int, tmp_path: Path
) -> None:
    chance = random.Random(f"{flavour} {kills}")
    for round_ in range(kills):
        seed = chance.randrange(1_000_000)
        root = tmp_path / str(round_)
        root.mkdir()
        writer = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("killed_writer.py")), flavour, str(root), str(seed)],
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parent,
        )
        assert writer.stdout is not None
        acknowledged = 0
        for _ in range(chance.randint(2, 12)):
            acknowledged = int(writer.stdout.readline())
        writer.send_signal(signal.SIGKILL)
        writer.wait(30)

        published = msgspec.msgpack.decode((root / "published").read_bytes(), type=Published)
        assert published.operations >= acknowledged, "a snapshot that was published is lost"
        backend = FLAVOURS[flavour](context(root, "restored"))
        try:
            backend.restore([published.snapshot], LocalStore(root / "store"))
            found = {}
            for key in (f"key-{i}" for i in range(KEYS)):
                backend.key_context.key = key
                items = dict(backend.state(BY_ITEM).items())
                found[key] = (backend.state(COUNT).value(), list(backend.state(SEEN).get()), items)
            assert found == state_after(seed, published.operations), f"seed {seed}"
        finally:
            backend.close()
