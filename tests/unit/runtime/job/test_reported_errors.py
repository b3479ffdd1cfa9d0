"""What a task reports of its failure, and what the driver makes of it: type, place and recovery survive the way."""

from __future__ import annotations

import msgspec
import pytest

from headrace.connectors.kafka import KafkaTopicError
from headrace.errors import (
    CommitFailedError,
    DamagedCheckpointError,
    FencedError,
    HeadraceError,
    InvalidKeyError,
    KeyedStateError,
    OutputLostError,
    RestoreError,
    StateConflictError,
    StorageError,
    UserFunctionError,
    permanent,
)
from headrace.operators.base import OperatorContext, failure_in
from headrace.operators.stateless import MapOperator
from headrace.runtime.control.messages import Failed
from headrace.runtime.coordinator.outcomes import TaskDiedError, error_of
from headrace.runtime.task.main import _failure_message


def reported(error: BaseException, *, restoring: bool = False) -> HeadraceError:
    """What the driver makes of the message, which goes over the wire as it does in a job."""
    message = msgspec.msgpack.decode(msgspec.msgpack.encode(_failure_message(error, 0, 1)), type=Failed)
    return error_of(message, restoring=restoring)


def in_user_code(error: Exception, record: object = "(none: in open())") -> UserFunctionError:
    """As an operator raises it."""
    operator = MapOperator(lambda value: value)
    operator.context = OperatorContext(
        job_id="job",
        uid="books",
        name="the books",
        declared_at="",
        subtask=0,
        parallelism=1,
        max_parallelism=1,
        attempt=1,
        job_parameters={},
        backend=None,
        now_ms=lambda: 0,
        notify=lambda what: None,
        wake=lambda: None,
        checkpointing=True,
        exactly_once_output=True,
    )
    failure = failure_in(operator, record, error)
    failure.__cause__ = error
    return failure


class ArchiveClosedError(HeadraceError):
    """A decision of a connector that the driver does not know: another attempt cannot help."""

    recovery = permanent("an archive is never opened again")


@pytest.mark.parametrize("restoring", [True, False], ids=["restoring", "running"])
@pytest.mark.parametrize(
    "error",
    [
        *(OutputLostError("gone"), RestoreError("no"), DamagedCheckpointError("short"), KafkaTopicError("no topic")),
        ArchiveClosedError("closed"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_is_permanent_in_a_task_is_permanent_in_the_driver(error: HeadraceError, restoring: bool) -> None:
    for raised in (error, in_user_code(error)):
        arrived = reported(raised, restoring=restoring)
        assert type(arrived) is type(error)
        assert arrived.recovery == error.recovery
        assert str(error) in str(arrived)


def test_a_class_that_the_driver_does_not_know_keeps_its_recovery_and_the_nearest_type() -> None:
    class AuditLostError(OutputLostError):
        recovery = permanent("as its parent")

    message = _failure_message(AuditLostError("gone"), 0, 1)
    AuditLostError.__name__ = "KnownInTheWorkerOnly"
    arrived = error_of(message, restoring=False)
    assert type(arrived) is OutputLostError
    assert arrived.recovery.reason == "as its parent"


@pytest.mark.parametrize(
    "error", [CommitFailedError("later"), StorageError("away"), InvalidKeyError("None")], ids=lambda e: type(e).__name__
)
def test_what_another_attempt_may_heal_stays_so(error: HeadraceError) -> None:
    assert type(reported(error)) is type(error)
    assert reported(error).retryable
    wrapped = reported(in_user_code(error))
    assert type(wrapped) is UserFunctionError
    assert wrapped.retryable


@pytest.mark.parametrize("error", [StateConflictError("two shapes"), KeyedStateError("no key")])
def test_a_wrong_program_is_a_refusal_before_the_first_record_and_later_an_error_of_its_function(
    error: HeadraceError,
) -> None:
    assert type(reported(in_user_code(error), restoring=True)) is type(error)
    later = reported(in_user_code(error, 7))
    assert type(later) is UserFunctionError
    assert (later.uid, later.record) == ("books", "7")
    assert not later.retryable


def test_a_task_that_was_fenced_does_not_end_the_job_as_the_driver_checks_its_ownership_itself() -> None:
    assert reported(FencedError("a newer owner")).retryable
    assert reported(in_user_code(FencedError("a newer owner"))).retryable


def test_what_is_no_error_of_ours_is_the_death_of_a_task() -> None:
    assert type(reported(MemoryError("full"))) is TaskDiedError


@pytest.mark.parametrize(
    ("error", "record", "blamed"),
    [
        (ValueError("odd"), 3, True),
        (ValueError("odd"), "(none: in open())", False),
        (ConnectionError("the service is away"), 3, False),
        (TimeoutError(), 3, False),
        (CommitFailedError("later"), 3, False),
        (InvalidKeyError("None"), 3, True),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_a_record_is_blamed_unless_there_is_none_or_something_could_not_be_reached(
    error: Exception, record: object, blamed: bool
) -> None:
    arrived = reported(in_user_code(error, record))
    assert isinstance(arrived, UserFunctionError)
    assert arrived.blames_record is blamed
    assert arrived.exception == type(error).__name__
