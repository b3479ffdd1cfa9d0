"""List and map state on RocksDB: what the cache knows of the database, and databases of earlier releases."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
from backend_workshop import BY_ITEM, SEEN, Workshop, at, contents
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.backends.rocksdb import lists
from headrace.backends.rocksdb.layout import HEAD, split

KEYS = st.sampled_from(["a", "b", 3])
SPACES = st.sampled_from([b"", b"w"])
CHANGES = st.one_of(
    st.tuples(st.just("add"), KEYS, SPACES, st.integers(0, 99)),
    st.tuples(st.just("update"), KEYS, SPACES, st.lists(st.integers(0, 99), max_size=5)),
    st.tuples(st.just("clear"), KEYS, SPACES, st.none()),
    st.tuples(st.just("get"), KEYS, SPACES, st.none()),
    st.tuples(st.just("write"), KEYS, SPACES, st.none()),
    st.tuples(st.just("forget"), KEYS, SPACES, st.none()),
)


@pytest.fixture
def shop(tmp_path: Path) -> Workshop:
    return Workshop("rocksdb", tmp_path)


def forget(backend: Any) -> None:
    """Empty the cache, as time and other keys would."""
    keeper = backend._opened()
    keeper.write_all()
    keeper.change_generations()
    keeper.change_generations()


class Watched:
    """Counts the scans of one state."""

    def __init__(self, state: Any) -> None:
        self.scans = 0
        self._family = state.family
        state.family = self

    def under(self, prefix: bytes) -> Any:
        self.scans += 1
        return self._family.under(prefix)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._family, name)


def raw(backend: Any, name: str) -> dict[tuple[Any, bytes, bytes], bytes]:
    backend._opened().write_all()
    found = backend._opened().database.family(name).scan(b"\x00", b"\xff")
    return {split(key): value for key, value in found}


@pytest.mark.thorough
@settings(max_examples=60, deadline=None)
@given(changes=st.lists(CHANGES, max_size=40), headed=st.booleans(), large=st.sampled_from([3, 10_000]))
def test_a_list_is_what_a_plain_list_is_whatever_the_cache_has_forgotten(
    changes: list[tuple[str, Any, bytes, Any]], headed: bool, large: int
) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(lists, "LARGE", large)
        shop = Workshop("rocksdb", Path(folder))
        backend = shop.backend()
        state = backend.state(SEEN)
        state.headed = headed
        model: dict[tuple[Any, bytes], list[int]] = {}
        for what, key, space, value in changes:
            at(backend, key)
            state.set_namespace(space)
            held = model.setdefault((key, space), [])
            match what:
                case "add":
                    state.add(value)
                    held.append(value)
                case "update":
                    state.update(value)
                    held[:] = value
                case "clear":
                    state.clear()
                    held.clear()
                case "get":
                    assert state.get() == held
                case "write":
                    backend._opened().write_all()
                    assert state._pending == 0
                case "forget":
                    forget(backend)
        stored = raw(backend, "seen")
        for (key, space), held in model.items():
            at(backend, key)
            state.set_namespace(space)
            assert state.get() == held
            entries = [entry for k, s, entry in stored if (k, s) == (key, space)]
            assert len(entries) == len(held)
            if headed and held:
                assert min(entries) == HEAD
        backend.close()


def test_lists_of_new_keys_are_read_and_cleared_without_a_scan(shop: Workshop) -> None:
    backend = shop.backend()
    state = backend.state(SEEN)
    watched = Watched(state)
    state.set_namespace(b"window")
    for key in range(100):
        at(backend, key)
        state.add(key)
        assert state.get() == [key]
    backend._opened().write_all()
    for key in range(100):
        at(backend, key)
        state.add(-key)
        assert state.get() == [key, -key]
        state.clear()
    backend._opened().write_all()
    assert raw(backend, "seen") == {}
    forget(backend)
    for key in range(100):
        at(backend, key)
        assert state.get() == []
    assert watched.scans == 0


def test_a_list_that_comes_and_goes_between_two_writes_leaves_no_trace(shop: Workshop) -> None:
    backend = shop.backend()
    state = backend.state(SEEN)
    at(backend, "a")
    state.add(1)
    state.clear()
    assert not state._dirty
    assert state._pending == 0


def test_lists_without_heads_of_an_earlier_release_are_restored_read_and_rewritten(shop: Workshop) -> None:
    earlier = shop.backend()
    state = earlier.state(SEEN)
    state.headed = False
    for key in ("a", "b"):
        at(earlier, key)
        state.add_all([1, 2])
    assert HEAD not in {entry for _, _, entry in raw(earlier, "seen")}
    snapshot = shop.snapshot(earlier)
    details = msgspec.msgpack.decode(snapshot.details)
    del details["headed"]
    snapshot = msgspec.structs.replace(snapshot, details=msgspec.msgpack.encode(details))
    for _ in range(2):  # through a second checkpoint too, which must not claim heads
        backend = shop.restored(snapshot)
        state = backend.state(SEEN)
        at(backend, "a")
        state.add(3)
        assert state.get() == [1, 2, 3]
        state.update([1, 2])
        at(backend, "b")
        assert state.get() == [1, 2]
        snapshot = shop.snapshot(backend)
    shop.snapshot(backend, canonical=True)


def test_a_list_state_nobody_declares_keeps_its_heads_through_a_checkpoint(shop: Workshop) -> None:
    first = shop.backend()
    at(first, "a")
    first.state(SEEN).add_all([1, 2])
    second = shop.restored(shop.snapshot(first))
    third = shop.restored(shop.snapshot(second))
    state = third.state(SEEN)
    assert state.headed
    assert contents(third, state, "seen") == {"a": [1, 2]}


def test_savepoints_number_lists_from_zero_so_heads_are_there_after_them(shop: Workshop) -> None:
    earlier = shop.backend()
    earlier.state(SEEN).headed = False
    for key in range(50):
        at(earlier, key)
        earlier.state(SEEN).add_all(range(key))
    backend = shop.restored(shop.snapshot(earlier, canonical=True))
    state = backend.state(SEEN)
    assert state.headed
    assert contents(backend, state, "seen") == {key: list(range(key)) for key in range(1, 50)}


def test_a_map_that_is_cached_whole_is_cleared_without_a_scan(shop: Workshop) -> None:
    backend = shop.backend()
    state = backend.state(BY_ITEM)
    at(backend, "a")
    state.put_all({"x": 1, "y": 2, "z": 3})
    assert state.keys() == ["x", "y", "z"]
    watched = Watched(state)
    backend._opened().write_all()
    state.remove("y")
    state.put("new", 4)
    state.clear()
    state.put("x", 5)
    state.clear()
    state.put("z", 6)
    assert {split_key[0] for split_key in raw(backend, "by-item")} == {"a"}
    assert len(raw(backend, "by-item")) == 1
    assert watched.scans == 0
    forget(backend)
    assert state.items() == [("z", 6)]


def test_removed_entries_of_a_map_do_not_pile_up_in_the_cache(shop: Workshop) -> None:
    backend = shop.backend()
    state = backend.state(BY_ITEM)
    at(backend, "a")
    for number in range(500):
        state.put(str(number), number)
        state.remove(str(number))
        if number % 100 == 99:
            backend._opened().write_all()
    assert not state._young["a"].entries
    assert state.is_empty()
