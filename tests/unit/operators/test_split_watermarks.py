"""The watermark of a source with several splits: that of the slowest, and a silent one is left out when it is idle."""

from __future__ import annotations

from typing import Any

import pytest
from lanes import Lanes
from test_alignment import manual_time

from headrace import StreamExecutionEnvironment, Time, TumblingEventTimeWindows, WatermarkStrategy
from headrace.testing import JobHarness


def sums(source: Lanes, idle_ms: int | None) -> JobHarness:
    """How many records each second has, as soon as the watermark has passed it."""
    strategy = WatermarkStrategy.for_monotonous_timestamps()
    if idle_ms is not None:
        strategy = strategy.with_idleness(idle_ms)
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    stream = env.from_source(source, strategy, "lanes").uid("lanes")
    windows = stream.key_by(lambda value: 0).window(TumblingEventTimeWindows.of(Time.seconds(1)))
    return JobHarness(windows.reduce(lambda a, b: (a[0] + b[0], max(a[1], b[1]))))


def results(job: JobHarness) -> list[Any]:
    job.checkpoint()
    return job.results


def test_without_idleness_a_silent_split_holds_time_up(monkeypatch: pytest.MonkeyPatch) -> None:
    now = manual_time(monkeypatch)
    source = Lanes("n", "s")
    with sums(source, None) as job:
        job.run()
        source.fill("n", 100, 200, 5_000)
        now[0] = 3_600.0
        job.advance(1_000)
        assert results(job) == []
        source.fill("s", 3_000)
        job.advance(1_000)
        assert results(job) == [("nn", 200)]


def test_the_watermark_passes_a_split_that_has_been_silent_for_long_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    now = manual_time(monkeypatch)
    source = Lanes("n", "s")
    with sums(source, 5_000) as job:
        job.run()
        source.fill("n", 100, 200, 5_000)
        now[0] = 4.0
        job.advance(1_000)
        assert results(job) == [], "it may still come"
        source.fill("n", 6_000)
        now[0] = 6.0
        job.advance(1_000)
        assert results(job) == [("nn", 200), ("n", 5_000)]
        # It counts again as soon as it has a record, and time does not run back for it.
        source.fill("s", 6_500)
        source.fill("n", 9_000)
        job.advance(1_000)
        assert results(job)[2:] == []
        source.fill("s", 8_000)
        job.advance(1_000)
        assert results(job)[2:] == [("ns", 6_500)]


def test_when_all_splits_are_silent_time_stands_and_goes_on_with_the_first_that_speaks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = manual_time(monkeypatch)
    source = Lanes("n", "s")
    with sums(source, 5_000) as job:
        source.fill("n", 100)
        source.fill("s", 100)
        job.advance(1_000)
        now[0] = 60.0
        job.advance(1_000)
        assert results(job) == []
        source.fill("s", 2_000)
        job.advance(1_000)
        assert results(job) == [("ns", 100)]
