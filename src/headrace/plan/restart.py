"""Restart strategies: whether and after how long a failed job gets another attempt.

A strategy is a setting that can be compared and printed; a session counts the failures of one run.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol

from headrace.durations import DurationLike, to_millis
from headrace.errors import ConfigurationError


class RestartSession(Protocol):
    """Counts the failures of one run of a job."""

    def on_failure(self, now_ms: int) -> int | None:
        """Called once per failure: wait this many milliseconds and start again, or None to give up.

        `now_ms` is that of a steady clock, which nobody can set: only differences mean anything.
        """


SAME_RECORD_LIMIT = 3
"""A passing fault is gone at the first restart, or the second. The third failure on one record is no accident."""


class RestartStrategy(ABC):
    """Decides about restarts. Failed checkpoints and waiting for Spark slots are not failures in this sense."""

    same_record_limit: int | None = SAME_RECORD_LIMIT
    """End the job when this many attempts in a row fail on the same record; None: never. See
    `headrace.runtime.job.restarts`."""

    @abstractmethod
    def session(self) -> RestartSession:
        """A fresh count. Called once when a run begins."""

    @abstractmethod
    def describe(self) -> str:
        """One line for `explain`."""


@dataclass(frozen=True, slots=True)
class NoRestart(RestartStrategy):
    """The first failure ends the job."""

    def session(self) -> RestartSession:
        return _FixedDelaySession(0, 0)

    def describe(self) -> str:
        return "none: the first failure ends the job"


@dataclass(frozen=True, slots=True)
class FixedDelayRestart(RestartStrategy):
    """At most `attempts` restarts in the life of a run, each after the same delay."""

    attempts: int = 1
    delay: DurationLike = timedelta(seconds=1)
    same_record_limit: int | None = field(default=SAME_RECORD_LIMIT, kw_only=True)
    """End the job when this many attempts in a row fail on the same record; None: never."""

    def __post_init__(self) -> None:
        _check_count("restart attempts", self.attempts, least=0)
        _check_limit(self.same_record_limit)
        object.__setattr__(self, "delay", _duration("restart delay", self.delay))

    def session(self) -> RestartSession:
        return _FixedDelaySession(self.attempts, to_millis(self.delay, "restart delay"))

    def describe(self) -> str:
        return f"fixed delay: {self.attempts} restarts, each after {_text(self.delay)}{_limit_text(self)}"


@dataclass(frozen=True, slots=True)
class FailureRateRestart(RestartStrategy):
    """Restarts as long as no more than `max_failures` failures fall into any `interval`."""

    max_failures: int = 1
    interval: DurationLike = timedelta(minutes=1)
    delay: DurationLike = timedelta(seconds=1)
    same_record_limit: int | None = field(default=SAME_RECORD_LIMIT, kw_only=True)
    """End the job when this many attempts in a row fail on the same record; None: never."""

    def __post_init__(self) -> None:
        _check_count("failures per interval", self.max_failures, least=1)
        _check_limit(self.same_record_limit)
        object.__setattr__(self, "interval", _duration("failure rate interval", self.interval, least=1))
        object.__setattr__(self, "delay", _duration("restart delay", self.delay))

    def session(self) -> RestartSession:
        return _FailureRateSession(
            self.max_failures, to_millis(self.interval, "failure rate interval"), to_millis(self.delay, "restart delay")
        )

    def describe(self) -> str:
        return (
            f"failure rate: at most {self.max_failures} failures within {_text(self.interval)}, "
            f"each restart after {_text(self.delay)}{_limit_text(self)}"
        )


@dataclass(frozen=True, slots=True)
class ExponentialDelayRestart(RestartStrategy):
    """Restarts without end, waiting longer each time until the job ran `reset_after` without failure."""

    initial: DurationLike = timedelta(seconds=1)
    multiplier: float = 1.5
    max: DurationLike = timedelta(seconds=60)
    reset_after: DurationLike = timedelta(hours=1)
    jitter: float = 0.1
    """Share of the delay by which it is varied either way, so that many jobs do not restart in step."""
    same_record_limit: int | None = field(default=SAME_RECORD_LIMIT, kw_only=True)
    """End the job when this many attempts in a row fail on the same record; None: never."""

    def __post_init__(self) -> None:
        _check_limit(self.same_record_limit)
        object.__setattr__(self, "initial", _duration("initial backoff", self.initial, least=1))
        object.__setattr__(self, "max", _duration("max backoff", self.max, least=1))
        object.__setattr__(self, "reset_after", _duration("backoff reset threshold", self.reset_after, least=1))
        if self.multiplier < 1:
            raise ConfigurationError(f"backoff multiplier is {self.multiplier}; wanted 1 or more.")
        if not 0 <= self.jitter <= 1:
            raise ConfigurationError(f"jitter factor is {self.jitter}; wanted a share from 0 to 1.")
        if to_millis(self.max, "max backoff") < to_millis(self.initial, "initial backoff"):
            raise ConfigurationError(
                f"max backoff is {_text(self.max)}, below the initial backoff of {_text(self.initial)}. Raise it."
            )

    def session(self) -> RestartSession:
        return _ExponentialSession(self)

    def describe(self) -> str:
        return (
            f"exponential delay: {_text(self.initial)}, times {self.multiplier:g} at each failure up to "
            f"{_text(self.max)}, afresh after {_text(self.reset_after)} without failure{_limit_text(self)}"
        )


@dataclass(frozen=True, slots=True)
class FallBackRestart:
    """What Headrace chooses by itself: see `effective_restart`."""


def effective_restart(
    chosen: RestartStrategy | FallBackRestart | None,
    checkpointing: bool,
    same_record_limit: int | None = SAME_RECORD_LIMIT,
) -> RestartStrategy:
    """The strategy a run uses. Nothing chosen: none without checkpoints, exponential delay with them."""
    if isinstance(chosen, RestartStrategy):
        return chosen
    return ExponentialDelayRestart(same_record_limit=same_record_limit) if checkpointing else NoRestart()


class RestartStrategies:
    """The strategies by the names Flink's users know."""

    @staticmethod
    def no_restart() -> NoRestart:
        return NoRestart()

    @staticmethod
    def fall_back_restart() -> FallBackRestart:
        return FallBackRestart()

    @staticmethod
    def fixed_delay_restart(
        restart_attempts: int,
        delay_between_attempts: DurationLike,
        *,
        same_record_limit: int | None = SAME_RECORD_LIMIT,
    ) -> FixedDelayRestart:
        return FixedDelayRestart(restart_attempts, delay_between_attempts, same_record_limit=same_record_limit)

    @staticmethod
    def failure_rate_restart(
        failure_rate: int,
        failure_interval: DurationLike,
        delay_interval: DurationLike,
        *,
        same_record_limit: int | None = SAME_RECORD_LIMIT,
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
        same_record_limit: int | None = SAME_RECORD_LIMIT,
    ) -> ExponentialDelayRestart:
        return ExponentialDelayRestart(
            initial=initial_backoff,
            multiplier=backoff_multiplier,
            max=max_backoff,
            reset_after=reset_backoff_threshold,
            jitter=jitter_factor,
            same_record_limit=same_record_limit,
        )


