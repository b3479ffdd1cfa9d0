"""Triggers, evictors, count windows and the state that functions and triggers keep of a window."""

from __future__ import annotations

from typing import Any

import pytest
from window_bench import WindowBench

from headrace import (
    AggregatingStateDescriptor,
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
    CountEvictor,
    CountSlidingWindowAssigner,
    CountTrigger,
    CountTumblingWindowAssigner,
    DeltaEvictor,
    DeltaTrigger,
    EventTimeSessionWindows,
    EventTimeTrigger,
    Evictor,
    GlobalWindows,
    JobDefinitionError,
    ListStateDescriptor,
    MapStateDescriptor,
    OutputTag,
    ProcessAllWindowFunction,
    ProcessWindowFunction,
    PurgingTrigger,
    ReducingStateDescriptor,
    Time,
    TimeEvictor,
    TriggerResult,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    Types,
    ValueStateDescriptor,
)
from headrace.errors import UserFunctionError
from headrace.operators.windows.calls import Apply, Process, ProcessAll


def add(a: Any, b: Any) -> Any:
    return a + b


def listed(key: Any, window: Any, inputs: Any) -> list[Any]:
    return [list(inputs)]


# --- count windows -------------------------------------------------------------------------------


def test_count_windows_give_a_result_for_every_n_records_of_a_key(bench: WindowBench) -> None:
    driven = bench.operator(CountTumblingWindowAssigner.of(3), call=Apply(listed))
    driven.send(*(("a", i, None) for i in range(7)), ("b", 10, None), ("b", 11, None))
    assert driven.take() == [[0, 1, 2], [3, 4, 5]]
    driven.send(("b", 12, None))
    assert driven.take() == [[10, 11, 12]]


def test_sliding_count_windows_begin_at_every_slide(bench: WindowBench) -> None:
    driven = bench.operator(CountSlidingWindowAssigner.of(5, 2), call=Apply(listed))
    driven.send(*(("a", i, None) for i in range(11)))
    assert driven.take() == [[0, 1, 2, 3, 4], [2, 3, 4, 5, 6], [4, 5, 6, 7, 8], [6, 7, 8, 9, 10]]


def test_a_full_count_window_leaves_nothing_behind(bench: WindowBench) -> None:
    driven = bench.operator(CountTumblingWindowAssigner.of(4), reduce_function=add)
    driven.send(*(("a", i, None) for i in range(100)))
    assert len(driven.take()) == 25
    assert driven.entries() == 1, "how many came is all that is kept"


# --- triggers ------------------------------------------------------------------------------------


def test_a_count_trigger_fires_at_every_nth_element_and_keeps_them(bench: WindowBench) -> None:
    driven = bench.operator(TumblingEventTimeWindows.of(100), call=Apply(listed), trigger=CountTrigger.of(2))
    driven.send(*(("a", i, i) for i in range(5)))
    assert driven.take() == [[0, 1], [0, 1, 2, 3]]
    driven.watermark(100)
    assert driven.take() == [], "a count trigger does not care about time"
    assert driven.entries() == 0
    assert driven.timers == []


def test_a_purging_trigger_begins_anew_after_every_result(bench: WindowBench) -> None:
    driven = bench.operator(
        TumblingEventTimeWindows.of(100), call=Apply(listed), trigger=PurgingTrigger.of(CountTrigger.of(2))
    )
    driven.send(*(("a", i, i) for i in range(5)))
    assert driven.take() == [[0, 1], [2, 3]]


def test_a_purging_event_time_trigger_gives_late_records_by_themselves(bench: WindowBench) -> None:
    driven = bench.operator(
        TumblingEventTimeWindows.of(10),
        reduce_function=add,
        trigger=PurgingTrigger.of(EventTimeTrigger.create()),
        lateness_ms=10,
    )
    driven.send(("a", 1, 0), ("a", 2, 1))
    driven.watermark(9)
    driven.send(("a", 4, 2))
    assert driven.take() == [3, 4]
    driven.watermark(19)
    assert driven.take() == []
    assert driven.entries() == 0


def test_a_continuous_event_time_trigger_gives_early_results(bench: WindowBench) -> None:
    driven = bench.operator(
        TumblingEventTimeWindows.of(100),
        reduce_function=add,
        trigger=ContinuousEventTimeTrigger.of(Time.milliseconds(30)),
    )
    driven.send(("a", 1, 5), ("a", 2, 40))
    driven.watermark(29)
    assert driven.take() == []
    driven.watermark(30)
    assert driven.take() == [3]
    driven.send(("a", 4, 45))
    driven.watermark(95)
    assert driven.take() == [7, 7], "at 60 and at 90"
    driven.watermark(99)
    assert driven.take() == [7]
    assert driven.entries() == 0
    assert driven.timers == []


