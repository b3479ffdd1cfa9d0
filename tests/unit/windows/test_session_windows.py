"""Session windows: they grow, meet and end, and what they hold goes with them."""

from __future__ import annotations

from typing import Any

import pytest
from window_bench import WindowBench

from headrace import (
    AggregateFunction,
    CountTrigger,
    EventTimeSessionWindows,
    EventTimeTrigger,
    GlobalWindows,
    JobDefinitionError,
    OutputTag,
    ProcessingTimeSessionWindows,
    ProcessWindowFunction,
    PurgingTrigger,
    SessionWindowTimeGapExtractor,
    Time,
    Trigger,
    TriggerResult,
    ValueStateDescriptor,
)
from headrace.errors import UserFunctionError
from headrace.operators.windows.calls import Apply, Process


def label(key: Any, window: Any, inputs: Any) -> list[Any]:
    return [(key, window.start, window.end, list(inputs))]


def add(a: int, b: int) -> int:
    return a + b


class Gather(AggregateFunction):
    def create_accumulator(self) -> list[int]:
        return []

    def add(self, value: int, accumulator: list[int]) -> list[int]:
        accumulator.append(value)
        return accumulator

    def get_result(self, accumulator: list[int]) -> list[int]:
        return sorted(accumulator)

    def merge(self, acc1: list[int], acc2: list[int]) -> list[int]:
        return acc1 + acc2


def test_records_closer_than_the_gap_are_one_session(bench: WindowBench) -> None:
    driven = bench.operator(EventTimeSessionWindows.with_gap(Time.milliseconds(10)), call=Apply(label))
    driven.send(("a", 1, 0), ("a", 2, 5), ("b", 9, 3), ("a", 3, 16))
    driven.watermark(100)
    assert sorted(driven.take()) == [("a", 0, 15, [1, 2]), ("a", 16, 26, [3]), ("b", 3, 13, [9])]
    assert driven.entries() == 0
    assert driven.timers == []


def test_sessions_that_touch_are_one(bench: WindowBench) -> None:
    driven = bench.operator(EventTimeSessionWindows.with_gap(10), call=Apply(label))
    driven.send(("a", 1, 0), ("a", 2, 10))
    driven.watermark(100)
    assert driven.take() == [("a", 0, 20, [1, 2])]


@pytest.mark.parametrize("how", ["reduce", "aggregate", "apply"])
def test_a_record_between_two_sessions_joins_them(bench: WindowBench, how: str) -> None:
    options: dict[str, Any] = {
        "reduce": {"reduce_function": add},
        "aggregate": {"aggregate_function": Gather()},
        "apply": {"call": Apply(lambda key, window, inputs: [sorted(inputs)])},
    }[how]
    driven = bench.operator(EventTimeSessionWindows.with_gap(10), **options)
    driven.send(("a", 1, 0), ("a", 2, 18), ("a", 4, 36), ("a", 8, 60))
    assert len(driven.timers) == 4
    driven.send(("a", 16, 9))
    assert len(driven.timers) == 3
    driven.send(("a", 32, 27))
    assert len(driven.timers) == 2
    driven.watermark(45)
    assert driven.take() == [55 if how == "reduce" else [1, 2, 4, 16, 32]]
    driven.watermark(100)
    assert driven.take() == [8 if how == "reduce" else [8]]
    assert driven.entries() == 0
    assert driven.timers == []


def test_every_element_may_bring_its_own_gap(bench: WindowBench) -> None:
    class Patience(SessionWindowTimeGapExtractor):
        def extract(self, element: Any) -> int:
            return int(element)

    driven = bench.operator(EventTimeSessionWindows.with_dynamic_gap(Patience()), call=Apply(label))
    driven.send(("a", 100, 0), ("a", 1, 50), ("a", 5, 102))
    driven.watermark(1000)
    assert driven.take() == [("a", 0, 100, [100, 1]), ("a", 102, 107, [5])]
    with pytest.raises(UserFunctionError, match="gap extractor gave 0 ms"):
        driven.send(("a", 0, 2000))


def test_a_session_with_allowed_lateness_fires_again_and_grows_after_its_end(bench: WindowBench) -> None:
    driven = bench.operator(
        EventTimeSessionWindows.with_gap(10), call=Apply(label), lateness_ms=20, late_tag=OutputTag("late")
    )
    driven.send(("a", 1, 0))
    driven.watermark(9)
    assert driven.take() == [("a", 0, 10, [1])]
    driven.send(("a", 2, 5))
    assert driven.take() == [], "the session now ends at 15, which is ahead"
    driven.watermark(14)
    assert driven.take() == [("a", 0, 15, [1, 2])]
    driven.send(("a", 3, 1))
    assert driven.take() == [("a", 0, 15, [1, 2, 3])]
    driven.watermark(34)
    driven.send(("a", 4, 4))
    assert driven.take_late() == [4]
    assert driven.take() == []
    assert driven.entries() == 0
    assert driven.timers == []


