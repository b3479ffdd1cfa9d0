"""Running aggregates over columns: at every watermark the keys that changed, at the end all of them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest
from column_examples import SALE, WANTED, aggregated, sale
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import (
    EmbeddedRocksDBStateBackend,
    HashMapStateBackend,
    StreamExecutionEnvironment,
    Types,
    WatermarkStrategy,
)
from headrace.testing import JobHarness, ManualSource
from headrace.types.information import TypeLike

BACKENDS = {"heap": HashMapStateBackend, "rocksdb": EmbeddedRocksDBStateBackend}


def program(source: ManualSource, width: int, backend: str = "heap", **how: Any) -> Any:
    env = StreamExecutionEnvironment()
    env.set_parallelism(width)
    env.set_state_backend(BACKENDS[backend]())
    sales = env.from_source(source, WatermarkStrategy.no_watermarks(), "sales").uid("sales").set_parallelism(1)
    return sales.key_by("shop").aggregate_columns(WANTED, **how).uid("totals")


def test_each_watermark_gives_the_keys_that_changed() -> None:
    source = ManualSource(SALE)
    with JobHarness(program(source, 2)) as job:
        source.emit(sale("a", 1), sale("b", 2), sale("a", 3), timestamp=5)
        job.checkpoint()
        assert job.results == [], "nothing before the watermark moves"
        job.watermark(10)
        source.emit(sale("a", 4), timestamp=15)
        job.watermark(20)
        job.watermark(30)
        source.emit(sale("c", 5), timestamp=35)
        source.end()
        found = sorted((row.shop, row.total, row.sales) for row in job.run_to_end())
    assert found == [("a", 4, 2), ("a", 8, 3), ("b", 2, 1), ("c", 5, 1)]


STEPS = st.lists(
    st.one_of(
        *[st.tuples(st.just("record"), st.sampled_from("abcd"), st.one_of(st.none(), st.integers(-50, 50)))] * 3,
        st.tuples(st.just("watermark")),
        st.tuples(st.just("crash")),
        st.tuples(st.just("rescale"), st.integers(1, 3)),
    ),
    max_size=40,
)


@pytest.mark.thorough
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_last_row_of_each_key_is_what_plain_python_computes(backend: str) -> None:
    @settings(max_examples={"heap": 12, "rocksdb": 4}[backend], deadline=None)
    @given(steps=STEPS)
    def histories(steps: list[Any]) -> None:
        compare(backend, steps)

    histories()


def compare(backend: str, steps: list[Any]) -> None:
    for emit in ("watermark", "end"):
        last, rows = _run(steps, lambda s, w, emit=emit: program(s, w, backend, emit=emit))  # type: ignore[misc]
        expected = {shop: aggregated([row for row in rows if row.shop == shop]) for shop in {r.shop for r in rows}}
        assert {key: found[-1] for key, found in last.items()} == expected
        if emit == "end":
            assert all(len(found) == 1 for found in last.values())


def _run(steps: list[Any], build: Callable[[ManualSource, int], Any]) -> tuple[dict[str, list[Any]], list[Any]]:
    source, found, time = ManualSource(SALE), [], 0
    job = JobHarness(build(source, 2))
    for step in steps:
        match step:
            case ("record", shop, amount):
                source.emit(sale(shop, amount), timestamp=time)
            case ("watermark",):
                job.watermark(time)
                time += 10
            case ("crash",):
                job.checkpoint()
                job.crash()
            case ("rescale", width):
                taken = job.checkpoint()
                found += job.results
                job.close()
                job = JobHarness(build(source, width), restored=taken)
    source.end()
    with job:
        found += job.run_to_end()
    by_key: dict[str, list[Any]] = {}
    for row in found:
        by_key.setdefault(row.shop, []).append(tuple(row)[1:])
    return by_key, source.values


def test_results_carry_the_largest_timestamp_of_their_records() -> None:
    source = ManualSource(SALE)
    with JobHarness(program(source, 1)) as job:
        source.emit(sale("a", 1), timestamp=7)
        source.emit(sale("a", 2), timestamp=3)
        source.end()
        job.run_to_end()
        [operator] = job.operators("totals")
        backend = operator.context.backend
        assert backend is not None
        backend.key_context.key = "a"
        assert backend.declared["_aggregate"].get()[-1] == 7


def test_extremes_are_of_the_type_of_their_field_and_nulls_and_nans_are_left_out() -> None:
    names = ["key", "float", "short", "date", "time", "instant"]
    types: list[TypeLike] = [str, Types.FLOAT(), Types.SHORT(), dt.date, Types.SQL_TIMESTAMP(), Types.INSTANT()]
    days = [dt.datetime(2020, 1, day, 5, 6, 7, 8) for day in (2, 3, 1)]
    rows: list[Any] = [("a", d.day + 0.5, -d.day, d.date(), d, d.replace(tzinfo=dt.UTC)) for d in days]
    rows += [("a", float("nan"), *[None] * 4), ("b", *[None] * 5)]
    env = StreamExecutionEnvironment()
    env.set_parallelism(1)
    keyed = env.from_collection(rows, Types.ROW_NAMED(names, types)).key_by("key")
    wanted = {f"{how}_{name}": (name, how) for how in ("min", "max") for name in names[1:]}
    with JobHarness(keyed.aggregate_columns(wanted, emit="end")) as job:
        found = {row.key: tuple(row)[1:] for row in job.run_to_end()}
    first, _, last = sorted(rows[:3])
    assert found["a"] == (1.5, -3, *first[3:], 3.5, -1, *last[3:])
    assert found["b"] == (None,) * 10
