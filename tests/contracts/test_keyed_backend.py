"""What every keyed state backend promises; each test runs on the heap and on RocksDB, roomy and cramped."""

from __future__ import annotations

import math
import unicodedata
from typing import Any

import pytest
from backends import MAX_PARALLELISM, Workshop, at, contents

from headrace.errors import (
    CheckpointError,
    JobDefinitionError,
    KeyedStateError,
    StateConflictError,
    TypeMismatchError,
)
from headrace.state.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from headrace.state.key_groups import group_range, key_group
from headrace.state.keys import stored_form
from headrace.types.information import Types

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


class ReduceToLarger:
    """A reduce function as a class."""

    def reduce(self, a: int, b: int) -> int:
        return max(a, b)


# --- value state ---------------------------------------------------------------------------------


def test_a_value_that_was_never_set_is_none(shop: Workshop) -> None:
    backend = shop.backend()
    state = backend.state(LAST)
    at(backend, "a")
    assert state.value() is None


@pytest.mark.parametrize(
    ("descriptor", "value"),
    [
        (LAST, 21.5),
        (LAST, math.inf),
        (COUNT, -(2**63)),
        (COUNT, 2**63 - 1),
        (NAME, ""),
        (NAME, "é " * 10),
        (BLOB, b"\x00\xff"),
        (PAIR, ("a", 1)),
        (BAG, [1, 2, 3]),
        (THING, {"any": {1, 2}}),
        (ValueStateDescriptor("flag", Types.BOOLEAN()), False),
        (ValueStateDescriptor("big", Types.BIG_INT()), 2**200),
    ],
    ids=lambda x: getattr(x, "name", None),
)
def test_a_value_comes_back_as_it_was_put_in_also_after_restore(shop: Workshop, descriptor: Any, value: Any) -> None:
    backend = shop.backend()
    state = backend.state(descriptor)
    at(backend, "a")
    state.update(value)
    assert state.value() == value
    assert type(state.value()) is type(value)
    again = shop.restored(shop.snapshot(backend))
    state = again.state(descriptor)
    at(again, "a")
    assert state.value() == value
    assert type(state.value()) is type(value)


def test_values_of_different_keys_do_not_meet(shop: Workshop) -> None:
    backend = shop.backend()
    state = backend.state(COUNT)
    for i in range(50):
        at(backend, f"k{i}")
        state.update(i)
    for i in range(50):
        at(backend, f"k{i}")
        assert state.value() == i


def test_updating_with_none_clears(shop: Workshop) -> None:
    backend = shop.backend()
    state = backend.state(LAST)
    at(backend, "a")
    state.update(1.0)
    state.update(None)
    assert state.value() is None
    assert list(backend.keys("last")) == []


def test_clear_forgets_the_current_key_only(shop: Workshop) -> None:
    backend = shop.backend()
    state = backend.state(LAST)
    for key in "abc":
        at(backend, key)
        state.update(1.0)
    at(backend, "b")
    state.clear()
    assert state.value() is None
    assert sorted(backend.keys("last")) == ["a", "c"]


def test_clearing_what_is_not_there_does_nothing(shop: Workshop) -> None:
    backend = shop.backend()
    at(backend, "a")
    for descriptor in (LAST, SEEN, BY_ITEM, TOTAL, MEAN):
        backend.state(descriptor).clear()
    shop.snapshot(backend)


def test_a_whole_number_in_a_double_state_is_a_float_on_every_backend(shop: Workshop) -> None:
    backend = shop.backend()
    state = backend.state(LAST)
    at(backend, "a")
    state.update(3)
    assert type(state.value()) is float


def test_changing_a_returned_list_without_update_never_changes_state(shop: Workshop) -> None:
    backend = shop.backend()
    state = backend.state(BAG)
    at(backend, "a")
    mine = [1]
    state.update(mine)
    mine.append(2)
    state.value().append(3)
    assert state.value() == [1]


def test_changing_a_returned_object_without_update_never_changes_state(shop: Workshop) -> None:
    backend = shop.backend()
    state = backend.state(THING)
    at(backend, "a")
    mine = {"n": [1]}
    state.update(mine)
    mine["n"].append(2)
    state.value()["n"].append(3)
    assert state.value() == {"n": [1]}


