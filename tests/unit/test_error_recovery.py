"""Every class of the error tree says whether another attempt can help, wherever it is declared."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

import pytest

import headrace
from headrace import errors
from headrace.errors import HeadraceError, Recovery


def load_everything() -> None:
    # PyFlink's names only stand for those of Headrace, and some of them refuse to be imported.
    for module in pkgutil.walk_packages(headrace.__path__, "headrace."):
        if not module.name.endswith("__main__") and not module.name.startswith("headrace.pyflink."):
            importlib.import_module(module.name)


def tree(kind: type[HeadraceError]) -> Iterator[type[HeadraceError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from tree(child)


def of_headrace() -> list[type[HeadraceError]]:
    load_everything()
    found = {kind for kind in tree(HeadraceError) if kind.__module__.split(".")[0] == "headrace"}
    return sorted(found, key=lambda kind: kind.__name__)


def test_every_error_declares_whether_another_attempt_can_help_and_why() -> None:
    undecided = [
        f"{kind.__module__}.{kind.__name__}"
        for kind in of_headrace()
        if not isinstance(vars(kind).get("recovery"), Recovery) or not vars(kind)["recovery"].reason.strip()
    ]
    assert not undecided, "declare `recovery = retry(reason)` or `recovery = permanent(reason)` in these classes"


@pytest.mark.parametrize(
    ("name", "retryable"),
    [
        *((name, False) for name in ("ConfigurationError", "JobDefinitionError", "TypeMismatchError")),
        *((name, False) for name in ("RestoreError", "DamagedCheckpointError", "MissingCheckpointError")),
        *((name, False) for name in ("OutputLostError", "DataLossError", "PoisonRecordError", "KafkaRefusedError")),
        *((name, False) for name in ("FencedError", "JobOwnedError", "JobFailedError", "UnsafePathError")),
        *((name, True) for name in ("CommitFailedError", "CommitOutcomeUnknownError", "StorageError")),
        *((name, True) for name in ("TaskDiedError", "SparkJobError", "InsufficientSlotsError", "SparkQueryError")),
        *((name, True) for name in ("KafkaUnavailableError", "PostgresUnavailableError", "SocketUnavailableError")),
        *((name, True) for name in ("UserFunctionError", "InvalidKeyError", "CheckpointError")),
    ],
)
def test_what_may_heal_by_itself_is_retried_and_nothing_else(name: str, retryable: bool) -> None:
    (kind,) = [kind for kind in of_headrace() if kind.__name__ == name]
    assert kind.recovery.retryable is retryable


def test_the_tree_at_the_top_of_the_module_marks_what_is_permanent() -> None:
    assert errors.__doc__ is not None
    drawn = {
        line.split("─ ")[-1].split()[0]: line.split("─ ")[-1].split()[1:2] == ["*"]
        for line in errors.__doc__.splitlines()
        if "─ " in line
    }
    declared = {
        kind.__name__: not kind.recovery.retryable
        for kind in tree(HeadraceError)
        if kind.__module__ == errors.__name__ and kind is not HeadraceError
    }
    assert drawn == declared


class LedgerClosedError(HeadraceError):
    """Of a connector that a user wrote, with a decision of its own."""

    recovery = errors.permanent("the year is over")


def test_a_connector_of_the_users_own_decides_for_its_errors() -> None:
    assert not LedgerClosedError("closed").retryable
    assert HeadraceError("anything").retryable
