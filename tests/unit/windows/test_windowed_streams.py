"""What programs say of windows, and what becomes of it: operators, types, names, refusals, window joins."""

from __future__ import annotations

from typing import Any

import pytest
from window_bench import Driven, WindowBench

from headrace import (
    AggregateFunction,
    AllWindowFunction,
    CoGroupFunction,
    CountEvictor,
    CountTrigger,
    DataStream,
    FlatJoinFunction,
    GlobalWindows,
    JobDefinitionError,
    JoinFunction,
    MapFunction,
    OutputTag,
    ProcessAllWindowFunction,
    ProcessWindowFunction,
    StreamExecutionEnvironment,
    Time,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    Types,
    WindowFunction,
)
from headrace.operators.factories import WindowFactory
from headrace.operators.windows.specification import WindowSpec

WINDOWS = TumblingEventTimeWindows.of(Time.milliseconds(10))
READING = Types.ROW_NAMED(["id", "temperature"], [Types.STRING(), Types.DOUBLE()])


@pytest.fixture
def env() -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment.get_execution_environment()


@pytest.fixture
def readings(env: StreamExecutionEnvironment) -> DataStream:
    return env.from_collection([("a", 1.0)], READING)


def spec_of(stream: DataStream) -> WindowSpec:
    factory = stream.outlets[0].source.factory
    assert isinstance(factory, WindowFactory)
    return factory.spec


class Count(AggregateFunction):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Any, accumulator: int) -> int:
        return accumulator + 1

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, acc1: int, acc2: int) -> int:
        return acc1 + acc2


class Listed(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Any) -> Any:
        return [(key, list(elements))]


class AllListed(ProcessAllWindowFunction):
    def process(self, context: Any, elements: Any) -> Any:
        return [list(elements)]


def test_a_window_keeps_the_type_of_its_stream(readings: DataStream) -> None:
    windowed = readings.key_by("id").window(WINDOWS)
    largest = windowed.max("temperature")
    assert largest.get_type() == READING
    assert spec_of(largest).element_type == READING
    assert windowed.reduce(lambda a, b: a).get_type() == READING
    assert windowed.reduce(lambda a, b: a, Listed()).get_type() is None
    counted = windowed.aggregate(Count(), accumulator_type=Types.LONG(), output_type=Types.INT())
    assert counted.get_type() == Types.INT()
    assert spec_of(counted).accumulator_type == Types.LONG()


def test_all_that_was_said_of_a_window_reaches_its_operator(readings: DataStream) -> None:
    late = OutputTag("late", READING)
    trigger, evictor = CountTrigger.of(3), CountEvictor.of(2)
    stream = (
        readings.key_by("id")
        .window(WINDOWS)
        .trigger(trigger)
        .evictor(evictor)
        .allowed_lateness(Time.seconds(1))
        .side_output_late_data(late)
        .process(Listed(), output_type=Types.PICKLED_BYTE_ARRAY())
    )
    spec = spec_of(stream)
    assert (spec.trigger, spec.evictor, spec.lateness_ms, spec.late_tag) == (trigger, evictor, 1000, late)
    assert stream.get_side_output(late).get_type() == READING
    assert stream.get_name() == "window process"


def test_windows_over_all_records_run_in_one_subtask(env: StreamExecutionEnvironment, readings: DataStream) -> None:
    env.set_parallelism(4)
    readings.window_all(WINDOWS).process(AllListed()).uid("all").print()
    plan, _ = env.build("job")
    (node,) = (node for node in plan.graph.nodes if node.uid == "all")
    assert (node.parallelism, node.max_parallelism) == (1, 1)


def test_count_windows_of_a_key_and_over_all(bench: WindowBench, readings: DataStream) -> None:
    per_key = bench.opened(spec_of(readings.key_by("id").count_window(2).aggregate(Count())))
    per_key.send(("a", ("a", 1.0), None), ("a", ("a", 2.0), None), ("b", ("b", 1.0), None))
    assert per_key.take() == [2]
    sliding = bench.opened(spec_of(readings.count_window_all(2, 1).aggregate(Count())))
    sliding.send(*((0, ("a", 1.0), None) for _ in range(4)))
    assert sliding.take() == [2, 2, 2]


