"""Operator state: what a function keeps for its subtask as a whole, through restarts at every width."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from two_input_rig import Rig

from headrace import (
    CheckpointedFunction,
    CheckpointListener,
    CoMapFunction,
    FilterFunction,
    FlatMapFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapFunction,
    MapStateDescriptor,
    ProcessFunction,
    ReduceFunction,
    Time,
    Types,
    ValueStateDescriptor,
)
from headrace.connectors.sink import Sink, SinkWriter
from headrace.errors import JobDefinitionError, StateConflictError, TypeMismatchError, UserFunctionError
from headrace.operators.process import KeyedProcessOperator, ProcessOperator
from headrace.operators.reduce import ReduceOperator
from headrace.operators.sink import SinkOperator
from headrace.operators.stateless import FilterOperator, FlatMapOperator, MapOperator
from headrace.operators.two_input import CoMapOperator
from headrace.state.operator_state import OperatorStates
from headrace.state.ttl import StateTtlConfig

BUFFERED = ListStateDescriptor("buffered", Types.LONG())
EVERYWHERE = ListStateDescriptor("everywhere", Types.STRING())
RULES = MapStateDescriptor("rules", Types.STRING(), Types.LIST(Types.LONG()))
COUNT = ValueStateDescriptor("count", Types.LONG())


class Buffering(MapFunction, CheckpointedFunction):
    """Holds what it gets in memory, and writes it into its states when a snapshot is taken."""

    def initialize_state(self, context: Any) -> None:
        store = context.get_operator_state_store()
        self.list = store.get_list_state(BUFFERED)
        self.union = store.get_union_list_state(EVERYWHERE)
        self.rules = store.get_broadcast_state(RULES)
        self.restored = context.is_restored()
        self.held = list(self.list)
        self.known = sorted(self.union)

    def open(self, runtime_context: Any) -> None:
        self.me = runtime_context.get_index_of_this_subtask()
        assert self.held is not None, "initialize_state() comes before open()"

    def map(self, value: Any) -> Any:
        match value:
            case int():
                self.held.append(value)
            case (name, numbers):
                self.rules[name] = numbers
        return None

    def snapshot_state(self, context: Any) -> None:
        self.list.update(self.held)
        self.union.update([f"subtask {self.me} at {context.get_checkpoint_id()}"])


def functions(rig: Rig) -> list[Any]:
    return [operator._function for operator in rig.operators]  # type: ignore[attr-defined]


def buffering() -> MapOperator:
    return MapOperator(Buffering())


def test_list_union_and_broadcast_state_go_through_2_3_and_1_subtasks(tmp_path: Path) -> None:
    rig = Rig(buffering, tmp_path, flavour=None, parallelism=2)
    for number in range(7):
        rig.feed(0, number)
    for subtask in (0, 1):
        rig.block(subtask, 0, [("small", [1, 2]), ("large", [100])])

    rig = rig.restarted(rig.snapshot(4), parallelism=3)
    held = [function.held for function in functions(rig)]
    assert sorted(chain.from_iterable(held)) == list(range(7))
    assert sorted(map(len, held)) == [2, 2, 3], "dealt out evenly"
    assert {tuple(function.known) for function in functions(rig)} == {("subtask 0 at 4", "subtask 1 at 4")}
    assert [dict(function.rules.items()) for function in functions(rig)] == [{"small": [1, 2], "large": [100]}] * 3

    rig.feed(0, 7)
    rig = rig.restarted(rig.snapshot(9), parallelism=1)
    (only,) = functions(rig)
    assert sorted(only.held) == list(range(8))
    assert only.known == ["subtask 0 at 9", "subtask 1 at 9", "subtask 2 at 9"]
    assert dict(only.rules.items()) == {"small": [1, 2], "large": [100]}
    assert only.restored


def test_at_the_same_width_every_subtask_gets_back_its_own_elements_and_its_own_copy(tmp_path: Path) -> None:
    rig = Rig(buffering, tmp_path, flavour=None, parallelism=3)
    for subtask, numbers in enumerate([[1, 2, 3], [], [4]]):
        rig.block(subtask, 0, numbers)
    # A broadcast that has not come to all of them yet: with an unaligned checkpoint it is in flight to the others.
    rig.block(1, 0, [("late", [1])])
    rig = rig.restarted(rig.snapshot())
    assert [function.held for function in functions(rig)] == [[1, 2, 3], [], [4]]
    assert [dict(function.rules.items()) for function in functions(rig)] == [{}, {"late": [1]}, {}]


def test_a_job_that_begins_anew_is_told_so(tmp_path: Path) -> None:
    rig = Rig(buffering, tmp_path, flavour=None, parallelism=2)
    assert [function.restored for function in functions(rig)] == [False, False]


def test_subtasks_do_not_see_each_others_state_and_operators_do_not_either(tmp_path: Path) -> None:
    here = Rig(buffering, tmp_path / "a", flavour=None, parallelism=2, uid="here")
    there = Rig(buffering, tmp_path / "b", flavour=None, uid="there")
    here.block(0, 0, [1])
    here.block(1, 0, [2, ("x", [1])])
    there.block(0, 0, [3])
    for rig in (here, there):
        rig.snapshot()
    assert [list(function.list) for function in functions(here)] == [[1], [2]]
    assert [list(function.rules) for function in functions(here)] == [[], ["x"]]
    assert list(functions(there)[0].list) == [3]


class Both(KeyedProcessFunction, CheckpointedFunction):
    """Keyed state and operator state side by side, both asked for in `initialize_state`."""

    def initialize_state(self, context: Any) -> None:
        self.total = context.get_operator_state_store().get_list_state(BUFFERED)
        self.count = context.get_keyed_state_store().get_state(COUNT)
        self.records = sum(self.total)

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.records += 1
        self.count.update((self.count.value() or 0) + 1)
        yield ctx.get_current_key(), self.count.value()

    def snapshot_state(self, context: Any) -> None:
        self.total.update([self.records])


@pytest.mark.parametrize("flavour", ["heap", "rocksdb"])
def test_keyed_and_operator_state_of_one_function_are_rescaled_each_in_its_way(tmp_path: Path, flavour: str) -> None:
    rig = Rig(lambda: KeyedProcessOperator(Both()), tmp_path, flavour=flavour, parallelism=2)
    for key in "abcdefgh" * 3:
        rig.feed(0, "x", key=key)
    for width in (3, 1):
        rig = rig.restarted(rig.snapshot(), parallelism=width)
    rig.out.values.clear()
    for key in "abcdefgh":
        rig.feed(0, "x", key=key)
    assert rig.out.values == [(key, 4) for key in "abcdefgh"]
    assert functions(rig)[0].records == 32
    rig.close()


class Noted(CheckpointedFunction):
    """For functions of every kind."""

    def initialize_state(self, context: Any) -> None:
        self.state = context.get_operator_state_store().get_list_state(BUFFERED)

    def snapshot_state(self, context: Any) -> None:
        self.state.add(context.get_checkpoint_id())


class NotedMap(Noted, MapFunction):
    def map(self, value: Any) -> Any: ...


class NotedFlatMap(Noted, FlatMapFunction):
    def flat_map(self, value: Any) -> Any: ...


class NotedFilter(Noted, FilterFunction):
    def filter(self, value: Any) -> Any: ...


class NotedProcess(Noted, ProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any: ...


class NotedReduce(Noted, ReduceFunction):
    def reduce(self, value1: Any, value2: Any) -> Any: ...


class NotedCoMap(Noted, CoMapFunction):
    def map1(self, value: Any) -> Any: ...

    def map2(self, value: Any) -> Any: ...


@pytest.mark.parametrize(
    "make",
    [
        lambda: MapOperator(NotedMap()),
        lambda: FlatMapOperator(NotedFlatMap()),
        lambda: FilterOperator(NotedFilter()),
        lambda: ProcessOperator(NotedProcess()),
        lambda: ReduceOperator(NotedReduce(), Types.LONG()),
        lambda: CoMapOperator(NotedCoMap()),
    ],
    ids=["map", "flat_map", "filter", "process", "reduce", "co_map"],
)
def test_every_kind_of_function_may_keep_operator_state(tmp_path: Path, make: Callable[[], Any]) -> None:
    rig = Rig(make, tmp_path)
    rig.snapshot(3)
    rig = rig.restarted(rig.snapshot(5))
    assert list(functions(rig)[0].state) == [3, 5]
    rig.close()


class Told(MapFunction, CheckpointListener):
    def __init__(self) -> None:
        self.heard: list[Any] = []

    def map(self, value: Any) -> Any:
        return value

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        if checkpoint_id == 13:
            raise OSError("no")
        self.heard.append(checkpoint_id)

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        self.heard.append(-checkpoint_id)


def test_a_listener_hears_of_complete_and_aborted_checkpoints(tmp_path: Path) -> None:
    rig = Rig(lambda: MapOperator(Told()), tmp_path, flavour=None)
    rig.snapshot(1)
    rig.operators[0].aborted(2)
    assert functions(rig)[0].heard == [1, -2]
    with pytest.raises(UserFunctionError, match=r"told that checkpoint 13 is complete.*OSError: no"):
        rig.operators[0].complete(13)


class CountingWriter(SinkWriter, CheckpointedFunction, CheckpointListener):
    """A sink's writer that keeps operator state: how many records it has taken, and which checkpoints it heard of."""

    def initialize_state(self, context: Any) -> None:
        self.state = context.get_operator_state_store().get_list_state(BUFFERED)
        self.count = sum(self.state)
        self.heard: list[int] = []

    def write(self, value: Any, timestamp: int | None) -> None:
        self.count += 1

    def snapshot_state(self, context: Any = None) -> Any:
        self.state.update([self.count])

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.heard.append(checkpoint_id)


