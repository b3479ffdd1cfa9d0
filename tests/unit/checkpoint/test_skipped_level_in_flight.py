"""Records in flight on an edge that skips a level: some wait at the target, newer ones at the relay before it."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import KeyedCoProcessFunction, StreamExecutionEnvironment, WatermarkStrategy
from headrace.testing import JobHarness, JobSnapshot, ManualSource

KEYS = "abcdefg"
NO_TIME = WatermarkStrategy.no_watermarks()


class Direct(KeyedCoProcessFunction):
    """Passes on what came directly; what came through the level between is only counted."""

    def process_element1(self, value: Any, ctx: Any) -> Any:
        yield ("direct", *value)

    def process_element2(self, value: Any, ctx: Any) -> Any:
        yield ("indirect", *value)


def job(source: ManualSource, width: int, restored: JobSnapshot | None = None) -> JobHarness:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(width)
    env.enable_checkpointing(1_000)
    env.get_checkpoint_config().enable_unaligned_checkpoints()
    records = env.from_source(source, NO_TIME, "records").uid("records").set_parallelism(1)
    between = records.key_by(lambda r: r[0]).map_with_state(lambda r, n: (r, n), state_type=int).uid("between")
    both = records.key_by(lambda r: r[0]).connect(between.key_by(lambda r: r[0]))
    return JobHarness(both.process(Direct()).uid("target"), restored=restored)


def out_of_order(results: list[Any], way: str) -> dict[str, list[int]]:
    """The numbers of each key that did not arrive in ascending order, or not all of them."""
    arrived: dict[str, list[int]] = defaultdict(list)
    for found, key, number in results:
        if found == way:
            arrived[key].append(number)
    return {key: numbers for key, numbers in arrived.items() if numbers != sorted(set(numbers))}


def through(pauses: list[int], widths: list[int]) -> tuple[list[Any], list[set[int]], ManualSource]:
    """All results of a job that is restored with records in flight, at another width each time."""
    source = ManualSource()
    saved: JobSnapshot | None = None
    results: list[Any] = []
    levels: list[set[int]] = []
    number = 0
    for stage, width in enumerate(widths):
        with job(source, width, saved) as running:
            last = stage == len(widths) - 1
            for turns in pauses:
                source.emit(*((key, number + n) for n in range(2) for key in KEYS))
                number += 2
                running.run(turns)
            if last:
                source.end()
                results += running.run_to_end()
            else:
                saved = running.checkpoint(in_flight=True)
                results += running.results
                levels.append({channel.level for channel in saved.metadata.channels if channel.count})
    return results, levels, source


@pytest.mark.parametrize("widths", [[2, 3], [3, 1], [1, 2], [4, 2, 3], [2, 2]])
def test_a_key_keeps_its_order_when_the_relay_and_the_target_hold_its_records(widths: list[int]) -> None:
    results, levels, source = through([1, 2, 1, 3, 2] * 4, widths)
    assert {1, 2} in levels, "the relay and the target must both hold records, or nothing is shown"
    assert not out_of_order(results, "direct")
    assert not out_of_order(results, "indirect")
    assert len(results) == 2 * len(source.values)


@given(
    pauses=st.lists(st.integers(0, 25), min_size=1, max_size=8),
    widths=st.lists(st.integers(1, 4), min_size=2, max_size=3),
)
@settings(max_examples=40, deadline=None)
def test_no_pause_and_no_change_of_width_reverses_a_key(pauses: list[int], widths: list[int]) -> None:
    results, _, source = through(pauses, widths)
    assert not out_of_order(results, "direct")
    assert not out_of_order(results, "indirect")
    assert len(results) == 2 * len(source.values)
