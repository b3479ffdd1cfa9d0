"""Windows over columns with allowed lateness: late rows change a window that has fired, and it fires again."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import pytest
from column_examples import SALE, WANTED, WindowModel, sale
from column_histories import BACKENDS, EXAMPLES, LATE, STEPS, compare_operator, feed, program, results_of_job
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import SlidingEventTimeWindows, TumblingEventTimeWindows, WindowAssigner
from headrace.operators.windows.operator import LATE_RECORDS
from headrace.testing import JobHarness, ManualSource, OperatorHarness

TEN = TumblingEventTimeWindows.of(10)
ASSIGNERS = st.sampled_from(
    [
        TEN,
        TumblingEventTimeWindows.of(7, 3),
        SlidingEventTimeWindows.of(10, 5),
        SlidingEventTimeWindows.of(10, 4, 1),
        SlidingEventTimeWindows.of(3, 5),
    ]
)
LATENESS = st.sampled_from([1, 6, 25])


def windows(stream: Any, assigner: WindowAssigner, lateness: int, *, late: bool = False, **wanted: Any) -> Any:
    windowed = stream.key_by("shop").window(assigner).allowed_lateness(lateness)
    return (windowed.side_output_late_data(LATE) if late else windowed).aggregate_columns(wanted or WANTED)


@pytest.mark.parametrize("backend", BACKENDS)
def test_late_rows_fire_windows_again_as_in_the_model(backend: str) -> None:
    @settings(max_examples=EXAMPLES[backend], deadline=None)
    @given(assigner=ASSIGNERS, lateness=LATENESS, steps=STEPS, as_columns=st.booleans())
    def histories(assigner: WindowAssigner, lateness: int, steps: list[Any], as_columns: bool) -> None:
        build = lambda stream: windows(stream, assigner, lateness, late=True)  # noqa: E731
        compare_operator(build, WindowModel(assigner, lateness), backend, steps, as_columns)

    histories()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_job_that_combines_gives_some_of_the_models_firings_and_the_last_of_each_window(backend: str) -> None:
    @settings(max_examples=EXAMPLES[backend], deadline=None)
    @given(assigner=ASSIGNERS, lateness=LATENESS, steps=STEPS)
    def histories(assigner: WindowAssigner, lateness: int, steps: list[Any]) -> None:
        model = WindowModel(assigner, lateness)
        results = results_of_job(lambda stream: windows(stream, assigner, lateness), model, backend, steps)
        found, expected = by_window(results), by_window(model.fired)
        assert {window: firings[-1] for window, firings in found.items()} == {
            window: firings[-1] for window, firings in expected.items()
        }
        for window, firings in found.items():
            assert not Counter(firings) - Counter(expected[window])

    histories()


def by_window(firings: list[tuple[Any, ...]]) -> dict[tuple[Any, ...], list[tuple[Any, ...]]]:
    found = defaultdict(list)
    for firing in firings:
        found[firing[:3]].append(firing[3:])
    return found


def test_a_batch_of_late_rows_fires_each_window_and_key_once() -> None:
    with OperatorHarness.of(lambda s: windows(s, TEN, 5, late=True, n="count"), SALE, max_parallelism=16) as harness:
        harness.process(sale("a", 1), 3)
        harness.watermark(9)
        assert [tuple(row) for row in harness.take()] == [("a", 0, 10, 1)]
        feed(harness, [(sale("a", 1), 4), (sale("b", 1), 5), (sale("a", 1), 6), (sale("a", 1), 11)], True)
        assert sorted(map(tuple, harness.take())) == [("a", 0, 10, 3), ("b", 0, 10, 1)]
        harness.watermark(14)
        feed(harness, [(sale("a", 7), 6)], True)
        assert harness.take() == []
        assert [row.amount for row in harness.side_output(LATE)] == [7]
        assert [timer.time for timer in harness.timers()] == []
        harness.watermark(19)
        assert [tuple(row) for row in harness.take()] == [("a", 10, 20, 1)]


def test_lateness_without_end_keeps_windows_until_the_end_of_the_input() -> None:
    source = ManualSource(SALE)
    build = lambda stream: windows(stream, TEN, 2**63 - 1, n="count")  # noqa: E731
    with JobHarness(program(source, 1, "heap", build)) as job:
        source.emit(sale("a", 1), timestamp=3)
        job.watermark(2**62)
        job.checkpoint()
        job.crash()
        source.emit(sale("a", 1), timestamp=3)
        source.end()
        assert [row.n for row in job.run_to_end()] == [1, 2]
        [operator] = job.operators("windows")
        assert operator.context.backend is not None
        assert operator.context.backend.entry_count() == 0


def test_rows_beyond_lateness_are_counted_where_nobody_asks_for_them() -> None:
    source = ManualSource(SALE)
    with JobHarness(program(source, 1, "heap", lambda s: windows(s, TEN, 5, n="count"))) as job:
        source.emit(sale("a", 1), timestamp=5)
        job.watermark(13)
        source.emit(sale("a", 3), timestamp=6)
        job.run()
        job.checkpoint()
        job.watermark(14)
        source.emit(sale("a", 3), sale("b", 4), timestamp=6)
        job.run()
        job.checkpoint()
        [operator] = job.operators("windows")
        assert operator.context.metrics[LATE_RECORDS].get_count() == 2
        assert [row.n for row in job.results] == [1, 2]


def test_a_window_that_fired_before_a_restore_fires_again_after_it() -> None:
    with OperatorHarness.of(lambda s: windows(s, TEN, 5, late=True, n="count"), SALE) as harness:
        harness.process(sale("a", 1), 3)
        harness.watermark(9)
        harness.snapshot()
        harness.crash(parallelism=2)
        harness.process(sale("a", 2), 4)
        harness.watermark(100)
        assert [(row.n, row.window_end) for row in harness.take()] == [(1, 10), (2, 10)]
