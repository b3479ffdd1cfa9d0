"""Windows in the making through snapshots: taken back by as many subtasks, or by more or fewer, on either backend."""

from __future__ import annotations

from typing import Any

import pytest
from window_bench import Driven, WindowBench

from headrace import (
    AggregateFunction,
    ContinuousEventTimeTrigger,
    CountTumblingWindowAssigner,
    EventTimeSessionWindows,
    OutputTag,
    ProcessWindowFunction,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    Types,
    ValueStateDescriptor,
)
from headrace.operators.windows.calls import Apply, Process

KEYS = [f"key-{i}" for i in range(40)]


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


def labelled(key: Any, window: Any, inputs: Any) -> list[Any]:
    return [(key, window.start, window.end, sorted(inputs))]


def gathered(key: Any, window: Any, inputs: Any) -> list[Any]:
    return [(key, window.start, window.end, inputs[0])]


FORMS: dict[str, dict[str, Any]] = {
    "aggregate": {
        "call": Apply(gathered),
        "aggregate_function": Gather(),
        "accumulator_type": Types.LIST(Types.LONG()),
    },
    "untyped": {"call": Apply(gathered), "aggregate_function": Gather()},
    "elements": {"call": Apply(labelled), "element_type": Types.LONG()},
}


def rescaled(bench: WindowBench, olds: list[Driven], parallelism: int, assigner: Any, **options: Any) -> list[Driven]:
    saved = [bench.snapshot(old, canonical=options.pop("canonical", False)) for old in olds]
    return [
        bench.operator(assigner, subtask=i, parallelism=parallelism, restored=saved, **options)
        for i in range(parallelism)
    ]


def send(subtasks: list[Driven], *records: tuple[Any, Any, Any]) -> None:
    for subtask in subtasks:
        subtask.send(*(record for record in records if subtask.owns(record[0])))


def taken(subtasks: list[Driven]) -> list[Any]:
    return sorted(result for subtask in subtasks for result in subtask.take())


@pytest.mark.parametrize("form", FORMS)
def test_windows_in_the_making_follow_their_keys_to_other_widths(bench: WindowBench, form: str) -> None:
    assigner = SlidingEventTimeWindows.of(20, 10)
    subtasks = [bench.operator(assigner, subtask=i, parallelism=2, **FORMS[form]) for i in range(2)]
    for width, time in ((3, 1), (1, 4), (2, 7)):
        send(subtasks, *((key, time, time) for key in KEYS))
        subtasks = rescaled(bench, subtasks, width, assigner, **FORMS[form])
    send(subtasks, *((key, 12, 12) for key in KEYS[:5]))
    for subtask in subtasks:
        subtask.watermark(9)
    assert taken(subtasks) == sorted((key, -10, 10, [1, 4, 7]) for key in KEYS)
    for subtask in subtasks:
        subtask.watermark(100)
    later = [(key, 0, 20, [1, 4, 7] + ([12] if key in KEYS[:5] else [])) for key in KEYS]
    assert taken(subtasks) == sorted(later + [(key, 10, 30, [12]) for key in KEYS[:5]])
    assert sum(subtask.entries() for subtask in subtasks) == 0


@pytest.mark.parametrize("form", FORMS)
def test_a_session_goes_on_growing_and_merging_after_a_restore(bench: WindowBench, form: str) -> None:
    assigner = EventTimeSessionWindows.with_gap(10)
    subtasks = [bench.operator(assigner, **FORMS[form])]
    send(subtasks, *((key, 1, 0) for key in KEYS), *((key, 2, 18) for key in KEYS), *((key, 4, 5) for key in KEYS))
    subtasks = rescaled(bench, subtasks, 2, assigner, **FORMS[form])
    # The first session holds 0..15 under the bytes of 0..10; the next record joins it with 18..28.
    send(subtasks, *((key, 3, 14) for key in KEYS))
    subtasks = rescaled(bench, subtasks, 1, assigner, **FORMS[form])
    subtasks[0].watermark(26)
    assert taken(subtasks) == []
    subtasks[0].watermark(27)
    assert taken(subtasks) == sorted((key, 0, 28, [1, 2, 3, 4]) for key in KEYS)
    assert subtasks[0].entries() == 0
    assert subtasks[0].timers == []


@pytest.mark.parametrize("other", ["heap", "rocksdb"])
def test_windows_saved_in_one_backend_go_on_in_another(bench: WindowBench, other: str) -> None:
    assigner = EventTimeSessionWindows.with_gap(10)
    driven = bench.operator(assigner, **FORMS["aggregate"])
    driven.send(("a", 1, 0), ("a", 2, 20), ("b", 3, 5))
    saved = bench.snapshot(driven, canonical=True)
    again = bench.operator(assigner, backend=other, restored=[saved], **FORMS["aggregate"])
    again.send(("a", 4, 10))
    again.watermark(100)
    assert sorted(again.take()) == [("a", 0, 30, [1, 2, 4]), ("b", 5, 15, [3])]


