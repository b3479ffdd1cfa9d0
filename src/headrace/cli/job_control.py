"""What the commands for running jobs have in common: finding the job, showing how far it is, ending with a code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import click
from rich.console import Console
from rich.markup import escape

from headrace.cli.exit_codes import ExitCode
from headrace.errors import (
    ConfigurationError,
    HeadraceError,
    JobControlError,
    RestoreError,
    SavepointError,
    StorageError,
)

Say = Callable[[str], None]

CODES = (ExitCode.FINISHED, ExitCode.FAILED, ExitCode.USAGE, ExitCode.REFUSED, ExitCode.NO_SUCH_JOB)


def epilog(meanings: dict[ExitCode, str]) -> str:
    """The end of a command's help: its exit codes."""
    return "\b\nExit codes:\n" + "\n".join(f"  {code.value:>3}  {text}" for code, text in meanings.items())


@contextmanager
def asking(what: str) -> Iterator[Say]:
    """Show on standard error how far it is; an error of ours is shown there too, and ends the command with its code.

    Standard output stays free for what a script wants.
    """
    console = Console(stderr=True, highlight=False)
    try:
        with console.status(f"{escape(what)} …") as status:
            last = ""

            def say(text: str) -> None:
                nonlocal last
                if text == last:
                    return
                last = text
                status.update(f"{escape(what)}: {escape(text)} …")
                if not console.is_terminal:
                    console.print(f"{escape(what)}: {escape(text)}", soft_wrap=True)

            yield say
    except HeadraceError as error:
        console.print(f"[bold red]headrace:[/] {escape(str(error))}", soft_wrap=True)
        sys.exit(code_of(error))


def code_of(error: HeadraceError) -> ExitCode:
    """The exit code of a command that asked a running job."""
    if isinstance(error, JobControlError):
        return ExitCode.NO_SUCH_JOB
    if isinstance(error, ConfigurationError | RestoreError | StorageError):
        return ExitCode.REFUSED
    assert isinstance(error, SavepointError | HeadraceError)
    return ExitCode.FAILED


def absolute(directory: str | None) -> str | None:
    """A path as the job understands it, which runs in another working directory than the command."""
    if not directory or urlsplit(directory).scheme:
        return directory or None
    return os.path.abspath(os.path.expanduser(directory))


def as_json_option(command: Callable[..., None]) -> Callable[..., None]:
    return click.option("--json", "as_json", is_flag=True, help="The same as JSON, for programs.")(command)
