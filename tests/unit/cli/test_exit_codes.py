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
    JobFailedError,
    JobOwnedError,
    MissingDependencyError,
    StorageError,
    UserFunctionError,
)
from headrace.runtime.spark.errors import InsufficientSlotsError, JavaNotFoundError, PreflightError


def a_user_error() -> UserFunctionError:
    return UserFunctionError("it failed", operator="o", uid="u", record="1", location="job.py:3", cause="ValueError: x")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (JobFailedError("no more restarts"), 1),
        (a_user_error(), 1),
        (InsufficientSlotsError("none came free", needed=4, total=2), 1),
        (ConfigurationError("a setting"), 3),
        (PreflightError("the job cannot start"), 3),
        (JavaNotFoundError("no Java"), 3),
        (MissingDependencyError("a package"), 3),
        (DuplicateUidError("two operators"), 3),
        (DamagedCheckpointError("a file is short"), 3),
        (JobOwnedError("run by another"), 4),
        (FencedError("taken over"), 4),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, HeadraceError) else str(value),
)
def test_each_kind_of_error_has_its_code(error: HeadraceError, code: int) -> None:
    assert exit_code_of(error, ever_ran=True) == code


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
