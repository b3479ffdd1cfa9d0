"""What users write for async I/O: the function, and when it is tried again.

All of a function's methods run on the one event loop of its subtask, a thread beside the one that processes records. So
a client made in `open` may be shared by all calls without a lock, as long as it is not shared with anything else.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from headrace.durations import DurationLike, to_millis
from headrace.errors import ConfigurationError
from headrace.operators.functions import Function

ResultPredicate: TypeAlias = Callable[[list[Any]], bool]
ExceptionPredicate: TypeAlias = Callable[[Exception], bool]


class AsyncFunction(Function):
    """Asks something outside for every record, with many requests on their way at a time."""

    @abstractmethod
    async def async_invoke(self, value: Any) -> list[Any]:
        """The results for one record: any number, as a list. What it raises fails the job, unless it is retried.

        Called again for the same record by a retry, and after a restore for records that were in flight.
        """

    def timeout(self, value: Any) -> list[Any]:
        """The results for a record whose time is over. The call that took too long has been cancelled."""
        raise TimeoutError(
            f"The call for record {value!r} took longer than its timeout. Allow more time, or override timeout(value) "
            "to give a result in its place."
        )


@dataclass(frozen=True)
class AsyncRetryStrategy:
    """Whether a call is made again, and when. Made by `no_restart`, `fixed_delay` or `exponential_backoff`.

    A call is made again if its results match `result_predicate` or what it raised matches `exception_predicate`, at
    most `max_attempts` times more. After that its results count, or what it raised.
    """

    max_attempts: int = 0
    initial_delay_ms: int = 0
    max_delay_ms: int = 0
    multiplier: float = 1.0
    result_predicate: ResultPredicate | None = None
    exception_predicate: ExceptionPredicate | None = None

    @staticmethod
    def no_restart() -> AsyncRetryStrategy:
        """Never again."""
        return AsyncRetryStrategy()

    @staticmethod
    def fixed_delay(
        max_attempts: int,
        backoff_time_millis: DurationLike,
        result_predicate: ResultPredicate | None = None,
        exception_predicate: ExceptionPredicate | None = None,
    ) -> AsyncRetryStrategy:
        """Again after the same while each time."""
        delay = _delay("backoff_time_millis", backoff_time_millis)
        attempts = _attempts(max_attempts)
        return AsyncRetryStrategy(attempts, delay, delay, 1.0, result_predicate, exception_predicate)

    @staticmethod
    def exponential_backoff(
        max_attempts: int,
        initial_delay_millis: DurationLike,
        max_retry_delay_millis: DurationLike,
        multiplier: float,
        result_predicate: ResultPredicate | None = None,
        exception_predicate: ExceptionPredicate | None = None,
    ) -> AsyncRetryStrategy:
        """Again after a while that grows by `multiplier` each time, up to a limit."""
        first = _delay("initial_delay_millis", initial_delay_millis)
        most = _delay("max_retry_delay_millis", max_retry_delay_millis)
        if multiplier < 1:
            raise ConfigurationError(f"The multiplier of a retry strategy is {multiplier!r}; wanted 1 or more.")
        if most < first:
            raise ConfigurationError(f"max_retry_delay_millis ({most}) is below initial_delay_millis ({first}).")
        attempts = _attempts(max_attempts)
        return AsyncRetryStrategy(attempts, first, most, float(multiplier), result_predicate, exception_predicate)

    def delay_ms(self, attempt: int) -> int:
        """How long to wait after the call number `attempt`, counted from 1."""
        grown = self.initial_delay_ms * self.multiplier ** min(attempt - 1, 64)
        return round(min(grown, self.max_delay_ms))

    def wants_again(self, attempt: int, results: Any, error: BaseException | None) -> bool:
        """Whether the call number `attempt`, counted from 1, is to be followed by another."""
        if attempt > self.max_attempts:
            return False
        if isinstance(error, Exception):
            return self.exception_predicate is not None and bool(self.exception_predicate(error))
        return error is None and self.result_predicate is not None and bool(self.result_predicate(results))


def empty_result_predicate(results: list[Any]) -> bool:
    """A call that found nothing is made again."""
    return len(results) == 0


def has_exception_predicate(error: Exception) -> bool:
    """A call that raised is made again."""
    return isinstance(error, Exception)


def _attempts(value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigurationError(f"max_attempts of a retry strategy is {value!r}; wanted a whole number from 1 up.")
    return value


def _delay(setting: str, value: DurationLike) -> int:
    millis = to_millis(value, setting)
    if millis < 0:
        raise ConfigurationError(f"{setting} is {millis} ms; it must not be negative.")
    return millis
