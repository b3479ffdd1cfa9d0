"""Connecting streams: what it plans, what `explain` says of it, and what is refused before anything runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from headrace import (
    BroadcastProcessFunction,
    CoFlatMapFunction,
    CoMapFunction,
    ConnectedStreams,
    CoProcessFunction,
    Duration,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    MapStateDescriptor,
    OutputTag,
    ProcessJoinFunction,
    StreamExecutionEnvironment,
    Time,
    Types,
    ValueStateDescriptor,
)
from headrace.errors import ConfigurationError, JobDefinitionError, KeyedStateError
from headrace.operators.connected_factories import IntervalJoinFactory, TemporalJoinFactory
from headrace.plan.explain import execution_plan, explain
from headrace.plan.graph import Broadcast, Hash

RULES = MapStateDescriptor("rules", Types.STRING(), Types.LONG())
ROW = Types.ROW_NAMED(["name", "number"], [Types.STRING(), Types.LONG()])


class Map(CoMapFunction):
    def map1(self, value: Any) -> Any:
        return value

    def map2(self, value: Any) -> Any:
        return value


class FlatMap(CoFlatMapFunction):
    def flat_map1(self, value: Any) -> Any: ...

    def flat_map2(self, value: Any) -> Any: ...


class Process(CoProcessFunction):
    def process_element1(self, value: Any, ctx: Any) -> Any: ...

    def process_element2(self, value: Any, ctx: Any) -> Any: ...


class KeyedProcess(KeyedCoProcessFunction):
    def open(self, runtime_context: Any) -> None:
        runtime_context.get_state(ValueStateDescriptor("x", Types.LONG()))

    def process_element1(self, value: Any, ctx: Any) -> Any: ...

    def process_element2(self, value: Any, ctx: Any) -> Any: ...


class Rules(BroadcastProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any: ...

    def process_broadcast_element(self, value: Any, ctx: Any) -> Any: ...


class KeyedRules(KeyedBroadcastProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any: ...

    def process_broadcast_element(self, value: Any, ctx: Any) -> Any: ...


class Join(ProcessJoinFunction):
    def process_element(self, left: Any, right: Any, ctx: Any) -> Any: ...


@pytest.fixture
def env() -> StreamExecutionEnvironment:
    environment = StreamExecutionEnvironment.get_execution_environment()
    environment.set_parallelism(2)
    return environment


def streams(env: StreamExecutionEnvironment) -> tuple[Any, Any]:
    return env.from_collection([("a", 1)], ROW), env.from_collection([("b", 2)], ROW)


def test_two_edges_lead_to_one_operator_by_input_and_it_stands_in_a_chain_of_its_own(
    env: StreamExecutionEnvironment,
) -> None:
    one, two = streams(env)
    one.set_parallelism(2).map(lambda r: r).connect(two.set_parallelism(2).map(lambda r: r)).map(Map()).print()
    plan, _ = env.build("connected")
    (node,) = (n for n in plan.graph.nodes if n.name == "co_map")
    assert [edge.input for edge in plan.graph.inputs(node.id)] == [0, 1]
    chain = plan.chain_of(node.id)
    assert chain.nodes[0] == node.id, "it never runs in the task of its producers"
    assert len(chain.nodes) == 2, "but what follows may join it"
    assert all(edge.id in plan.exchanged for edge in plan.graph.inputs(node.id))


def test_a_stream_connected_with_itself_has_two_edges(env: StreamExecutionEnvironment) -> None:
    one, _ = streams(env)
    one.connect(one).process(Process()).print()
    plan, _ = env.build("itself")
    (node,) = (n for n in plan.graph.nodes if n.name == "co_process")
    assert [(edge.source, edge.input) for edge in plan.graph.inputs(node.id)] == [(0, 0), (0, 1)]


def test_a_union_may_be_connected(env: StreamExecutionEnvironment) -> None:
    one, two = streams(env)
    connected = one.union(two).connect(two.union(one, two))
    connected.flat_map(FlatMap()).print()
    plan, _ = env.build("unions")
    assert sorted(edge.input for edge in plan.graph.edges) == [0, 0, 0, 1, 1, 1]  # and the one to print


def test_keys_by_the_streams_or_by_the_connected_streams_are_the_same(env: StreamExecutionEnvironment) -> None:
    one, two = streams(env)
    plans = []
    for connected in (
        one.key_by("name").connect(two.key_by("name")),
        one.connect(two).key_by("name", lambda r: r.name),
    ):
        connected.process(KeyedProcess()).print()
        plan, _ = env.build("keyed")
        node = next(n for n in reversed(plan.graph.nodes) if n.name == "co_process")
        plans.append([(e.input, type(e.partitioning)) for e in plan.graph.inputs(node.id)])
        assert node.factory.keyed
    assert plans[0] == plans[1] == [(0, Hash), (1, Hash)]


def test_the_broadcast_side_of_a_keyed_operator_needs_no_key(env: StreamExecutionEnvironment) -> None:
    one, two = streams(env)
    one.key_by("name").connect(two.broadcast(RULES)).process(KeyedRules()).print()
    plan, settings = env.build("rules")
    (node,) = (n for n in plan.graph.nodes if n.name == "broadcast_process")
    assert [type(edge.partitioning) for edge in plan.graph.inputs(node.id)] == [Hash, Broadcast]
    text = explain(plan, settings)
    assert "⇐ input 1: collection, by key (name)" in text
    assert "⇐ input 2: collection, broadcast" in text
    assert "state: broadcast rules: MAP<" in text
    nodes = json.loads(execution_plan(plan.graph))["nodes"]
    assert [p["side"] for p in nodes[node.id]["predecessors"]] == ["first", "second"]


def test_bounds_of_an_interval_join_are_whole_milliseconds_and_may_be_exclusive(
    env: StreamExecutionEnvironment,
) -> None:
    one, two = streams(env)
    joined = one.key_by("name").interval_join(two.key_by("name")).between(Time.seconds(-5), Duration.of_minutes(1))
    late = OutputTag("late")
    stream = (
        joined.lower_bound_exclusive()
        .upper_bound_exclusive()
        .side_output_left_late_data(late)
        .side_output_right_late_data(late)
        .process(Join())
    )
    stream.get_side_output(late).print()
    factory = stream.outlets[0].source.factory
    assert isinstance(factory, IntervalJoinFactory)
    assert (factory.lower, factory.upper) == (-4_999, 59_999)
    assert (factory.left_type, factory.right_type) == (ROW, ROW)
    assert (factory.left_late, factory.right_late) == (late, late)
    plan, settings = env.build("interval")
    assert "state: left list" in explain(plan, settings)


def test_a_temporal_join_keeps_the_types_of_both_streams(env: StreamExecutionEnvironment) -> None:
    one, two = streams(env)
    stream = one.key_by("name").temporal_join(two.key_by("name"), how="left")
    factory = stream.outlets[0].source.factory
    assert isinstance(factory, TemporalJoinFactory)
    assert factory.outer
    assert factory.row_type == ROW


def test_integers_of_any_width_may_meet_as_keys(env: StreamExecutionEnvironment) -> None:
    one, two = streams(env)
    narrow = two.map(lambda r: r, output_type=Types.ROW_NAMED(["name", "number"], [Types.STRING(), Types.INT()]))
    assert isinstance(one.connect(narrow).key_by("number", "number"), ConnectedStreams)


REFUSED: dict[str, tuple[Callable[[Any, Any], Any], type[Exception], str]] = {
    "a keyed function without keys": (
        lambda one, two: one.connect(two).process(KeyedProcess()),
        KeyedStateError,
        r"not both keyed.*key_by\(selector1, selector2\)",
    ),
    "half a key": (
        lambda one, two: one.key_by("name").connect(two).process(KeyedProcess()),
        KeyedStateError,
        "not both keyed",
    ),
    "keys of two types": (
        lambda one, two: one.connect(two).key_by("name", "number"),
        JobDefinitionError,
        "never the same key",
    ),
    "a plain function": (
        lambda one, two: one.connect(two).map(lambda r: r),
        JobDefinitionError,
        "wanted a CoMapFunction",
    ),
    "a class": (lambda one, two: one.connect(two).flat_map(FlatMap), JobDefinitionError, r"Write FlatMap\(...\)"),
    "no stream": (lambda one, two: one.connect([1]), JobDefinitionError, "wanted a stream"),
    "a value state": (
        lambda one, two: one.broadcast(ValueStateDescriptor("x", Types.LONG())),
        JobDefinitionError,
        "Give a MapStateDescriptor",
    ),
    "one name twice": (lambda one, two: one.broadcast(RULES, RULES), JobDefinitionError, "Rename one"),
    "a keyed stream as broadcast": (
        lambda one, two: one.key_by("name").broadcast(RULES),
        JobDefinitionError,
        "tear records from their keys",
    ),
    "a keyed broadcast function without keys": (
        lambda one, two: one.connect(two.broadcast(RULES)).process(KeyedRules()),
        KeyedStateError,
        "Call key_by",
    ),
    "a broadcast function without keys on a keyed stream": (
        lambda one, two: one.key_by("name").connect(two.broadcast(RULES)).process(Rules()),
        JobDefinitionError,
        "knows no key",
    ),
    "an interval join with a stream that has no key": (
        lambda one, two: one.key_by("name").interval_join(two),
        KeyedStateError,
        "another keyed stream",
    ),
    "an interval join of streams without keys": (
        lambda one, two: one.interval_join(two),
        KeyedStateError,
        r"interval_join\(\) works per key",
    ),
    "an empty interval": (
        lambda one, two: (
            one.key_by("name").interval_join(two.key_by("name")).between(0, 0).upper_bound_exclusive().process(Join())
        ),
        JobDefinitionError,
        "leaves no time",
    ),
    "bounds that are no durations": (
        lambda one, two: one.key_by("name").interval_join(two.key_by("name")).between("1s", 5),
        ConfigurationError,
        "lower bound of the interval join",
    ),
    "a temporal join without a key": (lambda one, two: one.temporal_join(two), KeyedStateError, "works per key"),
    "late data without a tag": (
        lambda one, two: one.key_by("name").temporal_join(two.key_by("name"), late_data="late"),
        JobDefinitionError,
        "wanted an OutputTag",
    ),
    "side outputs of a map": (
        lambda one, two: one.connect(two).map(Map()).get_side_output(OutputTag("x")),
        JobDefinitionError,
        "has no side outputs",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_work_is_refused_while_the_program_is_built(env: StreamExecutionEnvironment, what: str) -> None:
    build, error, words = REFUSED[what]
    with pytest.raises(error, match=words):
        build(*streams(env))


def test_streams_of_two_environments_do_not_meet(env: StreamExecutionEnvironment) -> None:
    one, _ = streams(env)
    stranger, _ = streams(StreamExecutionEnvironment.get_execution_environment())
    for connect in (
        lambda: one.connect(stranger),
        lambda: one.connect(stranger.broadcast(RULES)),
        lambda: one.key_by("name").interval_join(stranger.key_by("name")),
        lambda: one.key_by("name").temporal_join(stranger.key_by("name")),
    ):
        with pytest.raises(JobDefinitionError, match="another environment"):
            connect()