class CountingSink(Sink):
    def create_writer(self, context: Any) -> SinkWriter:
        return CountingWriter()


def test_a_sinks_writer_may_keep_operator_state_and_listen_too(tmp_path: Path) -> None:
    rig = Rig(lambda: SinkOperator(CountingSink()), tmp_path, flavour=None, parallelism=2)
    for number in range(5):
        rig.feed(0, number)
    rig = rig.restarted(rig.snapshot(3), parallelism=1)
    rig.feed(0, 5)
    rig.snapshot(4)
    (operator,) = rig.operators
    assert operator._writer.count == 6  # type: ignore[attr-defined]
    assert operator._writer.heard == [4]  # type: ignore[attr-defined]
    rig.close()


class BadSnapshot(MapFunction, CheckpointedFunction):
    def initialize_state(self, context: Any) -> None: ...

    def map(self, value: Any) -> Any: ...

    def snapshot_state(self, context: Any) -> None:
        raise RuntimeError("not now")


def test_a_function_that_fails_in_its_snapshot_is_named(tmp_path: Path) -> None:
    rig = Rig(lambda: MapOperator(BadSnapshot()), tmp_path, flavour=None)
    with pytest.raises(UserFunctionError, match=r"in snapshot_state\(\) of checkpoint 8.*RuntimeError: not now"):
        rig.snapshot(8)