def test_with_object_reuse_a_mutable_value_is_still_saved(shop: Workshop) -> None:
    backend = shop.backend(object_reuse=True)
    state = backend.state(BAG)
    at(backend, "a")
    state.update([1, 2])
    again = shop.restored(shop.snapshot(backend), object_reuse=True)
    at(again, "a")
    assert again.state(BAG).value() == [1, 2]


# --- list state ----------------------------------------------------------------------------------


def test_a_list_keeps_the_order_of_addition(shop: Workshop) -> None:
    backend = shop.backend()
    state = backend.state(SEEN)
    at(backend, "a")
    for i in (3, 1, 2, 1):
        state.add(i)
    state.add_all([9, 8])
    assert list(state.get()) == [3, 1, 2, 1, 9, 8]
    assert list(state) == [3, 1, 2, 1, 9, 8]


def test_an_empty_list_gives_nothing(shop: Workshop) -> None:
    backend = shop.backend()
    state = backend.state(SEEN)
    at(backend, "a")
    assert list(state.get()) == []
    state.add_all([])
    assert list(backend.keys("seen")) == []


def test_updating_a_list_replaces_it(shop: Workshop) -> None:
    backend = shop.backend()
    state = backend.state(SEEN)
    at(backend, "a")
    state.add_all([1, 2, 3])
    state.update([7])
    state.add(8)
    assert list(state.get()) == [7, 8]


def test_updating_a_list_with_nothing_clears_it(shop: Workshop) -> None:
    backend = shop.backend()
    state = backend.state(SEEN)
    at(backend, "a")
    state.add_all([1, 2, 3])
    state.update([])
    assert list(state.get()) == []
    assert list(backend.keys("seen")) == []


def test_a_cleared_list_starts_anew(shop: Workshop) -> None:
    backend = shop.backend()
    state = backend.state(SEEN)
    at(backend, "a")
    state.add_all(range(20))
    state.clear()
    state.add(5)
    assert list(state.get()) == [5]


def test_changing_a_returned_element_or_list_never_changes_list_state(shop: Workshop) -> None:
    backend = shop.backend()
    state = backend.state(BAGS)
    at(backend, "a")
    mine = [1]
    state.add(mine)
    mine.append(2)
    state.get()[0].append(3)
    state.get().append([4])
    assert list(state.get()) == [[1]]


def test_adding_while_iterating_a_list_ends(shop: Workshop) -> None:
    backend = shop.backend()
    state = backend.state(SEEN)
    at(backend, "a")
    state.add_all([1, 2])
    for value in state:
        state.add(value)
    assert list(state.get()) == [1, 2, 1, 2]


def test_lists_of_many_keys_grow_in_turn(shop: Workshop) -> None:
    backend = shop.backend()
    state = backend.state(SEEN)
    for i in range(300):
        at(backend, i % 7)
        state.add(i)
    again = shop.restored(shop.snapshot(backend))
    state = again.state(SEEN)
    for key in range(7):
        at(again, key)
        assert list(state.get()) == list(range(key, 300, 7))
        state.add(-1)
        assert list(state.get())[-1] == -1


def test_a_list_of_many_thousand_elements_survives(shop: Workshop) -> None:
    backend = shop.backend()
    state = backend.state(SEEN)
    at(backend, "hot")
    state.add_all(range(12_000))
    state.add(12_000)
    assert list(state.get()) == list(range(12_001))
    again = shop.restored(shop.snapshot(backend))
    at(again, "hot")
    assert list(again.state(SEEN).get()) == list(range(12_001))


def test_one_misfit_in_add_all_adds_nothing(shop: Workshop) -> None:
    backend = shop.backend()
    state = backend.state(SEEN)
    at(backend, "a")
    state.add(1)
    with pytest.raises(TypeMismatchError):
        state.add_all([2, "three"])
    assert list(state.get()) == [1]


# --- map state -----------------------------------------------------------------------------------


