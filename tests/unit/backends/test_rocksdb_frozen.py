"""What RocksDB's cache had changed at a barrier is written beside the stream: which meanwhile reads it, and goes on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from backend_workshop import BAG, COUNT, FLAVOURS, LAST, SEEN, TOTAL, Workshop, at, contents
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.backends.rocksdb.backend import RocksDBBackend
from headrace.backends.rocksdb.database import Family
from headrace.backends.rocksdb.layout import prefix_for, prefixes_by_group
from headrace.backends.rocksdb.options import RocksDBOptions
from headrace.backends.rocksdb.snapshot import WITH_CHANGES
from headrace.checkpoint.handles import KeyedSnapshot
from headrace.errors import StorageError
from headrace.state.key_groups import group_range, key_group
from headrace.state.keys import stored_form

SMALL = RocksDBOptions(cache_entries=8, dirty_limit=4)
"""Generations of four entries: what is frozen is soon in no other dict."""


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Workshop]:
    shop = Workshop("rocksdb", tmp_path)
    yield shop
    shop.close()


class Gate:
    """Stands before every table file on its way into a database: holds it up, or refuses it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._open = threading.Event()
        self._open.set()
        self.refuses = False
        passed = Family.table
        gate = self

        @contextmanager
        def table(family: Family) -> Iterator[Any]:
            assert gate._open.wait(60)
            if gate.refuses:
                raise StorageError("no space left for a table file")
            with passed(family) as inner:
                yield inner

        monkeypatch.setattr(Family, "table", table)

    @contextmanager
    def closed(self) -> Iterator[None]:
        self._open.clear()
        try:
            yield
        finally:
            self._open.set()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(monkeypatch)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FLAVOURS, "rocksdb", lambda context: RocksDBBackend(context, SMALL))


def put(backend: Any, entries: dict[Any, Any], descriptor: Any = COUNT) -> None:
    state = backend.state(descriptor)
    for key, value in entries.items():
        at(backend, key)
        if value is None:
            state.clear()
        else:
            state.update(value)


def read(backend: Any, keys: list[Any], descriptor: Any = COUNT) -> dict[Any, Any]:
    state = backend.state(descriptor)
    found = {}
    for key in keys:
        at(backend, key)
        found[key] = state.value()
    return found


def empty_cache(backend: Any) -> None:
    """Ask for so many keys that nobody has that both generations hold nothing else."""
    read(backend, [f"nobody-{n}" for n in range(12)])


@pytest.mark.parametrize("canonical", [False, True])
def test_the_stream_goes_on_while_what_was_frozen_is_written_and_the_checkpoint_has_the_barriers_values(
    shop: Workshop, gate: Gate, small: None, canonical: bool
) -> None:
    backend = shop.backend()
    state = backend.state(COUNT)
    put(backend, {"a": 1, "b": 2, "c": 3})
    with gate.closed():
        work = backend.snapshot(1, canonical=canonical)
        put(backend, {"d": 4, "e": 5})
        empty_cache(backend)
        assert read(backend, ["a", "b", "c", "d", "e"]) == {"a": 1, "b": 2, "c": 3, "d": 4, "e": 5}
        put(backend, {"a": 10, "b": None})
        empty_cache(backend)
        assert read(backend, ["e", "d", "c", "b", "a"]) == {"a": 10, "b": None, "c": 3, "d": 4, "e": 5}
    assert contents(shop.restored(work.write(shop.store)), *_shown(shop)) == {"a": 1, "b": 2, "c": 3}
    assert contents(backend, state, "count") == {"a": 10, "c": 3, "d": 4, "e": 5}
    assert contents(shop.restored(shop.snapshot(backend, 2)), *_shown(shop)) == {"a": 10, "c": 3, "d": 4, "e": 5}


def _shown(shop: Workshop) -> tuple[Any, str]:
    """The count state of the backend that was made last, and its name."""
    return shop.made[-1].state(COUNT), "count"


