"""Sessions over columns: rows are cut into sessions by batch, and these grow together with the sessions in state."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from column_examples import SALE, WANTED, SessionModel, sale
from column_histories import BACKENDS, EXAMPLES, LATE, STEPS, compare_operator, driven, feed, program, results_of_job
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import EventTimeSessionWindows, Row, Types
from headrace.operators.columns.aggregates import aggregates_of
from headrace.operators.columns.session_grouping import SessionGrouping
from headrace.operators.windows.operator import LATE_RECORDS
from headrace.testing import JobHarness, ManualSource, OperatorHarness
from headrace.types.columns import schema_of

GAPS = st.sampled_from([1, 4, 11])
LATENESS = st.sampled_from([0, 0, 3, 25])


def sessions(stream: Any, gap: int, lateness: int = 0, *, late: bool = False, **wanted: Any) -> Any:
    windowed = stream.key_by("shop").window(EventTimeSessionWindows.with_gap(gap)).allowed_lateness(lateness)
    return (windowed.side_output_late_data(LATE) if late else windowed).aggregate_columns(wanted or WANTED)


@pytest.mark.thorough
@pytest.mark.parametrize("backend", BACKENDS)
def test_an_operator_gives_the_sessions_of_the_model_and_late_rows_to_the_side(backend: str) -> None:
    @settings(max_examples=2 * EXAMPLES[backend], deadline=None)
    @given(gap=GAPS, lateness=LATENESS, steps=STEPS, as_columns=st.booleans())
    def histories(gap: int, lateness: int, steps: list[Any], as_columns: bool) -> None:
        build = lambda stream: sessions(stream, gap, lateness, late=True)  # noqa: E731
        compare_operator(build, SessionModel(gap, lateness), backend, steps, as_columns)

    histories()


def on_time(steps: list[Any]) -> list[Any]:
    """The history without rows behind the watermark: how these fare depends on how rows are batched."""
    watermark, kept = -1, []
    for step in steps:
        if step[0] == "watermark":
            watermark = max(watermark, step[1])
        if step[0] != "record" or step[2] > watermark:
            kept.append(step)
    return kept


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_job_that_combines_before_the_exchange_gives_the_sessions_of_the_model(backend: str) -> None:
    @settings(max_examples=EXAMPLES[backend], deadline=None)
    @given(gap=GAPS, lateness=LATENESS, steps=STEPS.map(on_time))
    def histories(gap: int, lateness: int, steps: list[Any]) -> None:
        model = SessionModel(gap, lateness)
        results = results_of_job(lambda stream: sessions(stream, gap, lateness), model, backend, steps)
        assert Counter(results) == Counter(model.fired)

    histories()


@settings(max_examples=20, deadline=None)
@given(gap=GAPS, steps=STEPS)
def test_every_row_is_in_one_session_or_counted_as_late_however_rows_are_batched(gap: int, steps: list[Any]) -> None:
    source = ManualSource(SALE)
    with JobHarness(program(source, 2, "heap", lambda stream: sessions(stream, gap, n="count"))) as job:
        found = driven(job, source, steps, crash=False)
        late = sum(operator.context.metrics[LATE_RECORDS].get_count() for operator in job.operators("windows"))
    assert sum(row.n for row in found) + late == sum(step[0] == "record" for step in steps)


def test_many_rows_of_many_keys_in_any_order_are_cut_as_one_by_one() -> None:
    chance = random.Random(7)
    rows = [
        (sale(f"shop-{chance.randrange(40)}", chance.randrange(100)), chance.randrange(60_000)) for _ in range(6_000)
    ]
    model = SessionModel(400)
    model.take(rows)
    model.advance(10**6)
    source = ManualSource(SALE)
    with JobHarness(program(source, 2, "heap", lambda stream: sessions(stream, 400))) as job:
        for number, (row, time) in enumerate(rows):
            source.emit(row, timestamp=time)
            if number in (1_000, 3_500):
                job.checkpoint()
                job.crash()
        source.end()
        found = Counter(map(tuple, job.run_to_end()))
    assert len(found) > 1_000
    assert found == Counter(model.fired)


@pytest.mark.parametrize("unaligned", [False, True])
def test_cells_in_flight_come_back_at_another_width(unaligned: bool) -> None:
    source = ManualSource(SALE)

    def launch(width: int, restored: Any = None) -> JobHarness:
        build = lambda stream: sessions(stream, 3, late=True, n="count")  # noqa: E731
        return JobHarness(program(source, width, "heap", build, unaligned=unaligned), restored=restored)

    with launch(3) as job:
        for number in range(4_000):
            source.emit(sale(f"shop-{number % 50}", number), timestamp=number % 30 // 10 * 10)
        job.run(turns=9)
        taken = job.checkpoint(in_flight=True)
    source.end()
    with launch(2, taken) as job:
        found = Counter((row.shop, row.window_start, row.window_end) for row in job.run_to_end() for _ in range(row.n))
    starts = [n % 30 // 10 * 10 for n in range(4_000)]
    assert found == Counter((f"shop-{n % 50}", start, start + 3) for n, start in enumerate(starts))


def test_a_session_in_state_grows_by_rows_that_still_wait_when_the_watermark_would_end_it() -> None:
    with OperatorHarness.of(lambda s: sessions(s, 10, late=True, n="count"), SALE) as harness:
        harness.process(sale("a", 1), 0)
        harness.snapshot()
        harness.process(sale("a", 1), 10)
        harness.watermark(9)
        assert harness.take() == []
        harness.watermark(19)
        assert [tuple(row) for row in harness.take()] == [("a", 0, 20, 2)]


def test_a_row_that_waits_before_the_exchange_is_not_overtaken_by_the_watermark_that_would_end_its_session() -> None:
    source = ManualSource(SALE)
    with JobHarness(program(source, 2, "heap", lambda s: sessions(s, 10, n="count"))) as job:
        source.emit(sale("a", 1), timestamp=0)
        job.checkpoint()
        source.emit(sale("a", 1), timestamp=10)
        job.watermark(9)
        source.end()
        assert [tuple(row) for row in job.run_to_end()] == [("a", 0, 20, 2)]


SPAN = st.tuples(st.sampled_from("ab"), st.sampled_from([None, 1, 2]), st.integers(-40, 40), st.integers(1, 30))


@settings(max_examples=60, deadline=None)
@given(spans=st.lists(SPAN, min_size=1, max_size=25), cut=st.integers(1, 25))
def test_sessions_of_several_tasks_that_overlap_anyhow_become_the_fewest(spans: list[Any], cut: int) -> None:
    """Rows of parts: shop, till, start, length."""
    kind = Types.ROW_NAMED(["shop", "till"], [str, int])
    wanted: dict[str, Any] = {"n": "count"}
    aggregates = aggregates_of(kind, ["shop", "till"], False, wanted, paned=True, sessions=True, call="")
    rows = [(shop, till, start, start + length, 1) for shop, till, start, length in spans]
    schema = schema_of(aggregates.travelling_type)
    batches = [
        pa.RecordBatch.from_arrays([pa.array(column) for column in zip(*part, strict=True)], schema=schema)
        for part in (rows[:cut], rows[cut:])
        if part
    ]
    table, numbers = SessionGrouping(aggregates, 1, raw=False).sessions_of(pa.Table.from_batches(batches))
    found = [tuple(row.values()) for row in table.to_pylist()]
    expected = []
    for key in {row[:2] for row in rows}:
        reached: list[list[int]] = []
        for start, end in sorted(row[2:4] for row in rows if row[:2] == key):
            if reached and start <= reached[-1][1]:
                reached[-1] = [reached[-1][0], max(reached[-1][1], end), reached[-1][2] + 1]
            else:
                reached.append([start, end, 1])
        expected += [(*key, *session) for session in reached]
    assert Counter(found) == Counter(expected)
    for row, number in zip(rows, numbers.tolist(), strict=True):
        shop, till, start, end, _ = found[number]
        assert (shop, till) == row[:2]
        assert start <= row[2] < row[3] <= end


def test_a_row_between_two_sessions_makes_them_one_also_where_the_first_has_fired() -> None:
    with OperatorHarness.of(lambda s: sessions(s, 5, 20, late=True, n="count"), SALE, max_parallelism=16) as harness:
        feed(harness, [(sale("a", 1), 0), (sale("a", 1), 9)], True)
        harness.watermark(6)
        assert [tuple(row) for row in harness.take()] == [("a", 0, 5, 1)]
        harness.snapshot()
        harness.crash(parallelism=2)
        feed(harness, [(sale("a", 1), 4)], True)
        assert harness.take() == [], "the session has an end that is still to come"
        harness.watermark(13)
        feed(harness, [(sale("a", 1), 1), (sale("a", 1), 2)], True)
        assert [tuple(row) for row in harness.take()] == [("a", 0, 14, 3), ("a", 0, 14, 5)]
        harness.watermark(33)
        assert harness.timers() == []


def test_a_row_behind_the_watermark_joins_a_session_that_is_alive_and_is_late_alone() -> None:
    with OperatorHarness.of(lambda s: sessions(s, 5, late=True, n="count"), SALE, max_parallelism=16) as harness:
        harness.process(sale("a", 1), 20)
        harness.watermark(22)
        feed(harness, [(sale("a", 2), 16), (sale("a", 3), 14), (sale("b", 4), 16), (sale("c", 5), 30)], True)
        assert [row.amount for row in harness.side_output(LATE)] == [4]
        harness.watermark(100)
        assert sorted(map(tuple, harness.take())) == [("a", 14, 25, 3), ("c", 30, 35, 1)]


def test_late_rows_are_counted_where_nobody_asks_for_them() -> None:
    source = ManualSource(SALE)
    with JobHarness(program(source, 1, "heap", lambda s: sessions(s, 5, n="count"))) as job:
        source.emit(sale("a", 1), timestamp=5)
        job.watermark(30)
        source.emit(sale("a", 3), sale("a", 4), sale("b", 5), timestamp=6)
        source.emit(sale("a", 6), timestamp=40)
        job.run()
        job.checkpoint()
        [operator] = job.operators("windows")
        assert operator.context.metrics[LATE_RECORDS].get_count() == 3
        assert [tuple(row) for row in job.results] == [("a", 5, 10, 1)]


TILL = Types.ROW_NAMED(["shop", "till", "floor"], [str, Types.SHORT(), int])


def test_keys_are_whole_numbers_or_several_fields() -> None:
    rows = [Row(shop=shop, till=till, floor=floor) for shop in "abc" for till in (-1, 2) for floor in (0, 2**40)]
    for key in ("till", ("shop", "till"), ("shop", "till", "floor")):
        names = [key] if isinstance(key, str) else key
        source = ManualSource(TILL)

        def build(stream: Any, key: Any = key) -> Any:
            return stream.key_by(key).window(EventTimeSessionWindows.with_gap(5)).aggregate_columns(n="count")

        with JobHarness(program(source, 2, "heap", build)) as job:
            for time in (0, 5, 11):
                source.emit(*rows, timestamp=time)
            source.end()
            found = Counter(
                (*(getattr(row, name) for name in names), row.window_start, row.n) for row in job.run_to_end()
            )
        each = Counter(tuple(getattr(row, name) for name in names) for row in rows)
        assert found == Counter((*k, start, n * c) for k, n in each.items() for start, c in ((0, 2), (11, 1)))
