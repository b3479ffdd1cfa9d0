"""`headrace savepoint`: take a savepoint of a running job, or dispose of one."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from headrace.checkpoint.claims import dispose_savepoint
from headrace.cli.exit_codes import ExitCode
from headrace.cli.job_control import absolute, as_json_option, asking, epilog
from headrace.runtime.coordinator.savepoints import Savepoint
from headrace.runtime.job.running_jobs import find_job
from headrace.runtime.job.status_text import duration, size_text

_EPILOG = epilog(
    {
        ExitCode.FINISHED: "the savepoint is complete, or disposed of",
        ExitCode.FAILED: "the savepoint failed; the job goes on",
        ExitCode.REFUSED: "refused: nothing can be written there, or it is in use",
        ExitCode.NO_SUCH_JOB: "no running job, or several, by that name",
    }
)


class _TakeUnlessTold(click.Group):
    """`headrace savepoint JOB` means `headrace savepoint take JOB`, so that the usual thing is the short one."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in {*self.commands, *ctx.help_option_names}:
            args = ["take", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_TakeUnlessTold, epilog=_EPILOG, subcommand_metavar="JOB [DIR] | dispose PATH")
def savepoint() -> None:
    """Take a savepoint of the running job JOB, and print its path.

    JOB is the job's name or id, as `headrace list` shows them, or the beginning of one. The savepoint gets a directory
    of its own below DIR; without DIR below the job's default place. The job goes on meanwhile. A savepoint is complete
    in itself: it can be moved, copied and restored any number of times, with `headrace run JOB.py --from PATH`.
    """


@savepoint.command(epilog=_EPILOG)
@click.argument("job", metavar="JOB")
@click.argument("directory", metavar="[DIR]", required=False)
@as_json_option
def take(job: str, directory: str | None, as_json: bool) -> None:
    """Take a savepoint of a running job (the word `take` may be left out)."""
    with asking(f"savepoint of {job}") as say:
        done = find_job(job).take_savepoint(absolute(directory), on_progress=say)
    show(done, as_json=as_json)


@savepoint.command()
@click.argument("path", metavar="PATH")
@click.option("--force", is_flag=True, help="Also if a job has claimed it: that job cannot be restored any more.")
def dispose(path: str, force: bool) -> None:
    """Delete the savepoint at PATH with all its files; what else lies there stays.

    Refused for a savepoint that a job has claimed (`--claim`) and still uses.
    """
    with asking(f"disposing of {path}"):
        opened = dispose_savepoint(path, force=force)
    click.echo(f"{opened.path} is gone.", err=True)


def show(done: Savepoint, *, as_json: bool) -> None:
    """The path alone on standard output, for scripts; the rest is for people."""
    if as_json:
        click.echo(json.dumps(asdict(done)))
        return
    took, size = duration(done.duration_ms / 1_000), size_text(done.size_bytes)
    click.echo(f"complete: {size} in {took} (checkpoint {done.checkpoint_id})", err=True)
    click.echo(done.path)
