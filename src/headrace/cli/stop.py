"""`headrace stop`: stop a running job so that it can go on later."""

from __future__ import annotations

import json

import click

from headrace.cli.exit_codes import ExitCode
from headrace.cli.job_control import absolute, as_json_option, asking, epilog
from headrace.cli.savepoint import show
from headrace.runtime.job.running_jobs import find_job

_HERE = "\0"
"""`--savepoint` without a directory."""

_EPILOG = epilog(
    {
        ExitCode.FINISHED: "the job has stopped",
        ExitCode.FAILED: "the savepoint failed; the job goes on from its last checkpoint",
        ExitCode.REFUSED: "refused: nothing can be written there; the job was not touched",
        ExitCode.NO_SUCH_JOB: "no running job, or several, by that name",
    }
)


@click.command(epilog=_EPILOG)
@click.argument("job", metavar="JOB")
@click.option(
    "--savepoint",
    "directory",
    is_flag=False,
    flag_value=_HERE,
    metavar="[DIR]",
    help="Take a savepoint first, below DIR or the job's default place; nothing is emitted behind it.",
)
@click.option(
    "--drain",
    is_flag=True,
    help="With --savepoint: let all windows and event-time timers fire first. For a job that will not go on.",
)
@as_json_option
def stop(job: str, directory: str | None, drain: bool, as_json: bool) -> None:
    """Stop the running job JOB.

    With --savepoint, `headrace run JOB.py --from PATH` goes on from exactly there, and the job has FINISHED: all its
    output up to the savepoint is committed. Without, the job is suspended as by Ctrl-C: `headrace run JOB.py` goes on
    from its last checkpoint.
    """
    if drain and directory is None:
        raise click.UsageError("--drain goes with --savepoint.")
    with asking(f"stopping {job}") as say:
        found = find_job(job)
        if directory is None:
            status = found.suspend(say)
        else:
            place = None if directory == _HERE else absolute(directory)
            done = found.take_savepoint(place, stop=True, drain=drain, on_progress=say)
    if directory is not None:
        show(done, as_json=as_json)
        click.echo(f"{found.name} has stopped; headrace run JOB.py --from {done.path} goes on from there.", err=True)
    elif as_json:
        click.echo(json.dumps({"job": found.name, "status": status}))
    else:
        click.echo(f"{found.name} has stopped ({status}); the same command goes on from its last checkpoint.", err=True)
