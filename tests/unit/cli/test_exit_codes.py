"""Exit codes are what scripts see of a job: which error gives which, and that the help tells."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from headrace.cli.exit_codes import ExitCode, exit_code_of
from headrace.cli.main import main
from headrace.errors import (
    ConfigurationError,
    DamagedCheckpointError,
    DuplicateUidError,
    FencedError,
    HeadraceError,
    JobCanceledError,
    JobControlError,
    JobFailedError,
    JobOwnedError,
    MissingDependencyError,
    OutputLostError,
    PoisonRecordError,
    StorageError,
    UserFunctionError,
)
from headrace.runtime.spark.errors import InsufficientSlotsError, JavaNotFoundError, PreflightError


def a_user_error() -> UserFunctionError:
    return UserFunctionError("it failed", operator="o", uid="u", record="1", location="job.py:3", cause="ValueError: x")


def name_of(value: object) -> str:
    return type(value).__name__


@pytest.mark.parametrize(
    "error",
    [
        *(ConfigurationError("a setting"), PreflightError("the job cannot start"), JavaNotFoundError("no Java")),
        *(MissingDependencyError("a package"), DuplicateUidError("two operators")),
        *(DamagedCheckpointError("a file is short"), OutputLostError("a prepared file is gone")),
    ],
    ids=name_of,
)
def test_what_no_attempt_can_heal_is_a_refusal_until_a_record_was_processed(error: HeadraceError) -> None:
    assert exit_code_of(error, ever_ran=False) is ExitCode.REFUSED
    assert exit_code_of(error, ever_ran=True) is ExitCode.FAILED


@pytest.mark.parametrize("ever_ran", [True, False])
@pytest.mark.parametrize(
    ("error", "code"),
    [
        (JobFailedError("no more restarts"), 1),
        (a_user_error(), 1),
        (PoisonRecordError.after(3, a_user_error(), "job"), 1),
        (InsufficientSlotsError("none came free", needed=4, total=2), 1),
        (JobOwnedError("run by another"), 4),
        (FencedError("taken over"), 4),
        (JobControlError("no such job"), 5),
        (JobCanceledError("cancelled"), 6),
    ],
    ids=name_of,
)
def test_each_other_kind_of_error_has_its_code(error: HeadraceError, code: int, ever_ran: bool) -> None:
    assert exit_code_of(error, ever_ran=ever_ran) == code


def test_storage_that_fails_before_the_first_record_refuses_the_start_and_later_fails_the_job() -> None:
    error = StorageError("cannot write")
    assert exit_code_of(error, ever_ran=False) is ExitCode.REFUSED
    assert exit_code_of(error, ever_ran=True) is ExitCode.FAILED


def test_the_help_of_run_lists_every_code_with_its_meaning() -> None:
    shown = CliRunner().invoke(main, ["run", "--help"]).output
    for code in ExitCode:
        assert f"{code.value:>3}  {code.meaning}" in shown


@pytest.mark.parametrize(
    "arguments", [["run"], ["run", "nowhere.py"], ["run", "--backend", "paper", "x.py"], ["dance"]]
)
def test_a_wrong_command_line_is_code_2(arguments: list[str]) -> None:
    assert CliRunner().invoke(main, arguments).exit_code == ExitCode.USAGE


@pytest.mark.parametrize("command", [[], ["run"], ["explain"], ["doctor"], ["demo"]])
def test_every_command_explains_itself(command: list[str]) -> None:
    result = CliRunner().invoke(main, [*command, "--help"])
    assert result.exit_code == 0
    assert "Usage: " in result.output


def test_version() -> None:
    assert CliRunner().invoke(main, ["--version"]).output.startswith("headrace, version ")
