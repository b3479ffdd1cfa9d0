"""Restart strategies, under the names of `pyflink.common.restart_strategy`."""

from __future__ import annotations

from datetime import timedelta

from headrace.durations import DurationLike
from headrace.plan import restart
from headrace.plan.restart import ExponentialDelayRestart, FailureRateRestart, FixedDelayRestart
from headrace.plan.restart import RestartStrategy as RestartStrategyConfiguration

__all__ = [
    "RestartStrategies",
    "RestartStrategyConfiguration",
]


class RestartStrategies(restart.RestartStrategies):
    """Headrace's own with Flink's default: a record that keeps failing is retried as often as anything else."""

    @staticmethod
    def fixed_delay_restart(
        restart_attempts: int, delay_between_attempts: DurationLike, *, same_record_limit: int | None = None
    ) -> FixedDelayRestart:
        return FixedDelayRestart(restart_attempts, delay_between_attempts, same_record_limit=same_record_limit)

    @staticmethod
    def failure_rate_restart(
        failure_rate: int,
        failure_interval: DurationLike,
        delay_interval: DurationLike,
        *,
        same_record_limit: int | None = None,
    ) -> FailureRateRestart:
        return FailureRateRestart(failure_rate, failure_interval, delay_interval, same_record_limit=same_record_limit)

    @staticmethod
    def exponential_delay_restart(
        initial_backoff: DurationLike = timedelta(seconds=1),
        max_backoff: DurationLike = timedelta(seconds=60),
        backoff_multiplier: float = 1.5,
        reset_backoff_threshold: DurationLike = timedelta(hours=1),
        jitter_factor: float = 0.1,
        *,
        same_record_limit: int | None = None,
    ) -> ExponentialDelayRestart:
        return restart.RestartStrategies.exponential_delay_restart(
            initial_backoff,
            max_backoff,
            backoff_multiplier,
            reset_backoff_threshold,
            jitter_factor,
            same_record_limit=same_record_limit,
        )
