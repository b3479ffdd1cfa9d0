"""PyFlink-style programs with keys, state and timers: only the first word of their imports is Headrace's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from running import collected, environment

from headrace.pyflink.common import Configuration, Duration, Row, Time, Types, WatermarkStrategy
from headrace.pyflink.common.watermark_strategy import TimestampAssigner
from headrace.pyflink.datastream import (
    DataStream,
    EmbeddedRocksDBStateBackend,
    FilterFunction,
    FlatMapFunction,
    HashMapStateBackend,
    KeyedProcessFunction,
    KeySelector,
    MapFunction,
    ReduceFunction,
    RuntimeContext,
    RuntimeExecutionMode,
    StreamExecutionEnvironment,
)
from headrace.pyflink.datastream.functions import AggregateFunction
from headrace.pyflink.datastream.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from headrace.testing import JobHarness, ManualSource

LINES = ["the river runs", "the race runs on", "on the river"]


class Split(FlatMapFunction):
    def flat_map(self, value: str) -> Iterator[tuple[str, int]]:
        for word in value.split():
            yield word, 1


class AddCounts(ReduceFunction):
    def reduce(self, value1: Any, value2: Any) -> Any:
        return value1[0], value1[1] + value2[1]


def word_counts(env: StreamExecutionEnvironment) -> DataStream:
    pair = Types.TUPLE([Types.STRING(), Types.INT()])
    return (
        env.from_collection(LINES, type_info=Types.STRING())
        .flat_map(Split(), output_type=pair)
        .key_by(lambda pair: pair[0], key_type=Types.STRING())
        .reduce(AddCounts())
    )


@pytest.mark.parametrize("parallelism", [1, 2])
def test_word_count_emits_a_new_count_for_every_word(parallelism: int) -> None:
    counts = collected(word_counts(environment(parallelism)))
    assert Counter(word for word, _ in counts) == {"the": 3, "river": 2, "runs": 2, "race": 1, "on": 2}
    assert [n for word, n in counts if word == "the"] == [1, 2, 3]


@pytest.mark.parametrize("mode", [RuntimeExecutionMode.BATCH, RuntimeExecutionMode.AUTOMATIC])
def test_word_count_in_batch_mode_emits_the_last_count_of_each_word_alone(mode: RuntimeExecutionMode) -> None:
    env = environment(2)
    env.set_runtime_mode(mode)
    assert sorted(collected(word_counts(env))) == [("on", 2), ("race", 1), ("river", 2), ("runs", 2), ("the", 3)]


@pytest.mark.parametrize("backend", [HashMapStateBackend, EmbeddedRocksDBStateBackend])
def test_batch_mode_counts_every_word_once_through_a_crash(backend: Any) -> None:
    source = ManualSource(str)
    env = environment(2)
    env.set_runtime_mode(RuntimeExecutionMode.BATCH)
    env.set_state_backend(backend())
    pair = Types.TUPLE([Types.STRING(), Types.INT()])
    words = env.from_source(source, WatermarkStrategy.no_watermarks(), "lines").flat_map(Split(), output_type=pair)
    with JobHarness(words.key_by(lambda pair: pair[0]).reduce(AddCounts())) as job:
        source.emit(*LINES[:2])
        job.run()
        source.emit(LINES[2])
        job.crash()
        source.end()
        assert sorted(job.run_to_end()) == [("on", 2), ("race", 1), ("river", 2), ("runs", 2), ("the", 3)]


def test_batch_mode_may_be_asked_for_by_configuration() -> None:
    config = Configuration()
    config.set_string("execution.runtime-mode", "BATCH")
    env = StreamExecutionEnvironment.get_execution_environment(config)
    assert len(collected(word_counts(env))) == 5


class Countdown(KeyedProcessFunction):
    """Counts the clicks of a user until nothing came for ten seconds of event time."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
        self.deadline = runtime_context.get_state(ValueStateDescriptor("deadline", Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        self.count.update((self.count.value() or 0) + 1)
        if self.deadline.value() is not None:
            ctx.timer_service().delete_event_time_timer(self.deadline.value())
        deadline = ctx.timestamp() + 10_000
        ctx.timer_service().register_event_time_timer(deadline)
        self.deadline.update(deadline)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Any]:
        yield Row(ctx.get_current_key(), self.count.value(), timestamp)
        self.count.clear()
        self.deadline.clear()


class ClickTime(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return int(value[1])


def test_a_process_function_with_timers_and_state_reports_when_a_user_falls_silent() -> None:
    env = environment()
    clicks = env.from_collection(
        [("ann", 1_000), ("bob", 2_000), ("ann", 9_000), ("ann", 40_000)],
        type_info=Types.TUPLE([Types.STRING(), Types.LONG()]),
    )
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(1)).with_timestamp_assigner(
        ClickTime()
    )
    silent = (
        clicks.assign_timestamps_and_watermarks(strategy)
        .key_by(lambda click: click[0])
        .process(Countdown(), output_type=Types.ROW([Types.STRING(), Types.LONG(), Types.LONG()]))
    )
    # A short bounded input sees no watermark before its end, so each click puts the deadline off.
    assert sorted(tuple(row) for row in collected(silent)) == [("ann", 3, 50_000), ("bob", 1, 12_000)]


def test_a_watermark_between_two_clicks_makes_the_timer_fire_in_time() -> None:
    source = ManualSource(Types.TUPLE([Types.STRING(), Types.LONG()]))
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(ClickTime())
    clicks = environment().from_source(source, strategy, "clicks")
    with JobHarness(clicks.key_by(lambda click: click[0]).process(Countdown())) as job:
        source.emit(("ann", 1_000), ("ann", 9_000))
        job.watermark(20_000)
        source.emit(("ann", 40_000))
        source.end()
        assert [tuple(row) for row in job.run_to_end()] == [("ann", 2, 19_000), ("ann", 1, 50_000)]


class Statistics(KeyedProcessFunction):
    """Every kind of keyed state at once."""

    def open(self, runtime_context: RuntimeContext) -> None:
        class Mean(AggregateFunction):
            def create_accumulator(self) -> Any:
                return 0, 0

            def add(self, value: Any, accumulator: Any) -> Any:
                return accumulator[0] + value, accumulator[1] + 1

            def get_result(self, accumulator: Any) -> Any:
                return accumulator[0] / accumulator[1]

            def merge(self, acc1: Any, acc2: Any) -> Any:
                return acc1[0] + acc2[0], acc1[1] + acc2[1]

        self.seen = runtime_context.get_list_state(ListStateDescriptor("seen", Types.INT()))
        self.times = runtime_context.get_map_state(MapStateDescriptor("times", Types.INT(), Types.INT()))
        self.largest = runtime_context.get_reducing_state(ReducingStateDescriptor("largest", max, Types.INT()))
        self.mean = runtime_context.get_aggregating_state(
            AggregatingStateDescriptor("mean", Mean(), Types.TUPLE([Types.INT(), Types.INT()]))
        )

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        number = value[1]
        self.seen.add(number)
        self.times[number] = self.times[number] + 1 if number in self.times else 1
        self.largest.add(number)
        self.mean.add(number)
        yield value[0], list(self.seen), dict(self.times.items()), self.largest.get(), self.mean.get()


def test_every_kind_of_keyed_state_is_had_from_the_runtime_context() -> None:
    stream = environment().from_collection([("a", 2), ("b", 9), ("a", 4), ("a", 2)])
    last = {row[0]: row for row in collected(stream.key_by(lambda v: v[0]).process(Statistics()))}
    assert last["a"] == ("a", [2, 4, 2], {2: 2, 4: 1}, 4, 8 / 3)
    assert last["b"] == ("b", [9], {9: 1}, 9, 9.0)


def test_keyed_aggregations_by_position_and_by_name() -> None:
    env = environment()
    row = Types.ROW_NAMED(["city", "degrees"], [Types.STRING(), Types.INT()])
    readings = env.from_collection([Row("oslo", 3), Row("rome", 20), Row("oslo", 5), Row("oslo", 1)], type_info=row)
    env2 = environment()
    pairs = env2.from_collection([("oslo", 3), ("oslo", 5), ("oslo", 1)])
    assert [r.degrees for r in collected(readings.key_by(lambda r: r.city).max("degrees")) if r.city == "oslo"] == [
        3,
        5,
        5,
    ]
    assert collected(pairs.key_by(lambda p: p[0]).sum(1)) == [("oslo", 3), ("oslo", 8), ("oslo", 9)]


class ByParity(KeySelector):
    def get_key(self, value: int) -> str:
        return "even" if value % 2 == 0 else "odd"


class NewOnly(FilterFunction):
    """A stateful filter: passes a key's first record of an hour."""

    def open(self, runtime_context: RuntimeContext) -> None:
        ttl = (
            StateTtlConfig.new_builder(Time.hours(1))
            .set_update_type(StateTtlConfig.UpdateType.OnCreateAndWrite)
            .set_state_visibility(StateTtlConfig.StateVisibility.NeverReturnExpired)
            .build()
        )
        descriptor = ValueStateDescriptor("seen", Types.BOOLEAN())
        descriptor.enable_time_to_live(ttl)
        self.seen = runtime_context.get_state(descriptor)

    def filter(self, value: int) -> bool:
        if self.seen.value():
            return False
        self.seen.update(True)
        return True


def test_state_with_a_time_to_live_forgets_after_an_hour_of_the_clock() -> None:
    source = ManualSource(int)
    stream = environment().from_source(source, WatermarkStrategy.no_watermarks(), "numbers")
    with JobHarness(stream.key_by(ByParity()).filter(NewOnly())) as job:
        source.emit(1, 3, 2, 5)
        job.run()
        job.advance(Time.minutes(59).to_milliseconds())
        source.emit(7)
        job.run()
        job.advance(Time.minutes(2).to_milliseconds())
        source.emit(9, 11)
        source.end()
        assert job.run_to_end() == [1, 2, 9]


class Enumerated(MapFunction):
    """What a function may know of its subtask."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.where = (
            runtime_context.get_index_of_this_subtask(),
            runtime_context.get_number_of_parallel_subtasks(),
            runtime_context.get_job_parameter("greeting", "none"),
        )
        self.counter = runtime_context.get_metrics_group().add_group("app").counter("records")

    def map(self, value: int) -> Any:
        self.counter.inc()
        return value, *self.where


def test_a_function_knows_its_subtask_its_parameters_and_its_metrics() -> None:
    env = environment(2)
    env.get_config().set_global_job_parameters({"greeting": "hello"})
    stream = env.from_collection([1, 2, 3, 4]).rebalance().map(Enumerated())
    rows = collected(stream)
    assert sorted(row[0] for row in rows) == [1, 2, 3, 4]
    assert {row[1] for row in rows} == {0, 1}
    assert {row[2:] for row in rows} == {(2, "hello")}