def test_what_was_late_before_a_restore_is_late_after_it(bench: WindowBench) -> None:
    assigner = TumblingEventTimeWindows.of(10)
    how: dict[str, Any] = {"late_tag": OutputTag("late"), **FORMS["elements"]}
    subtasks = [bench.operator(assigner, subtask=i, parallelism=2, **how) for i in range(2)]
    send(subtasks, *((key, 1, 1) for key in KEYS))
    for subtask in subtasks:
        subtask.watermark(9)
    assert len(taken(subtasks)) == len(KEYS)
    (again,) = rescaled(bench, subtasks, 1, assigner, **how)
    again.send(("key-1", 5, 5), ("key-1", 15, 15))
    assert again.take_late() == [5]
    again.watermark(4)
    assert again.outputs.watermarks == [4], "others downstream begin anew"
    again.send(("key-1", 6, 6))
    again.watermark(100)
    assert again.take_late() == [6]
    assert again.take() == [("key-1", 10, 20, [15])]


def test_a_job_that_was_drained_takes_new_records(bench: WindowBench) -> None:
    driven = bench.operator(TumblingEventTimeWindows.of(10), **FORMS["elements"])
    driven.watermark(2**63 - 1)
    again = bench.operator(TumblingEventTimeWindows.of(10), restored=[bench.snapshot(driven)], **FORMS["elements"])
    again.send(("a", 1, 1))
    again.watermark(9)
    assert again.take() == [("a", 0, 10, [1])]


def test_timers_of_the_clock_and_of_triggers_are_taken_back(bench: WindowBench) -> None:
    by_clock = bench.operator(TumblingProcessingTimeWindows.of(100), **FORMS["elements"])
    by_clock.tick(1_010)
    by_clock.send(("a", 1, None))
    again = bench.operator(
        TumblingProcessingTimeWindows.of(100), restored=[bench.snapshot(by_clock)], **FORMS["elements"]
    )
    again.tick(1_050)
    again.send(("a", 2, None))
    again.tick(1_099)
    assert again.take() == [("a", 1_000, 1_100, [1, 2])]

    early: dict[str, Any] = {"trigger": ContinuousEventTimeTrigger.of(10), **FORMS["elements"]}
    driven = bench.operator(TumblingEventTimeWindows.of(100), **early)
    driven.send(("a", 1, 1))
    driven.watermark(10)
    driven.take()
    continued = bench.operator(TumblingEventTimeWindows.of(100), restored=[bench.snapshot(driven)], **early)
    continued.watermark(20)
    assert continued.take() == [("a", 0, 100, [1])]


def test_a_count_window_goes_on_counting(bench: WindowBench) -> None:
    driven = bench.operator(CountTumblingWindowAssigner.of(3), call=Apply(lambda k, w, i: [(k, list(i))]))
    driven.send(("a", 1, None), ("a", 2, None))
    saved = bench.snapshot(driven)
    again = bench.operator(
        CountTumblingWindowAssigner.of(3), call=Apply(lambda k, w, i: [(k, list(i))]), restored=[saved]
    )
    again.send(("a", 3, None), ("a", 4, None), ("a", 5, None), ("a", 6, None))
    assert again.take() == [("a", [1, 2, 3]), ("a", [4, 5, 6])]


def test_state_of_a_window_and_of_its_key_is_taken_back(bench: WindowBench) -> None:
    class Firings(ProcessWindowFunction):
        state = ValueStateDescriptor("firings", int)

        def process(self, key: Any, context: Any, elements: Any) -> Any:
            counts = []
            for store in (context.window_state(), context.global_state()):
                state = store.get_state(self.state)
                state.update((state.value() or 0) + 1)
                counts.append(state.value())
            yield key, context.window().start, *counts

        def clear(self, context: Any) -> None:
            context.window_state().get_state(self.state).clear()

    how: dict[str, Any] = {"call": Process(Firings()), "lateness_ms": 50}
    subtasks = [bench.operator(TumblingEventTimeWindows.of(10), **how)]
    subtasks[0].send(("a", 1, 1), ("b", 1, 11))
    subtasks[0].watermark(9)
    assert taken(subtasks) == [("a", 0, 1, 1)]
    subtasks = rescaled(bench, subtasks, 3, TumblingEventTimeWindows.of(10), **how)
    send(subtasks, ("a", 2, 2))
    for subtask in subtasks:
        subtask.watermark(19)
    assert taken(subtasks) == [("a", 0, 2, 2), ("b", 10, 1, 1)]
    for subtask in subtasks:
        subtask.watermark(1000)
    assert sum(subtask.entries() for subtask in subtasks) == 2


def test_what_happens_after_a_snapshot_is_not_in_it(bench: WindowBench) -> None:
    assigner = TumblingEventTimeWindows.of(10)
    driven = bench.operator(assigner, **FORMS["untyped"])
    driven.send(("a", 1, 1))
    work = driven.operator.snapshot(1, canonical=False)
    driven.send(("a", 2, 2), ("b", 3, 3))
    saved = work.finish(bench.store)
    again = bench.operator(assigner, restored=[saved], **FORMS["untyped"])
    again.watermark(9)
    assert again.take() == [("a", 0, 10, [1])]
