"""Watermark strategies as programs write them."""

from __future__ import annotations

import pickle
from datetime import timedelta
from typing import Any

import pytest

from headrace.durations import Duration
from headrace.errors import ConfigurationError, JobDefinitionError
from headrace.operators.watermarks import (
    MAX_WATERMARK,
    MIN_WATERMARK,
    TimestampAssigner,
    WatermarkGenerator,
    WatermarkStrategy,
)


class Marker(WatermarkGenerator):
    """A watermark at each record that is marked."""

    def __init__(self) -> None:
        self.at: int | None = None

    def on_event(self, value: Any, timestamp: int) -> None:
        if value == "mark":
            self.at = timestamp

    def on_periodic_emit(self) -> int | None:
        return self.at


class Second(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return int(value[1])


def test_the_bounds_are_those_of_a_java_long() -> None:
    assert (MIN_WATERMARK, MAX_WATERMARK) == (-9223372036854775808, 9223372036854775807)


def test_monotonous_timestamps_are_followed_at_one_less() -> None:
    generator = WatermarkStrategy.for_monotonous_timestamps().create_generator()
    assert generator.on_periodic_emit() is None
    generator.on_event("a", 100)
    assert generator.on_periodic_emit() == 99


@pytest.mark.parametrize("late", [20, timedelta(milliseconds=20), Duration.of_millis(20)])
def test_bounded_out_of_orderness_holds_back_and_never_runs_back(late: Any) -> None:
    generator = WatermarkStrategy.for_bounded_out_of_orderness(late).create_generator()
    generator.on_event("a", 100)
    generator.on_event("b", 85)
    assert generator.on_periodic_emit() == 79


def test_no_watermarks_says_nothing() -> None:
    generator = WatermarkStrategy.no_watermarks().create_generator()
    generator.on_event("a", 100)
    assert generator.on_periodic_emit() is None


def test_a_watermark_never_falls_below_the_smallest() -> None:
    generator = WatermarkStrategy.for_bounded_out_of_orderness(10).create_generator()
    generator.on_event("a", MIN_WATERMARK + 1)
    assert generator.on_periodic_emit() == MIN_WATERMARK


def test_a_generator_of_ones_own_is_made_for_each_split() -> None:
    strategy = WatermarkStrategy.for_generator(Marker)
    one, other = strategy.create_generator(), strategy.create_generator()
    one.on_event("mark", 5)
    assert (one.on_periodic_emit(), other.on_periodic_emit()) == (5, None)
    assert not one.only_timestamps


def test_assigners_are_objects_or_functions() -> None:
    strategy = WatermarkStrategy.no_watermarks()
    assert strategy.assigner is None
    for assigner in (Second(), lambda value, ts: value[1]):
        found = strategy.with_timestamp_assigner(assigner).assigner
        assert found is not None
        assert found(("a", 7), MIN_WATERMARK) == 7


def test_a_strategy_is_a_value_that_travels() -> None:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(5).with_timestamp_assigner(Second()).with_idleness(1_000)
    copy = pickle.loads(pickle.dumps(strategy))
    assert copy.idleness_ms == 1_000
    assert copy.assigner(("a", 3), 0) == 3
    assert copy.create_generator().only_timestamps


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: WatermarkStrategy.for_bounded_out_of_orderness(-1),
        lambda: WatermarkStrategy.no_watermarks().with_idleness(0),
        lambda: WatermarkStrategy.for_bounded_out_of_orderness("5 s"),
    ],
)
def test_durations_that_cannot_be_are_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError):
        wrong()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: WatermarkStrategy.for_generator(Marker()),
        lambda: WatermarkStrategy.for_generator(5),
        lambda: WatermarkStrategy.for_generator(dict).create_generator(),
        lambda: WatermarkStrategy.no_watermarks().with_timestamp_assigner("at"),
        lambda: WatermarkStrategy.no_watermarks().with_timestamp_assigner(Second),
    ],
)
def test_what_is_no_generator_or_assigner_is_refused(wrong: Any) -> None:
    with pytest.raises(JobDefinitionError):
        wrong()