def test_state_that_no_function_asks_for_is_carried_on_and_dealt_out_all_the_same(tmp_path: Path) -> None:
    rig = Rig(buffering, tmp_path, flavour=None, parallelism=2)
    for number in range(4):
        rig.feed(0, number)
    rig = rig.restarted(rig.snapshot(1), parallelism=3, make=lambda: MapOperator(Told()))
    rig = rig.restarted(rig.snapshot(2), parallelism=1, make=buffering)
    assert sorted(functions(rig)[0].held) == [0, 1, 2, 3]


def test_one_name_for_two_shapes_is_refused_with_both_of_them() -> None:
    states = OperatorStates("op")
    states.get_list_state(BUFFERED)
    with pytest.raises(StateConflictError, match="already declared as list state"):
        states.get_union_list_state(BUFFERED)
    with pytest.raises(StateConflictError, match="another name"):
        states.get_broadcast_state(MapStateDescriptor("buffered", Types.STRING(), Types.LONG()))
    assert states.get_list_state(BUFFERED) is states.get_list_state(ListStateDescriptor("buffered", Types.LONG()))


def test_a_state_saved_in_another_shape_is_refused_and_not_lost() -> None:
    before = OperatorStates("op")
    before.get_list_state(BUFFERED).add(1)
    states = OperatorStates("op")
    states.restore(before.snapshot())
    with pytest.raises(StateConflictError, match=r"was saved as list state of .* but is now union list state"):
        states.get_union_list_state(BUFFERED)
    assert states.snapshot() == before.snapshot()


def test_saved_elements_follow_a_type_that_grows() -> None:
    before = OperatorStates("op")
    before.get_list_state(ListStateDescriptor("counts", Types.INT())).add_all([1, 2])
    before.get_union_list_state(ListStateDescriptor("names", Types.ROW_NAMED(["a", "b"], [str, int]))).add(("x", 1))
    rules = MapStateDescriptor("rules", Types.STRING(), Types.ROW_NAMED(["a"], [Types.INT()]))
    before.get_broadcast_state(rules)["k"] = (7,)
    states = OperatorStates("op")
    states.restore(before.snapshot())
    assert list(states.get_list_state(ListStateDescriptor("counts", Types.LONG()))) == [1, 2]
    grown = Types.ROW_NAMED(["b", "c"], [int, str])
    assert list(states.get_union_list_state(ListStateDescriptor("names", grown))) == [(1, None)]
    richer = MapStateDescriptor("rules", Types.STRING(), Types.ROW_NAMED(["a", "b"], [Types.LONG(), str]))
    assert dict(states.get_broadcast_state(richer).items()) == {"k": (7, None)}


