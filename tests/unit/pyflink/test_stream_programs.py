"""PyFlink-style programs over several streams: connected, broadcast, windowed, side outputs, async, partitioning."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from running import collected, environment

from headrace.errors import JobDefinitionError
from headrace.pyflink.common import Duration, Row, RowKind, Time, Types, WatermarkStrategy
from headrace.pyflink.common.watermark_strategy import TimestampAssigner
from headrace.pyflink.datastream import (
    AggregateFunction,
    AsyncDataStream,
    AsyncFunction,
    AsyncRetryStrategy,
    BroadcastProcessFunction,
    CoMapFunction,
    DataStream,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    OutputTag,
    ProcessFunction,
    ProcessWindowFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
)
from headrace.pyflink.datastream.async_retry_predicates import has_exception_predicate
from headrace.pyflink.datastream.functions import AllWindowFunction, WindowFunction
from headrace.pyflink.datastream.state import MapStateDescriptor, ValueStateDescriptor
from headrace.pyflink.datastream.window import (
    CountTrigger,
    EventTimeSessionWindows,
    GlobalWindows,
    PurgingTrigger,
    SlidingEventTimeWindows,
    TimeWindow,
    Trigger,
    TriggerResult,
    TumblingEventTimeWindows,
)
from headrace.testing import JobHarness, ManualSource

READING = Types.ROW_NAMED(["room", "at", "degrees"], [Types.STRING(), Types.LONG(), Types.INT()])


class ReadingTime(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return int(value["at"])


BY_TIME = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(5)).with_timestamp_assigner(ReadingTime())


def readings(env: StreamExecutionEnvironment, *values: tuple[str, int, int]) -> DataStream:
    rows = [Row(room=room, at=at, degrees=degrees) for room, at, degrees in values]
    return env.from_collection(rows, type_info=READING).assign_timestamps_and_watermarks(BY_TIME)


class Mean(AggregateFunction):
    def create_accumulator(self) -> tuple[int, int]:
        return 0, 0

    def add(self, value: Any, accumulator: tuple[int, int]) -> tuple[int, int]:
        return accumulator[0] + value.degrees, accumulator[1] + 1

    def get_result(self, accumulator: tuple[int, int]) -> float:
        return accumulator[0] / accumulator[1]

    def merge(self, acc1: tuple[int, int], acc2: tuple[int, int]) -> tuple[int, int]:
        return acc1[0] + acc2[0], acc1[1] + acc2[1]


class WithWindow(ProcessWindowFunction[float, tuple, str, TimeWindow]):  # type: ignore[type-arg]
    def process(
        self, key: str, context: ProcessWindowFunction.Context[TimeWindow], elements: Iterable[float]
    ) -> Iterator[Any]:
        window: TimeWindow = context.window()
        for mean in elements:
            yield key, window.start, window.end, mean

    def clear(self, context: ProcessWindowFunction.Context) -> None:
        pass


def test_tumbling_windows_average_each_minute_of_event_time() -> None:
    stream = readings(environment(), ("hall", 1_000, 20), ("hall", 59_000, 22), ("hall", 61_000, 30), ("attic", 5, 5))
    means = (
        stream.key_by(lambda r: r["room"], key_type=Types.STRING())
        .window(TumblingEventTimeWindows.of(Time.minutes(1)))
        .aggregate(
            Mean(),
            window_function=WithWindow(),
            accumulator_type=Types.TUPLE([Types.LONG(), Types.LONG()]),
            output_type=Types.TUPLE([Types.STRING(), Types.LONG(), Types.LONG(), Types.DOUBLE()]),
        )
    )
    assert sorted(collected(means)) == [
        ("attic", 0, 60_000, 5.0),
        ("hall", 0, 60_000, 21.0),
        ("hall", 60_000, 120_000, 30.0),
    ]


class Visit(WindowFunction[Row, tuple, str, TimeWindow]):  # type: ignore[type-arg]
    def apply(self, key: str, window: TimeWindow, inputs: Iterable[Any]) -> Iterator[Any]:
        yield key, window.start, window.end, len(list(inputs))


def in_hall(at: int) -> Row:
    return Row(room="hall", at=at, degrees=1)


def test_session_windows_with_lateness_fire_again_and_send_what_is_too_late_aside() -> None:
    too_late = OutputTag("too-late", READING)
    source = ManualSource(READING)
    env = environment()
    stream = env.from_source(source, WatermarkStrategy.no_watermarks().with_timestamp_assigner(ReadingTime()), "rooms")
    visits = (
        stream.key_by(lambda r: r.room)
        .window(EventTimeSessionWindows.with_gap(Time.seconds(10)))
        .allowed_lateness(20_000)
        .side_output_late_data(too_late)
        .apply(Visit())
    )
    late = visits.get_side_output(too_late).map(lambda r: ("late", r.room, r.at))
    with JobHarness(visits.union(late)) as job:
        source.emit(in_hall(1_000), in_hall(6_000))
        job.watermark(20_000)
        source.emit(in_hall(9_000))
        job.watermark(60_000)
        source.emit(in_hall(2_000))
        source.end()
        assert job.run_to_end() == [("hall", 1_000, 16_000, 2), ("hall", 1_000, 19_000, 3), ("late", "hall", 2_000)]


class Span(AllWindowFunction):
    def apply(self, window: TimeWindow, inputs: Iterable[Any]) -> Iterator[Any]:
        yield window.start, sorted(r.room for r in inputs)


def test_sliding_windows_over_all_records() -> None:
    stream = readings(environment(2), ("hall", 1_000, 1), ("attic", 6_000, 1))
    spans = stream.window_all(SlidingEventTimeWindows.of(Time.seconds(10), Time.seconds(5))).apply(Span())
    assert sorted(collected(spans)) == [(-5_000, ["hall"]), (0, ["attic", "hall"]), (5_000, ["attic"])]


class AtTen(Trigger[Row, TimeWindow]):  # type: ignore[type-arg]
    """Fires when the degrees of a window reach ten."""

    def __init__(self) -> None:
        self.total = ValueStateDescriptor("total", Types.INT())

    def on_element(self, element: Any, timestamp: int, window: Any, ctx: Trigger.TriggerContext) -> TriggerResult:
        state = ctx.get_partitioned_state(self.total)
        state.update((state.value() or 0) + element.degrees)
        if state.value() < 10:
            return TriggerResult.CONTINUE
        state.clear()
        return TriggerResult.FIRE_AND_PURGE

    def on_processing_time(self, time: int, window: Any, ctx: Trigger.TriggerContext) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: Any, ctx: Trigger.TriggerContext) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_merge(self, window: Any, ctx: Trigger.OnMergeContext) -> None:
        raise NotImplementedError

    def clear(self, window: Any, ctx: Trigger.TriggerContext) -> None:
        ctx.get_partitioned_state(self.total).clear()


def test_global_windows_with_triggers_of_ones_own_and_built_in() -> None:
    values = [("hall", t, d) for t, d in enumerate([4, 7, 3, 3, 5])]
    keyed = readings(environment(), *values).key_by(lambda r: r.room).window(GlobalWindows.create())
    own = keyed.trigger(AtTen()).reduce(lambda a, b: Row(room=a.room, at=b.at, degrees=a.degrees + b.degrees))
    assert [r.degrees for r in collected(own)] == [11, 11]
    keyed = readings(environment(), *values).key_by(lambda r: r.room).window(GlobalWindows.create())
    built_in = keyed.trigger(PurgingTrigger.of(CountTrigger.of(2))).sum("degrees")
    assert [r.degrees for r in collected(built_in)] == [11, 6]


class Matching(KeyedCoProcessFunction):
    """Pairs an order with its payment; reports an order that is not paid within a second."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.order = runtime_context.get_state(ValueStateDescriptor("order", Types.STRING()))

    def process_element1(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> None:
        self.order.update(value[1])
        ctx.timer_service().register_processing_time_timer(ctx.timer_service().current_processing_time() + 1_000)

    def process_element2(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> Iterator[Any]:
        if self.order.value() is not None:
            yield "paid", ctx.get_current_key(), self.order.value()
            self.order.clear()

    def on_timer(self, timestamp: int, ctx: KeyedCoProcessFunction.OnTimerContext) -> Iterator[Any]:
        if self.order.value() is not None:
            yield "unpaid", ctx.get_current_key(), self.order.value()


def test_connected_streams_share_keyed_state_and_timers() -> None:
    orders, payments = ManualSource(), ManualSource()
    env = environment(2)
    no_time = WatermarkStrategy.no_watermarks()
    connected = env.from_source(orders, no_time, "orders").connect(env.from_source(payments, no_time, "payments"))
    matched = connected.key_by(lambda o: o[0], lambda p: p[0], key_type=Types.INT()).process(Matching())
    with JobHarness(matched) as job:
        orders.emit((1, "lamp"), (2, "desk"))
        job.run()
        payments.emit((1, 30))
        job.run()
        job.advance(2_000)
        orders.end()
        payments.end()
        assert sorted(job.run_to_end()) == [("paid", 1, "lamp"), ("unpaid", 2, "desk")]


class Labels(CoMapFunction):
    def map1(self, value: int) -> str:
        return f"number {value}"

    def map2(self, value: str) -> str:
        return f"word {value}"


def test_a_co_map_gives_both_streams_one_type() -> None:
    env = environment()
    numbers, words = env.from_collection([1, 2], Types.INT()), env.from_collection(["a"], Types.STRING())
    labelled = numbers.connect(words).map(Labels(), output_type=Types.STRING())
    assert sorted(collected(labelled)) == ["number 1", "number 2", "word a"]


LIMITS = MapStateDescriptor("limits", Types.STRING(), Types.INT())


class OverLimit(KeyedBroadcastProcessFunction):
    """Passes readings over the limit of their room, which is broadcast and may change."""

    def process_element(self, value: Any, ctx: KeyedBroadcastProcessFunction.ReadOnlyContext) -> Iterator[Any]:
        limits = ctx.get_broadcast_state(LIMITS)
        if ctx.get_current_key() in limits and value.degrees > limits[ctx.get_current_key()]:
            yield ctx.get_current_key(), value.degrees

    def process_broadcast_element(self, value: Any, ctx: KeyedBroadcastProcessFunction.Context) -> None:
        room, limit = value
        ctx.get_broadcast_state(LIMITS)[room] = limit


def test_broadcast_rules_reach_every_subtask_and_take_effect_at_once() -> None:
    rooms, rules = ManualSource(READING), ManualSource()
    env = environment(2)
    no_time = WatermarkStrategy.no_watermarks()
    limits = env.from_source(rules, no_time, "rules").broadcast(LIMITS)
    keyed = env.from_source(rooms, no_time, "rooms").key_by(lambda r: r.room)
    with JobHarness(keyed.connect(limits).process(OverLimit())) as job:
        rules.emit(("hall", 20), ("attic", 30))
        job.run()
        rooms.emit(("hall", 0, 25), ("attic", 0, 25))
        job.run()
        rules.emit(("attic", 10))
        job.run()
        rooms.emit(("attic", 1, 25))
        rooms.end()
        rules.end()
        assert job.run_to_end() == [("hall", 25), ("attic", 25)]


class Scaled(BroadcastProcessFunction):
    def process_element(self, value: int, ctx: BroadcastProcessFunction.ReadOnlyContext) -> Iterator[int]:
        yield value * (ctx.get_broadcast_state(LIMITS).get("factor") or 1)

    def process_broadcast_element(self, value: int, ctx: BroadcastProcessFunction.Context) -> None:
        ctx.get_broadcast_state(LIMITS).put("factor", value)


def test_a_stream_without_keys_meets_a_broadcast_too() -> None:
    numbers, factors = ManualSource(int), ManualSource(int)
    env = environment()
    no_time = WatermarkStrategy.no_watermarks()
    stream = env.from_source(numbers, no_time, "numbers").connect(
        env.from_source(factors, no_time, "factors").broadcast(LIMITS)
    )
    with JobHarness(stream.process(Scaled())) as job:
        numbers.emit(1)
        job.run()
        factors.emit(10)
        job.run()
        numbers.emit(2)
        numbers.end()
        factors.end()
        assert job.run_to_end() == [1, 20]


ODD = OutputTag("odd", Types.INT())
NAMED = OutputTag("named", [Types.STRING(), Types.INT()])


class Sorted(ProcessFunction):
    def process_element(self, value: int, ctx: ProcessFunction.Context) -> Iterator[Any]:
        if value % 2:
            yield ODD, value
            yield NAMED, Row("odd", value)
        else:
            yield value


def test_side_outputs_carry_values_and_rows_of_their_own_types() -> None:
    def program() -> DataStream:
        return environment().from_collection([1, 2, 3, 4], Types.INT()).process(Sorted(), output_type=Types.INT())

    assert collected(program()) == [2, 4]
    assert collected(program().get_side_output(ODD)) == [1, 3]
    assert [row.f0 for row in collected(program().get_side_output(NAMED))] == ["odd", "odd"]


class LookUp(AsyncFunction):
    """Answers at the second attempt."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.asked: set[int] = set()

    async def async_invoke(self, value: int) -> list[Any]:
        if value not in self.asked:
            self.asked.add(value)
            raise ConnectionError("try again")
        return [(value, value * value)]


def test_async_calls_are_retried_and_keep_the_order_of_their_records() -> None:
    strategy = AsyncRetryStrategy.fixed_delay(3, 0, exception_predicate=has_exception_predicate)
    stream = environment().from_collection([3, 1, 2], Types.INT())
    squares = AsyncDataStream.ordered_wait_with_retry(
        stream, LookUp(), Time.seconds(60), strategy, capacity=2, output_type=Types.TUPLE([Types.INT(), Types.INT()])
    )
    assert collected(squares) == [(3, 9), (1, 1), (2, 4)]


def test_partitioning_projection_and_the_plan() -> None:
    env = environment(2)
    rows = env.from_collection(
        [("a", 1, 1.5), ("b", 2, 2.5)], Types.TUPLE([Types.STRING(), Types.INT(), Types.DOUBLE()])
    )
    projected = (
        rows.shuffle().map(lambda v: v, rows.get_type()).partition_custom(lambda key, n: key % n, lambda v: v[1])
    )
    projected = projected.map(lambda v: v, rows.get_type()).project(2, 0).force_non_parallel().name("pairs")
    assert projected.get_type() == Types.TUPLE([Types.DOUBLE(), Types.STRING()])
    nodes = json.loads(env.get_execution_plan())["nodes"]
    assert [node["parallelism"] for node in nodes] == [1, 2, 2, 1]
    assert sorted(collected(projected)) == [(1.5, "a"), (2.5, "b")]


def test_rows_are_templates_have_kinds_and_keep_them_where_no_type_is_declared() -> None:
    person = Row("name", "age")
    ann = person("Ann", 32)
    assert ann.as_dict() == {"name": "Ann", "age": 32}
    assert ann.get_row_kind() is RowKind.INSERT
    gone = Row.of_kind(RowKind.DELETE, "Bob", 40)
    kept = collected(environment().from_collection([ann, gone]).rebalance().map(lambda row: row))
    assert [str(row.get_row_kind()) for row in kept] == ["+I", "-D"]
    typed = Types.ROW([Types.STRING(), Types.INT()])
    with pytest.raises(JobDefinitionError, match=r"is of kind -D, which a typed stream or state does not keep"):
        environment().from_collection([gone], typed)