def test_a_map_is_read_and_written_entry_by_entry(shop: Workshop) -> None:
    backend = shop.backend()
    state = backend.state(BY_ITEM)
    at(backend, "a")
    state.put("x", 1)
    state.put_all({"y": 2, "z": 3})
    state.put("x", 4)
    assert state.get("x") == 4
    assert state.get("nothing") is None
    assert state.contains("y")
    assert not state.contains("nothing")
    assert dict(state.items()) == {"x": 4, "y": 2, "z": 3}
    assert sorted(state.keys()) == ["x", "y", "z"]
    assert sorted(state.values()) == [2, 3, 4]


def test_a_removed_entry_is_gone_and_the_last_one_takes_the_map_along(shop: Workshop) -> None:
    backend = shop.backend()
    state = backend.state(BY_ITEM)
    at(backend, "a")
    state.put_all({"x": 1, "y": 2})
    state.remove("x")
    state.remove("never there")
    assert dict(state.items()) == {"y": 2}
    state.remove("y")
    assert state.is_empty()
    assert list(backend.keys("by-item")) == []


def test_a_map_can_be_used_as_a_mapping(shop: Workshop) -> None:
    backend = shop.backend()
    state = backend.state(BY_ITEM)
    at(backend, "a")
    state["x"] = 1
    assert state["x"] == 1
    assert "x" in state
    assert list(state) == ["x"]
    del state["x"]
    with pytest.raises(KeyError):
        state["x"]
    with pytest.raises(KeyError):
        del state["x"]


def test_an_empty_map_says_so(shop: Workshop) -> None:
    backend = shop.backend()
    state = backend.state(BY_ITEM)
    at(backend, "a")
    assert state.is_empty()
    state.put("x", 1)
    assert not state.is_empty()
    state.clear()
    assert state.is_empty()
    assert dict(state.items()) == {}


def test_a_none_in_a_map_is_a_legal_value(shop: Workshop) -> None:
    backend = shop.backend()
    state = backend.state(BY_ITEM)
    at(backend, "a")
    state.put("x", None)
    assert state.contains("x")
    assert state.get("x") is None
    assert state["x"] is None
    again = shop.restored(shop.snapshot(backend))
    at(again, "a")
    assert again.state(BY_ITEM).contains("x")


def test_none_cannot_be_a_key_of_a_map(shop: Workshop) -> None:
    backend = shop.backend()
    at(backend, "a")
    with pytest.raises(JobDefinitionError, match="by-item"):
        backend.state(BY_ITEM).put(None, 1)


def test_map_keys_that_look_alike_stay_apart(shop: Workshop) -> None:
    backend = shop.backend()
    state = backend.state(BY_RATIO)
    at(backend, "a")
    for number, text in ((0.0, "zero"), (-0.0, "minus zero"), (math.nan, "nan"), (1.0, "one")):
        state.put(number, text)
    assert state.get(0.0) == "zero"
    assert state.get(-0.0) == "minus zero"
    assert state.get(math.nan) == "nan"
    assert state.get(1) == "one"
    assert len(list(state.keys())) == 4


def test_changing_a_returned_map_value_never_changes_state(shop: Workshop) -> None:
    backend = shop.backend()
    state = backend.state(BAG_BY_ITEM)
    at(backend, "a")
    mine = [1]
    state.put("x", mine)
    mine.append(2)
    state.get("x").append(3)
    dict(state.items())["x"].append(4)
    next(iter(state.values())).append(5)
    assert state.get("x") == [1]


def test_entries_may_be_removed_while_iterating_a_map(shop: Workshop) -> None:
    backend = shop.backend()
    state = backend.state(BY_ITEM)
    at(backend, "a")
    state.put_all({str(i): i for i in range(10)})
    for item, value in state.items():
        if value % 2:
            state.remove(item)
    assert sorted(state.values()) == [0, 2, 4, 6, 8]


def test_a_map_of_many_thousand_entries_survives(shop: Workshop) -> None:
    backend = shop.backend()
    state = backend.state(BY_ITEM)
    at(backend, "hot")
    state.put_all({str(i): i for i in range(12_000)})
    state.put("7", -7)
    state.remove("8")
    again = shop.restored(shop.snapshot(backend))
    state = again.state(BY_ITEM)
    at(again, "hot")
    expected = {str(i): i for i in range(12_000)} | {"7": -7}
    del expected["8"]
    assert state.get("7") == -7
    assert state.get("8") is None
    assert dict(state.items()) == expected


