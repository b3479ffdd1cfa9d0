"""`headrace explain`: what a job would do, without doing it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import click
from rich.console import Console

from headrace.checkpoint.location import open_checkpoint
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
from headrace.runtime.job.restore_check import RestoreCheck, check_restore
from headrace.runtime.job.status_text import size_text


@click.command()
@job_options
@click.option("--json", "as_json", is_flag=True, help="The same as JSON, for programs.")
@click.option("-v", "--verbose", is_flag=True, help="Show the whole traceback of an error, Headrace's frames too.")
def explain(as_json: bool, verbose: bool, **given: Any) -> None:
    """Explain the job of JOB.py without running it.

    Shows its levels, exchanges and states, the Spark slots it needs, what its checkpoints survive, and the guarantee
    from end to end with what limits it. The program is run up to its first execute(); Spark is not started.

    With --from it also reports what would refuse a start from that checkpoint: damaged files, state that no operator
    takes, changed types, parallelism. Exit code 3 if anything does.
    """
    program = Program(given["job"], given["args"])
    plan, settings = planned(program, overrides_from(given), verbose=verbose)
    check = _checked(program, plan, settings, verbose=verbose) if settings.restore_from else None
    if as_json:
        restore = {} if check is None else {"restore": _restore_json(check, settings)}
        click.echo(json.dumps(explain_json(plan, settings) | restore, indent=2))
    else:
        click.echo(explain_text(plan, settings), nl=False)
        for line in () if check is None else _restore_lines(check, settings):
            click.echo(line)
    sys.exit(ExitCode.REFUSED if check is not None and check.problems else ExitCode.FINISHED)


def _checked(program: Program, plan: JobPlan, settings: JobSettings, *, verbose: bool) -> RestoreCheck:
    """What a start from --from would meet; a checkpoint that cannot be opened ends the command."""
    assert settings.restore_from is not None
    try:
        opened = open_checkpoint(settings.restore_from)
        return check_restore(plan, opened.metadata, opened.storage, allow_non_restored=settings.allow_non_restored)
    except HeadraceError as error:
        show_failure(error, program, Console(stderr=True, highlight=False), verbose=verbose)
        sys.exit(exit_code_of(error, ever_ran=False))


def _restore_lines(check: RestoreCheck, settings: JobSettings) -> Iterator[str]:
    files = check.files
    yield (
        f"Restore      checkpoint {check.checkpoint_id} from {settings.restore_from}: {files.files} files, "
        f"{size_text(files.bytes)}; contents of {size_text(files.hashed)} compared"
    )
    for what in check.dropped:
        yield f"             left behind: {what}"
    for problem in check.problems:
        yield f"             refused: {problem}"
    if not check.problems:
        yield (
            "             nothing stands against it; states whose types only open() knows are compared when tasks start"
        )


def _restore_json(check: RestoreCheck, settings: JobSettings) -> dict[str, Any]:
    return {
        "from": settings.restore_from,
        "checkpoint_id": check.checkpoint_id,
        "files": check.files.files,
        "bytes": check.files.bytes,
        "hashed_bytes": check.files.hashed,
        "damaged_files": [
            {"path": file.path, "damage": file.damage.value, "detail": file.detail} for file in check.files.damaged
        ],
        "left_behind": list(check.dropped),
        "problems": [{"error": type(problem).__name__, "message": str(problem)} for problem in check.problems],
    }


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