class _FixedDelaySession:
    def __init__(self, attempts: int, delay_ms: int) -> None:
        self._left = attempts
        self._delay_ms = delay_ms

    def on_failure(self, now_ms: int) -> int | None:
        if self._left == 0:
            return None
        self._left -= 1
        return self._delay_ms


class _FailureRateSession:
    def __init__(self, max_failures: int, interval_ms: int, delay_ms: int) -> None:
        self._interval_ms = interval_ms
        self._delay_ms = delay_ms
        self._max_failures = max_failures
        self._failures: deque[int] = deque()

    def on_failure(self, now_ms: int) -> int | None:
        while self._failures and now_ms - self._failures[0] > self._interval_ms:
            self._failures.popleft()
        self._failures.append(now_ms)
        return None if len(self._failures) > self._max_failures else self._delay_ms


class _ExponentialSession:
    def __init__(self, strategy: ExponentialDelayRestart) -> None:
        self._initial = to_millis(strategy.initial, "initial backoff")
        self._max = to_millis(strategy.max, "max backoff")
        self._reset_after = to_millis(strategy.reset_after, "backoff reset threshold")
        self._multiplier = strategy.multiplier
        self._jitter = strategy.jitter
        self._next = float(self._initial)
        self._resumed_at: int | None = None

    def on_failure(self, now_ms: int) -> int | None:
        if self._resumed_at is not None and now_ms - self._resumed_at >= self._reset_after:
            self._next = float(self._initial)
        delay = self._next * (1 + self._jitter * random.uniform(-1, 1))
        delay_ms = max(0, min(self._max, round(delay)))
        self._next = min(float(self._max), self._next * self._multiplier)
        self._resumed_at = now_ms + delay_ms
        return delay_ms


def _duration(setting: str, value: DurationLike, least: int = 0) -> timedelta:
    millis = to_millis(value, setting)
    if millis < least:
        raise ConfigurationError(f"{setting} is {millis} ms; wanted {least} ms or more.")
    return timedelta(milliseconds=millis)


def _check_count(setting: str, value: int, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigurationError(f"{setting} is {value!r}; wanted a whole number, {least} or more.")


def _check_limit(limit: int | None) -> None:
    if limit is not None:
        _check_count("same_record_limit", limit, least=1)


def _limit_text(strategy: RestartStrategy) -> str:
    limit = strategy.same_record_limit
    return "" if limit is None else f"; none after {limit} attempts in a row that fail on the same record"


def _text(value: DurationLike) -> str:
    millis = to_millis(value, "duration")
    for unit, name in ((3_600_000, "h"), (60_000, "min"), (1_000, "s")):
        if millis >= unit and millis % unit == 0:
            return f"{millis // unit} {name}"
    return f"{millis} ms"
