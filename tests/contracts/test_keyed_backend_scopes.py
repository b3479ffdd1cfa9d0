"""What every keyed state backend promises of keys, namespaces and timers, and what it refuses."""

from __future__ import annotations

import math
import sys
import unicodedata
from typing import Any

import pytest
from backend_workshop import (
    BAG,
    BLOB,
    BY_ITEM,
    COUNT,
    LAST,
    MAX_PARALLELISM,
    MEAN,
    NAME,
    PAIR,
    SEEN,
    THING,
    TOTAL,
    Workshop,
    at,
    contents,
)

from headrace.errors import JobDefinitionError, KeyedStateError, StateConflictError, TypeMismatchError
from headrace.state.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from headrace.state.key_groups import group_range, key_group
from headrace.state.keys import stored_form
from headrace.types.information import Types

# --- namespaces ----------------------------------------------------------------------------------


@pytest.mark.parametrize("descriptor", [LAST, SEEN, BY_ITEM, TOTAL, MEAN], ids=lambda d: d.KIND)
def test_namespaces_of_one_key_are_apart(shop: Workshop, descriptor: Any) -> None:
    backend = shop.backend()
    state = backend.state(descriptor)
    at(backend, "a")

    def put(number: int) -> None:
        if descriptor is LAST:
            state.update(float(number))
        elif descriptor is BY_ITEM:
            state.put("x", number)
        else:
            state.add(number if descriptor is not MEAN else float(number))

    spaces = [b"", b"w1", b"w2", b"\x00\x00", b"\xff\xff"]
    for number, space in enumerate(spaces):
        state.set_namespace(space)
        put(number)
    state.set_namespace(b"w1")
    state.clear()
    state.set_namespace(b"")
    work = shop.snapshot(backend)
    again = shop.restored(work)
    restored = again.state(descriptor)
    wanted = {0: 0, 2: 2, 3: 3, 4: 4}
    for where, found in ((backend, state), (again, restored)):
        read = {}
        for number, space in enumerate(spaces):
            for key, value in contents(where, found, descriptor.name, space).items():
                assert key == "a"
                read[number] = value
        if descriptor is SEEN:
            assert read == {n: [v] for n, v in wanted.items()}
        elif descriptor is BY_ITEM:
            assert read == {n: {"x": v} for n, v in wanted.items()}
        else:
            assert read == wanted


def test_many_namespaces_of_many_keys_survive(shop: Workshop) -> None:
    backend = shop.backend()
    state = backend.state(COUNT)
    for i in range(600):
        at(backend, f"k{i % 20}")
        state.set_namespace(b"window-%d" % (i % 30))
        state.update(i)
    again = shop.restored(shop.snapshot(backend))
    state = again.state(COUNT)
    found = {
        (key, window): value
        for window in range(30)
        for key, value in contents(again, state, "count", b"window-%d" % window).items()
    }
    assert found == {(f"k{i % 20}", i % 30): i for i in range(600)}


def test_keys_are_listed_by_namespace(shop: Workshop) -> None:
    backend = shop.backend()
    state = backend.state(SEEN)
    for key, space in (("a", b""), ("b", b"w"), ("c", b"w"), ("c", b"")):
        at(backend, key)
        state.set_namespace(space)
        state.add_all([1, 2])
    assert sorted(backend.keys("seen")) == ["a", "c"]
    assert sorted(backend.keys("seen", b"w")) == ["b", "c"]
    assert list(backend.keys("seen", b"nowhere")) == []
    assert list(backend.keys("no such state")) == []


def test_keys_may_be_cleared_while_they_are_listed(shop: Workshop) -> None:
    backend = shop.backend()
    state = backend.state(COUNT)
    for i in range(20):
        at(backend, i)
        state.update(i)
    for key in backend.keys("count"):
        backend.key_context.key = key
        state.clear()
    assert list(backend.keys("count")) == []


# --- keys ----------------------------------------------------------------------------------------

ALIKE: list[Any] = [
    1, "1", 1.0, True, b"1", 0, "", b"", False, 0.0, -0.0, math.nan, (1,), (1.0,), (True,), ("1",), ((1,),), (1, 2),
    unicodedata.normalize("NFC", "é"), unicodedata.normalize("NFD", "é"), -1, 2**63, 2**64, 2**200, -(2**63) - 1,
    "a\x00", "a", "\ud800", b"\x00" * 3, b"\x00" * 4, "k" * 65_536, b"k" * 65_536,
]  # fmt: skip