def test_windows_are_frozen_each_in_its_namespace(shop: Workshop, gate: Gate, small: None) -> None:
    backend = shop.backend()
    state = backend.state(COUNT)
    for window in (b"w1", b"w2", b""):
        state.set_namespace(window)
        put(backend, {"a": len(window)})
    with gate.closed():
        work = backend.snapshot(1)
        for window in (b"w2", b"w3", b"w1", b"w2"):
            state.set_namespace(window)
            empty_cache(backend)
            at(backend, "a")
            before = state.value()
            assert before == {b"w1": 2, b"w2": 2, b"w3": None}[window] or before == 99
            state.update(99)
    restored = shop.restored(work.write(shop.store))
    found = {
        window: contents(restored, restored.state(COUNT), "count", window) for window in (b"w1", b"w2", b"w3", b"")
    }
    assert found == {b"w1": {"a": 2}, b"w2": {"a": 2}, b"w3": {}, b"": {"a": 0}}
    now = {window: contents(backend, state, "count", window) for window in (b"w1", b"w2", b"w3", b"")}
    assert now == {b"w1": {"a": 99}, b"w2": {"a": 99}, b"w3": {"a": 99}, b"": {"a": 0}}


@pytest.mark.parametrize("resting", [False, True])
def test_what_could_not_be_written_is_still_there_and_the_next_checkpoint_has_it(
    shop: Workshop, gate: Gate, small: None, resting: bool
) -> None:
    backend = shop.backend()
    put(backend, {"a": 1, "b": 2, "c": 3})
    shop.snapshot(backend, 1)
    put(backend, {"a": 5, "b": 6, "x": 7} if resting else {})
    assert _is_kept(shop.snapshot(backend, 2)) is resting
    put(backend, {"b": None, "d": 4})
    gate.refuses = True
    work = backend.snapshot(3)
    put(backend, {"c": 100, "e": 5})
    with pytest.raises(StorageError, match="no space left for a table file"):
        work.write(shop.store)
    # More than may be dirty, so that some of it is written while what was frozen is not.
    put(backend, {n: n for n in range(20)})
    put(backend, {"d": 40})
    empty_cache(backend)
    expected = {"a": 5 if resting else 1, "c": 100, "d": 40, "e": 5, **({"x": 7} if resting else {})}
    expected.update({n: n for n in range(20)})
    assert read(backend, [*expected, "b"]) == {**expected, "b": None}
    gate.refuses = False
    assert contents(shop.restored(shop.snapshot(backend, 4)), *_shown(shop)) == expected
    assert contents(backend, backend.state(COUNT), "count") == expected


def _is_kept(snapshot: KeyedSnapshot) -> bool:
    """Whether changed entries were saved beside the database."""
    return bool(msgspec.msgpack.decode(snapshot.details)["version"] == WITH_CHANGES)


def test_what_changes_before_every_barrier_is_saved_beside_the_database(shop: Workshop, small: None) -> None:
    backend = shop.backend()
    state = backend.state(COUNT)
    taken = []
    for number in range(1, 6):
        state.set_namespace(b"w")
        put(backend, {"a": number, "b": 10 * number})
        state.set_namespace(b"")
        put(backend, {"c": None if number == 4 else number})
        taken.append(shop.snapshot(backend, number))
    assert [_is_kept(snapshot) for snapshot in taken] == [False, True, True, True, True]
    found = []
    for snapshot in taken:
        restored = shop.restored(snapshot)
        state = restored.state(COUNT)
        found.append((contents(restored, state, "count", b"w"), contents(restored, state, "count")))
    assert found == [({"a": n, "b": 10 * n}, {} if n == 4 else {"c": n}) for n in range(1, 6)]
    # The files of the database are those of the first: nothing was written to it since.
    shared = [{file.path for file in snapshot.files if file.shared} for snapshot in taken]
    assert all(files == shared[0] for files in shared)


@pytest.mark.parametrize("gone", [False, True])
def test_numbers_that_change_before_every_barrier_are_saved_as_they_are(shop: Workshop, gone: bool) -> None:
    backend = shop.backend()
    for number in (1, 2):
        put(backend, {"a": 0.1 * number, "b": -float(number), "c": 1e300 * number}, LAST)
        if number == 2 and gone:
            put(backend, {"b": None}, LAST)
        snapshot = shop.snapshot(backend, number)
    assert _is_kept(snapshot)
    expected = {"a": 0.2, "b": None if gone else -2.0, "c": 2e300}
    assert read(shop.restored(snapshot), ["a", "b", "c"], LAST) == expected


def test_what_changes_no_longer_moves_into_the_database(shop: Workshop, small: None) -> None:
    backend = shop.backend()
    for number in (1, 2):
        put(backend, {"a": number, "b": number, "c": number})
        shop.snapshot(backend, number)
    assert _is_kept(shop.snapshot(backend, 3)) is False
    empty_cache(backend)
    assert read(backend, ["a", "b", "c"]) == {"a": 2, "b": 2, "c": 2}
    assert contents(shop.restored(shop.snapshot(backend, 4)), *_shown(shop)) == {"a": 2, "b": 2, "c": 2}


