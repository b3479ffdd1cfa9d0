"""Timers on RocksDB when there are more of them than memory should hold."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from backend_workshop import COUNT, FLAVOURS, MAX_PARALLELISM, Workshop, at

from headrace.backends.rocksdb.backend import RocksDBBackend
from headrace.backends.rocksdb.options import RocksDBOptions
from headrace.backends.rocksdb.timers import decode_timer, encoder_for
from headrace.errors import DamagedCheckpointError
from headrace.state.keys import stored_form
from headrace.state.timers import Timer

LIMIT = 50


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workshop]:
    options = RocksDBOptions(timers_in_memory=LIMIT)
    monkeypatch.setitem(FLAVOURS, "few timers", lambda context: RocksDBBackend(context, options))
    made = Workshop("few timers", tmp_path)
    yield made
    made.close()


def emptied(backend: Any, domain: str = "event") -> list[Timer]:
    """All timers, as they fire."""
    queue = backend.timers(domain)
    return list(iter(lambda: queue.pop_due(2**62), None))


def some_timers(count: int, seed: int = 7) -> list[Timer]:
    """In no order; many share a time, some a key."""
    dice = random.Random(seed)
    keys: list[Any] = [1, "1", 1.0, True, b"1", ("a", 1), "é" * 100, *(f"k{n}" for n in range(40))]
    found = {
        (dice.randrange(-100, 400), stored_form(dice.choice(keys)), b"w" * dice.randrange(3)) for _ in range(2 * count)
    }
    return sorted(found, key=lambda timer: dice.random())[:count]


@pytest.mark.parametrize("time_ms", [-(2**63), -1, 0, 2**63 - 1])
@pytest.mark.parametrize("key", [1, "1", 1.0, True, b"\xff\0", ("a", (2, 3)), 2**90, ""])
def test_an_entry_of_the_database_is_its_timer_again(time_ms: int, key: Any) -> None:
    timer = (time_ms, stored_form(key), b"a window")
    assert decode_timer(encoder_for(128)(timer)) == timer


@pytest.mark.parametrize("raw", [b"", b"\0" * 13, b"\0\1" + b"\0" * 8 + b"\xff\xff\xff\xff" + b"key"])
def test_an_entry_that_is_none_is_damage(raw: bytes) -> None:
    with pytest.raises(DamagedCheckpointError, match="layout of timers"):
        decode_timer(raw)


def test_many_times_what_memory_holds_fires_in_order_of_time_once_each(shop: Workshop) -> None:
    backend = shop.backend()
    queue = backend.timers("event")
    timers = some_timers(2_000)
    most = 0
    for timer in timers:
        assert queue.register(*timer)
        most = max(most, len(queue) - queue.spilled)
    assert most <= LIMIT
    assert len(queue) == 2_000
    assert queue.spilled >= 2_000 - LIMIT
    for timer in timers[::7]:
        assert not queue.register(*timer)
        assert queue.has(*timer)
    assert [timer[0] for timer in queue] == sorted(timer[0] for timer in timers)

    fired = []
    while (timer := queue.pop_due(2**62)) is not None:
        assert len(queue) - queue.spilled <= LIMIT
        fired.append(timer)
    assert sorted(fired, key=repr) == sorted(timers, key=repr)
    assert [timer[0] for timer in fired] == sorted(timer[0] for timer in timers)
    assert len(queue) == 0
    assert queue.peek() is None


def test_nothing_is_fired_before_its_time_and_what_is_registered_meanwhile_fires_too(shop: Workshop) -> None:
    queue = shop.backend().timers("processing")
    for time_ms in range(0, 1_000, 2):
        queue.register(time_ms, "a")
    fired = []
    for now in range(0, 1_000, 5):
        queue.register(now + 1, "late")
        queue.register(900 + now, "far")
        while (timer := queue.pop_due(now)) is not None:
            assert timer[0] <= now
            fired.append(timer[0])
        following = queue.peek()
        assert following is not None
        assert following > now
    assert fired == sorted(fired)
    assert fired.count(4) == 1
    assert len(queue) == 500 + 200 + 200 - len(fired)


def test_a_timer_that_is_set_again_for_the_very_time_that_fires_is_not_passed_over(shop: Workshop) -> None:
    queue = shop.backend().timers("event")
    for n in range(400):
        queue.register(5, f"k{n}")
    fired, again = [], set()
    while (timer := queue.pop_due(5)) is not None:
        fired.append(timer)
        if len(fired) % 3 == 0 and timer not in again:
            again.add(timer)
            assert queue.register(*timer)
    assert len(again) > 100
    assert sorted(fired) == sorted([*((5, f"k{n}", b"") for n in range(400)), *again])


def test_random_operations_agree_with_a_set_through_snapshots_and_restores(shop: Workshop) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    dice = random.Random(seed)
    backend, model = shop.backend(), set[Timer]()
    for step in range(6_000):
        queue = backend.timers("event")
        timer = (dice.randrange(300), f"k{dice.randrange(30)}", b"w" * dice.randrange(2))
        match dice.randrange(10):
            case 0 | 1 | 2 | 3 | 4:
                assert queue.register(*timer) == (timer not in model)
                model.add(timer)
            case 5 | 6:
                assert queue.delete(*timer) == (timer in model)
                model.discard(timer)
            case 7 | 8:
                until = dice.choice([timer[0], min(model)[0] if model else 0])
                due = queue.pop_due(until)
                assert (due is None) == (not model or min(model)[0] > until)
                if due is not None:
                    assert due[0] == min(model)[0]
                    model.remove(due)
            case 9:
                assert queue.has(*timer) == (timer in model)
                assert queue.peek() == (min(model)[0] if model else None)
        assert len(queue) == len(model)
        assert len(queue) - queue.spilled <= LIMIT
        if step % 1_000 == 999:
            snapshot = shop.snapshot(backend, step, canonical=dice.random() < 0.5)
            backend.close()
            shop.made.remove(backend)
            backend = shop.restored(snapshot)
    assert sorted(emptied(backend)) == sorted(model)


@pytest.mark.parametrize("canonical", [False, True], ids=["checkpoint", "savepoint"])
@pytest.mark.parametrize("widths", [(1, 1), (1, 3), (3, 2)], ids=str)
def test_they_follow_their_keys_to_another_width(shop: Workshop, canonical: bool, widths: tuple[int, int]) -> None:
    before, after = widths
    timers = some_timers(1_000)
    parts = [shop.backend(subtask, before) for subtask in range(before)]
    encode = encoder_for(MAX_PARALLELISM)
    for timer in timers:
        group = int.from_bytes(encode(timer)[:2], "big")
        owner = next(part for part in parts if group in part._context.key_groups)
        owner.timers("event").register(*timer)
    snapshots = [shop.snapshot(part, canonical=canonical) for part in parts]
    # What happens behind the barrier is no part of it.
    for part in parts:
        emptied(part)
    found = []
    for subtask in range(after):
        part = shop.restored(*snapshots, subtask=subtask, parallelism=after)
        queue = part.timers("event")
        assert len(queue) - queue.spilled <= LIMIT
        fired = emptied(part)
        assert [timer[0] for timer in fired] == sorted(timer[0] for timer in fired)
        assert all(int.from_bytes(encode(timer)[:2], "big") in part._context.key_groups for timer in fired)
        found += fired
    assert sorted(found, key=repr) == sorted(timers, key=repr)


@pytest.mark.parametrize("canonical", [False, True], ids=["checkpoint", "savepoint"])
def test_the_heap_backend_takes_them_over_and_gives_them_back(shop: Workshop, canonical: bool) -> None:
    timers = some_timers(500)
    backend = shop.backend()
    at(backend, "a")
    backend.state(COUNT).update(3)
    for timer in timers:
        backend.timers("processing").register(*timer)
    heap = shop.restored(shop.snapshot(backend, canonical=canonical), flavour="heap")
    assert len(heap.timers("processing")) == 500
    again = shop.restored(shop.snapshot(heap, 2))
    at(again, "a")
    assert again.state(COUNT).value() == 3
    assert emptied(again, "event") == []
    assert sorted(emptied(again, "processing"), key=repr) == sorted(timers, key=repr)


def test_only_a_snapshot_with_timers_in_the_database_needs_a_release_that_knows_of_them(shop: Workshop) -> None:
    backend = shop.backend()
    queue = backend.timers("event")

    def version(checkpoint_id: int) -> int:
        return int(msgspec.msgpack.decode(shop.snapshot(backend, checkpoint_id).details)["version"])

    for n in range(LIMIT):
        queue.register(n, "a")
    assert version(1) == 1
    for n in range(LIMIT):
        queue.register(n, "b")
    assert version(2) == 2
    emptied(backend)
    assert version(3) == 1


def test_a_snapshot_that_is_linked_while_timers_change_holds_those_of_its_barrier(shop: Workshop) -> None:
    """Nothing may be written while files are linked: changes wait, and the next one to come back waits for them."""
    backend = shop.backend()
    queue = backend.timers("event")
    for n in range(500):
        queue.register(n, "a")
    works, models = [], []
    for checkpoint_id in range(1, 6):
        models.append([(n, "a", b"") for n in range(100 * (checkpoint_id - 1), 500)])
        works.append(backend.snapshot(checkpoint_id))
        for _ in range(100):
            queue.pop_due(2**62)
    for work, model in zip(works, models, strict=True):
        assert emptied(shop.restored(work.write(shop.store))) == model
