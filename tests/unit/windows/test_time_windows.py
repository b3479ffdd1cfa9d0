"""Tumbling and sliding windows: which records meet, when results come, what is late and what is cleaned up."""

from __future__ import annotations

from typing import Any

import pytest
from window_bench import WindowBench

from headrace import (
    AggregateFunction,
    JobDefinitionError,
    OutputTag,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    Time,
    TimeWindow,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    Types,
    WindowFunction,
)
from headrace.errors import UserFunctionError
from headrace.operators.windows.calls import Apply


def add(a: int, b: int) -> int:
    return a + b


class Mean(AggregateFunction):
    """A mutable accumulator, which is never copied on the way."""

    def create_accumulator(self) -> list[float]:
        return [0.0, 0]

    def add(self, value: float, accumulator: list[float]) -> list[float]:
        accumulator[0] += value
        accumulator[1] += 1
        return accumulator

    def get_result(self, accumulator: list[float]) -> float:
        return accumulator[0] / accumulator[1]

    def merge(self, acc1: list[float], acc2: list[float]) -> list[float]:
        return [acc1[0] + acc2[0], acc1[1] + acc2[1]]


class Label(WindowFunction):
    def apply(self, key: Any, window: TimeWindow, inputs: Any) -> list[Any]:
        return [(key, window.start, window.end, list(inputs))]


def test_records_of_a_key_meet_in_the_window_of_their_time(bench: WindowBench) -> None:
    driven = bench.operator(TumblingEventTimeWindows.of(Time.seconds(1)), reduce_function=add)
    driven.send(("a", 1, 0), ("a", 2, 999), ("b", 10, 500), ("a", 4, 1000))
    driven.watermark(998)
    assert driven.take() == []
    driven.watermark(999)
    assert sorted(driven.take()) == [3, 10]
    driven.watermark(1999)
    assert driven.outputs.timestamps == [1999], "a result has the last time of its window"
    assert driven.take() == [4]
    assert driven.entries() == 0
    assert driven.timers == []


def test_windows_before_1970_and_with_an_offset_begin_where_they_should(bench: WindowBench) -> None:
    driven = bench.operator(TumblingEventTimeWindows.of(1000, 250), call=Apply(Label()))
    driven.send(("a", 1, -800), ("a", 2, -751), ("a", 3, -750), ("a", 4, 249), ("a", 5, 250))
    driven.watermark(10_000)
    assert driven.take() == [("a", -1750, -750, [1, 2]), ("a", -750, 250, [3, 4]), ("a", 250, 1250, [5])]


def test_out_of_order_records_find_their_open_windows(bench: WindowBench) -> None:
    driven = bench.operator(TumblingEventTimeWindows.of(10), reduce_function=add)
    driven.send(("a", 1, 25), ("a", 2, 5), ("a", 4, 15), ("a", 8, 6), ("a", 16, 26))
    driven.watermark(29)
    assert driven.take() == [10, 4, 17]


def test_a_record_lies_in_every_sliding_window_of_its_time(bench: WindowBench) -> None:
    driven = bench.operator(SlidingEventTimeWindows.of(10, 5), call=Apply(Label()))
    driven.send(("a", 1, 0), ("a", 2, 4), ("a", 3, 6))
    driven.watermark(100)
    assert driven.take() == [("a", -5, 5, [1, 2]), ("a", 0, 10, [1, 2, 3]), ("a", 5, 15, [3])]
    assert driven.entries() == 0


def test_sliding_windows_need_not_be_a_multiple_of_their_slide(bench: WindowBench) -> None:
    driven = bench.operator(SlidingEventTimeWindows.of(5, 3), reduce_function=add)
    driven.send(*(("a", 1 << time, time) for time in range(7)))
    driven.watermark(100)
    wanted = [sum(1 << t for t in range(7) if start <= t < start + 5) for start in range(-3, 7, 3)]
    assert driven.take() == wanted