def test_keys_that_look_alike_stay_apart(shop: Workshop) -> None:
    backend = shop.backend()
    state = backend.state(COUNT)
    for number, key in enumerate(ALIKE):
        at(backend, key)
        assert state.value() is None
        state.update(number)
    for canonical in (False, True):
        again = shop.restored(shop.snapshot(backend, canonical=canonical))
        found = again.state(COUNT)
        for number, key in enumerate(ALIKE):
            for where, read in ((backend, state), (again, found)):
                at(where, key)
                assert read.value() == number, key
        assert {stored_form(key) for key in ALIKE} == set(again.keys("count"))


def test_a_value_of_many_megabytes_survives(shop: Workshop) -> None:
    backend = shop.backend()
    state = backend.state(BLOB)
    at(backend, "a")
    value = bytes(range(256)) * (40 << 10)
    state.update(value)
    at(backend, "b")
    state.update(b"small")
    again = shop.restored(shop.snapshot(backend))
    state = again.state(BLOB)
    at(again, "a")
    assert state.value() == value


def test_state_without_a_key_is_refused(shop: Workshop) -> None:
    backend = shop.backend()
    uses = [
        lambda: backend.state(LAST).value(),
        lambda: backend.state(LAST).update(1.0),
        lambda: backend.state(LAST).update(None),
        lambda: backend.state(COUNT).update(1),
        lambda: backend.state(NAME).update("a"),
        lambda: backend.state(BAG).value(),
        lambda: backend.state(BAG).update([1]),
        lambda: backend.state(SEEN).get(),
        lambda: backend.state(SEEN).add(1),
        lambda: backend.state(BY_ITEM).get("x"),
        lambda: backend.state(BY_ITEM).put("x", 1),
        lambda: backend.state(BY_ITEM).clear(),
        lambda: backend.state(TOTAL).add(1),
        lambda: backend.state(MEAN).get(),
    ]
    for use in uses:
        with pytest.raises(KeyedStateError, match="without a key"):
            use()


# --- what is refused -----------------------------------------------------------------------------


def test_the_same_descriptor_gives_the_same_state(shop: Workshop) -> None:
    backend = shop.backend()
    assert backend.state(LAST) is backend.state(ValueStateDescriptor("last", Types.DOUBLE()))


@pytest.mark.parametrize(
    "other",
    [
        ValueStateDescriptor("last", Types.LONG()),
        ListStateDescriptor("last", Types.DOUBLE()),
        MapStateDescriptor("last", Types.STRING(), Types.DOUBLE()),
        ReducingStateDescriptor("last", lambda a, b: a, Types.DOUBLE()),
    ],
    ids=lambda d: d.KIND,
)
def test_one_name_with_two_shapes_is_refused_also_after_restore(shop: Workshop, other: Any) -> None:
    backend = shop.backend()
    state = backend.state(LAST)
    at(backend, "a")
    state.update(1.0)
    with pytest.raises(StateConflictError, match=r'"last".*"per-user"'):
        backend.state(other)
    again = shop.restored(shop.snapshot(backend))
    with pytest.raises(StateConflictError, match="was saved as value state of DOUBLE"):
        again.state(other)
    at(again, "a")
    assert again.state(LAST).value() == 1.0


@pytest.mark.parametrize(
    ("descriptor", "wrong"),
    [
        (LAST, "warm"),
        (LAST, True),
        (COUNT, 1.5),
        (COUNT, 2**63),
        (COUNT, True),
        (NAME, b"bytes"),
        (NAME, "\ud800"),
        (BLOB, "text"),
        (PAIR, ("a", "b")),
        (PAIR, ("a",)),
        (BAG, ["a"]),
        (BAG, (1, 2)),
        (THING, sys),
    ],
    ids=repr,
)
def test_a_value_that_its_type_cannot_hold_is_refused_and_changes_nothing(
    shop: Workshop, descriptor: Any, wrong: Any
) -> None:
    backend = shop.backend()
    state = backend.state(descriptor)
    at(backend, "a")
    with pytest.raises(TypeMismatchError):
        state.update(wrong)
    assert state.value() is None
    shop.snapshot(backend)


