"""Watermark alignment: who is ahead of the slowest by more than the drift waits, and nobody else does."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lanes import Lanes

from headrace import StreamExecutionEnvironment, WatermarkStrategy
from headrace.errors import ConfigurationError, JobDefinitionError
from headrace.testing import JobHarness

DRIFT = 10


def aligned(group: str = "group", drift_ms: int = DRIFT, idle_ms: int | None = None) -> WatermarkStrategy:
    strategy = WatermarkStrategy.for_monotonous_timestamps()
    strategy = strategy.with_watermark_alignment(group, timedelta(milliseconds=drift_ms), 100)
    return strategy if idle_ms is None else strategy.with_idleness(idle_ms)


def job_of(*sources: tuple[Lanes, WatermarkStrategy], parallelism: int = 1) -> JobHarness:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(parallelism)
    streams = [env.from_source(source, strategy, f"lanes {i}") for i, (source, strategy) in enumerate(sources)]
    return JobHarness(streams[0].union(*streams[1:]) if len(streams) > 1 else streams[0])


def manual_time(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds by which inputs are judged to be idle; the test sets them."""
    now = [0.0]
    for module in ("alignment", "source", "timestamps"):
        monkeypatch.setattr(f"headrace.operators.{module}.time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_a_fast_lane_of_a_reader_waits_for_the_slow_one_and_goes_on_with_it() -> None:
    source = Lanes("fast", "slow")
    with job_of((source, aligned())) as job:
        source.fill("slow", 0)
        source.fill("fast", *range(100))
        job.run()
        # A watermark is one below the last time, and may be the drift above the slowest: -1 + 10.
        assert source.how_far("fast") == 11
        source.fill("slow", 20)
        job.run()
        assert source.how_far("fast") == 31
        source.fill("slow", 200)
        job.run()
        assert source.how_far("fast") == 99
        source.end()
        assert len(job.run_to_end()) == 103


def test_without_alignment_nobody_waits() -> None:
    source = Lanes("fast", "slow")
    with job_of((source, WatermarkStrategy.for_monotonous_timestamps())) as job:
        source.fill("slow", 0)
        source.fill("fast", *range(100))
        job.run()
        assert source.how_far("fast") == 99


def test_a_lane_that_is_read_to_its_end_holds_nobody_up() -> None:
    source = Lanes("fast", "slow")
    with job_of((source, aligned())) as job:
        source.fill("slow", 0)
        source.fill("fast", *range(100))
        job.run()
        assert source.how_far("fast") == 11
        source.fill("slow", None)
        job.advance(1_000)
        assert source.how_far("fast") == 99


def test_a_lane_that_never_has_a_record_holds_the_others_up_until_it_counts_as_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = manual_time(monkeypatch)
    source = Lanes("fast", "silent")
    with job_of((source, aligned(idle_ms=5_000))) as job:
        source.fill("fast", *range(100))
        job.advance(1_000)
        assert source.how_far("fast") == 0, "its watermark is above that of one that has none"
        now[0] = 4.0
        job.advance(1_000)
        assert source.how_far("fast") == 0
        now[0] = 6.0
        job.advance(1_000)
        assert source.how_far("fast") == 99, "and one that waits does not become idle by it"


def test_a_lane_that_waits_does_not_count_as_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    now = manual_time(monkeypatch)
    source = Lanes("fast", "slow")
    with job_of((source, aligned(idle_ms=5_000))) as job:
        source.fill("fast", *range(100))
        for second in range(20):
            now[0] = float(second)
            source.fill("slow", 0)
            job.advance(1_000)
        assert source.how_far("fast") == 11
        # Now both are silent, the slow one of its own accord.
        now[0] = 26.0
        job.advance(1_000)
        assert source.how_far("fast") == 99


def test_sources_of_one_group_wait_for_each_other_over_the_driver_and_those_of_another_do_not() -> None:
    fast, slow, other = Lanes("a"), Lanes("b"), Lanes("c")
    with job_of((fast, aligned()), (slow, aligned()), (other, aligned("another"))) as job:
        slow.fill("b", 0)
        job.advance(1_000)
        other.fill("c", *range(100))
        fast.fill("a", *range(100))
        job.advance(1_000)
        assert other.how_far("c") == 99
        assert fast.how_far("a") == 11
        slow.fill("b", 50)
        job.advance(1_000)
        job.advance(1_000)
        assert fast.how_far("a") == 61
        slow.fill("b", None)
        job.advance(1_000)
        job.advance(1_000)
        assert fast.how_far("a") == 99, "a source that has ended holds nobody up"


def test_subtasks_of_one_source_wait_for_each_other_over_the_driver() -> None:
    source = Lanes("a", "b", "c")
    with job_of((source, aligned()), parallelism=3) as job:
        for name in "abc":
            source.fill(name, 0)
        job.advance(1_000)
        source.fill("a", *range(1, 100))
        source.fill("b", *range(1, 100))
        job.advance(1_000)
        assert [source.how_far(name) for name in "abc"] == [11, 11, 0]
        source.fill("c", *range(1, 100))
        for _ in range(50):
            job.advance(1_000)
        assert [source.how_far(name) for name in "abc"] == [99, 99, 99]


def test_a_reader_that_cannot_leave_splits_out_is_named_when_it_would_have_to() -> None:
    source = Lanes("fast", "slow", pauses=False)
    with job_of((source, aligned())) as job:
        source.fill("slow", 0)
        source.fill("fast", *range(100))
        with pytest.raises(JobDefinitionError, match=r"holds back fast, but LanesReader reads 2 splits at a time"):
            job.run()


def test_a_reader_of_one_split_at_a_time_needs_nothing_to_be_held_back() -> None:
    fast, slow = Lanes("a", pauses=False), Lanes("b", pauses=False)
    with job_of((fast, aligned()), (slow, aligned())) as job:
        slow.fill("b", 0)
        job.advance(1_000)
        fast.fill("a", *range(100))
        job.advance(1_000)
        assert fast.how_far("a") == 11
        slow.end()
        job.advance(1_000)
        job.advance(1_000)
        assert fast.how_far("a") == 99


def test_after_a_crash_lanes_are_aligned_as_before_and_nothing_is_lost() -> None:
    source = Lanes("fast", "slow")
    with job_of((source, aligned())) as job:
        source.fill("slow", 0)
        source.fill("fast", *range(100))
        job.checkpoint()
        job.crash()
        source.read.clear()
        job.run()
        # Trackers begin anew: nothing is known of either lane yet.
        assert source.how_far("fast") <= 12
        source.fill("slow", 200)
        source.end()
        values = job.run_to_end()
        assert sorted(values) == sorted([*(("fast", n) for n in range(100)), ("slow", 0), ("slow", 200)])


@given(
    speeds=st.lists(st.integers(1, 30), min_size=2, max_size=4),
    per_poll=st.integers(1, 5),
    drift_ms=st.integers(0, 50),
)
@settings(max_examples=40, deadline=None)
def test_whatever_the_speeds_nobody_is_ahead_by_more_than_drift_and_a_batch_and_all_is_read(
    speeds: list[int], per_poll: int, drift_ms: int
) -> None:
    names = [f"lane {i}" for i in range(len(speeds))]
    source = Lanes(*names, per_poll=per_poll)
    for name, speed in zip(names, speeds, strict=True):
        source.fill(name, *range(0, 300, speed), None)
    with job_of((source, aligned(drift_ms=drift_ms))) as job:
        assert len(job.run_to_end()) == sum(len(range(0, 300, speed)) for speed in speeds)
    reached = dict.fromkeys(names, -1)
    last = {name: max(range(0, 300, speed)) for name, speed in zip(names, speeds, strict=True)}
    step = max(speeds) * per_poll
    for name, time in source.read:
        behind = min(reached[other] for other in names if reached[other] < last[other])
        assert time <= behind + drift_ms + step + 1, f"{name} read {time} while the slowest was at {behind}"
        reached[name] = max(reached[name], time)


WRONG: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "no name": (lambda: aligned(""), ConfigurationError, "wanted a name"),
    "drift below zero": (lambda: aligned(drift_ms=-1), ConfigurationError, "drift -1 ms"),
    "no watermarks": (
        lambda: WatermarkStrategy.no_watermarks().with_watermark_alignment("group", 10),
        ConfigurationError,
        "would wait for it for ever",
    ),
    "in the middle of a stream": (
        lambda: (
            StreamExecutionEnvironment.get_execution_environment()
            .from_collection([1])
            .assign_timestamps_and_watermarks(aligned())
        ),
        JobDefinitionError,
        "Give it to from_source",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_aligned_is_refused(case: str) -> None:
    wrong, kind, message = WRONG[case]
    with pytest.raises(kind, match=message):
        wrong()