def test_records_between_sliding_windows_with_gaps_are_in_none(bench: WindowBench) -> None:
    driven = bench.operator(SlidingEventTimeWindows.of(2, 5), reduce_function=add)
    driven.send(("a", 1, 0), ("a", 2, 3), ("a", 4, 6))
    driven.watermark(100)
    assert driven.take() == [1, 4]
    assert driven.late_records == 0, "it has no window, but it is not late"


def test_a_reduce_that_changes_its_arguments_does_not_leak_from_window_to_window(bench: WindowBench) -> None:
    def gather(a: list[int], b: list[int]) -> list[int]:
        b.extend(a)
        return b

    driven = bench.operator(SlidingEventTimeWindows.of(10, 5), reduce_function=gather)
    driven.send(("a", [1], 6), ("a", [2], 7), ("a", [3], 12))
    driven.watermark(100)
    assert [sorted(result) for result in driven.take()] == [[1, 2], [1, 2, 3], [3]]


def test_an_aggregate_keeps_one_accumulator_and_not_the_elements(bench: WindowBench) -> None:
    driven = bench.operator(TumblingEventTimeWindows.of(1000), aggregate_function=Mean())
    driven.send(*(("a", float(i), i) for i in range(500)), ("b", 7.0, 3))
    assert driven.entries() == 2
    driven.watermark(999)
    assert sorted(driven.take()) == [7.0, 249.5]


@pytest.mark.parametrize("accumulator", [Types.ANY(), Types.PICKLED_BYTE_ARRAY(), Types.LIST(Types.DOUBLE())])
def test_an_accumulator_of_any_type_goes_through_a_snapshot(bench: WindowBench, accumulator: Any) -> None:
    class Floats(Mean):
        def create_accumulator(self) -> list[float]:
            return [0.0, 0.0]

    windows = TumblingEventTimeWindows.of(1000)
    driven = bench.operator(windows, aggregate_function=Floats(), accumulator_type=accumulator)
    driven.send(("a", 1.0, 0), ("a", 3.0, 1))
    saved = bench.snapshot(driven)
    driven.send(("a", 100.0, 2))
    again = bench.operator(windows, aggregate_function=Floats(), accumulator_type=accumulator, restored=[saved])
    again.send(("a", 8.0, 3))
    again.watermark(999)
    assert again.take() == [4.0]


def test_a_value_that_does_not_fit_its_type_is_refused_with_the_operator_and_state(bench: WindowBench) -> None:
    class Text(Mean):
        def create_accumulator(self) -> Any:
            return ""

        def add(self, value: Any, accumulator: Any) -> Any:
            return f"{accumulator}{value}"

    driven = bench.operator(TumblingEventTimeWindows.of(10), aggregate_function=Text(), accumulator_type=Types.LONG())
    with pytest.raises(UserFunctionError, match=r'(?s)windows.*State "_window"'):
        driven.send(("a", 1, 1))


def test_a_window_function_gets_the_one_folded_result(bench: WindowBench) -> None:
    driven = bench.operator(TumblingEventTimeWindows.of(10), call=Apply(Label()), aggregate_function=Mean())
    driven.send(("a", 1.0, 1), ("a", 2.0, 2))
    driven.watermark(9)
    assert driven.take() == [("a", 0, 10, [1.5])]


def test_late_records_are_dropped_and_counted(bench: WindowBench) -> None:
    driven = bench.operator(TumblingEventTimeWindows.of(10), reduce_function=add)
    driven.send(("a", 1, 5))
    driven.watermark(9)
    driven.send(("a", 2, 9), ("a", 4, 10), ("b", 8, 0))
    driven.watermark(19)
    assert driven.take() == [1, 4]
    assert driven.late_records == 2
    assert driven.take_late() == []


def test_late_records_go_to_the_side_output_if_there_is_one(bench: WindowBench) -> None:
    late = OutputTag("late")
    driven = bench.operator(TumblingEventTimeWindows.of(10), reduce_function=add, late_tag=late)
    driven.watermark(9)
    driven.send(("a", 1, 9), ("a", 2, 10))
    assert driven.take_late() == [1]
    assert driven.late_records == 0


