"""What every keyed state backend promises of the five states; each test runs on the heap and on RocksDB."""

from __future__ import annotations

import math
from typing import Any

import pytest
from backend_workshop import (
    BAG,
    BAG_BY_ITEM,
    BAGS,
    BLOB,
    BY_ITEM,
    BY_RATIO,
    COUNT,
    LAST,
    MEAN,
    NAME,
    PAIR,
    SEEN,
    THING,
    TOTAL,
    Workshop,
    at,
)

from headrace.errors import JobDefinitionError, TypeMismatchError
from headrace.state.descriptors import (
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from headrace.types.information import Types


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
