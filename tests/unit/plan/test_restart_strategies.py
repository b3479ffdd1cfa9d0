"""Restart strategies: which failure gets another attempt, and after how long."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from headrace.durations import Duration, Time
from headrace.errors import ConfigurationError
from headrace.plan.restart import (
    ExponentialDelayRestart,
    FailureRateRestart,
    FallBackRestart,
    FixedDelayRestart,
    NoRestart,
    RestartStrategies,
    effective_restart,
)


def test_no_restart_gives_up_at_the_first_failure() -> None:
    assert NoRestart().session().on_failure(0) is None


def test_fixed_delay_gives_up_after_its_attempts() -> None:
    session = FixedDelayRestart(3, 10_000).session()
    assert [session.on_failure(i) for i in range(4)] == [10_000, 10_000, 10_000, None]


def test_each_session_counts_for_itself() -> None:
    strategy = FixedDelayRestart(1, 5)
    assert strategy.session().on_failure(0) == 5
    assert strategy.session().on_failure(0) == 5


def test_failure_rate_gives_up_when_more_failures_than_allowed_fall_into_the_interval() -> None:
    session = FailureRateRestart(2, 1_000, 7).session()
    assert session.on_failure(0) == 7
    assert session.on_failure(900) == 7
    assert session.on_failure(1_500) == 7
    assert session.on_failure(1_800) is None


def test_exponential_delay_grows_to_its_maximum_and_begins_anew_after_a_quiet_time() -> None:
    session = ExponentialDelayRestart(initial=1_000, multiplier=2, max=5_000, reset_after=60_000, jitter=0).session()
    now, delays = 0, []
    for _ in range(5):
        delay = session.on_failure(now)
        assert delay is not None
        delays.append(delay)
        now += delay + 10
    assert delays == [1_000, 2_000, 4_000, 5_000, 5_000]
    assert session.on_failure(now + 60_000) == 1_000


def test_exponential_delay_stays_within_its_jitter() -> None:
    for _ in range(50):
        session = ExponentialDelayRestart(jitter=0.1).session()
        now = 0
        for n in range(12):
            delay = session.on_failure(now)
            assert delay is not None
            nominal = min(60_000, 1_000 * 1.5**n)
            assert nominal * 0.9 - 1 <= delay <= min(60_000, nominal * 1.1) + 1
            now += delay


def test_without_a_choice_checkpoints_decide() -> None:
    for chosen in (None, FallBackRestart()):
        assert effective_restart(chosen, checkpointing=False) == NoRestart()
        assert effective_restart(chosen, checkpointing=True) == ExponentialDelayRestart()
    assert effective_restart(FixedDelayRestart(1, 1), checkpointing=False) == FixedDelayRestart(1, 1)


@pytest.mark.parametrize("delay", [10_000, timedelta(seconds=10), Time.seconds(10), Duration.of_seconds(10)])
def test_delays_are_the_same_in_whatever_form_they_are_given(delay: Any) -> None:
    strategy = RestartStrategies.fixed_delay_restart(60, delay)
    assert strategy == FixedDelayRestart(60, 10_000)
    assert strategy.describe() == (
        "fixed delay: 60 restarts, each after 10 s; none after 3 attempts in a row that fail on the same record"
    )


def test_flinks_names_make_the_same_strategies() -> None:
    assert RestartStrategies.no_restart() == NoRestart()
    assert RestartStrategies.fall_back_restart() == FallBackRestart()
    assert RestartStrategies.failure_rate_restart(3, 60_000, 500) == FailureRateRestart(3, 60_000, 500)
    assert RestartStrategies.exponential_delay_restart() == ExponentialDelayRestart()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: FixedDelayRestart(-1, 0),
        lambda: FixedDelayRestart(1, -1),
        lambda: FixedDelayRestart(1, "10 s"),
        lambda: FailureRateRestart(0, 1_000, 0),
        lambda: FailureRateRestart(1, 0, 0),
        lambda: ExponentialDelayRestart(multiplier=0.5),
        lambda: ExponentialDelayRestart(jitter=2),
        lambda: ExponentialDelayRestart(initial=2_000, max=1_000),
    ],
)
def test_settings_that_cannot_work_are_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError):
        wrong()