def test_misfits_are_refused_by_the_other_states_too(shop: Workshop) -> None:
    backend = shop.backend()
    at(backend, "a")
    with pytest.raises(TypeMismatchError, match='"seen"'):
        backend.state(SEEN).add("x")
    with pytest.raises(TypeMismatchError, match='"seen"'):
        backend.state(SEEN).update([1, None, 2.5])
    with pytest.raises(TypeMismatchError, match='"by-item"'):
        backend.state(BY_ITEM).put("x", "y")
    with pytest.raises(TypeMismatchError, match='"by-item"'):
        backend.state(BY_ITEM).put(5, 1)
    with pytest.raises(TypeMismatchError, match='"total"'):
        backend.state(TOTAL).add("x")
    assert backend.state(BY_ITEM).is_empty()


def test_an_unknown_time_domain_is_refused(shop: Workshop) -> None:
    with pytest.raises(JobDefinitionError, match="event, processing"):
        shop.backend().timers("lunar")


@pytest.mark.parametrize("shop", ["heap", "rocksdb"], indirect=True)
def test_a_key_of_64_kib_and_a_value_of_64_mib_are_kept_and_restored(shop: Workshop) -> None:
    key, value = "k" * 65_536, b"v" * (64 << 20)
    backend = shop.backend()
    at(backend, key)
    backend.state(BLOB).update(value)
    again = shop.restored(shop.snapshot(backend))
    at(again, key)
    # Not by `==` in an assert: its explanation of a difference would take minutes.
    same = again.state(BLOB).value() == value
    assert same


# --- timers --------------------------------------------------------------------------------------


def test_timers_fire_in_order_of_time_once_each(shop: Workshop) -> None:
    timers = shop.backend().timers("event")
    for time_ms in (30, 10, 20, -5):
        assert timers.register(time_ms, "a")
    assert not timers.register(10, "a")
    assert timers.register(10, "a", b"w")
    assert len(timers) == 5
    assert timers.peek() == -5
    assert [timers.pop_due(20) for _ in range(5)] == [
        (-5, "a", b""), (10, "a", b""), (10, "a", b"w"), (20, "a", b""), None,
    ]  # fmt: skip
    assert timers.peek() == 30


def test_a_deleted_timer_does_not_fire(shop: Workshop) -> None:
    timers = shop.backend().timers("processing")
    timers.register(10, "a")
    timers.register(20, 1)
    assert timers.delete(10, "a")
    assert not timers.delete(10, "a")
    assert timers.peek() == 20
    assert timers.pop_due(100) == (20, 1, b"")
    assert timers.pop_due(100) is None


def test_timers_of_both_domains_are_part_of_a_snapshot(shop: Workshop) -> None:
    backend = shop.backend()
    keys = ["a", "b", 1, stored_form(1.0), stored_form(True), b"x"]
    for domain in ("event", "processing"):
        for i, key in enumerate(keys):
            backend.timers(domain).register(100 - i if domain == "event" else i, key, b"w")
    backend.timers("event").delete(100, "a", b"w")
    for canonical in (False, True):
        again = shop.restored(shop.snapshot(backend, canonical=canonical))
        event, processing = again.timers("event"), again.timers("processing")
        assert [event.pop_due(1000) for _ in range(len(event))] == [
            (100 - i, keys[i], b"w") for i in range(5, 0, -1)
        ]  # fmt: skip
        assert [processing.pop_due(1000) for _ in range(len(processing))] == [(i, k, b"w") for i, k in enumerate(keys)]


def test_timers_follow_their_keys_when_rescaled(shop: Workshop) -> None:
    backend = shop.backend()
    for i in range(100):
        backend.timers("event").register(i, f"k{i}")
    whole = shop.snapshot(backend)
    fired = []
    for subtask in range(3):
        part = shop.restored(whole, subtask=subtask, parallelism=3)
        timers = part.timers("event")
        times = []
        while (timer := timers.pop_due(1000)) is not None:
            assert key_group(timer[1], MAX_PARALLELISM) in group_range(subtask, 3, MAX_PARALLELISM)
            times.append(timer[0])
        assert times == sorted(times)
        fired += times
    assert sorted(fired) == list(range(100))
