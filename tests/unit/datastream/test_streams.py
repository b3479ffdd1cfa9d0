"""What each method of a stream adds to the plan, and what it refuses."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from headrace.connectors.print import PrintSink
from headrace.connectors.sequence import NumberSequenceSource
from headrace.datastream.environment import StreamExecutionEnvironment
from headrace.datastream.streams import DataStream, KeyedStream
from headrace.errors import ConfigurationError, JobDefinitionError, KeyedStateError, TypeMismatchError
from headrace.operators.factories import (
    FilterFactory,
    FlatMapFactory,
    MapFactory,
    ProcessFactory,
    ReduceFactory,
    SinkFactory,
    SourceFactory,
    TimestampsFactory,
    WithStateFactory,
)
from headrace.operators.functions import (
    FilterFunction,
    KeyedProcessFunction,
    MapFunction,
    OutputTag,
    Partitioner,
    ProcessFunction,
    ReduceFunction,
    RuntimeContext,
)
from headrace.operators.watermarks import TimestampAssigner, WatermarkStrategy
from headrace.plan.graph import (
    Broadcast,
    Chaining,
    Custom,
    Edge,
    Forward,
    Hash,
    Node,
    Rebalance,
    Rescale,
    Shuffle,
    StreamGraph,
)
from headrace.types.information import Types

READING = Types.ROW_NAMED(["id", "at", "temperature"], [str, int, float])


class Double(MapFunction):
    def map(self, value: Any) -> Any:
        return value * 2


class Counting(MapFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.context = runtime_context

    def map(self, value: Any) -> Any:
        return value


class Split(ProcessFunction):
    def process_element(self, value: Any, ctx: ProcessFunction.Context) -> list[Any]:
        return [value]


class PerKey(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> list[Any]:
        return [value]


class Keep(FilterFunction):
    def filter(self, value: Any) -> bool:
        return True


class Sum(ReduceFunction):
    def reduce(self, value1: Any, value2: Any) -> Any:
        return value1 + value2


class ByLength(Partitioner):
    def partition(self, key: Any, num_partitions: int) -> int:
        return len(key) % num_partitions


class At(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return value.at


@pytest.fixture
def env() -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)


@pytest.fixture
def numbers(env: StreamExecutionEnvironment) -> DataStream:
    return env.from_source(NumberSequenceSource(0, 9), WatermarkStrategy.no_watermarks(), "numbers")


@pytest.fixture
def readings(env: StreamExecutionEnvironment) -> DataStream:
    return env.from_collection([("a", 1, 2.0)], READING)


def graph_of(env: StreamExecutionEnvironment) -> StreamGraph:
    return env.build("job")[0].graph


def last(env: StreamExecutionEnvironment) -> tuple[Node, Edge]:
    graph = graph_of(env)
    return graph.nodes[-1], graph.edges[-1]


def test_map_flat_map_and_filter_make_one_operator_each(env: StreamExecutionEnvironment, numbers: DataStream) -> None:
    numbers.map(Double()).flat_map(lambda v: [v]).filter(Keep()).map(str, output_type=str)
    nodes = graph_of(env).nodes
    assert [type(n.factory) for n in nodes] == [SourceFactory, MapFactory, FlatMapFactory, FilterFactory, MapFactory]
    assert [n.name for n in nodes] == ["numbers", "map", "flat_map", "filter", "map"]
    assert not any(n.factory.keyed for n in nodes)


def test_types_are_kept_where_records_do_not_change(numbers: DataStream) -> None:
    long = Types.LONG()
    assert numbers.get_type() == long
    assert numbers.filter(bool).get_type() == long
    assert numbers.rebalance().get_type() == long
    assert numbers.key_by(lambda v: v % 2).get_type() == long
    assert numbers.union(numbers.filter(bool)).get_type() == long
    assert numbers.map(str).get_type() is None
    assert numbers.map(str, output_type=str).get_type() == Types.STRING()
    assert numbers.union(numbers.map(str, output_type=str)).get_type() is None


def test_a_python_class_is_a_type(numbers: DataStream) -> None:
    made = numbers.map(lambda v: Pair(v, v), output_type=Pair)
    assert str(made.get_type()) == "ROW<left LONG, right LONG>"


@dataclass(frozen=True)
class Pair:
    left: int
    right: int


def test_edges_carry_the_type_of_what_travels(env: StreamExecutionEnvironment, readings: DataStream) -> None:
    readings.map(lambda r: r.id, output_type=str).key_by(lambda s: s).process(PerKey())
    assert [edge.type for edge in graph_of(env).edges] == [READING, Types.STRING()]


@pytest.mark.parametrize(
    ("route", "expected"),
    [
        (DataStream.rebalance, Rebalance()),
        (DataStream.rescale, Rescale()),
        (DataStream.shuffle, Shuffle()),
        (DataStream.broadcast, Broadcast()),
        (DataStream.forward, Forward()),
    ],
)
def test_routing_belongs_to_the_edge(
    env: StreamExecutionEnvironment, numbers: DataStream, route: Callable[[DataStream], DataStream], expected: Any
) -> None:
    route(numbers).map(str)
    node, edge = last(env)
    assert (edge.partitioning, edge.tag, node.name) == (expected, None, "map")
    assert len(graph_of(env).nodes) == 2


def test_a_partitioner_of_ones_own_gets_the_key(env: StreamExecutionEnvironment, readings: DataStream) -> None:
    readings.partition_custom(ByLength(), lambda r: r.id).map(str)
    _, edge = last(env)
    assert isinstance(edge.partitioning, Custom)
    assert edge.partitioning.partition("abc", 2) == 1
    assert edge.partitioning.key.fields == ("id",)


def test_a_union_has_an_edge_from_each_stream(env: StreamExecutionEnvironment, numbers: DataStream) -> None:
    numbers.union(numbers.map(str), numbers.rebalance()).map(str)
    graph = graph_of(env)
    into = graph.inputs(graph.nodes[-1].id)
    assert [(graph.node(e.source).name, e.partitioning) for e in into] == [
        ("numbers", Forward()),
        ("map", Forward()),
        ("numbers", Rebalance()),
    ]


def test_key_by_names_the_fields_of_typed_records(env: StreamExecutionEnvironment, readings: DataStream) -> None:
    for key in (lambda r: r.id, "id", 0):
        readings.key_by(key).process(PerKey())
        _, edge = last(env)
        assert isinstance(edge.partitioning, Hash)
        assert (edge.partitioning.key.fields, edge.partitioning.key.single) == (("id",), True)


def test_keyed_functions_get_state_only_if_they_open(env: StreamExecutionEnvironment, numbers: DataStream) -> None:
    keyed = numbers.key_by(lambda v: v % 2)
    for function, has_state in ((Counting(), True), (Double(), False), (str, False)):
        keyed.map(function)
        assert last(env)[0].factory.keyed is has_state
    numbers.map(Counting())
    assert last(env)[0].factory.keyed is False


def test_keyed_process_reduce_and_state_functions_are_keyed(
    env: StreamExecutionEnvironment, numbers: DataStream
) -> None:
    keyed = numbers.key_by(lambda v: v % 2)
    keyed.process(PerKey(), output_type=int)
    keyed.reduce(Sum())
    keyed.reduce(lambda a, b: a + b)
    keyed.map_with_state(lambda v, s: (v, s), state_type=float, output_type=int)
    keyed.flat_map_with_state(lambda v, s: ([v], s))
    nodes = graph_of(env).nodes[1:]
    assert [type(n.factory) for n in nodes] == [
        ProcessFactory, ReduceFactory, ReduceFactory, WithStateFactory, WithStateFactory,
    ]  # fmt: skip
    assert all(n.factory.keyed for n in nodes)
    assert [n.output_type for n in nodes] == [Types.LONG(), Types.LONG(), Types.LONG(), Types.LONG(), None]
    assert nodes[1].factory.value_type == Types.LONG()
    assert (nodes[3].factory.state_type, nodes[3].factory.flat) == (Types.DOUBLE(), False)
    assert (nodes[4].factory.state_type, nodes[4].factory.flat) == (Types.ANY(), True)


def test_aggregations_of_untyped_streams_keep_any_plain_value(env: StreamExecutionEnvironment) -> None:
    env.from_collection([("a", 1)]).key_by(0).sum(1)
    assert last(env)[0].factory.value_type == Types.ANY()


def test_side_outputs_are_edges_with_a_tag(env: StreamExecutionEnvironment, numbers: DataStream) -> None:
    odd = OutputTag("odd", int)
    split = numbers.process(Split())
    split.get_side_output(odd).map(str)
    split.get_side_output(OutputTag("odd", int)).print()
    tags = [(e.tag, e.type) for e in graph_of(env).edges]
    assert tags == [(None, Types.LONG()), ("odd", Types.LONG()), ("odd", Types.LONG())]


def test_one_side_output_has_one_type(numbers: DataStream) -> None:
    split = numbers.process(Split())
    split.get_side_output(OutputTag("odd", int))
    with pytest.raises(JobDefinitionError, match='"odd" of operator "process" is asked for as LONG and as STRING'):
        split.get_side_output(OutputTag("odd", str))


def test_a_timestamp_field_is_found_in_sources_and_streams(
    env: StreamExecutionEnvironment, readings: DataStream
) -> None:
    monotonous = WatermarkStrategy.for_monotonous_timestamps()
    for assigner, expected in ((lambda r, ts: r.at, "at"), (At(), "at"), (lambda r, ts: r.at * 2, None)):
        readings.assign_timestamps_and_watermarks(monotonous.with_timestamp_assigner(assigner))
        node, _ = last(env)
        assert isinstance(node.factory, TimestampsFactory)
        assert node.factory.strategy.timestamp_field == expected
        assert node.output_type == READING


def test_names_uids_and_widths_belong_to_the_operator(env: StreamExecutionEnvironment, numbers: DataStream) -> None:
    numbers.map(str).name("words").uid("w").set_parallelism(3).set_max_parallelism(64).disable_chaining()
    node, _ = last(env)
    assert (node.name, node.uid, node.parallelism, node.max_parallelism) == ("words", "w", 3, 64)
    assert (node.chaining, node.uid_is_generated) == (Chaining.NEVER, False)
    numbers.map(str).start_new_chain()
    assert last(env)[0].chaining is Chaining.HEAD


def test_sinks_can_be_named_and_sized(env: StreamExecutionEnvironment, numbers: DataStream) -> None:
    sink = numbers.sink_to(PrintSink()).name("out").uid("o").set_parallelism(1).set_max_parallelism(8)
    sink.disable_chaining()
    node, edge = last(env)
    assert (node.name, node.uid, node.parallelism, node.max_parallelism) == ("out", "o", 1, 8)
    assert isinstance(edge.partitioning, Rebalance)
    numbers.print("here")
    factory = last(env)[0].factory
    assert isinstance(factory, SinkFactory)
    assert factory.sink.describe() == "print as here"


def test_operators_know_the_line_that_declared_them(env: StreamExecutionEnvironment, numbers: DataStream) -> None:
    numbers.map(str)
    assert last(env)[0].declared_at.startswith("datastream/test_streams.py:")


def test_the_graph_travels_by_pickle(env: StreamExecutionEnvironment, readings: DataStream) -> None:
    readings.key_by(("id", "at")).sum("temperature").print()
    graph = graph_of(env)
    assert pickle.loads(pickle.dumps(graph)).edges[0].partitioning.key.fields == ("id", "at")


@pytest.mark.parametrize(
    "call",
    [
        lambda s: s.reduce(max),
        lambda s: s.sum(0),
        lambda s: s.min(0),
        lambda s: s.max(0),
        lambda s: s.min_by(0),
        lambda s: s.max_by(0),
        lambda s: s.map_with_state(max),
        lambda s: s.flat_map_with_state(max),
        lambda s: s.process(PerKey()),
    ],
)
def test_what_works_per_key_asks_for_key_by(numbers: DataStream, call: Callable[[DataStream], Any]) -> None:
    with pytest.raises(KeyedStateError, match=r"key_by\(\) first"):
        call(numbers)


@pytest.mark.parametrize(
    "call",
    [
        lambda s: s.rebalance(),
        lambda s: s.rescale(),
        lambda s: s.shuffle(),
        lambda s: s.forward(),
        lambda s: s.broadcast(),
        lambda s: s.partition_custom(max, str),
        lambda s: s.name("x"),
        lambda s: s.uid("x"),
        lambda s: s.set_parallelism(1),
        lambda s: s.get_side_output(OutputTag("x")),
        lambda s: s.process(Split()),
    ],
)
def test_what_makes_no_sense_on_a_keyed_stream_is_refused(
    numbers: DataStream, call: Callable[[KeyedStream], Any]
) -> None:
    with pytest.raises(JobDefinitionError):
        call(numbers.key_by(lambda v: v))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: s.map(Double), r"Write Double\(\.\.\.\)"),
        (lambda s: s.map(Keep()), r"Keep has no method map\(\)"),
        (lambda s: s.map(7), "7 cannot be called"),
        (lambda s: s.filter("x"), "'x' cannot be called"),
        (lambda s: s.process(lambda v: v), r"wanted a ProcessFunction\. For a plain function use flat_map\(\)"),
        (lambda s: s.process(Split), r"Write Split\(\.\.\.\)"),
        (lambda s: s.key_by(lambda v: v).map_with_state(Double()), r"use map\(\), flat_map\(\) or process\(\)"),
        (lambda s: s.key_by(lambda v: v).sum("x"), "the records are LONG, which has no fields"),
        (lambda s: s.sink_to(print), "wanted a Sink object"),
        (lambda s: s.sink_to(PrintSink), r"Write PrintSink\(\.\.\.\)"),
        (lambda s: s.union(3), "3, which is no stream"),
        (lambda s: s.get_side_output("x"), "wanted an OutputTag"),
        (lambda s: s.map(str).get_side_output(OutputTag("x")), "has no side outputs"),
        (lambda s: s.union(s).name("x"), r"name\(\) belongs to an operator"),
        (lambda s: s.rebalance().uid("x"), r"uid\(\) belongs to an operator"),
        (lambda s: s.uid(""), "Give a printable str"),
        (lambda s: s.assign_timestamps_and_watermarks("x"), "is no WatermarkStrategy"),
    ],
)
def test_a_wrong_call_names_the_way_out(numbers: DataStream, call: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(JobDefinitionError, match=message):
        call(numbers)


@pytest.mark.parametrize("width", [0, -1, True, 1.5, "2"])
def test_a_width_that_cannot_be_is_refused(numbers: DataStream, width: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"parallelism is .*wanted a whole number"):
        numbers.map(str).set_parallelism(width)


def test_streams_of_two_environments_do_not_join(numbers: DataStream) -> None:
    other = StreamExecutionEnvironment.get_execution_environment().from_collection([1])
    with pytest.raises(JobDefinitionError, match="another environment"):
        numbers.union(other)


def test_values_of_a_collection_are_checked_at_once(env: StreamExecutionEnvironment) -> None:
    with pytest.raises(TypeMismatchError, match=r"from_collection\(\), value 1"):
        env.from_collection([1, "two"], int)


def test_a_collection_is_read_by_one_subtask(env: StreamExecutionEnvironment) -> None:
    env.from_collection([1, 2]).map(str)
    nodes = graph_of(env).nodes
    assert [n.parallelism for n in nodes] == [1, 2]


def test_a_source_keeps_the_type_it_knows(env: StreamExecutionEnvironment) -> None:
    with pytest.raises(JobDefinitionError, match='"n" produces LONG, but from_source'):
        env.from_source(NumberSequenceSource(0, 1), WatermarkStrategy.no_watermarks(), "n", Types.STRING())
    with pytest.raises(JobDefinitionError, match="wanted a Source object"):
        env.add_source([1, 2])  # type: ignore[arg-type]
