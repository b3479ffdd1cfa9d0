"""What `aggregate_columns` refuses while the program is written, and how the plan looks."""

from __future__ import annotations

from typing import Any

import pytest
from column_examples import SALE, sale

from headrace import (
    CountEvictor,
    CountTrigger,
    DataStream,
    EventTimeSessionWindows,
    StreamExecutionEnvironment,
    Time,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    Types,
)
from headrace.errors import JobDefinitionError, KeyedStateError
from headrace.plan.graph import Hash

TEN = TumblingEventTimeWindows.of(10)


def sales() -> DataStream:
    env = StreamExecutionEnvironment()
    env.set_parallelism(2)
    return env.from_collection([sale("a", 1)], SALE)


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({}, "got nothing to compute"),
        ({"n": "sum"}, r'got n=\'sum\'\. Write n=\("field", "function"\)'),
        ({"n": ("amount", "median")}, "got the function 'median' for n. There are sum, min, max, count, avg"),
        ({"n": ("colour", "sum")}, 'field "colour" for n, which the records do not have. .* shop, amount, price'),
        ({"n": ("shop", "sum")}, 'wants sum of field "shop", which is STRING'),
        ({"shop": "count"}, 'a result called "shop", but the column of that name is already there'),
        ({"window_end": "count"}, 'a result called "window_end"'),
    ],
)
def test_what_cannot_be_computed_is_refused(wanted: dict[str, Any], message: str) -> None:
    with pytest.raises(JobDefinitionError, match=message):
        sales().key_by("shop").window(TEN).aggregate_columns(wanted)


def test_windows_that_are_not_for_columns_are_refused() -> None:
    keyed = sales().key_by("shop")
    for assigner in (EventTimeSessionWindows.with_gap(5), TumblingProcessingTimeWindows.of(Time.seconds(1))):
        with pytest.raises(JobDefinitionError, match=f"not {type(assigner).__name__}. Use aggregate"):
            keyed.window(assigner).aggregate_columns(n="count")
    for windowed, setting in (
        (keyed.window(TEN).trigger(CountTrigger.of(3)), "trigger"),
        (keyed.window(TEN).evictor(CountEvictor.of(3)), "evictor"),
        (keyed.window(TEN).allowed_lateness(3), "allowed_lateness"),
    ):
        with pytest.raises(JobDefinitionError, match=rf"has no {setting}\(\)"):
            windowed.aggregate_columns(n="count")


def test_keys_that_are_no_columns_are_refused() -> None:
    with pytest.raises(KeyedStateError, match=r"aggregate_columns\(\) works per key"):
        sales().aggregate_columns(n="count")
    with pytest.raises(JobDefinitionError, match="the key is computed by a function"):
        sales().key_by(lambda row: row.shop.upper()).window(TEN).aggregate_columns(n="count")
    with pytest.raises(JobDefinitionError, match='field "price" is DOUBLE'):
        sales().key_by("price").window(TEN).aggregate_columns(n="count")
    untyped = sales().map(lambda row: row).key_by(lambda row: row.shop)
    with pytest.raises(JobDefinitionError, match="the records are any Python object"):
        untyped.window(TEN).aggregate_columns(n="count")
    with pytest.raises(JobDefinitionError, match="emit='now'"):
        sales().key_by("shop").aggregate_columns(n="count", emit="now")  # type: ignore[arg-type]


def test_results_are_rows_of_key_window_and_what_was_asked_for() -> None:
    keyed = sales().key_by(lambda row: row.shop)
    made = keyed.window(TEN).aggregate_columns(total=("amount", "sum"), mean=("price", "mean"), best=("price", "max"))
    assert made.get_type() == Types.ROW_NAMED(
        ["shop", "window_start", "window_end", "total", "mean", "best"], [str, int, int, int, float, float]
    )
    running = keyed.aggregate_columns({"emit": "count"})
    assert running.get_type() == Types.ROW_NAMED(["shop", "emit"], [str, int])


def test_rows_are_combined_in_the_task_that_has_them() -> None:
    narrow = sales().set_parallelism(1)
    wide = narrow.get_execution_environment().from_collection([sale("b", 1)], SALE)
    narrow.union(wide).key_by("shop").window(TEN).aggregate_columns(n="count").name("windows").print()
    plan, _ = narrow.get_execution_environment().build("job")
    combiners = [node for node in plan.graph.nodes if node.name == "combine"]
    assert len(combiners) == 2
    for node in combiners:
        [incoming] = plan.graph.inputs(node.id)
        assert incoming.id not in plan.exchanged
        [outgoing] = plan.graph.outputs(node.id)
        assert isinstance(outgoing.partitioning, Hash)
    assert len(plan.levels) == 2
