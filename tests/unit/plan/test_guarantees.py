"""The end-to-end guarantee: every cell of the table in the module."""

from __future__ import annotations

import pytest
from plan_examples import Program

from headrace.connectors.sink import SinkGuarantee
from headrace.operators.factories import CollectFactory
from headrace.plan.graph import Rebalance
from headrace.plan.guarantees import Guarantee, JobGuarantee, Part, guarantees
from headrace.plan.settings import CheckpointingMode, CheckpointSettings

ON = CheckpointSettings(interval_ms=1_000)
OFF = CheckpointSettings()
LOOSE = CheckpointSettings(interval_ms=1_000, mode=CheckpointingMode.AT_LEAST_ONCE)

AT_MOST, AT_LEAST, EXACTLY = Guarantee.AT_MOST_ONCE, Guarantee.AT_LEAST_ONCE, Guarantee.EXACTLY_ONCE


def of_sink(sink: SinkGuarantee, checkpointing: CheckpointSettings = ON, *, replayable: bool = True) -> JobGuarantee:
    p = Program()
    p.sink("out", p.keyed("count", p.source(replayable=replayable)), guarantee=sink)
    return guarantees(p.plan(), checkpointing)


@pytest.mark.parametrize(
    ("sink", "replayable", "expected"),
    [
        (SinkGuarantee.NONE, True, AT_MOST),
        (SinkGuarantee.AT_LEAST_ONCE, True, AT_LEAST),
        (SinkGuarantee.IDEMPOTENT, True, EXACTLY),
        (SinkGuarantee.WRITE_AHEAD, True, EXACTLY),
        (SinkGuarantee.WRITE_AHEAD_UNMARKED, True, AT_LEAST),
        (SinkGuarantee.TWO_PHASE, True, EXACTLY),
        *((sink, False, AT_MOST) for sink in SinkGuarantee),
    ],
)
def test_each_source_and_sink_give_what_the_table_says(
    sink: SinkGuarantee, replayable: bool, expected: Guarantee
) -> None:
    assert of_sink(sink, replayable=replayable).guarantee is expected


@pytest.mark.parametrize("sink", list(SinkGuarantee))
def test_without_checkpoints_every_job_is_at_most_once(sink: SinkGuarantee) -> None:
    found = of_sink(sink, OFF)
    assert found.guarantee is AT_MOST
    loses_by_itself = [Part.SINK] if sink is SinkGuarantee.NONE else []
    assert [limit.part for limit in found.limits] == [Part.PROCESSING, *loses_by_itself]
    assert found.limits[0].remedy == "call env.enable_checkpointing(interval)"


def test_at_least_once_checkpoints_limit_a_job_where_barriers_meet() -> None:
    found = of_sink(SinkGuarantee.TWO_PHASE, LOOSE)
    assert (found.guarantee, found.state) == (AT_LEAST, AT_LEAST)
    assert '"count"' in found.limits[0].reason


def test_maps_and_filters_alone_stay_exact_with_at_least_once_checkpoints() -> None:
    p = Program(parallelism=4)
    p.sink("out", p.filter("keep", p.map("double", p.source())))
    assert guarantees(p.plan(), LOOSE).guarantee is EXACTLY


def test_maps_behind_an_exchange_are_not_exact_with_at_least_once_checkpoints() -> None:
    p = Program(parallelism=4)
    p.sink("out", p.map("double", (p.source(), Rebalance())))
    assert guarantees(p.plan(), LOOSE).guarantee is AT_LEAST


def test_a_single_channel_has_nothing_to_align() -> None:
    p = Program(parallelism=1)
    p.sink("out", p.keyed("count", p.source()))
    assert guarantees(p.plan(), LOOSE).guarantee is EXACTLY


def test_a_source_in_the_same_task_is_one_more_channel() -> None:
    p = Program(parallelism=1)
    counted = p.keyed("count", p.source("early"))
    p.sink("out", (counted, Rebalance()), (p.source("late"), Rebalance()))
    assert guarantees(p.plan(), LOOSE).guarantee is AT_LEAST


def test_all_equally_weak_parts_are_named() -> None:
    found = of_sink(SinkGuarantee.AT_LEAST_ONCE, LOOSE)
    assert [limit.part for limit in found.limits] == [Part.PROCESSING, Part.SINK]
    assert all(limit.remedy for limit in found.limits)


def test_an_exact_job_has_no_limits_and_says_why() -> None:
    found = of_sink(SinkGuarantee.IDEMPOTENT)
    assert found.limits == ()
    assert "run back" in str(found.paths[0].note)


def test_the_job_is_as_good_as_its_weakest_path() -> None:
    p = Program()
    source = p.source()
    p.sink("good", source)
    p.sink("weak", source, guarantee=SinkGuarantee.AT_LEAST_ONCE)
    found = guarantees(p.plan(), ON)
    assert {path.sink.name: path.guarantee for path in found.paths} == {"good": EXACTLY, "weak": AT_LEAST}
    assert (found.guarantee, found.state) == (AT_LEAST, EXACTLY)
    assert '"weak"' in found.limits[0].reason


def test_a_path_is_judged_by_its_own_source_only() -> None:
    p = Program()
    p.sink("from log", p.source("log"))
    p.sink("from socket", p.source("socket", replayable=False))
    found = guarantees(p.plan(), ON)
    assert [(path.source.name, path.sink.name, path.guarantee) for path in found.paths] == [
        ("log", "from log", EXACTLY),
        ("socket", "from socket", AT_MOST),
    ]


def test_collected_results_are_exactly_once() -> None:
    p = Program()
    p.add("collect", CollectFactory("c"), p.source())
    assert guarantees(p.plan(), ON).guarantee is EXACTLY


def test_a_job_without_a_sink_promises_what_its_state_does() -> None:
    p = Program()
    p.keyed("count", p.source())
    found = guarantees(p.plan(), LOOSE)
    assert (found.guarantee, found.paths) == (AT_LEAST, ())
