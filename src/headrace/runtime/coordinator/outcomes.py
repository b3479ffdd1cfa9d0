"""How an attempt ends."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from headrace.errors import DataLossError, HeadraceError, JobDefinitionError, UserFunctionError, retry
from headrace.runtime.control import messages as msg

E = TypeVar("E", bound=HeadraceError)


class TaskDiedError(HeadraceError):
    """A task was lost: it exited without reporting an error, its host is gone, or it no longer answers."""

    recovery = retry("the next attempt gets another process, perhaps on another host")


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
class SourcePositions:
    """Where sources stood when an attempt without checkpoints ended: they never go back behind it."""

    enumerators: dict[str, bytes]
    by_uid: dict[str, list[bytes]]

    def state(self, uid: str) -> bytes | None:
        return self.enumerators.get(uid)

    def splits(self, uid: str) -> list[bytes]:
        return self.by_uid.get(uid, [])


def error_of(message: msg.Failed, *, restoring: bool) -> HeadraceError:
    """The error that a task reported, with its own type where the driver knows it, and with its own recovery.

    `restoring`: no task has begun. What is then permanent refuses the start and keeps its type. Later, a program that
    is wrong shows in one of its functions: the error then carries that function and its record.
    """
    if message.facts is not None:
        return _loss_of(message.error, message.message, message.facts)
    kind = _kind_of(message.kinds)
    is_permanent = message.recovery is not None and not message.recovery.retryable
    error: HeadraceError
    if kind is not None and (
        not message.operator or (is_permanent and (restoring or not issubclass(kind, JobDefinitionError)))
    ):
        error = kind(message.message)
    elif message.operator:
        error = UserFunctionError(
            message.message,
            operator=message.operator,
            uid=message.uid,
            record=message.record,
            location=message.location,
            cause=message.cause,
            exception=message.exception,
            blames_record=message.blames_record,
        )
    else:
        error = TaskDiedError(message.message)
    if message.recovery is not None:
        error.recovery = message.recovery
    return error


def _kind_of(names: tuple[str, ...]) -> type[HeadraceError] | None:
    """The first of the classes that this process knows and that takes a message alone."""
    known = {kind.__name__: kind for kind in _kinds_of(HeadraceError)}
    for name in names:
        kind = known.get(name)
        if kind is not None and not any("__init__" in vars(c) for c in kind.__mro__ if issubclass(c, HeadraceError)):
            return kind
    return None


def _loss_of(name: str, text: str, facts: dict[str, str | int]) -> DataLossError:
    """The data loss with its own type. Its module is loaded here too, as the program has the source that raises it."""
    kind = next((kind for kind in _kinds_of(DataLossError) if kind.__name__ == name), DataLossError)
    try:
        return kind(text, **facts)
    except TypeError:
        # A subclass that cannot be made from its own facts; that it is a loss must not get lost for that.
        return DataLossError(text, **facts)


def _kinds_of(error: type[E]) -> Iterator[type[E]]:
    yield error
    for kind in error.__subclasses__():
        yield from _kinds_of(kind)
