"""Which failure gets another attempt: permanent errors, records that keep failing, and what the strategy says."""

from __future__ import annotations

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
from headrace.runtime.job.restarts import Restarts

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


def outcome(made: Restarts, *failures: tuple[HeadraceError, int]) -> list[int | str]:
    """For each failure after that many checkpoints in all: the delay, or the error that ended the job."""
    found: list[int | str] = []
    for error, checkpoints in failures:
        try:
            found.append(made.delay_ms(error, checkpoints=checkpoints, now_ms=0))
        except HeadraceError as end:
            found.append(type(end).__name__)
    return found


def test_the_third_failure_on_one_record_ends_the_job_and_says_so() -> None:
    made = restarts()
    assert outcome(made, (bad(), 4), (bad(), 4)) == [5, 5]
    with pytest.raises(PoisonRecordError, match=r"same record in 3 attempts in a row.*it failed on 3") as caught:
        made.delay_ms(bad(), checkpoints=4, now_ms=0)
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
    failures = [(bad(), 0), (bad(), 0), (other, 0), (bad(), 0), (bad(), 0), (bad(), 0)]
    assert outcome(restarts(), *failures) == [5, 5, 5, 5, 5, "PoisonRecordError"]


def test_a_checkpoint_in_between_starts_the_count_again_as_it_may_lie_after_the_record() -> None:
    assert outcome(restarts(), (bad(), 1), (bad(), 1), (bad(), 2), (bad(), 2), (bad(), 2)) == [
        *(5, 5, 5, 5),
        "PoisonRecordError",
    ]


def test_a_job_without_checkpoints_does_not_read_a_record_twice_so_nothing_is_counted() -> None:
    assert outcome(restarts(replays=False), *[(bad(), 0)] * 50) == [5] * 50


@pytest.mark.parametrize("limit", [1, 2, 10, None])
def test_the_strategy_can_say_otherwise(limit: int | None) -> None:
    failures = [(bad(), 0)] * 20
    expected = [5] * 20 if limit is None else [5] * (limit - 1) + ["PoisonRecordError"] * (21 - limit)
    assert outcome(restarts(FixedDelayRestart(1_000, 5, same_record_limit=limit)), *failures) == expected


@pytest.mark.parametrize("limit", [0, -1, True, 1.5])
def test_a_limit_that_makes_no_sense_is_refused(limit: int) -> None:
    for strategy in (FixedDelayRestart, FailureRateRestart, ExponentialDelayRestart):
        with pytest.raises(ConfigurationError, match=r"same_record_limit"):
            strategy(same_record_limit=limit)


def test_what_is_not_about_a_record_is_retried_as_often_as_the_strategy_says() -> None:
    outage = failure_in_driver("books", "out", "", "attempt_starts()", ZeroDivisionError("no"))
    assert outcome(restarts(), *[(outage, 0)] * 30, *[(DIED, 0)] * 30) == [5] * 60


def test_what_another_attempt_cannot_heal_ends_the_job_at_once_as_it_is() -> None:
    error = OutputLostError("a prepared file is gone")
    with pytest.raises(OutputLostError) as caught:
        restarts().delay_ms(error, checkpoints=0, now_ms=0)
    assert caught.value is error


def test_a_strategy_that_gives_up_first_shows_the_users_error_or_the_jobs() -> None:
    once = FixedDelayRestart(1, 5)
    assert outcome(restarts(once), (bad(), 0), (bad(), 0)) == [5, "UserFunctionError"]
    made = restarts(once)
    made.delay_ms(DIED, checkpoints=0, now_ms=0)
    with pytest.raises(JobFailedError, match=r"not restarted.*killed"):
        made.delay_ms(DIED, checkpoints=0, now_ms=0)