@pytest.mark.parametrize(
    ("say", "message"),
    [
        (lambda w: w.process(Listed), r"got the class Listed. Write Listed\(...\)"),
        (lambda w: w.process(AllListed()), "wanted a ProcessWindowFunction"),
        (lambda w: w.aggregate(lambda a, b: a), "wanted an AggregateFunction"),
        (lambda w: w.reduce(max, AllListed()), "wanted a WindowFunction"),
        (lambda w: w.trigger(CountTrigger), r"Write CountTrigger\(...\)"),
        (lambda w: w.allowed_lateness(-1), "Give 0 or more"),
        (lambda w: w.sum("humidity"), "humidity"),
        (lambda w: w.side_output_late_data("late"), "wanted an OutputTag"),
    ],
)
def test_what_cannot_work_is_refused_where_it_is_said(readings: DataStream, say: Any, message: str) -> None:
    with pytest.raises(JobDefinitionError, match=message):
        say(readings.key_by("id").window(WINDOWS))


def test_windows_that_would_never_fire_or_are_none_are_refused(readings: DataStream) -> None:
    keyed = readings.key_by("id")
    with pytest.raises(JobDefinitionError, match="without a trigger they never give a result"):
        keyed.window(GlobalWindows.create()).aggregate(Count())
    with pytest.raises(JobDefinitionError, match="wanted a window assigner"):
        keyed.window(Time.seconds(1))  # type: ignore[arg-type]
    with pytest.raises(JobDefinitionError, match="by the clock nothing is late"):
        keyed.window(TumblingProcessingTimeWindows.of(10)).allowed_lateness(5)
    with pytest.raises(JobDefinitionError, match="whole number of records above 0"):
        keyed.count_window(0)


def test_plain_functions_serve_as_window_functions(bench: WindowBench, readings: DataStream) -> None:
    stream = readings.key_by("id").window(WINDOWS).apply(lambda key, window, inputs: [(key, window.end, len(inputs))])
    driven = bench.opened(spec_of(stream))
    driven.send(("a", ("a", 1.0), 1), ("a", ("a", 2.0), 2))
    driven.watermark(9)
    assert driven.take() == [("a", 10, 2)]

    class Whole(AllWindowFunction):
        def apply(self, window: Any, inputs: Any) -> Any:
            return [(window.start, len(list(inputs)))]

    driven = bench.opened(spec_of(readings.window_all(WINDOWS).apply(Whole())))
    driven.send((0, ("a", 1.0), 1), (0, ("b", 2.0), 2))
    driven.watermark(9)
    assert driven.take() == [(0, 2)]


def test_open_and_close_reach_both_functions(bench: WindowBench, readings: DataStream) -> None:
    calls: list[str] = []

    class Loud(Count):
        def open(self, runtime_context: Any) -> None:
            calls.append(f"open fold {runtime_context.get_index_of_this_subtask()}")

        def close(self) -> None:
            calls.append("close fold")

    class Labels(WindowFunction):
        def open(self, runtime_context: Any) -> None:
            calls.append(f"open window {runtime_context.get_index_of_this_subtask()}")

        def close(self) -> None:
            calls.append("close window")

        def apply(self, key: Any, window: Any, inputs: Any) -> Any:
            return inputs

    driven = bench.opened(spec_of(readings.key_by("id").window(WINDOWS).aggregate(Loud(), Labels())))
    driven.operator.close()
    bench.made.remove(driven.operator)
    assert calls == ["open fold 0", "open window 0", "close fold", "close window"]


def test_an_accumulator_may_need_what_open_made(bench: WindowBench, readings: DataStream) -> None:
    class FromOpen(Count):
        def open(self, runtime_context: Any) -> None:
            self.zero = 100

        def create_accumulator(self) -> int:
            return self.zero

    driven = bench.opened(spec_of(readings.key_by("id").window(WINDOWS).aggregate(FromOpen())))
    driven.send(("a", ("a", 1.0), 1))
    driven.watermark(9)
    assert driven.take() == [101]


# --- joins ---------------------------------------------------------------------------------------

ORDER = Types.ROW_NAMED(["order", "item"], [Types.LONG(), Types.STRING()])
SHIPMENT = Types.TUPLE([Types.STRING(), Types.LONG()])


