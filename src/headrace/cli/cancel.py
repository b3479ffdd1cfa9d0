"""`headrace cancel`: end a running job for good."""

from __future__ import annotations

import json

import click

from headrace.cli.exit_codes import ExitCode
from headrace.cli.job_control import as_json_option, asking, epilog
from headrace.runtime.job.running_jobs import find_job

_EPILOG = epilog(
    {
        ExitCode.FINISHED: "the job has ended",
        ExitCode.NO_SUCH_JOB: "no running job, or several, by that name",
    }
)


@click.command(epilog=_EPILOG)
@click.argument("job", metavar="JOB")
@as_json_option
def cancel(job: str, as_json: bool) -> None:
    """End the running job JOB for good, without a savepoint.

    Output since its last checkpoint is not committed. Its checkpoints are kept only if the job says so
    (RETAIN_ON_CANCELLATION); savepoints always are.
    """
    with asking(f"cancelling {job}") as say:
        found = find_job(job)
        status = found.cancel(say)
    if as_json:
        click.echo(json.dumps({"job": found.name, "status": status}))
    else:
        click.echo(f"{found.name}: {status}", err=True)