def test_a_cleared_map_does_not_come_back_by_a_later_put(shop: Workshop) -> None:
    backend = shop.backend()
    state = backend.state(BY_ITEM)
    at(backend, "a")
    state.put_all({str(i): i for i in range(10)})
    shop.snapshot(backend)
    state.clear()
    state.put("new", 1)
    at(backend, "b")
    state.put_all({str(i): i for i in range(10)})
    again = shop.restored(shop.snapshot(backend, 2))
    at(again, "a")
    assert dict(again.state(BY_ITEM).items()) == {"new": 1}


# --- reducing and aggregating state --------------------------------------------------------------


def test_a_reducing_state_folds_what_is_added(shop: Workshop) -> None:
    backend = shop.backend()
    state = backend.state(TOTAL)
    at(backend, "a")
    assert state.get() is None
    for i in range(1, 5):
        state.add(i)
    assert state.get() == 10
    state.clear()
    assert state.get() is None
    state.add(3)
    assert state.get() == 3


def test_a_reduce_function_may_be_a_class(shop: Workshop) -> None:
    backend = shop.backend()
    state = backend.state(ReducingStateDescriptor("largest", ReduceToLarger(), Types.LONG()))
    at(backend, "a")
    for i in (3, 9, 4):
        state.add(i)
    assert state.get() == 9


def test_an_aggregating_state_gives_the_result_of_its_accumulator(shop: Workshop) -> None:
    backend = shop.backend()
    state = backend.state(MEAN)
    at(backend, "a")
    assert state.get() is None
    state.add(1.0)
    state.add(4.0)
    assert state.get() == 2.5
    again = shop.restored(shop.snapshot(backend))
    at(again, "a")
    state = again.state(MEAN)
    state.add(4.0)
    assert state.get() == 3.0


def test_a_failing_reduce_function_leaves_the_state_as_it_was(shop: Workshop) -> None:
    def refuse_negative(a: int, b: int) -> int:
        if b < 0:
            raise ValueError("negative")
        return a + b

    backend = shop.backend()
    state = backend.state(ReducingStateDescriptor("guarded", refuse_negative, Types.LONG()))
    at(backend, "a")
    state.add(1)
    with pytest.raises(ValueError, match="negative"):
        state.add(-1)
    assert state.get() == 1


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
    with pytest.raises(StateConflictError, match='"last".*"per-user"'):
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
        (THING, lambda: None),
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


# --- snapshot and restore ------------------------------------------------------------------------


def fill(backend: Any, rows: int = 200) -> None:
    """Something in every kind of state."""
    for i in range(rows):
        at(backend, f"k{i}")
        backend.state(COUNT).update(i)
        backend.state(PAIR).update((str(i), i))
        backend.state(SEEN).add_all([i, i + 1])
        backend.state(BY_ITEM).put_all({"a": i, "b": -i})
        backend.state(TOTAL).add(i)
        backend.state(MEAN).add(float(i))
        backend.timers("event").register(i, f"k{i}")


STATES = [COUNT, PAIR, SEEN, BY_ITEM, TOTAL, MEAN]


def dump(backend: Any) -> dict[str, Any]:
    """Everything a user could read, for comparison."""
    found: dict[str, Any] = {d.name: contents(backend, backend.state(d), d.name) for d in STATES}
    queue = backend.timers("event")
    timers = []
    while (timer := queue.pop_due(2**62)) is not None:
        timers.append(timer)
    for timer in timers:
        queue.register(*timer)
    return {**found, "timers": timers}


@pytest.mark.parametrize("canonical", [False, True])
def test_what_is_restored_equals_what_was_saved(shop: Workshop, canonical: bool) -> None:
    backend = shop.backend()
    fill(backend)
    expected = dump(backend)
    assert dump(shop.restored(shop.snapshot(backend, canonical=canonical))) == expected