def test_a_continuous_processing_time_trigger_gives_results_by_the_clock(bench: WindowBench) -> None:
    driven = bench.operator(
        TumblingEventTimeWindows.of(1000), reduce_function=add, trigger=ContinuousProcessingTimeTrigger.of(30)
    )
    driven.tick(65)
    driven.send(("a", 1, 5))
    driven.tick(89)
    assert driven.take() == []
    driven.tick(90)
    assert driven.take() == [1]
    driven.send(("a", 2, 6))
    driven.tick(120)
    assert driven.take() == [3]
    driven.watermark(1000)
    assert driven.entries() == 0
    assert driven.timers == []


def test_a_continuous_trigger_of_the_clock_ends_with_its_window(bench: WindowBench) -> None:
    driven = bench.operator(
        TumblingProcessingTimeWindows.of(100), reduce_function=add, trigger=ContinuousProcessingTimeTrigger.of(60)
    )
    driven.tick(1000)
    driven.send(("a", 1, None))
    driven.tick(1020)
    assert driven.take() == [1]
    driven.tick(2000)
    assert driven.take() == [1, 1], "at 1080 and at the end"
    assert driven.entries() == 0
    assert driven.timers == []


def test_a_continuous_trigger_follows_a_session_that_grows(bench: WindowBench) -> None:
    driven = bench.operator(
        EventTimeSessionWindows.with_gap(50), reduce_function=add, trigger=ContinuousEventTimeTrigger.of(20)
    )
    driven.send(("a", 1, 5), ("a", 2, 30))
    driven.watermark(20)
    assert driven.take() == [3]
    driven.watermark(79)
    assert driven.take() == [3, 3, 3], "at 40, 60 and at the end"
    assert driven.entries() == 0


def test_a_delta_trigger_fires_when_a_value_has_moved_far_enough(bench: WindowBench) -> None:
    driven = bench.operator(
        GlobalWindows.create(),
        call=Apply(listed),
        trigger=PurgingTrigger.of(DeltaTrigger.of(10, lambda a, b: abs(a - b))),
    )
    driven.send(*(("a", value, None) for value in (1, 5, 11, 12, 15, 30)))
    assert driven.take() == [[1, 5, 11, 12], [15, 30]]


class Picky(EventTimeTrigger):
    """Counts in a state of its own by an aggregate, and fires at every third element besides."""

    class Count:
        def create_accumulator(self) -> int:
            return 0

        def add(self, value: int, accumulator: int) -> int:
            return accumulator + 1

        def get_result(self, accumulator: int) -> int:
            return accumulator

        def merge(self, a: int, b: int) -> int:
            return a + b

    seen = AggregatingStateDescriptor("seen", Count(), Types.LONG())
    names = ListStateDescriptor("names", Types.LONG())

    def on_element(self, element: Any, timestamp: int, window: Any, ctx: Any) -> TriggerResult:
        super().on_element(element, timestamp, window, ctx)
        count = ctx.get_partitioned_state(self.seen)
        count.add(element)
        ctx.get_partitioned_state(self.names).add(element)
        assert len(list(ctx.get_partitioned_state(self.names))) == count.get()
        return TriggerResult.FIRE if count.get() % 3 == 0 else TriggerResult.CONTINUE

    def on_merge(self, window: Any, ctx: Any) -> None:
        super().on_merge(window, ctx)
        ctx.merge_partitioned_state(self.seen)
        ctx.merge_partitioned_state(self.names)

    def clear(self, window: Any, ctx: Any) -> None:
        super().clear(window, ctx)
        ctx.get_partitioned_state(self.seen).clear()
        ctx.get_partitioned_state(self.names).clear()


def test_a_custom_trigger_keeps_state_and_merges_it(bench: WindowBench) -> None:
    driven = bench.operator(EventTimeSessionWindows.with_gap(10), reduce_function=add, trigger=Picky())
    driven.send(("a", 1, 0), ("a", 2, 15), ("b", 64, 0))
    assert driven.take() == []
    driven.send(("a", 4, 8))
    assert driven.take() == [7]
    driven.watermark(100)
    assert sorted(driven.take()) == [7, 64]
    assert driven.entries() == 0


def test_state_that_cannot_merge_is_refused_by_name(bench: WindowBench) -> None:
    class Wrong(Picky):
        def on_merge(self, window: Any, ctx: Any) -> None:
            ctx.merge_partitioned_state(ValueStateDescriptor("last", int))

    driven = bench.operator(EventTimeSessionWindows.with_gap(10), reduce_function=add, trigger=Wrong())
    with pytest.raises(UserFunctionError, match='its state "last", which is a value state'):
        driven.send(("a", 1, 0), ("a", 2, 5))


@pytest.mark.parametrize("make", [lambda: CountTrigger.of(0), lambda: ContinuousEventTimeTrigger.of(0)])
def test_triggers_of_nothing_are_refused(make: Any) -> None:
    with pytest.raises(JobDefinitionError, match=r"\.of\(\) got"):
        make()