@pytest.mark.parametrize("parallelism", [1, 2, 3])
@pytest.mark.parametrize("flavour", ["rocksdb", "heap"])
def test_changes_beside_the_database_are_rescaled_with_it_on_either_backend(
    shop: Workshop, parallelism: int, flavour: str
) -> None:
    snapshots, model = [], {}
    for subtask in range(2):
        backend = shop.backend(subtask, 2)
        own = [n for n in range(200) if key_group(n, 16) in group_range(subtask, 2, 16)]
        put(backend, {n: -n for n in own})
        shop.snapshot(backend, 1)
        put(backend, {n: None if n % 7 == 0 else n for n in own[10:]})
        snapshots.append(shop.snapshot(backend, 2))
        assert _is_kept(snapshots[-1])
        model.update({n: -n for n in own[:10]} | {n: n for n in own[10:] if n % 7})
    found: dict[Any, Any] = {}
    for subtask in range(parallelism):
        groups = group_range(subtask, parallelism, 16)
        wanted = [s for s in snapshots if s.first_group < groups.stop and s.last_group >= groups.start]
        restored = shop.restored(*wanted, subtask=subtask, parallelism=parallelism, flavour=flavour)
        part = contents(restored, restored.state(COUNT), "count")
        assert not part.keys() & found.keys()
        found |= part
    assert found == model


def test_a_savepoint_has_what_was_saved_beside_the_database(shop: Workshop, small: None) -> None:
    backend = shop.backend()
    for number in range(1, 4):
        put(backend, {"a": number, "b": number})
        shop.snapshot(backend, number)
    put(backend, {"b": 9})
    savepoint = shop.snapshot(backend, 4, canonical=True)
    assert contents(shop.restored(savepoint), *_shown(shop)) == {"a": 3, "b": 9}
    assert contents(shop.restored(shop.snapshot(backend, 5)), *_shown(shop)) == {"a": 3, "b": 9}


def test_one_barrier_freezes_while_the_next_waits_for_it(shop: Workshop, gate: Gate, small: None) -> None:
    backend = shop.backend()
    works, models = [], []
    model: dict[str, int] = {}
    for number in range(1, 8):
        changed = {f"k{n}": 100 * number + n for n in range(number, number + 9)}
        put(backend, changed)
        model.update(changed)
        works.append(backend.snapshot(number))
        models.append(dict(model))
    for work, expected in zip(works, models, strict=True):
        assert contents(shop.restored(work.write(shop.store)), *_shown(shop)) == expected


def test_a_cancelled_checkpoint_leaves_its_changes_to_the_next(shop: Workshop, gate: Gate) -> None:
    backend = shop.backend()
    put(backend, {"a": 1, "b": 2})
    with gate.closed():
        work = backend.snapshot(1)
        work.cancel()
    put(backend, {"b": 20})
    assert contents(shop.restored(shop.snapshot(backend, 2)), *_shown(shop)) == {"a": 1, "b": 20}


def test_values_that_the_program_may_still_change_are_written_at_the_barrier(shop: Workshop, gate: Gate) -> None:
    backend = shop.backend(object_reuse=True)
    state = backend.state(BAG)
    at(backend, "a")
    bag = [1]
    state.update(bag)
    with gate.closed():
        work = backend.snapshot(1)
        bag.append(2)
    restored = shop.restored(work.write(shop.store))
    assert read(restored, ["a"], BAG) == {"a": [1]}


def test_states_of_every_kind_are_of_one_moment(shop: Workshop, gate: Gate) -> None:
    backend = shop.backend()
    total, seen = backend.state(TOTAL), backend.state(SEEN)
    at(backend, "a")
    total.add(1)
    seen.add(1)
    put(backend, {"a": 1.5}, LAST)
    with gate.closed():
        work = backend.snapshot(1)
        at(backend, "a")
        total.add(2)
        seen.add(2)
        put(backend, {"a": 2.5}, LAST)
    restored = shop.restored(work.write(shop.store))
    at(restored, "a")
    assert (restored.state(TOTAL).get(), restored.state(SEEN).get()) == (1, [1])
    assert restored.state(LAST).value() == 1.5
    at(backend, "a")
    assert (total.get(), seen.get(), backend.state(LAST).value()) == (3, [1, 2], 2.5)