def test_a_time_to_live_is_refused_where_there_is_no_key() -> None:
    descriptor = ListStateDescriptor("short-lived", Types.LONG())
    descriptor.enable_time_to_live(StateTtlConfig.new_builder(Time.seconds(1)).build())
    with pytest.raises(JobDefinitionError, match="only keyed state has"):
        OperatorStates("op").get_list_state(descriptor)


def test_a_value_of_another_type_is_refused_by_the_name_of_the_state() -> None:
    states = OperatorStates("op")
    with pytest.raises(TypeMismatchError, match='"buffered" of operator "op"'):
        states.get_list_state(BUFFERED).add("text")
    rules = states.get_broadcast_state(RULES)
    rules["a"] = [1]
    with pytest.raises(TypeMismatchError):
        rules.put_all({"b": [2], "c": "no list"})
    assert dict(rules.items()) == {"a": [1]}, "nothing of it was put"


@pytest.mark.parametrize("kind", [Types.LIST(Types.LONG()), Types.ANY(), Types.PICKLED_BYTE_ARRAY()], ids=str)
def test_nobody_shares_an_object_with_the_state(kind: Any) -> None:
    states = OperatorStates("op")
    kept = states.get_list_state(ListStateDescriptor("kept", kind))
    shared = states.get_broadcast_state(MapStateDescriptor("shared", Types.LONG(), kind))
    value = [1]
    kept.add(value)
    shared[1] = value
    value.append(2)
    for seen in (*kept, *shared.values(), shared[1], shared.get(1)):
        seen.append(3)
    assert list(kept) == [[1]]
    assert list(shared.items()) == [(1, [1])]


def test_with_object_reuse_a_value_is_shared_until_it_is_written() -> None:
    states = OperatorStates("op", object_reuse=True)
    kept = states.get_list_state(ListStateDescriptor("kept", Types.LIST(Types.LONG())))
    kept.add([1])
    next(iter(kept)).append(2)
    again = OperatorStates("op")
    again.restore(states.snapshot())
    assert list(again.get_list_state(ListStateDescriptor("kept", Types.LIST(Types.LONG())))) == [[1, 2]]


def test_a_broadcast_state_is_a_mapping_whose_keys_keep_their_types() -> None:
    state = OperatorStates("op").get_broadcast_state(MapStateDescriptor("m", Types.ANY(), Types.ANY()))
    assert state.is_empty()
    for number, key in enumerate([1, 1.0, True, "1", (1, "a"), "more"]):
        state[key] = number
    assert [state[1], state[1.0], state[True], state["1"], state[(1, "a")]] == [0, 1, 2, 3, 4]
    state[1] = None
    assert state.get(1) is None
    assert state[1] is None
    assert 1 in state
    assert state.get("missing") is None
    with pytest.raises(KeyError):
        state["missing"]
    with pytest.raises(KeyError):
        del state["missing"]
    state.remove("missing")
    del state[1]
    assert 1 not in state
    assert len(list(state)) == 5
    state.clear()
    assert list(state.items()) == []


ELEMENTS = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=8)


@settings(max_examples=60)
@given(
    per_subtask=st.lists(ELEMENTS, min_size=1, max_size=5),
    widths=st.lists(st.integers(1, 6), min_size=1, max_size=3),
)
def test_no_element_is_lost_or_doubled_over_any_row_of_widths(
    tmp_path_factory: pytest.TempPathFactory, per_subtask: list[list[int]], widths: list[int]
) -> None:
    rig = Rig(buffering, tmp_path_factory.mktemp("rig"), flavour=None, parallelism=len(per_subtask))
    for subtask, numbers in enumerate(per_subtask):
        rig.block(subtask, 0, numbers)
    everything = sorted(chain.from_iterable(per_subtask))
    for checkpoint_id, width in enumerate(widths, 1):
        before = rig.parallelism
        rig = rig.restarted(rig.snapshot(checkpoint_id), parallelism=width)
        held = [function.held for function in functions(rig)]
        assert sorted(chain.from_iterable(held)) == everything
        if width != before:
            assert max(map(len, held)) - min(map(len, held)) <= 1
        assert all(len(function.known) == before for function in functions(rig))
