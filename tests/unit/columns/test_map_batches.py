"""`map_batches`: columns in and out, timestamps, errors, and rows gathered where single records come."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from column_examples import SALE, batch_of, sale

from headrace import (
    FileSource,
    MapFunction,
    Row,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    Types,
    WatermarkStrategy,
)
from headrace.errors import JobDefinitionError, UserFunctionError
from headrace.operators.base import Attention, ColumnBlock
from headrace.testing import JobHarness, ManualSource, OperatorHarness

NO_TIME = WatermarkStrategy.no_watermarks()
DOUBLED = Types.ROW_NAMED(["shop", "twice"], [str, int])


def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
    twice = pc.multiply(batch.column("amount"), 2)
    return pa.RecordBatch.from_arrays([batch.column("shop"), twice], names=["shop", "twice"])


def harness_of(func: Any, output_type: Any = None, input_type: Any = SALE, **how: Any) -> OperatorHarness:
    return OperatorHarness.of(lambda stream: stream.map_batches(func, output_type, **how), input_type)


def send(harness: OperatorHarness, rows: list[Row], times: list[int] | None = None) -> None:
    block = ColumnBlock(batch_of(rows), None if times is None else pa.array(times, pa.int64()))
    harness.operators[0].process_block(block, Attention())


def test_a_batch_comes_as_the_columns_that_travelled() -> None:
    seen = []

    def look(batch: pa.RecordBatch) -> pa.RecordBatch:
        seen.append((batch.schema.names, batch.num_rows))
        return batch

    source = ManualSource(SALE)
    env = StreamExecutionEnvironment()
    env.set_parallelism(1)
    with JobHarness(env.from_source(source, NO_TIME, "sales").rebalance().map_batches(look)) as job:
        source.emit(*[sale("a", n) for n in range(500)])
        source.end()
        assert job.run_to_end() == source.values
    assert sum(rows for _, rows in seen) == 500
    assert max(rows for _, rows in seen) > 1
    assert {tuple(names) for names, _ in seen} == {("shop", "amount", "price")}


def test_parquet_comes_as_columns_without_a_row_in_between(tmp_path: Any) -> None:
    pq.write_table(pa.table({"shop": ["a", "b"] * 50, "amount": list(range(100))}), tmp_path / "sales.parquet")
    env = StreamExecutionEnvironment()
    env.set_parallelism(1)
    read = env.from_source(FileSource.parquet(str(tmp_path)), NO_TIME, "sales")
    kind = read.get_type()
    assert kind is not None
    with JobHarness(read.map_batches(doubled, DOUBLED).uid("twice")) as job:
        [operator] = job.operators("twice")
        operator.process = None  # type: ignore[assignment, method-assign]  # nobody may call it
        assert [row.twice for row in job.run_to_end()] == [n * 2 for n in range(100)]


def test_single_records_are_gathered_and_never_wait_for_a_barrier_a_watermark_or_the_end() -> None:
    source = ManualSource(SALE)
    sizes: list[int] = []

    def look(batch: pa.RecordBatch) -> pa.RecordBatch:
        sizes.append(batch.num_rows)
        return batch

    env = StreamExecutionEnvironment()
    env.set_parallelism(1)
    stream = env.from_source(source, NO_TIME, "sales").map(lambda row: row, SALE).map_batches(look)
    with JobHarness(stream) as job:
        source.emit(sale("a", 1), sale("a", 2))
        job.checkpoint()
        assert sizes == [2]
        source.emit(sale("a", 3))
        job.run()
        assert sizes == [2], "alone, it waits a little for company"
        job.advance(5)
        assert sizes == [2, 1]
        source.emit(sale("a", 4))
        job.watermark(10)
        source.emit(sale("a", 5), timestamp=11)
        source.emit(sale("a", 6))
        job.run()
        assert sizes == [2, 1, 1, 1], "records with and without a timestamp do not share a batch"
        source.end()
        assert [row.amount for row in job.run_to_end()] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("func", "amounts", "times"),
    [
        (lambda b: b, [1, 2, 3], [7, 5, 6]),
        (lambda b: b.slice(1), [2, 3], [7, 7]),
        (lambda b: [b, b], [1, 2, 3] * 2, [7] * 6),
        (lambda b: (b.slice(i, 1) for i in range(3)), [1, 2, 3], [7, 5, 6]),
        (lambda b: pa.Table.from_batches([b, b]), [1, 2, 3] * 2, [7] * 6),
        (lambda b: pa.Table.from_batches([b.slice(0, 1), b.slice(1)]), [1, 2, 3], [7, 5, 6]),
        (lambda b: b.slice(0, 0), [], []),
        (lambda b: None, [], []),
    ],
    ids=["same", "fewer", "more", "one-by-one", "table", "table-of-parts", "empty", "nothing"],
)
def test_rows_keep_their_timestamps_where_they_are_as_many_and_get_the_latest_where_not(
    func: Any, amounts: list[int], times: list[int]
) -> None:
    with harness_of(func) as harness:
        send(harness, [sale("a", 1), sale("a", 2), sale("a", 3)], [7, 5, 6])
        assert [r.value.amount for r in harness.output.records] == amounts
        assert [r.timestamp for r in harness.output.records] == times


def test_timestamps_can_come_from_a_column() -> None:
    with harness_of(doubled, DOUBLED, timestamp_field="twice") as harness:
        send(harness, [sale("a", 1), sale("a", 2)])
        assert [r.timestamp for r in harness.output.records] == [2, 4]
        with pytest.raises(UserFunctionError, match=r'"twice" holds the timestamps .* one of them is null'):
            send(harness, [sale("a", None)])


def test_columns_are_brought_into_order_and_to_their_declared_width() -> None:
    def narrow(batch: pa.RecordBatch) -> pa.Table:
        twice = pc.multiply(batch.column("amount"), 2).cast(pa.int16())
        return pa.table({"twice": twice, "shop": batch.column("shop").dictionary_encode()})

    with harness_of(narrow, DOUBLED) as harness:
        send(harness, [sale("a", 1), sale("b", None)])
        assert harness.take() == [Row(shop="a", twice=2), Row(shop="b", twice=None)]


def test_a_stream_of_plain_values_has_one_column() -> None:
    with harness_of(
        lambda b: pa.RecordBatch.from_arrays([pc.multiply(b.column("value"), 2)], names=["value"]), None, int
    ) as harness:
        harness.process_all([1, 2, 3])
        assert harness.take() == [2, 4, 6]


@pytest.mark.parametrize(
    ("func", "message"),
    [
        (lambda b: 1 / 0, "ZeroDivisionError"),
        (lambda b: b.drop_columns(["price"]), "gave the columns shop, amount, but the declared output has shop, "),
        (lambda b: b.to_pylist(), "an iterable of builtins.dict; wanted a pyarrow.RecordBatch"),
        (lambda b: {"a": 1}, "returned builtins.dict; wanted"),
        (
            lambda b: b.set_column(1, "amount", b.column("shop")),
            'gave column "amount" as string, but the declared output has it as int64: that is another kind',
        ),
        (
            lambda b: b.set_column(1, "amount", pa.array([1.5] * b.num_rows)),
            'gave column "amount" as double, but the declared output has it as int64: that is another kind',
        ),
    ],
    ids=["raises", "columns", "rows", "dict", "text", "float"],
)
def test_an_error_names_the_operator_and_describes_the_batch(func: Any, message: str) -> None:
    with harness_of(func) as harness, pytest.raises(UserFunctionError) as failure:
        send(harness, [sale("a", 1), sale("b", 2)])
    assert message in str(failure.value)
    assert 'Operator "map_batches" (uid' in str(failure.value)
    assert "a batch of 2 rows, the first of them {'shop': 'a', 'amount': 1" in str(failure.value)


class Counted(MapFunction):
    """A function object: opened once, and called with batches."""

    def open(self, runtime_context: Any) -> None:
        self.batches = 0

    def map(self, value: Any) -> Any:
        raise AssertionError("not this one")

    def map_batches(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self.batches += 1
        return batch.set_column(1, "amount", pa.array([self.batches] * batch.num_rows))


def test_a_function_object_is_opened_before_its_first_batch() -> None:
    with harness_of(Counted()) as harness:
        send(harness, [sale("a", 10), sale("a", 20)])
        send(harness, [sale("a", 30)])
        assert [row.amount for row in harness.take()] == [1, 1, 2]


def test_programs_that_cannot_work_are_refused_with_the_way_out() -> None:
    env = StreamExecutionEnvironment()
    untyped = env.from_collection([1]).map(lambda n: n)
    with pytest.raises(JobDefinitionError, match=r"map_batches\(\) works on columns, but the records are any Python"):
        untyped.map_batches(doubled, DOUBLED)
    typed = env.from_collection([sale("a", 1)], SALE)
    with pytest.raises(JobDefinitionError, match=r"a part of which has no column\. Give it an output_type"):
        typed.map_batches(doubled, Types.ANY())
    with pytest.raises(JobDefinitionError, match='timestamps from field "when"'):
        typed.map_batches(doubled, DOUBLED, timestamp_field="when")
    with pytest.raises(JobDefinitionError, match="cannot be called"):
        typed.map_batches(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("traceable", [True, False], ids=["a column", "a function"])
def test_timestamps_are_assigned_behind_it_by_column_where_nothing_must_look_at_each_row(traceable: bool) -> None:
    at: Any = (lambda row, _: row.amount) if traceable else (lambda row, _: max(row.amount, 0))
    source = ManualSource(SALE)
    env = StreamExecutionEnvironment()
    env.set_parallelism(1)
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(at)
    sales = env.from_source(source, NO_TIME, "sales").map_batches(lambda batch: batch)
    timed = sales.assign_timestamps_and_watermarks(strategy).uid("times")
    windows = timed.key_by("shop").window(TumblingEventTimeWindows.of(10)).aggregate_columns(n="count")
    with JobHarness(windows) as job:
        [operator] = job.operators("times")
        if traceable:
            operator.process = None  # type: ignore[assignment, method-assign]  # nobody may call it
        source.emit(*[sale("a", n) for n in range(25)])
        job.advance(5)
        job.advance(200)
        job.checkpoint()
        assert [(row.window_start, row.n) for row in job.results] == [(0, 10), (10, 10)]
        assert operator.current_watermark == 23
        source.emit(sale("a", 27))
        source.end()
        assert [(row.window_start, row.n) for row in job.run_to_end()][2:] == [(20, 6)]
