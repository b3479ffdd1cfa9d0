"""`headrace sinks`: look after what sinks have left on servers."""

from __future__ import annotations

from typing import Any

import click
from rich.markup import escape

from headrace.checkpoint.collection import owner_of
from headrace.checkpoint.job_directory import JobDirectory
from headrace.checkpoint.places import FoundCheckpoint, JobPlace, find_place
from headrace.checkpoint.storage.paths import WriterScope
from headrace.cli.looking import console, echo_json, refusals, table
from headrace.connectors.postgres.client import Server, postgres
from headrace.connectors.postgres.preflight import checked_connection
from headrace.connectors.postgres.prepared import Orphan, orphans_of, roll_back
from headrace.errors import ConfigurationError, JobOwnedError, RestoreError
from headrace.operators.sink import payload_of
from headrace.runtime.job.status_text import counted, duration

_WHO = "headrace sinks abort-orphans"


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def sinks() -> None:
    """Look after what sinks have left on servers."""


@sinks.command(
    "abort-orphans",
    epilog="\b\nExit codes:\n    0  done\n    3  no job at PATH, a damaged checkpoint, or no way to the server\n"
    "    4  the job is running",
)
@click.argument("path")
@click.option(
    "--url",
    envvar="HEADRACE_POSTGRES_URL",
    show_envvar=True,
    required=True,
    help="The PostgreSQL server, such as postgresql://user@host/database.",
)
@click.option(
    "--keep",
    "kept",
    metavar="SAVEPOINT",
    multiple=True,
    help="Spare what this savepoint names too. Those beside the job's runs are spared anyway.",
)
@click.option("--roll-back", "delete", is_flag=True, help="Roll back what is listed. Without it, nothing is changed.")
@click.option("--json", "as_json", is_flag=True, help="The same as JSON, for programs.")
def abort_orphans(path: str, url: str, kept: tuple[str, ...], delete: bool, as_json: bool) -> None:
    """Find prepared transactions that nobody will commit.

    PATH is the directory of a job whose sink writes to PostgreSQL in two phases. Listed are the prepared transactions
    of this directory's attempts which none of its checkpoints names. They keep their locks, hold back VACUUM and fill
    max_prepared_transactions until somebody ends them. A job that starts again in this directory ends those of its
    older attempts itself: this is for jobs that will not. Transactions of a job of the same name in another directory
    are left alone.
    """
    server = Server(url)
    with refusals():
        job = _job(path)
        running = owner_of(job)
        if running is not None and delete:
            raise JobOwnedError(
                f"Job {job.job_id} is running (pid {running.pid} on {running.host}): what it is preparing would be "
                "rolled back with the rest. Stop it first."
            )
        history = JobDirectory(job.storage, job.job_id).known_history()
        payloads = [data for found in _retained(job, kept) for data in _prepared(found)]
        with checked_connection(server, _WHO) as connection:
            orphans = [o for o in _found(connection, server, job.job_id, payloads) if o.history in ("", history)]
            ended = [orphan.gid for orphan in orphans if delete and _ended(connection, server, orphan)]
    if as_json:
        echo_json({"job": job.job_id, "orphans": orphans, "rolled_back": ended})
        return
    _show(job.job_id, orphans, deleted=delete, running=running is not None)


def _job(path: str) -> JobPlace:
    jobs = find_place(path).jobs
    if len(jobs) != 1:
        raise RestoreError(f"{path} is not the directory of one job. Give the directory above its run-….")
    return JobPlace(jobs[0].storage, jobs[0].job_id)


def _retained(job: JobPlace, savepoints: tuple[str, ...]) -> list[FoundCheckpoint]:
    return [*job.checkpoints(), *(find_place(path).one() for path in savepoints)]


def _prepared(found: FoundCheckpoint) -> list[bytes]:
    """Prepared output of all sinks; a damaged checkpoint is refused, as it might name anything."""
    files = found.storage.file_store(WriterScope("", 0, 0).prefix)
    return [
        payload_of(item, files)
        for operator in found.whole.operators
        for subtask in operator.subtasks
        for item in subtask.prepared
    ]


def _found(connection: Any, server: Server, job_id: str, payloads: list[bytes]) -> list[Orphan]:
    try:
        orphans = orphans_of(connection, job_id, ())
    except postgres(_WHO).Error as error:
        raise ConfigurationError(f"{server.shown} did not list its transactions: {server.redact(error)}.") from None
    # A gid ends with a random token, so where its text stands in an item, the item means it.
    return [orphan for orphan in orphans if not any(orphan.gid.encode() in payload for payload in payloads)]


def _ended(connection: Any, server: Server, orphan: Orphan) -> bool:
    try:
        return roll_back(connection, orphan.gid)
    except postgres(_WHO).Error as error:
        raise ConfigurationError(
            f"{orphan.gid} could not be rolled back: {server.redact(error)}. It takes its owner {orphan.owner}, or a "
            "superuser."
        ) from None


def _show(job_id: str, orphans: list[Orphan], *, deleted: bool, running: bool) -> None:
    out = console()
    if not orphans:
        out.print(f"{escape(job_id)}: no prepared transaction is left over")
        return
    rows = table("sink", "subtask", "checkpoint", "attempt", "age", "owner", "transaction", right=("subtask",))
    for orphan in orphans:
        rows.add_row(
            escape(orphan.sink),
            str(orphan.subtask),
            str(orphan.checkpoint_id),
            str(orphan.attempt),
            duration(orphan.age_s),
            escape(orphan.owner),
            escape(orphan.gid),
        )
    out.print(rows)
    done = "rolled back" if deleted else "would be rolled back with --roll-back"
    out.print(f"{escape(job_id)}: {counted(len(orphans), 'prepared transaction')} {done}", soft_wrap=True)
    if running:
        out.print("The job is running: what it is preparing right now is listed too.", style="yellow", soft_wrap=True)
