"""Which failure gets another attempt: permanent errors, records that keep failing, and what the strategy says."""

from __future__ import annotations

from functools import partial

import pytest

from headrace.errors import (
    ConfigurationError,
    HeadraceError,
    JobFailedError,
    OutputLostError,
    PoisonRecordError,
    UserFunctionError,
)
from headrace.operators.base import failure_in_driver
from headrace.plan.restart import ExponentialDelayRestart, FailureRateRestart, FixedDelayRestart, RestartStrategy
from headrace.runtime.coordinator.outcomes import TaskDiedError
from headrace.runtime.job.restarts import Positions, Restarts

DIED = TaskDiedError("killed")
HOUR = 3_600_000


def bad(record: str = "3", *, uid: str = "picky", line: int = 7, exception: str = "ValueError") -> UserFunctionError:
    return UserFunctionError(
        f"it failed on {record}",
        operator="picky",
        uid=uid,
        record=record,
        location=f"job.py:{line}",
        cause="",
        exception=exception,
        blames_record=True,
    )


def restarts(strategy: RestartStrategy | None = None, *, replays: bool = True) -> Restarts:
    return Restarts(strategy or FixedDelayRestart(1_000, 5), "books", replays=replays)


def at(*offsets: int) -> Positions:
    """A source with a split for each offset."""
    return frozenset(("src", f"split {i} at {offset}".encode()) for i, offset in enumerate(offsets))


def outcome(made: Restarts, *failures: tuple[HeadraceError, Positions]) -> list[int | str]:
    """For each failure with what the newest checkpoint holds: the delay, or the error that ended the job."""
    found: list[int | str] = []
    for error, positions in failures:
        try:
            found.append(made.delay_ms(error, positions=partial(frozenset, positions), now_ms=0))
        except HeadraceError as end:
            found.append(type(end).__name__)
    return found


def test_the_third_failure_on_one_record_ends_the_job_and_says_so() -> None:
    made = restarts()
    assert outcome(made, (bad(), at(4)), (bad(), at(4))) == [5, 5]
    with pytest.raises(PoisonRecordError, match=r"same record in 3 attempts in a row.*it failed on 3") as caught:
        made.delay_ms(bad(), positions=lambda: at(4), now_ms=0)
    error = caught.value
    assert (error.operator, error.uid, error.record, error.attempts) == ("picky", "picky", "3", 3)
    assert isinstance(error.__cause__, UserFunctionError)
    assert not error.retryable


@pytest.mark.parametrize(
    "other",
    [bad("4"), bad(uid="other"), bad(line=8), bad(exception="KeyError"), DIED],
    ids=["record", "operator", "line", "exception", "death"],
)
def test_another_failure_in_between_starts_the_count_again(other: HeadraceError) -> None:
    failures = [(bad(), at()), (bad(), at()), (other, at()), (bad(), at()), (bad(), at()), (bad(), at())]
    assert outcome(restarts(), *failures) == [5, 5, 5, 5, 5, "PoisonRecordError"]


def test_checkpoints_before_the_record_do_not_hide_that_it_is_the_same() -> None:
    stuck = [(bad(), at(10, 4)), (bad(), at(20, 4)), (bad(), at(30, 4))]
    assert outcome(restarts(), *stuck) == [5, 5, "PoisonRecordError"]


def test_a_checkpoint_that_moved_every_split_on_lies_after_the_record_so_the_count_starts_again() -> None:
    failures = [(bad(), at(10, 4)), (bad(), at(10, 4)), (bad(), at(20, 5)), (bad(), at(20, 5)), (bad(), at(20, 5))]
    assert outcome(restarts(), *failures) == [5, 5, 5, 5, "PoisonRecordError"]


def test_the_first_checkpoint_of_a_job_is_progress_too() -> None:
    assert outcome(restarts(), (bad(), at()), (bad(), at()), (bad(), at(1)), (bad(), at(2))) == [5, 5, 5, 5]


def test_a_job_without_checkpoints_does_not_read_a_record_twice_so_nothing_is_counted() -> None:
    assert outcome(restarts(replays=False), *[(bad(), at())] * 50) == [5] * 50


@pytest.mark.parametrize("limit", [1, 2, 10, None])
def test_the_strategy_can_say_otherwise(limit: int | None) -> None:
    failures = [(bad(), at())] * 20
    expected = [5] * 20 if limit is None else [5] * (limit - 1) + ["PoisonRecordError"] * (21 - limit)
    assert outcome(restarts(FixedDelayRestart(1_000, 5, same_record_limit=limit)), *failures) == expected


@pytest.mark.parametrize("limit", [0, -1, True, 1.5])
def test_a_limit_that_makes_no_sense_is_refused(limit: int) -> None:
    for strategy in (FixedDelayRestart, FailureRateRestart, ExponentialDelayRestart):
        with pytest.raises(ConfigurationError, match=r"same_record_limit"):
            strategy(same_record_limit=limit)


def test_what_is_not_about_a_record_is_retried_as_often_as_the_strategy_says() -> None:
    outage = failure_in_driver("books", "out", "", "attempt_starts()", ZeroDivisionError("no"))
    assert outcome(restarts(), *[(outage, at())] * 30, *[(DIED, at())] * 30) == [5] * 60


def test_what_another_attempt_cannot_heal_ends_the_job_at_once_as_it_is() -> None:
    error = OutputLostError("a prepared file is gone")
    with pytest.raises(OutputLostError) as caught:
        restarts().delay_ms(error, positions=frozenset, now_ms=0)
    assert caught.value is error


def test_a_strategy_that_gives_up_first_shows_the_users_error_or_the_jobs() -> None:
    once = FixedDelayRestart(1, 5)
    assert outcome(restarts(once), (bad(), at()), (bad(), at())) == [5, "UserFunctionError"]
    made = restarts(once)
    made.delay_ms(DIED, positions=frozenset, now_ms=0)
    with pytest.raises(JobFailedError, match=r"not restarted.*killed"):
        made.delay_ms(DIED, positions=frozenset, now_ms=0)
