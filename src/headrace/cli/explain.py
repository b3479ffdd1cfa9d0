"""`headrace explain`: what a job would do, without doing it."""

from __future__ import annotations

import json
import sys
from typing import Any

import click
from rich.console import Console

from headrace.cli.exit_codes import ExitCode, exit_code_of
from headrace.cli.failures import show_failure
from headrace.cli.options import job_options, overrides_from
from headrace.cli.program import Program
from headrace.datastream.overrides import Overrides
from headrace.errors import HeadraceError
from headrace.plan.explain import explain as explain_text
from headrace.plan.explain import explain_json
from headrace.plan.graph import JobPlan
from headrace.plan.settings import JobSettings


@click.command()
@job_options
@click.option("--json", "as_json", is_flag=True, help="The same as JSON, for programs.")
@click.option("-v", "--verbose", is_flag=True, help="Show the whole traceback of an error, Headrace's frames too.")
def explain(as_json: bool, verbose: bool, **given: Any) -> None:
    """Explain the job of JOB.py without running it.

    Shows its levels, exchanges and states, the Spark slots it needs, what its checkpoints survive, and the guarantee
    from end to end with what limits it. The program is run up to its first execute(); Spark is not started.
    """
    plan, settings = planned(Program(given["job"], given["args"]), overrides_from(given), verbose=verbose)
    click.echo(
        json.dumps(explain_json(plan, settings), indent=2) if as_json else explain_text(plan, settings), nl=as_json
    )


def planned(program: Program, overrides: Overrides, *, verbose: bool) -> tuple[JobPlan, JobSettings]:
    """The program's job; what keeps it from being one is shown, and ends the command."""
    console = Console(stderr=True, highlight=False)
    try:
        found = program.plan(overrides)
    except HeadraceError as error:
        show_failure(error, program, console, verbose=verbose)
        sys.exit(exit_code_of(error, ever_ran=False))
    except Exception as error:
        show_failure(error, program, console, verbose=verbose)
        sys.exit(ExitCode.FAILED)
    if found is None:
        console.print(
            f"[bold red]headrace:[/] {program.shown} ended without a job. Call env.execute() at its end.",
            soft_wrap=True,
        )
        sys.exit(ExitCode.REFUSED)
    return found
