"""Windows that aggregate columns give what windows over single records give, through restores at other widths."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from column_examples import SALE, WANTED, WindowModel, aggregated, sale
from column_histories import BACKENDS, EXAMPLES, LATE, STEPS, compare_operator, driven, program, results_of_job
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import (
    AggregateFunction,
    Row,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    Types,
    WindowAssigner,
)
from headrace.errors import UserFunctionError
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


def windows(stream: Any, assigner: WindowAssigner, *, late: bool = False, **wanted: Any) -> Any:
    windowed = stream.key_by("shop").window(assigner)
    return (windowed.side_output_late_data(LATE) if late else windowed).aggregate_columns(wanted or WANTED)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_operator_gives_what_the_model_gives_and_late_rows_to_the_side(backend: str) -> None:
    @settings(max_examples=EXAMPLES[backend], deadline=None)
    @given(assigner=ASSIGNERS, steps=STEPS, as_columns=st.booleans())
    def histories(assigner: WindowAssigner, steps: list[Any], as_columns: bool) -> None:
        build = lambda stream: windows(stream, assigner, late=True)  # noqa: E731
        compare_operator(build, WindowModel(assigner), backend, steps, as_columns)

    histories()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_job_that_combines_before_the_exchange_gives_what_the_model_gives(backend: str) -> None:
    @settings(max_examples=EXAMPLES[backend], deadline=None)
    @given(assigner=ASSIGNERS, steps=STEPS)
    def histories(assigner: WindowAssigner, steps: list[Any]) -> None:
        model = WindowModel(assigner)
        results = results_of_job(lambda stream: windows(stream, assigner), model, backend, steps)
        assert Counter(results) == Counter(model.fired)

    histories()


class Totals(AggregateFunction):
    """The same as a function that is called with each record."""

    def create_accumulator(self) -> list[Row]:
        return []

    def add(self, value: Row, accumulator: list[Row]) -> list[Row]:
        return [*accumulator, value]

    def get_result(self, accumulator: list[Row]) -> tuple[Any, ...]:
        return aggregated(accumulator)

    def merge(self, acc1: list[Row], acc2: list[Row]) -> list[Row]:
        return acc1 + acc2


@pytest.mark.thorough
@settings(max_examples=20, deadline=None)
@given(assigner=ASSIGNERS, steps=STEPS)
def test_columns_and_records_give_the_same_through_the_same_history(assigner: WindowAssigner, steps: list[Any]) -> None:
    def by_record(stream: Any) -> Any:
        windowed = stream.key_by("shop").window(assigner)
        return windowed.aggregate(Totals(), lambda key, w, totals: [(key, w.start, w.end, *totals[0])])

    results = []
    for build in (lambda s: windows(s, assigner), by_record):
        source = ManualSource(SALE)
        with JobHarness(program(source, 2, "heap", build)) as job:
            results.append(Counter(map(tuple, driven(job, source, steps, crash=True))))
    assert results[0] == results[1]


def test_many_rows_leave_the_combiner_as_few_parts_and_nothing_waits_there_at_a_barrier() -> None:
    source = ManualSource(SALE)
    with JobHarness(program(source, 2, "heap", lambda s: windows(s, TEN, n="count", total=("amount", "sum")))) as job:
        for number in range(5_000):
            source.emit(sale("ab"[number % 2], number), timestamp=number % 20)
        job.checkpoint()
        job.crash()
        source.end()
        found = sorted(map(tuple, job.run_to_end()))
    expected = [
        (shop, start, start + 10, len(numbers), sum(numbers))
        for shop, odd in (("a", 0), ("b", 1))
        for start in (0, 10)
        if (numbers := [n for n in range(5_000) if n % 2 == odd and start <= n % 20 < start + 10])
    ]
    assert found == expected


@pytest.mark.parametrize("unaligned", [False, True])
def test_cells_in_flight_come_back_at_another_width(unaligned: bool) -> None:
    source = ManualSource(SALE)

    def launch(width: int, restored: Any = None) -> JobHarness:
        how = program(source, width, "heap", lambda s: windows(s, TEN, late=True, n="count"), unaligned=unaligned)
        return JobHarness(how, restored=restored)

    with launch(3) as job:
        for number in range(4_000):
            source.emit(sale(f"shop-{number % 50}", number), timestamp=number % 30)
        job.run(turns=9)
        taken = job.checkpoint(in_flight=True)
    source.end()
    with launch(2, taken) as job:
        found = Counter((row.shop, row.window_start) for row in job.run_to_end() for _ in range(row.n))
    assert found == Counter((f"shop-{n % 50}", n % 30 // 10 * 10) for n in range(4_000))


def test_rows_behind_the_watermark_are_counted_where_nobody_asks_for_them() -> None:
    source = ManualSource(SALE)
    with JobHarness(program(source, 1, "heap", lambda s: windows(s, TEN))) as job:
        source.emit(sale("a", 1), sale("b", 2), timestamp=5)
        job.watermark(9)
        source.emit(sale("a", 3), sale("a", 4), sale("b", 5), timestamp=6)
        source.emit(sale("a", 6), timestamp=12)
        job.run()
        job.checkpoint()
        [operator] = job.operators("windows")
        assert operator.context.metrics[LATE_RECORDS].get_count() == 3
        assert [tuple(row)[:4] for row in job.results] == [("a", 0, 10, 1), ("b", 0, 10, 2)]


def test_results_carry_the_last_timestamp_of_their_window() -> None:
    with OperatorHarness.of(lambda s: windows(s, TEN, late=True, n="count"), SALE) as harness:
        harness.process(sale("a", 1), 3)
        harness.process(sale("a", 1), 13)
        harness.watermark(100)
        assert [(tuple(r.value), r.timestamp) for r in harness.output.records] == [
            (("a", 0, 10, 1), 9),
            (("a", 10, 20, 1), 19),
        ]


def test_what_was_late_before_a_restore_is_late_after_it() -> None:
    with OperatorHarness.of(lambda s: windows(s, TEN, late=True, n="count"), SALE) as harness:
        harness.process(sale("a", 1), 3)
        harness.watermark(9)
        harness.snapshot()
        harness.crash(parallelism=2)
        harness.process(sale("a", 2), 4)
        assert [row.amount for row in harness.side_output(LATE)] == [2]


@pytest.mark.parametrize("late", [False, True])
def test_sums_beyond_64_bits_on_the_way_are_exact_and_results_beyond_them_are_refused(late: bool) -> None:
    large = 2**63 - 1
    source = ManualSource(SALE)
    with JobHarness(
        program(source, 2, "rocksdb", lambda s: windows(s, TEN, late=late, total=("amount", "sum")))
    ) as job:
        source.emit(*[sale("a", large)] * 40, *[sale("a", -large)] * 39, timestamp=1)
        job.watermark(9)
        job.checkpoint()
        assert [row.total for row in job.results] == [large]
        source.emit(*[sale("a", large)] * 2, timestamp=11)
        with pytest.raises(UserFunctionError, match='A value of "total" does not fit LONG'):
            job.watermark(19)


TILL = Types.ROW_NAMED(["shop", "till"], [str, Types.SHORT()])


@pytest.mark.parametrize(
    ("key", "kept"), [("till", ("till",)), (("shop", "till"), ("shop", "till")), (["shop"], ("shop",))], ids=str
)
def test_keys_are_whole_numbers_or_several_fields(key: Any, kept: tuple[str, ...]) -> None:
    source = ManualSource(TILL)
    rows = [Row(shop=shop, till=till) for shop in "abc" for till in (-1, 2) for _ in range(30)]
    with JobHarness(
        program(source, 2, "heap", lambda s: s.key_by(key).window(TEN).aggregate_columns(n="count"))
    ) as job:
        source.emit(*rows, timestamp=1)
        source.end()
        found = {tuple(getattr(row, name) for name in kept): row.n for row in job.run_to_end()}
    assert found == Counter(tuple(getattr(row, name) for name in kept) for row in rows)