@pytest.mark.parametrize("folded", [True, False])
def test_with_allowed_lateness_a_window_fires_again_for_every_late_record(bench: WindowBench, folded: bool) -> None:
    how: dict[str, Any] = {"reduce_function": add} if folded else {"call": Apply(lambda k, w, inputs: [sum(inputs)])}
    driven = bench.operator(TumblingEventTimeWindows.of(10), lateness_ms=5, late_tag=OutputTag("late"), **how)
    driven.send(("a", 1, 5))
    driven.watermark(9)
    driven.send(("a", 2, 6), ("a", 4, 7), ("b", 100, 1))
    driven.watermark(13)
    driven.send(("a", 8, 0))
    assert driven.take() == [1, 3, 7, 100, 15]
    assert driven.take_late() == []
    driven.watermark(14)
    assert driven.take() == []
    driven.send(("a", 16, 0))
    assert driven.take_late() == [16]
    assert driven.entries() == 0
    assert driven.timers == []


def test_a_late_record_is_missed_only_if_all_its_sliding_windows_are_gone(bench: WindowBench) -> None:
    driven = bench.operator(SlidingEventTimeWindows.of(10, 5), reduce_function=add)
    driven.watermark(9)
    driven.send(("a", 1, 6))
    driven.watermark(100)
    assert driven.take() == [1], "only in 5..15"
    assert driven.late_records == 0


def test_processing_time_windows_end_by_the_clock(bench: WindowBench) -> None:
    driven = bench.operator(TumblingProcessingTimeWindows.of(1000), reduce_function=add)
    driven.tick(5_000)
    driven.send(("a", 1, None))
    driven.tick(5_998)
    driven.send(("a", 2, None), ("b", 8, None))
    driven.watermark(10**12)
    assert driven.take() == []
    driven.tick(5_999)
    assert sorted(driven.take()) == [3, 8]
    assert driven.entries() == 0
    assert driven.timers == []


def test_sliding_processing_time_windows_overlap_by_the_clock(bench: WindowBench) -> None:
    driven = bench.operator(SlidingProcessingTimeWindows.of(10, 5), call=Apply(Label()))
    driven.tick(102)
    driven.send(("a", 1, None))
    driven.tick(107)
    driven.send(("a", 2, None))
    driven.tick(200)
    assert driven.take() == [("a", 95, 105, [1]), ("a", 100, 110, [1, 2]), ("a", 105, 115, [2])]


def test_a_record_without_a_timestamp_is_refused_with_the_way_out(bench: WindowBench) -> None:
    driven = bench.operator(TumblingEventTimeWindows.of(10), reduce_function=add)
    with pytest.raises(UserFunctionError, match="assign_timestamps_and_watermarks"):
        driven.send(("a", 1, None))


def test_keys_that_look_alike_have_windows_of_their_own(bench: WindowBench) -> None:
    driven = bench.operator(TumblingEventTimeWindows.of(10), call=Apply(Label()), reduce_function=add)
    driven.send((1, 1, 1), ("1", 2, 1), ((1, "x"), 4, 1), (1.0, 8, 1))
    driven.watermark(9)
    assert {(repr(key), *inputs) for key, _, _, inputs in driven.take()} == {
        ("1", 1),
        ("'1'", 2),
        ("(1, 'x')", 4),
        ("1.0", 8),
    }


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TumblingEventTimeWindows.of(0), "size of 0 ms"),
        (lambda: TumblingEventTimeWindows.of(10, 10), "offset of 10 ms"),
        (lambda: SlidingEventTimeWindows.of(10, 0), "slide of 0 ms"),
        (lambda: SlidingEventTimeWindows.of(10, 5, -5), "offset of -5 ms"),
    ],
)
def test_lengths_that_make_no_windows_are_refused(make: Any, message: str) -> None:
    with pytest.raises(JobDefinitionError, match=message):
        make()
