"""How an error looks to the person who typed the command: the cause and the way out, no frames of Headrace's own."""

from __future__ import annotations

import traceback

from rich.console import Console
from rich.markup import escape

from headrace.cli.program import Program
from headrace.errors import HeadraceError, PoisonRecordError, UserFunctionError


def show_failure(error: BaseException, program: Program, console: Console, *, verbose: bool) -> None:
    """Write the error to the console; all of it, with every frame, if `verbose`."""
    if verbose:
        _plain(console, "".join(traceback.format_exception(error)).rstrip())
    if isinstance(error, UserFunctionError):
        _show_user_function(error, console)
        return
    if isinstance(error, HeadraceError):
        console.print(f"[bold red]headrace:[/] {escape(str(error))}", soft_wrap=True)
        line = program.own_line(error)
        if line is not None:
            console.print(f"  at         {escape(line)}", style="dim", soft_wrap=True)
        return
    if not verbose:
        _plain(console, program.own_traceback(error).rstrip())
    console.print(f"[bold red]headrace:[/] {escape(program.shown)} raised {type(error).__name__}.", soft_wrap=True)


def _show_user_function(error: UserFunctionError, console: Console) -> None:
    raised = error.cause.rstrip().splitlines()[-1] if error.cause.strip() else str(error)
    again = f" in {error.attempts} attempts on the same record" if isinstance(error, PoisonRecordError) else ""
    console.print(f"[bold red]headrace:[/] the job's own code failed{again}: [bold]{escape(raised)}[/]", soft_wrap=True)
    for label, value in (
        ("operator", f'"{error.operator}", uid "{error.uid}"'),
        ("record", error.record),
        ("at", error.location),
    ):
        console.print(f"  {label:<10} {escape(value)}", soft_wrap=True)
    if isinstance(error, PoisonRecordError):
        console.print(f"  {'way out':<10} {escape(error.way_out)}", soft_wrap=True)


def _plain(console: Console, text: str) -> None:
    """Text as it is: a traceback may hold what looks like markup."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)
