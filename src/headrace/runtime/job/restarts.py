"""Whether a failed job gets another attempt, and when. Decides only: the runner waits, or lets the error end the job.

In this order:

1. An error that another attempt cannot heal (`error.retryable` is false) ends the job.
2. A record that fails again and again ends it too: `same_record_limit` attempts in a row have failed with the same
   exception, from the same line of the same operator, on a record of the same text, and no checkpoint has completed
   since the first of them. A checkpoint in between may lie after the record: then another record of the same text is
   meant, and the count starts again.
3. Everything else is the restart strategy's.

What cannot be reached (`OSError`, an unavailable broker or database) is no fault of a record and never counts for 2.
Nor does anything in a job without checkpoints, as its restarts do not read their input again.
"""

from __future__ import annotations

from headrace.errors import HeadraceError, JobFailedError, PoisonRecordError, UserFunctionError
from headrace.operators.base import NO_RECORD
from headrace.plan.restart import RestartStrategy


class Restarts:
    """The failures of one run of a job. `replays`: each attempt reads again what the one before it had not saved."""

    def __init__(self, strategy: RestartStrategy, job_name: str, *, replays: bool) -> None:
        self._strategy = strategy
        self._job_name = job_name
        self._session = strategy.session()
        self._limit = strategy.same_record_limit if replays else None
        self._failed: tuple[str, ...] | None = None
        self._checkpoints = 0
        self._times = 0

    def delay_ms(self, error: HeadraceError, *, checkpoints: int, now_ms: int) -> int:
        """Called once per failure: milliseconds to wait before the next attempt. Raises the error that ends the job.

        `checkpoints` is how many the run has completed so far, `now_ms` the time of a steady clock.
        """
        if not error.retryable:
            raise error
        self._count(error, checkpoints)
        if self._limit is not None and self._times >= self._limit and isinstance(error, UserFunctionError):
            raise PoisonRecordError.after(self._times, error, self._job_name) from error
        delay_ms = self.strategy_delay_ms(now_ms)
        if delay_ms is not None:
            return delay_ms
        if isinstance(error, UserFunctionError):
            raise error
        raise JobFailedError(
            f'Job "{self._job_name}" failed and is not restarted ({self._strategy.describe()}): {error}'
        ) from error

    def strategy_delay_ms(self, now_ms: int) -> int | None:
        """What the strategy says to one more failure; None: no further attempt."""
        return self._session.on_failure(now_ms)

    def _count(self, error: HeadraceError, checkpoints: int) -> None:
        failed = _identity(error)
        again = failed is not None and failed == self._failed and checkpoints == self._checkpoints
        self._times = self._times + 1 if again else int(failed is not None)
        self._failed, self._checkpoints = failed, checkpoints


def _identity(error: HeadraceError) -> tuple[str, ...] | None:
    """What makes two failures the same; None if no record is at fault."""
    if not isinstance(error, UserFunctionError) or not error.blames_record:
        return None
    # A source that names the bad record in its message has none to show yet.
    which = str(error) if NO_RECORD in error.record else error.record
    return error.uid, error.exception, error.location, which
