"""What `aggregate_columns` refuses while the program is written, and how the plan looks."""

from __future__ import annotations

from typing import Any

import pytest
from column_examples import SALE, sale

from headrace import (
    CountEvictor,
    CountTrigger,
    CountTumblingWindowAssigner,
    DataStream,
    EventTimeSessionWindows,
    EventTimeTrigger,
    GlobalWindows,
    OutputTag,
    ProcessingTimeSessionWindows,
    SlidingProcessingTimeWindows,
    StreamExecutionEnvironment,
    Time,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    Types,
    WindowAssigner,
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


class LongerOnSundays(TumblingEventTimeWindows):
    """Windows that only look like tumbling ones."""


@pytest.mark.parametrize(
    ("assigner", "message"),
    [
        (TumblingProcessingTimeWindows.of(Time.seconds(1)), "windows of event time, not TumblingProcessingTimeWindows"),
        (SlidingProcessingTimeWindows.of(20, 10), "not SlidingProcessingTimeWindows"),
        (ProcessingTimeSessionWindows.with_gap(5), "not ProcessingTimeSessionWindows"),
        (EventTimeSessionWindows.with_dynamic_gap(len), r"a fixed gap, but with_dynamic_gap\(\) asks a function"),
        (GlobalWindows.create(), "not GlobalWindows"),
        (CountTumblingWindowAssigner.of(3), "not CountTumblingWindowAssigner"),
        (LongerOnSundays(10), "not LongerOnSundays"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_windows_that_are_not_for_columns_are_refused(assigner: WindowAssigner, message: str) -> None:
    with pytest.raises(JobDefinitionError, match=rf"{message}.* Use .* or aggregate\(\)"):
        sales().key_by("shop").window(assigner).aggregate_columns(n="count")


@pytest.mark.parametrize("assigner", [TEN, EventTimeSessionWindows.with_gap(5)], ids=["tumbling", "sessions"])
def test_what_belongs_to_single_records_is_refused(assigner: WindowAssigner) -> None:
    keyed = sales().key_by("shop")
    with pytest.raises(
        JobDefinitionError, match=r"no trigger\(\) such as CountTrigger. Leave it out, or use aggregate"
    ):
        keyed.window(assigner).trigger(CountTrigger.of(3)).aggregate_columns(n="count")
    with pytest.raises(JobDefinitionError, match=r"that CountEvictor could take out.*Leave it out, or use aggregate"):
        keyed.window(assigner).evictor(CountEvictor.of(3)).aggregate_columns(n="count")
    # What the windows do anyway may be said.
    keyed.window(assigner).trigger(EventTimeTrigger.create()).aggregate_columns(n="count")


def test_windows_over_all_records_are_refused() -> None:
    with pytest.raises(KeyedStateError, match=r"works per key, .* or use aggregate\(\)"):
        sales().window_all(TEN).aggregate_columns(n="count")


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


@pytest.mark.parametrize("assigner", [TEN, EventTimeSessionWindows.with_gap(5)], ids=["tumbling", "sessions"])
def test_rows_are_combined_unless_late_ones_are_wanted_as_they_were(assigner: WindowAssigner) -> None:
    for late, names in ((False, ["combine", "window aggregate_columns"]), (True, ["window aggregate_columns"])):
        stream = sales()
        windowed = stream.key_by("shop").window(assigner).allowed_lateness(5)
        if late:
            windowed.side_output_late_data(OutputTag("late", SALE))
        windowed.aggregate_columns(n="count").print()
        plan, _ = stream.get_execution_environment().build("job")
        made = [node.name for node in plan.graph.nodes]
        assert [name for name in made if name in ("combine", "window aggregate_columns")] == names


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
