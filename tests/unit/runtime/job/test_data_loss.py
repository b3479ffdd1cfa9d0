"""A loss of input that a task met reaches the program with its own type and everything it says."""

from __future__ import annotations

import msgspec
import pytest

from headrace.connectors.kafka import KafkaDataLossError
from headrace.errors import DataLossError, RecordError, UserFunctionError
from headrace.runtime.control.messages import Failed
from headrace.runtime.coordinator.outcomes import error_of
from headrace.runtime.task.main import _failure_message


def as_told(error: BaseException) -> Failed:
    """What the driver reads of the task's message."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(_failure_message(error, 0, 1)), type=Failed)


def in_a_source(error: Exception) -> UserFunctionError:
    """As the source operator raises it."""
    wrapped = UserFunctionError(
        f'Operator "orders" failed: {error}', operator="orders", uid="src", record="", location="", cause=""
    )
    wrapped.__cause__ = error
    return wrapped


LOSS = KafkaDataLossError("60 records are gone", topic="orders", partition=3, wanted=40, first=100, end=120)


@pytest.mark.parametrize("restoring", [True, False])
def test_kafkas_loss_keeps_type_and_offsets_and_is_told_with_its_operator(restoring: bool) -> None:
    error = error_of(as_told(in_a_source(LOSS)), restoring=restoring)

    assert type(error) is KafkaDataLossError
    assert (error.topic, error.partition, error.wanted, error.first, error.end) == ("orders", 3, 40, 100, 120)
    assert str(error) == 'Operator "orders" failed: 60 records are gone'


def test_a_loss_outside_of_any_operator_is_one_too() -> None:
    error = error_of(as_told(LOSS), restoring=False)
    assert type(error) is KafkaDataLossError
    assert error.first == 100


class FeedLossError(DataLossError):
    """A loss of a connector that a user wrote."""

    def __init__(self, message: str, *, feed: str) -> None:
        super().__init__(message, feed=feed)
        self.feed = feed


class AwkwardLossError(DataLossError):
    """One that cannot be made from what it hands on."""

    def __init__(self, feed: str) -> None:
        super().__init__(f"{feed} is gone", feed=feed)


def test_a_connector_of_the_users_own_has_its_losses_carried_in_the_same_way() -> None:
    error = error_of(as_told(in_a_source(FeedLossError("gone", feed="news"))), restoring=False)
    assert type(error) is FeedLossError
    assert error.feed == "news"


@pytest.mark.parametrize("name", ["AwkwardLossError", "LossOfAnotherProgramError"])
def test_one_that_cannot_be_rebuilt_is_a_loss_all_the_same(name: str) -> None:
    told = msgspec.structs.replace(as_told(in_a_source(AwkwardLossError("news"))), error=name)
    error = error_of(told, restoring=False)
    assert type(error) is DataLossError
    assert error.facts == {"feed": "news"}
    assert "news is gone" in str(error)


def test_other_errors_of_records_stay_errors_of_the_users_function() -> None:
    assert type(error_of(as_told(in_a_source(RecordError("odd"))), restoring=False)) is UserFunctionError