@pytest.fixture
def streams(env: StreamExecutionEnvironment) -> tuple[DataStream, DataStream]:
    return env.from_collection([(1, "pen")], ORDER), env.from_collection([("x", 1)], SHIPMENT)


def meet(driven: Driven, stream: DataStream, firsts: list[Any], seconds: list[Any]) -> None:
    """Send (value, time) of both sides as the chain before the window does."""
    joined = stream.outlets[0].source
    for (outlet, _), side in zip(joined.inputs, (firsts, seconds), strict=True):
        tag = outlet.source.factory.user_function
        assert isinstance(tag, MapFunction)
        selector = outlet.partitioning.key.selector  # type: ignore[union-attr]
        for value, time in side:
            tagged = tag.map(value)
            driven.send((selector(tagged), tagged, time))


def rows(*values: tuple[int, str]) -> list[Any]:
    return [ORDER.make()(value) for value in values]


def test_every_pair_that_meets_in_a_window_is_joined(
    bench: WindowBench, streams: tuple[DataStream, DataStream]
) -> None:
    orders, shipments = streams
    joined = (
        orders.join(shipments)
        .where(lambda order: order.order)
        .equal_to(1)
        .window(WINDOWS)
        .apply(lambda order, shipment: (order.item, shipment[0]))
    )
    driven = bench.opened(spec_of(joined))
    pen, ink, pad = rows((1, "pen"), (1, "ink"), (2, "pad"))
    meet(driven, joined, [(pen, 1), (ink, 2), (pad, 3)], [(("x", 1), 4), (("y", 1), 12), (("z", 3), 4)])
    driven.watermark(100)
    assert sorted(driven.take()) == [("ink", "x"), ("pen", "x")]
    assert joined.get_name() == "window join"


def test_join_functions_may_give_one_or_many(bench: WindowBench, streams: tuple[DataStream, DataStream]) -> None:
    class One(JoinFunction):
        def join(self, first: Any, second: Any) -> Any:
            return [first.item, second[0]]

    class Many(FlatJoinFunction):
        def join(self, first: Any, second: Any) -> Any:
            if first.item != "ink":
                yield first.item
                yield second[0]

    for function, results in ((One(), [["pen", "x"], ["ink", "x"]]), (Many(), ["pen", "x"])):
        joined = streams[0].join(streams[1]).where("order").equal_to(1).window(WINDOWS).apply(function)
        driven = bench.opened(spec_of(joined))
        pen, ink = rows((1, "pen"), (1, "ink"))
        meet(driven, joined, [(pen, 1), (ink, 1)], [(("x", 1), 4)])
        driven.watermark(100)
        assert driven.take() == results


def test_a_co_group_sees_keys_of_one_side_too(bench: WindowBench, streams: tuple[DataStream, DataStream]) -> None:
    class Outer(CoGroupFunction):
        def co_group(self, first: Any, second: Any) -> Any:
            yield [o.item for o in first], [s[0] for s in second]

    grouped = (
        streams[0].co_group(streams[1]).where("order").equal_to(1).window(WINDOWS).allowed_lateness(5).apply(Outer())
    )
    driven = bench.opened(spec_of(grouped))
    pen, pad = rows((1, "pen"), (2, "pad"))
    meet(driven, grouped, [(pen, 1), (pad, 1)], [(("x", 1), 4), (("y", 3), 4)])
    saved = bench.snapshot(driven)
    again = bench.opened(spec_of(grouped), restored=[saved])
    again.watermark(9)
    assert sorted(again.take()) == [([], ["y"]), (["pad"], []), (["pen"], ["x"])]
    meet(again, grouped, [], [(("z", 2), 5)])
    assert again.take() == [(["pad"], ["z"])]


def test_streams_of_two_environments_do_not_meet(streams: tuple[DataStream, DataStream]) -> None:
    other = StreamExecutionEnvironment.get_execution_environment().from_collection([1])
    with pytest.raises(JobDefinitionError, match="another environment"):
        streams[0].join(other)
    with pytest.raises(JobDefinitionError, match="no stream"):
        streams[0].co_group([1])  # type: ignore[arg-type]
