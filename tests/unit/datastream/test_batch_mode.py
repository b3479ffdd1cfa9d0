"""Batch mode: final results only, key by key, the same whether sorted in memory or on disk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import (
    BroadcastProcessFunction,
    Configuration,
    EventTimeSessionWindows,
    JobDefinitionError,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    MapStateDescriptor,
    OutputTag,
    ProcessJoinFunction,
    RuntimeExecutionMode,
    SensorSource,
    SlidingEventTimeWindows,
    StreamExecutionEnvironment,
    Time,
    TumblingEventTimeWindows,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from headrace.cep import CEP, Pattern, PatternProcessFunction, TimedOutPartialMatchHandler
from headrace.datastream.streams import DataStream
from headrace.errors import UserFunctionError
from headrace.operators import sorted_records
from headrace.operators.sorted_input import SortedInputOperator
from headrace.testing import JobHarness, ManualSource

READING = Types.TUPLE([Types.STRING(), Types.LONG(), Types.LONG()])
"""(key, time, number)."""
READINGS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 50), st.integers(0, 9)), max_size=30)


def environment(mode: RuntimeExecutionMode, parallelism: int = 2) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(parallelism)
    env.set_runtime_mode(mode)
    return env


def readings(env: StreamExecutionEnvironment, values: list[Any]) -> DataStream:
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda value, _: value[1])
    return env.from_collection(values, READING).assign_timestamps_and_watermarks(strategy)


def in_batch(build: Any, *inputs: list[Any], spill: bool = False) -> list[Any]:
    with pytest.MonkeyPatch.context() as patch:
        env = environment(RuntimeExecutionMode.BATCH)
        if spill:
            patch.setattr(sorted_records, "_SAMPLE_EVERY", 2)
            env.configure(Configuration().set_string("execution.sorted-inputs.memory", "1 b"))
        with JobHarness(build(*(readings(env, values) for values in inputs))) as harness:
            return harness.run_to_end()


def in_streaming(build: Any, *inputs: list[Any]) -> list[Any]:
    env = environment(RuntimeExecutionMode.STREAMING)
    with JobHarness(build(*(readings(env, sorted(values, key=lambda v: v[1])) for values in inputs))) as harness:
        return harness.run_to_end()


def label(key: Any, window: Any, inputs: Any) -> list[Any]:
    return [(key, window.start, window.end, sorted(inputs))]


AGGREGATES: dict[str, Any] = {"total": ("f2", "sum"), "most": ("f2", "max"), "mean": ("f2", "avg"), "n": "count"}
LATE = OutputTag("late", READING)


class Pairs(ProcessJoinFunction):
    def process_element(self, left: Any, right: Any, ctx: Any) -> Iterator[Any]:
        yield left, right


PROGRAMS: dict[str, Any] = {
    "tumbling": lambda s: (
        s.key_by(lambda v: v[0])
        .window(TumblingEventTimeWindows.of(Time.milliseconds(10)))
        .sum(2)
        # The other fields are those of any record of the window: which comes last, streaming leaves open.
        .map(lambda v: (v[0], v[1] // 10, v[2]))
    ),
    "sessions": lambda s: (
        s.key_by(lambda v: v[0]).window(EventTimeSessionWindows.with_gap(Time.milliseconds(5))).apply(label)
    ),
    "all": lambda s: s.window_all(TumblingEventTimeWindows.of(Time.milliseconds(20))).max(2).map(lambda v: v[2]),
    "join": lambda a, b: (
        a.key_by(lambda v: v[0]).interval_join(b.key_by(lambda v: v[0])).between(-3, 7).process(Pairs())
    ),
    "co-group": lambda a, b: (
        a.co_group(b)
        .where(lambda v: v[0])
        .equal_to(lambda v: v[0])
        .window(TumblingEventTimeWindows.of(Time.milliseconds(10)))
        .apply(lambda one, other: [(sorted(one), sorted(other))])
    ),
    "columns": lambda s: s.key_by(0).window(SlidingEventTimeWindows.of(10, 5)).aggregate_columns(AGGREGATES),
    "column sessions": lambda s: s.key_by(0).window(EventTimeSessionWindows.with_gap(5)).aggregate_columns(AGGREGATES),
    "columns behind windows": lambda s: (
        s.key_by(0)
        .window(TumblingEventTimeWindows.of(5))
        .apply(lambda key, window, found: [(key, window.start, len(found))], READING)
        .key_by(0)
        .window(TumblingEventTimeWindows.of(20))
        .allowed_lateness(100)
        .side_output_late_data(LATE)
        .aggregate_columns(AGGREGATES)
    ),
    "windows behind columns": lambda s: (
        s.key_by(0)
        .window(TumblingEventTimeWindows.of(5))
        .aggregate_columns(n="count")
        .key_by("f0")
        .window(TumblingEventTimeWindows.of(20))
        .apply(label)
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
@settings(max_examples=12, deadline=None)
@given(first=READINGS, second=READINGS, spill=st.booleans())
def test_results_that_do_not_depend_on_time_are_those_of_streaming(
    name: str, first: list[Any], second: list[Any], spill: bool
) -> None:
    build = PROGRAMS[name]
    inputs = [first, second] if build.__code__.co_argcount == 2 else [first]
    found, wanted = in_batch(build, *inputs, spill=spill), in_streaming(build, *inputs)
    assert Counter(map(repr, found)) == Counter(map(repr, wanted))


class Rises(PatternProcessFunction, TimedOutPartialMatchHandler):
    """Matches as they are, and what never came to its end."""

    def process_match(self, match: Any, ctx: Any) -> Iterator[Any]:
        yield match["low"][0], match["high"][0], ctx.timestamp()

    def process_timed_out_match(self, match: Any, ctx: Any) -> Iterator[Any]:
        yield TIMED_OUT, (match["low"][0], "timed out", ctx.timestamp())


TIMED_OUT = OutputTag("timed out")


def rises(stream: DataStream, contiguity: str) -> DataStream:
    low = Pattern.begin("low").where(lambda v: v[2] < 5)
    pattern = getattr(low, contiguity)("high").where(lambda v: v[2] > 4).within(Time.milliseconds(12))
    found = CEP.pattern(stream.key_by(lambda v: v[0]), pattern).process(Rises())
    return found.union(found.get_side_output(TIMED_OUT))


ORDERED_PROGRAMS: dict[str, Any] = {
    "pattern": lambda s: rises(s, "next"),
    "relaxed pattern": lambda s: rises(s, "followed_by"),
    "any pattern": lambda s: rises(s, "followed_by_any"),
    "pattern without keys": lambda s: CEP.pattern(s, Pattern.begin("a").where(lambda v: v[2] > 4).one_or_more()).select(
        lambda match: match["a"]
    ),
    "temporal join": lambda a, b: a.key_by(lambda v: v[0]).temporal_join(b.key_by(lambda v: v[0]), lambda x, y: (x, y)),
    "outer temporal join": lambda a, b: a.key_by(lambda v: v[0]).temporal_join(
        b.key_by(lambda v: v[0]),
        lambda x, y: (x, y),
        how="left",
        is_deletion=lambda v: v[2] == 0,
    ),
}
"""What these give depends on the order of records of one time, which streaming leaves open."""
MOMENTS = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 50), st.integers(0, 9)), max_size=30, unique_by=lambda v: v[1]
)


@pytest.mark.parametrize("name", ORDERED_PROGRAMS)
@settings(max_examples=12, deadline=None)
@given(first=MOMENTS, second=MOMENTS, spill=st.booleans())
def test_patterns_and_temporal_joins_find_what_they_find_in_streaming(
    name: str, first: list[Any], second: list[Any], spill: bool
) -> None:
    build = ORDERED_PROGRAMS[name]
    inputs = [first, second] if build.__code__.co_argcount == 2 else [first]
    found, wanted = in_batch(build, *inputs, spill=spill), in_streaming(build, *inputs)
    assert Counter(map(repr, found)) == Counter(map(repr, wanted))


@settings(max_examples=12, deadline=None)
@given(values=READINGS)
@pytest.mark.parametrize("emit", ["watermark", "end"])
def test_running_aggregates_of_columns_give_their_last_result_once_for_each_key(emit: str, values: list[Any]) -> None:
    found = in_batch(lambda s: s.key_by(0).aggregate_columns(total=("f2", "sum"), n="count", emit=emit), values)
    of_key = {key: [v[2] for v in values if v[0] == key] for key in {v[0] for v in values}}
    assert sorted(map(tuple, found)) == sorted((key, sum(numbers), len(numbers)) for key, numbers in of_key.items())


def test_windows_over_columns_have_no_late_records_and_fire_once() -> None:
    values = [("a", 30, 1), ("a", 2, 2), ("b", 99, 3), ("a", 31, 4), ("a", 1, 5)]

    def build(stream: DataStream) -> DataStream:
        windowed = stream.key_by(0).window(TumblingEventTimeWindows.of(10)).allowed_lateness(5)
        made = windowed.side_output_late_data(LATE).aggregate_columns(total=("f2", "sum"))
        return made.union(made.get_side_output(LATE))

    assert sorted(map(tuple, in_batch(build, values))) == [("a", 0, 10, 7), ("a", 30, 40, 5), ("b", 90, 100, 3)]


@settings(max_examples=25, deadline=None)
@given(values=READINGS, spill=st.booleans())
def test_a_keyed_sum_gives_its_last_result_once_for_each_key(values: list[Any], spill: bool) -> None:
    found = in_batch(lambda s: s.map(lambda v: (v[0], v[2])).key_by(lambda v: v[0]).sum(1), values, spill=spill)
    totals: Counter[str] = Counter()
    for key, _, number in values:
        totals[key] += number
    assert dict(found) == dict(totals)
    assert len(found) == len(totals)


class History(KeyedProcessFunction):
    """Emits what it sees, with the number of values of the key before, and at the end of each key."""

    def open(self, runtime_context: Any) -> None:
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        before = self.seen.value() or 0
        self.seen.update(before + 1)
        timers = ctx.timer_service()
        assert timers.current_watermark() < 0
        timers.register_event_time_timer(value[1] + 1_000)
        timers.register_processing_time_timer(10**15)
        yield ctx.get_current_key(), value[1], before

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        # As a function that does something every second would.
        ctx.timer_service().register_event_time_timer(timestamp + 1_000)
        yield ctx.get_current_key(), "timer", timestamp


@pytest.mark.parametrize("spill", [False, True])
def test_records_come_key_by_key_in_order_of_time_and_timers_fire_at_the_end_of_each_key(spill: bool) -> None:
    values = [("b", 7, 0), ("a", 5, 0), ("a", 2, 0), ("b", 1, 0), ("a", 9, 0)]
    found = in_batch(lambda s: s.key_by(lambda v: v[0]).process(History()).set_parallelism(1), values, spill=spill)
    expected = {
        "a": [("a", 2, 0), ("a", 5, 1), ("a", 9, 2), *(("a", "timer", 1_000 + t) for t in (2, 5, 9))],
        "b": [("b", 1, 0), ("b", 7, 1), *(("b", "timer", 1_000 + t) for t in (1, 7))],
    }
    end = ("timer", 10**15)
    assert found == [*expected["a"], ("a", *end), *expected["b"], ("b", *end)]


class Meet(KeyedCoProcessFunction):
    def process_element1(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield value[0], value[1], "first"

    def process_element2(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield value[0], value[1], "second"


def test_two_inputs_are_sorted_together() -> None:
    def build(one: DataStream, other: DataStream) -> DataStream:
        keyed = one.connect(other).key_by(lambda v: v[0], lambda v: v[0])
        return keyed.process(Meet()).set_parallelism(1)

    found = in_batch(build, [("b", 1, 0), ("a", 8, 0), ("a", 3, 0)], [("a", 5, 0), ("b", 1, 0), ("a", 1, 0)])
    assert found == [
        *(("a", 1, "second"), ("a", 3, "first"), ("a", 5, "second"), ("a", 8, "first")),
        *(("b", 1, "first"), ("b", 1, "second")),
    ]


RULES = MapStateDescriptor("rules", Types.STRING(), Types.LONG())


class Ruled(BroadcastProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield value[2] * max(ctx.get_broadcast_state(RULES).values())

    def process_broadcast_element(self, value: Any, ctx: Any) -> None:
        ctx.get_broadcast_state(RULES).put(str(value[2]), value[2])


class KeyedRuled(KeyedBroadcastProcessFunction):
    process_element = Ruled.process_element
    process_broadcast_element = Ruled.process_broadcast_element


@pytest.mark.parametrize("keyed", [False, True])
def test_rules_of_a_broadcast_are_complete_before_the_first_record_meets_them(keyed: bool) -> None:
    values = [("a", i, i) for i in range(20)]

    def build(stream: DataStream, rules: DataStream) -> DataStream:
        if keyed:
            return stream.key_by(lambda v: v[0]).connect(rules.broadcast(RULES)).process(KeyedRuled())
        return stream.connect(rules.broadcast(RULES)).process(Ruled())

    assert sorted(in_batch(build, values, [("", 0, 5), ("", 1, 10)])) == [10 * i for i in range(20)]


def test_state_is_of_one_key_at_a_time() -> None:
    env = environment(RuntimeExecutionMode.BATCH, parallelism=1)
    stream = readings(env, [(str(i), i, i) for i in range(500)]).key_by(lambda v: v[0]).process(History()).uid("it")
    with JobHarness(stream) as harness:
        assert len(harness.run_to_end()) == 500 * 3
        (operator,) = harness.operators("it")
        assert isinstance(operator, SortedInputOperator)
        assert operator._own.entry_count() == 0


def test_a_checkpoint_before_the_end_is_refused() -> None:
    env = environment(RuntimeExecutionMode.BATCH)
    source = ManualSource(READING)
    stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "manual").key_by(lambda v: v[0])
    with JobHarness(stream.process(History())) as harness:
        source.emit(("a", 1, 1))
        with pytest.raises(JobDefinitionError, match="takes no checkpoints"):
            harness.checkpoint()


def test_a_crash_begins_the_job_anew() -> None:
    env = environment(RuntimeExecutionMode.BATCH)
    values = [(key, i, i) for i, key in enumerate("abcabc")]
    with JobHarness(readings(env, values).key_by(lambda v: v[0]).sum(2)) as harness:
        harness.run(turns=7)
        harness.crash()
        assert sorted(v[2] for v in harness.run_to_end()) == [3, 5, 7]


def test_what_a_function_raises_names_its_operator() -> None:
    class Picky(KeyedProcessFunction):
        def process_element(self, value: Any, ctx: Any) -> None:
            raise ValueError("not this one")

    with pytest.raises(UserFunctionError, match="not this one"):
        in_batch(lambda s: s.key_by(lambda v: v[0]).process(Picky()), [("a", 1, 1)])


def test_batch_mode_with_checkpoints_takes_the_last_one_only() -> None:
    env = environment(RuntimeExecutionMode.BATCH)
    env.enable_checkpointing(100)
    env.from_collection([1, 2]).print()
    plan, batch = env.build("job")
    assert (batch.batch, batch.checkpointing.interval_ms, batch.checkpointing.only_final) == (True, None, True)
    assert batch.checkpointing.enabled
    env.set_runtime_mode(RuntimeExecutionMode.STREAMING)
    assert env.build("job")[1].checkpointing.interval_ms == 100
    assert plan.graph.nodes


def test_automatic_mode_is_streaming_for_a_source_without_end() -> None:
    env = environment(RuntimeExecutionMode.AUTOMATIC)
    env.from_source(SensorSource(None), WatermarkStrategy.no_watermarks(), "endless").print()
    assert not env.build("job")[1].batch
    env.set_runtime_mode(RuntimeExecutionMode.BATCH)
    with pytest.raises(JobDefinitionError, match="has no end"):
        env.build("job")