def test_an_empty_backend_can_be_saved_and_restored(shop: Workshop) -> None:
    backend = shop.backend()
    for canonical in (False, True):
        again = shop.restored(shop.snapshot(backend, canonical=canonical))
        at(again, "a")
        assert again.state(LAST).value() is None


def test_declared_but_empty_states_are_remembered(shop: Workshop) -> None:
    backend = shop.backend()
    backend.state(LAST)
    work = shop.snapshot(backend)
    assert [shape.name for shape in work.shapes] == ["last", "event", "processing"]
    with pytest.raises(StateConflictError):
        shop.restored(work).state(ListStateDescriptor("last", Types.DOUBLE()))


def test_a_snapshot_holds_the_values_at_the_barrier(shop: Workshop) -> None:
    backend = shop.backend()
    fill(backend)
    expected = dump(backend)
    work = backend.snapshot(1)
    fill(backend)
    for i in range(0, 200, 3):
        at(backend, f"k{i}")
        for descriptor in STATES:
            backend.state(descriptor).clear()
    backend.timers("event").register(5000, "late")
    assert dump(shop.restored(work.write(shop.store))) == expected


def test_a_canonical_snapshot_holds_the_values_at_the_barrier(shop: Workshop) -> None:
    backend = shop.backend()
    fill(backend, 50)
    expected = dump(backend)
    work = backend.snapshot(1, canonical=True)
    fill(backend, 60)
    assert dump(shop.restored(work.write(shop.store))) == expected


def test_a_second_snapshot_may_begin_while_the_first_is_not_written(shop: Workshop) -> None:
    backend = shop.backend()
    state = backend.state(COUNT)
    works = []
    for round_ in range(4):
        for i in range(40):
            at(backend, i)
            state.update(round_ * 100 + i)
        works.append(backend.snapshot(round_))
    for round_, work in reversed(list(enumerate(works))):
        again = shop.restored(work.write(shop.store))
        assert contents(again, again.state(COUNT), "count") == {i: round_ * 100 + i for i in range(40)}


def test_snapshots_of_one_backend_build_on_each_other(shop: Workshop) -> None:
    backend = shop.backend()
    state = backend.state(COUNT)
    model = {}
    for checkpoint in range(1, 8):
        for i in range(checkpoint * 5, checkpoint * 5 + 20):
            at(backend, i)
            state.update(checkpoint)
            model[i] = checkpoint
        at(backend, checkpoint * 5)
        state.clear()
        del model[checkpoint * 5]
        work = shop.snapshot(backend, checkpoint)
        if checkpoint % 2:
            backend.checkpoint_complete(checkpoint)
        again = shop.restored(work)
        assert contents(again, again.state(COUNT), "count") == model


def test_a_restored_backend_goes_on_and_can_be_saved_again(shop: Workshop) -> None:
    backend = shop.backend()
    fill(backend, 30)
    for checkpoint in range(1, 5):
        snapshot = shop.snapshot(backend, checkpoint)
        expected = dump(backend)
        backend = shop.restored(snapshot)
        assert dump(backend) == expected
        fill(backend, 10 * checkpoint)


def test_a_cancelled_snapshot_leaves_nothing_and_the_next_one_works(shop: Workshop) -> None:
    backend = shop.backend()
    fill(backend, 20)
    work = backend.snapshot(1)
    work.cancel()
    with pytest.raises(CheckpointError, match="cancelled"):
        work.write(shop.store)
    assert shop.store.uploaded == []
    expected = dump(backend)
    assert dump(shop.restored(shop.snapshot(backend, 2))) == expected


def test_a_snapshot_that_is_never_written_is_cleaned_up_by_close(shop: Workshop) -> None:
    backend = shop.backend()
    fill(backend, 20)
    backend.snapshot(1)
    backend.snapshot(2, canonical=True)


def test_cancelling_after_the_end_or_twice_does_no_harm(shop: Workshop) -> None:
    backend = shop.backend()
    fill(backend, 5)
    work = backend.snapshot(1)
    snapshot = work.write(shop.store)
    work.cancel()
    work.cancel()
    assert len(dump(shop.restored(snapshot))["count"]) == 5