def test_a_late_record_that_reaches_a_living_session_is_not_late(bench: WindowBench) -> None:
    driven = bench.operator(EventTimeSessionWindows.with_gap(10), call=Apply(label), late_tag=OutputTag("late"))
    driven.send(("a", 1, 20))
    driven.watermark(19)
    driven.send(("a", 2, 10), ("a", 3, 0))
    driven.watermark(100)
    assert driven.take() == [("a", 0, 30, [1, 2, 3])]
    assert driven.take_late() == []


def test_processing_time_sessions_end_by_the_clock(bench: WindowBench) -> None:
    driven = bench.operator(ProcessingTimeSessionWindows.with_gap(10), reduce_function=add)
    driven.tick(100)
    driven.send(("a", 1, None))
    driven.tick(108)
    driven.send(("a", 2, None))
    driven.tick(116)
    assert driven.take() == []
    driven.tick(117)
    assert driven.take() == [3]
    driven.send(("a", 4, None))
    driven.tick(1000)
    assert driven.take() == [4]
    assert driven.entries() == 0


def test_a_purged_session_begins_anew_and_ends_once(bench: WindowBench) -> None:
    driven = bench.operator(
        EventTimeSessionWindows.with_gap(10), reduce_function=add, trigger=PurgingTrigger.of(CountTrigger.of(2))
    )
    driven.send(("a", 1, 0), ("a", 2, 5), ("a", 4, 10), ("a", 8, 15), ("a", 16, 18))
    driven.watermark(100)
    assert driven.take() == [3, 12]
    assert driven.entries() == 0
    assert driven.timers == []


def test_counts_of_a_trigger_are_brought_together(bench: WindowBench) -> None:
    driven = bench.operator(EventTimeSessionWindows.with_gap(10), reduce_function=add, trigger=CountTrigger.of(4))
    driven.send(("a", 1, 0), ("a", 2, 18), ("a", 4, 19))
    assert driven.take() == []
    driven.send(("a", 8, 9))
    assert driven.take() == [15], "one, two and the one that joined them"


def test_a_trigger_that_cannot_merge_is_refused(bench: WindowBench) -> None:
    class Lonely(EventTimeTrigger):
        def can_merge(self) -> bool:
            return False

    with pytest.raises(JobDefinitionError, match="Lonely cannot"):
        bench.operator(EventTimeSessionWindows.with_gap(10), reduce_function=add, trigger=Lonely())


def test_state_of_a_window_is_refused_where_windows_merge(bench: WindowBench) -> None:
    class Remember(ProcessWindowFunction):
        def process(self, key: Any, context: Any, elements: Any) -> Any:
            total = context.global_state().get_state(ValueStateDescriptor("sessions", int))
            total.update((total.value() or 0) + 1)
            yield total.value()
            context.window_state()

    driven = bench.operator(EventTimeSessionWindows.with_gap(10), call=Process(Remember()))
    driven.send(("a", 1, 0))
    with pytest.raises(UserFunctionError, match=r"Use global_state\(\)"):
        driven.watermark(100)
    assert driven.take() == [1]


def test_a_gap_of_nothing_is_refused() -> None:
    with pytest.raises(JobDefinitionError, match="gap of 0 ms"):
        EventTimeSessionWindows.with_gap(0)


def test_global_windows_fire_only_by_their_trigger(bench: WindowBench) -> None:
    class EveryHundred(Trigger):
        def on_element(self, element: Any, timestamp: int, window: Any, ctx: Any) -> TriggerResult:
            return TriggerResult.FIRE_AND_PURGE if element >= 100 else TriggerResult.CONTINUE

        def on_processing_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
            return TriggerResult.CONTINUE

        def on_event_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
            return TriggerResult.CONTINUE

        def clear(self, window: Any, ctx: Any) -> None: ...

    driven = bench.operator(GlobalWindows.create(), reduce_function=add, trigger=EveryHundred())
    driven.send(("a", 1, None), ("a", 2, None), ("b", 3, None), ("a", 100, None), ("a", 4, None))
    driven.watermark(2**63 - 1)
    assert driven.take() == [103]
    assert driven.entries() == 2
