"""What reaches an attempt besides messages of its tasks, and how an attempt ends."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from headrace.errors import DataLossError, HeadraceError, RestoreError, StateConflictError, UserFunctionError
from headrace.runtime.control import messages as msg
from headrace.runtime.coordinator.savepoints import SavepointOrder


class TaskDiedError(HeadraceError):
    """A task's process ended without a word: killed, out of memory, or its host is gone."""


class End(Enum):
    """How an attempt ended."""

    FINISHED = "finished"
    FAILED = "failed"
    CANCELED = "canceled"
    SUSPENDED = "suspended"
    GOING_BACK = "going back"
    """It was to stop with a savepoint and could not: on from the last checkpoint, which no restart strategy counts."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an attempt ended, and why if it failed."""

    end: End
    error: HeadraceError | None = None


@dataclass(frozen=True, slots=True)
class SparkEnded:
    """The Spark job is over."""

    error: Exception | None


@dataclass(frozen=True, slots=True)
class Command:
    """From a client: `cancel` or `suspend`."""

    name: str


@dataclass(frozen=True, slots=True)
class SavepointWanted:
    """From a client."""

    order: SavepointOrder


@dataclass(frozen=True, slots=True)
class OwnershipLost:
    """The lease on the job's directory is somebody else's now."""

    reason: str


@dataclass(frozen=True, slots=True)
class UnreadableResults:
    """Collected results arrived that the driver's process cannot unpack."""

    error: Exception


@dataclass(frozen=True, slots=True)
class SourcePositions:
    """Where sources stood when an attempt without checkpoints ended: they never go back behind it."""

    enumerators: dict[str, bytes]
    by_uid: dict[str, list[bytes]]

    def state(self, uid: str) -> bytes | None:
        return self.enumerators.get(uid)

    def splits(self, uid: str) -> list[bytes]:
        return self.by_uid.get(uid, [])


def error_of(message: msg.Failed, *, restoring: bool) -> HeadraceError:
    """The error that a task told of. `restoring`: no task has begun, so state that does not fit will never fit."""
    if restoring and message.error in _REFUSALS:
        return _REFUSALS[message.error](message.message)
    if message.facts is not None:
        return _loss_of(message.error, message.message, message.facts)
    if message.operator:
        return UserFunctionError(
            message.message,
            operator=message.operator,
            uid=message.uid,
            record=message.record,
            location=message.location,
            cause=message.cause,
        )
    return TaskDiedError(message.message)


_REFUSALS: dict[str, type[HeadraceError]] = {
    "RestoreError": RestoreError,
    "DamagedCheckpointError": RestoreError,
    "UnsupportedFormatError": RestoreError,
    "StateConflictError": StateConflictError,
}
"""What trying again cannot help with, by the name that the task gave."""


def _loss_of(name: str, text: str, facts: dict[str, str | int]) -> DataLossError:
    """The data loss with its own type. Its module is loaded here too, as the program has the source that raises it."""
    kind = next((kind for kind in _kinds_of(DataLossError) if kind.__name__ == name), DataLossError)
    try:
        return kind(text, **facts)
    except TypeError:
        # A subclass that cannot be made from its own facts; that it is a loss must not get lost for that.
        return DataLossError(text, **facts)


def _kinds_of(error: type[DataLossError]) -> Iterator[type[DataLossError]]:
    yield error
    for kind in error.__subclasses__():
        yield from _kinds_of(kind)
