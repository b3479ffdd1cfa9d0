"""A rate is kept by the clock, and a stall is not made up for without bound."""

from __future__ import annotations

import pytest

from headrace.connectors.pace import Pace
from headrace.connectors.sensors import SensorSource
from headrace.connectors.sequence import NumberSequenceSource
from headrace.connectors.source import PollStatus, SourceBatch
from headrace.errors import ConfigurationError
from headrace.testing.source_driver import SourceDriver


class ManualClock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def emit(pace: Pace, limit: int = 10_000) -> int:
    count = pace.due(limit)
    pace.emitted(count)
    return count


def test_records_come_due_as_time_passes() -> None:
    clock = ManualClock()
    pace = Pace(1_000, clock=clock)

    assert emit(pace) == 1
    clock.now += 0.25
    assert emit(pace) == 250
    assert emit(pace) == 0


def test_what_is_left_by_a_small_limit_is_caught_up() -> None:
    clock = ManualClock()
    pace = Pace(1_000, clock=clock)
    emit(pace)
    clock.now += 0.5

    assert [emit(pace, 200) for _ in range(4)] == [200, 200, 100, 0]


def test_a_long_stall_is_caught_up_by_a_second_at_most() -> None:
    clock = ManualClock()
    pace = Pace(1_000, clock=clock)
    emit(pace)
    clock.now += 3_600

    assert emit(pace) == 1_000
    clock.now += 0.1
    assert emit(pace) == 100


def test_the_clock_at_next_due_finds_a_record_due() -> None:
    clock = ManualClock()
    pace = Pace(7, clock=clock)
    emitted = 0
    for _ in range(100):
        emitted += emit(pace)
        clock.now = pace.next_due()
        assert pace.due(10) == 1
    assert emitted == 100


def test_a_rate_below_one_a_second_still_emits() -> None:
    clock = ManualClock()
    pace = Pace(0.01, clock=clock)

    assert emit(pace) == 1
    clock.now += 99
    assert emit(pace) == 0
    clock.now += 1
    assert emit(pace) == 1


def test_without_a_rate_everything_is_due() -> None:
    assert Pace(None).due(123) == 123


@pytest.mark.parametrize("rate", [0, -1.0, float("nan")])
def test_a_rate_that_emits_nothing_is_refused(rate: float) -> None:
    with pytest.raises(ConfigurationError, match="rate="):
        NumberSequenceSource(1, 2, rate=rate)
    with pytest.raises(ConfigurationError, match="rate="):
        SensorSource(10, rate=rate)


@pytest.mark.parametrize("source", [NumberSequenceSource(1, 10, rate=0.001), SensorSource(10, rate=0.001)])
def test_a_source_ahead_of_its_rate_is_idle_and_says_until_when(source: NumberSequenceSource | SensorSource) -> None:
    driver = SourceDriver(source)
    assert driver.poll(0) is PollStatus.NEEDS_SPLIT
    assert isinstance(driver.poll(0), SourceBatch)

    assert driver.poll(0) is PollStatus.IDLE
    until = driver.readers[0].idle_until()
    assert until is not None
    assert len(driver.records) == 1