def test_a_store_that_fails_fails_the_snapshot_only(shop: Workshop) -> None:
    class FullStore:
        def write(self, name: str, chunks: Any) -> Any:
            for _ in chunks:
                raise OSError(28, "No space left on device")
            raise OSError(28, "No space left on device")

        def write_shared(self, path: Any) -> Any:
            raise OSError(28, "No space left on device")

    backend = shop.backend()
    fill(backend, 20)
    with pytest.raises(OSError, match="No space left"):
        backend.snapshot(1).write(FullStore())
    expected = dump(backend)
    assert dump(shop.restored(shop.snapshot(backend, 2))) == expected


# --- rescaling -----------------------------------------------------------------------------------


@pytest.mark.parametrize("canonical", [False, True])
def test_one_subtask_becomes_three_and_three_become_two(shop: Workshop, canonical: bool) -> None:
    backend = shop.backend()
    fill(backend)
    expected = dump(backend)
    whole = shop.snapshot(backend, canonical=canonical)
    three = [shop.restored(whole, subtask=i, parallelism=3) for i in range(3)]
    assert merged(map(dump, three)) == expected
    for i, part in enumerate(three):
        for key in part.keys("count"):
            assert key_group(key, MAX_PARALLELISM) in group_range(i, 3, MAX_PARALLELISM)
    parts = [shop.snapshot(part, 2, canonical=canonical) for part in three]
    two = [shop.restored(*overlapping(parts, i, 2), subtask=i, parallelism=2) for i in range(2)]
    assert merged(map(dump, two)) == expected
    for part in two:
        for key in list(part.keys("seen")):
            part.key_context.key = key
            part.state(SEEN).add(-1)
            assert list(part.state(SEEN).get())[-1] == -1


def merged(dumps: Any) -> dict[str, Any]:
    result: dict[str, Any] = {d.name: {} for d in STATES}
    timers: list[Any] = []
    for one in dumps:
        for name, found in one.items():
            if name == "timers":
                timers += found
            else:
                assert not result[name].keys() & found.keys()
                result[name] |= found
    return {**result, "timers": sorted(timers)}


def overlapping(parts: list[Any], subtask: int, parallelism: int) -> list[Any]:
    groups = group_range(subtask, parallelism, MAX_PARALLELISM)
    return [part for part in parts if part.first_group < groups.stop and part.last_group >= groups.start]


def test_a_subtask_reads_its_groups_even_from_snapshots_it_has_no_share_in(shop: Workshop) -> None:
    backend = shop.backend()
    fill(backend, 50)
    whole = shop.snapshot(backend)
    parts = [shop.snapshot(shop.restored(whole, subtask=i, parallelism=2), 2) for i in range(2)]
    last = shop.restored(*parts, subtask=1, parallelism=2)
    assert {key_group(key, MAX_PARALLELISM) for key in last.keys("count")} <= set(range(8, 16))
    assert len(dump(last)["count"]) > 0


# --- from one backend to another -----------------------------------------------------------------


@pytest.mark.parametrize("other", ["heap", "heap-forking", "rocksdb", "rocksdb-cramped"])
def test_a_savepoint_of_one_backend_restores_in_another_and_back(shop: Workshop, other: str) -> None:
    backend = shop.backend()
    fill(backend, 80)
    expected = dump(backend)
    there = shop.restored(shop.snapshot(backend, canonical=True), flavour=other)
    assert dump(there) == expected
    back = shop.restored(shop.snapshot(there, 2, canonical=True))
    assert dump(back) == expected


def test_states_nobody_declares_are_carried_along(shop: Workshop) -> None:
    backend = shop.backend()
    fill(backend, 30)
    expected = dump(backend)
    for canonical in (True, False, True):
        forgetful = shop.restored(shop.snapshot(backend, canonical=canonical))
        at(forgetful, "k1")
        assert forgetful.state(COUNT).value() == 1
        again = shop.restored(shop.snapshot(forgetful, 2, canonical=canonical))
        assert dump(again) == expected


def test_the_number_of_entries_is_known_about(shop: Workshop) -> None:
    backend = shop.backend()
    assert backend.entry_count() == 0
    fill(backend, 100)
    shop.snapshot(backend)
    assert 700 <= backend.entry_count() <= 900
