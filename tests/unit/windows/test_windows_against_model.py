"""Random histories of windows compared with a plain-Python model: records out of order, watermarks, restores."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from window_bench import BACKENDS, Driven, WindowBench

from headrace import (
    AggregateFunction,
    EventTimeSessionWindows,
    EventTimeTrigger,
    OutputTag,
    PurgingTrigger,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    WindowAssigner,
)
from headrace.operators.windows.calls import Apply


class Gather(AggregateFunction):
    def create_accumulator(self) -> list[int]:
        return []

    def add(self, value: int, accumulator: list[int]) -> list[int]:
        accumulator.append(value)
        return accumulator

    def get_result(self, accumulator: list[int]) -> list[int]:
        return accumulator

    def merge(self, acc1: list[int], acc2: list[int]) -> list[int]:
        return acc1 + acc2


@dataclass
class Model:
    """What windows mean, written down without timers or namespaces: a list of open windows per key."""

    assigner: WindowAssigner
    lateness: int
    purging: bool
    watermark: int = -(2**63)
    windows: dict[str, dict[tuple[int, int], list[int]]] = field(default_factory=dict)
    fired: list[tuple[str, int, int, list[int]]] = field(default_factory=list)
    late: list[int] = field(default_factory=list)

    def record(self, key: str, value: int, time: int) -> None:
        windows = self.windows.setdefault(key, {})
        alive = False
        for start, end in self._assigned(time):
            elements: list[int] = []
            if isinstance(self.assigner, EventTimeSessionWindows):
                while met := [(s, e) for s, e in windows if s <= end and start <= e]:
                    for window in met:
                        elements += windows.pop(window)
                        start, end = min(start, window[0]), max(end, window[1])
            if end - 1 + self.lateness <= self.watermark:
                assert not elements
                continue
            alive = True
            kept = windows.setdefault((start, end), elements)
            kept.append(value)
            if end - 1 <= self.watermark:
                self._fire(key, start, end)
        if not alive and time + self.lateness <= self.watermark:
            self.late.append(value)

    def _assigned(self, time: int) -> list[tuple[int, int]]:
        match self.assigner:
            case EventTimeSessionWindows(gap=gap):
                return [(time, time + gap)]
            case TumblingEventTimeWindows(size=size, offset=offset):
                return [(s, s + size) for s in range(offset - 20 * size, 200, size) if s <= time < s + size]
            case SlidingEventTimeWindows(size=size, slide=slide, offset=offset):
                return [(s, s + size) for s in range(offset - 20 * slide, 200, slide) if s <= time < s + size]
        raise AssertionError(self.assigner)

    def _fire(self, key: str, start: int, end: int) -> None:
        elements = self.windows[key][start, end]
        if elements:
            self.fired.append((key, start, end, sorted(elements)))
        if self.purging:
            self.windows[key][start, end] = []

    def advance(self, time: int) -> None:
        before, self.watermark = self.watermark, max(self.watermark, time)
        for key, windows in self.windows.items():
            for start, end in sorted(windows):
                if before < end - 1 <= self.watermark:
                    self._fire(key, start, end)
                if end - 1 + self.lateness <= self.watermark:
                    del windows[start, end]


RECORD = st.tuples(st.just("record"), st.sampled_from("abcde"), st.integers(0, 60))
STEPS = st.lists(
    st.one_of(RECORD, RECORD, RECORD, st.tuples(st.just("watermark"), st.integers(0, 70))), min_size=1, max_size=40
)
ASSIGNERS = st.sampled_from(
    [
        TumblingEventTimeWindows.of(10),
        TumblingEventTimeWindows.of(7, 3),
        SlidingEventTimeWindows.of(10, 5),
        SlidingEventTimeWindows.of(10, 4, 1),
        SlidingEventTimeWindows.of(3, 5),
        EventTimeSessionWindows.with_gap(4),
        EventTimeSessionWindows.with_gap(9),
    ]
)


@pytest.mark.thorough
@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=40, deadline=None)
@given(
    assigner=ASSIGNERS,
    lateness=st.sampled_from([0, 0, 5, 20]),
    purging=st.booleans(),
    folded=st.booleans(),
    steps=STEPS,
    restores=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 3)), max_size=2),
)
def test_windows_give_what_the_model_gives_through_restores_at_other_widths(
    backend: str,
    assigner: WindowAssigner,
    lateness: int,
    purging: bool,
    folded: bool,
    steps: list[Any],
    restores: list[tuple[int, int]],
) -> None:
    options: dict[str, Any] = {"lateness_ms": lateness, "late_tag": OutputTag("late")}
    if purging:
        options["trigger"] = PurgingTrigger.of(EventTimeTrigger.create())
    if folded:
        options["aggregate_function"] = Gather()
        options["call"] = Apply(lambda key, window, inputs: [(key, window.start, window.end, sorted(inputs[0]))])
    else:
        options["call"] = Apply(lambda key, window, inputs: [(key, window.start, window.end, sorted(inputs))])
    model = Model(assigner, lateness, purging)
    widths = dict(restores)
    with tempfile.TemporaryDirectory() as directory:
        bench = WindowBench(backend, Path(directory))
        subtasks = [bench.operator(assigner, **options)]
        results: list[Any] = []
        late: list[int] = []

        def collect() -> None:
            for subtask in subtasks:
                results.extend(subtask.take())
                late.extend(subtask.take_late())

        block: list[tuple[Any, Any, Any]] = []

        def flush() -> None:
            for subtask in subtasks:
                subtask.send(*(record for record in block if subtask.owns(record[0])))
            block.clear()

        for number, step in enumerate(steps):
            if number in widths:
                flush()
                collect()
                subtasks = _restored(bench, subtasks, widths[number], assigner, options)
            if step[0] == "record":
                block.append((step[1], number, step[2]))
                model.record(step[1], number, step[2])
            else:
                flush()
                model.advance(step[1])
                for subtask in subtasks:
                    subtask.watermark(step[1])
        flush()
        model.advance(10_000)
        for subtask in subtasks:
            subtask.watermark(10_000)
        collect()
        left = sum(subtask.entries() for subtask in subtasks), [t for subtask in subtasks for t in subtask.timers]
        bench.close()
    assert sorted(results) == sorted(model.fired)
    assert sorted(late) == sorted(model.late)
    assert left == (0, [])


def _restored(
    bench: WindowBench, olds: list[Driven], width: int, assigner: WindowAssigner, options: dict[str, Any]
) -> list[Driven]:
    saved = [bench.snapshot(old) for old in olds]
    for old in olds:
        old.operator.close()
        bench.made.remove(old.operator)
    return [bench.operator(assigner, subtask=i, parallelism=width, restored=saved, **options) for i in range(width)]
