"""Whether a failed job gets another attempt, and when. Decides only: the runner waits, or lets the error end the job.

In this order:

1. An error that another attempt cannot heal (`error.retryable` is false) ends the job.
2. A record that fails again and again ends it too: `same_record_limit` attempts in a row have failed with the same
   exception, from the same line of the same operator, on a record of the same text. If checkpoints in between moved
   every split of every source on, the job got past the record, another one of the same text is meant, and the count
   starts again. A split that stands still may be the one that holds the record: checkpoints complete before it too.
3. Everything else is the restart strategy's.

What cannot be reached (`OSError`, an unavailable broker or database) is no fault of a record and never counts for 2.
Nor does anything in a job without checkpoints, as its restarts do not read their input again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from headrace.checkpoint.metadata.model import CheckpointMetadata
from headrace.errors import HeadraceError, JobFailedError, PoisonRecordError, UserFunctionError
from headrace.operators.base import NO_RECORD
from headrace.plan.restart import RestartStrategy

Positions: TypeAlias = frozenset[tuple[str, bytes]]
"""Splits with their positions, each with the uid of its source, as a checkpoint holds them."""


def positions_of(metadata: CheckpointMetadata | None) -> Positions:
    """Where the sources go on from; nothing without a checkpoint."""
    records = () if metadata is None else metadata.operators
    return frozenset((o.uid, split) for o in records for subtask in o.subtasks for split in subtask.splits)


class Restarts:
    """The failures of one run of a job. `replays`: each attempt reads again what the one before it had not saved."""

    def __init__(self, strategy: RestartStrategy, job_name: str, *, replays: bool) -> None:
        self._strategy = strategy
        self._job_name = job_name
        self._session = strategy.session()
        self._limit = strategy.same_record_limit if replays else None
        self._failed: tuple[str, ...] | None = None
        self._positions: Positions = frozenset()
        self._times = 0

    def delay_ms(self, error: HeadraceError, *, positions: Callable[[], Positions], now_ms: int) -> int:
        """Called once per failure: milliseconds to wait before the next attempt. Raises the error that ends the job.

        `positions` gives those of the newest checkpoint, and is called only if the record may be at fault; `now_ms` is
        the time of a steady clock.
        """
        if not error.retryable:
            raise error
        self._count(error, positions)
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

    def _count(self, error: HeadraceError, positions: Callable[[], Positions]) -> None:
        failed = _identity(error) if self._limit is not None else None
        if failed is None:
            self._failed, self._times = None, 0
            return
        now = positions()
        again = failed == self._failed and (now == self._positions or bool(now & self._positions))
        self._times = self._times + 1 if again else 1
        self._failed, self._positions = failed, now


def _identity(error: HeadraceError) -> tuple[str, ...] | None:
    """What makes two failures the same; None if no record is at fault."""
    if not isinstance(error, UserFunctionError) or not error.blames_record:
        return None
    # A source that names the bad record in its message has none to show yet.
    which = str(error) if NO_RECORD in error.record else error.record
    return error.uid, error.exception, error.location, which