KEYS = st.one_of(st.text(max_size=5), st.integers(-(2**70), 2**70), st.binary(max_size=5), st.floats(allow_nan=False))


@given(st.dictionaries(st.sampled_from([b"", b"w", b"window"]), st.sets(KEYS.map(stored_form), max_size=20)))
@settings(deadline=None, max_examples=60)
def test_prefixes_of_many_keys_are_those_of_each_one_group_after_another(spaces: dict[bytes, set[Any]]) -> None:
    keys = [key for found in spaces.values() for key in found]
    if not keys:
        return
    counts = {namespace: len(found) for namespace, found in spaces.items()}
    owner = [namespace for namespace, found in spaces.items() for _ in found]
    one = prefix_for(16)
    seen: list[int] = []
    last_group = b""
    for prefixes, places in prefixes_by_group(keys, counts, 16):
        assert prefixes == [one(keys[place], owner[place]) for place in places]
        assert {prefix[:2] for prefix in prefixes} == {prefixes[0][:2]}
        assert prefixes[0][:2] > last_group
        last_group = prefixes[0][:2]
        seen += places
    assert sorted(seen) == list(range(len(keys)))


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 9), st.integers(0, 2), st.integers(0, 1_000)),
        st.tuples(st.just("clear"), st.integers(0, 9), st.integers(0, 2), st.just(0)),
        st.tuples(st.just("read"), st.integers(0, 9), st.integers(0, 2), st.just(0)),
        st.tuples(st.sampled_from(["checkpoint", "failing", "held"]), st.just(0), st.just(0), st.just(0)),
    ),
    max_size=60,
)


@pytest.mark.thorough
@given(steps=STEPS)
@settings(deadline=None, max_examples=40)
def test_reads_and_checkpoints_agree_with_a_dict_whatever_fails_or_is_held_up(
    steps: list[Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        gate = Gate(patch)
        patch.setitem(FLAVOURS, "rocksdb", lambda context: RocksDBBackend(context, SMALL))
        shop = Workshop("rocksdb", tmp_path_factory.mktemp("steps"))
        backend = shop.backend()
        state = backend.state(COUNT)
        linked = backend._opened().linked
        model: dict[tuple[bytes, int], int] = {}
        taken: list[tuple[Any, dict[tuple[bytes, int], int]]] = []
        for number, (what, key, space, value) in enumerate(steps, 1):
            namespace = b"w" * space
            state.set_namespace(namespace)
            at(backend, key)
            match what:
                case "put":
                    state.update(value)
                    model[namespace, key] = value
                case "clear":
                    state.clear()
                    model.pop((namespace, key), None)
                case "read":
                    assert state.value() == model.get((namespace, key))
                case "failing":
                    assert linked.wait(60)
                    gate.refuses = True
                    work = backend.snapshot(number)
                    assert linked.wait(60)
                    gate.refuses = False
                    work.cancel()
                case "held":
                    # The one before is through; and up to four changes fit before the mailbox would wait for this one.
                    assert linked.wait(60)
                    with gate.closed():
                        taken.append((backend.snapshot(number), dict(model)))
                        empty_cache(backend)
                        for other in range(3):
                            at(backend, other)
                            assert state.value() == model.get((namespace, other))
                            state.update(number)
                            model[namespace, other] = number
                case _:
                    taken.append((backend.snapshot(number), dict(model)))
        for namespace in (b"", b"w", b"ww"):
            expected = {key: value for (space, key), value in model.items() if space == namespace}
            assert contents(backend, state, "count", namespace) == expected
        for work, model in taken[-3:]:
            restored = shop.restored(work.write(shop.store))
            for namespace in (b"", b"w", b"ww"):
                expected = {key: value for (space, key), value in model.items() if space == namespace}
                assert contents(restored, restored.state(COUNT), "count", namespace) == expected
        shop.close()


def test_values_that_are_set_and_never_read_do_not_fill_the_memory(shop: Workshop, small: None) -> None:
    """New keys all the time, and barriers so frequent that nothing else bounds what is changed."""
    backend = shop.backend()
    state = backend.state(COUNT)
    for number in range(1, 40):
        put(backend, {f"key-{number}-{n}": n for n in range(3)})
        shop.snapshot(backend, number)
        assert state.young_count() + sum(map(len, state._old_spaces.values())) <= SMALL.cache_entries + 3
    assert len(contents(backend, state, "count")) == 117