# --- evictors ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("evictor", "results"),
    [
        (CountEvictor.of(2), [[1, 2], [3, 4]]),
        (CountEvictor.of(2, do_evict_after=True), [[1, 2], [1, 2, 3, 4]]),
        (TimeEvictor.of(2), [[1, 2], [3, 4]]),
        (DeltaEvictor.of(2, lambda element, last: last - element), [[1, 2], [3, 4]]),
        (CountEvictor.of(0), []),
    ],
)
def test_an_evictor_takes_elements_out_for_good(bench: WindowBench, evictor: Evictor, results: list[Any]) -> None:
    driven = bench.operator(GlobalWindows.create(), call=Apply(listed), trigger=CountTrigger.of(2), evictor=evictor)
    driven.send(*(("a", i, i) for i in range(1, 5)))
    assert driven.take() == results


def test_an_evictor_after_the_function_shows_at_the_next_firing(bench: WindowBench) -> None:
    driven = bench.operator(
        GlobalWindows.create(), reduce_function=add, trigger=CountTrigger.of(2), evictor=CountEvictor.of(1, True)
    )
    driven.send(*(("a", i, None) for i in (1, 2, 4, 8)))
    assert driven.take() == [3, 14]


def test_an_evictor_of_ones_own_sees_times_and_the_window(bench: WindowBench) -> None:
    class Odd(Evictor):
        def evict_before(self, elements: Any, size: int, window: Any, evictor_context: Any) -> None:
            assert size == len(elements)
            assert evictor_context.get_current_watermark() == 9
            elements[:] = [e for e in elements if e.timestamp % 2 and window.start <= e.timestamp]

    driven = bench.operator(TumblingEventTimeWindows.of(10), call=Apply(listed), evictor=Odd())
    driven.send(*(("a", i, i) for i in range(6)))
    driven.watermark(9)
    assert driven.take() == [[1, 3, 5]]


# --- functions with state ------------------------------------------------------------------------


class Tally(ProcessWindowFunction):
    """Counts firings of the window and of the key, in all five kinds of state."""

    def open(self, runtime_context: Any) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("firings", int))

    def process(self, key: Any, context: Any, elements: Any) -> Any:
        window, keyed = context.window_state(), context.global_state()
        states = [store.get_state(ValueStateDescriptor("firings", int)) for store in (window, keyed)]
        for state in states:
            state.update((state.value() or 0) + 1)
        assert self.total.value() == states[1].value(), "state of the key is one state, however it was asked for"
        sums = window.get_reducing_state(ReducingStateDescriptor("sums", add, int))
        sums.add(len(list(elements)))
        by_start = keyed.get_map_state(MapStateDescriptor("by-start", int, int))
        by_start[context.window().start] = states[0].value()
        assert context.window().start in by_start
        window.get_list_state(ListStateDescriptor("list", int)).add(1)
        yield key, context.window().start, states[0].value(), states[1].value(), sums.get(), dict(by_start.items())
        yield OutputTag("fired"), (key, context.current_watermark())

    def clear(self, context: Any) -> None:
        store = context.window_state()
        store.get_state(ValueStateDescriptor("firings", int)).clear()
        store.get_reducing_state(ReducingStateDescriptor("sums", add, int)).clear()
        store.get_list_state(ListStateDescriptor("list", int)).clear()


def test_a_process_function_keeps_state_of_the_window_and_of_the_key(bench: WindowBench) -> None:
    driven = bench.operator(TumblingEventTimeWindows.of(10), call=Process(Tally()), lateness_ms=10)
    driven.send(("a", 1, 1), ("b", 1, 1))
    driven.watermark(9)
    driven.send(("a", 2, 2), ("a", 3, 12))
    assert sorted(driven.take()) == [
        ("a", 0, 1, 1, 1, {0: 1}),
        ("a", 0, 2, 2, 3, {0: 2}),
        ("b", 0, 1, 1, 1, {0: 1}),
    ]
    driven.watermark(100)
    assert driven.take() == [("a", 10, 1, 3, 1, {0: 2, 10: 1})]
    assert driven.take_late()[-1] == ("a", 100)
    assert driven.entries() == 5, "firings of two keys and three entries of their maps; nothing of any window"


def test_a_function_over_all_records_gets_no_key(bench: WindowBench) -> None:
    class All(ProcessAllWindowFunction):
        def process(self, context: Any, elements: Any) -> Any:
            return [(context.window().end, sorted(elements))]

    driven = bench.operator(TumblingEventTimeWindows.of(10), call=ProcessAll(All()))
    driven.send((0, 3, 3), (0, 1, 1))
    driven.watermark(9)
    assert driven.take() == [(10, [1, 3])]


def test_an_error_in_a_window_function_names_window_and_key(bench: WindowBench) -> None:
    def broken(key: Any, window: Any, inputs: Any) -> Any:
        raise ValueError("no")

    driven = bench.operator(TumblingEventTimeWindows.of(10), call=Apply(broken))
    driven.send(("a", 1, 1))
    with pytest.raises(UserFunctionError, match=r"(?s)timer at 9 of TimeWindow\(0, 10\) of key 'a'.*ValueError: no"):
        driven.watermark(9)
