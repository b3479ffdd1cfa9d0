"""`headrace checkpoints`: see what is there, what it holds, whether it is whole, and what nothing needs."""

from __future__ import annotations

import sys

import click
from rich.console import Console
from rich.markup import escape

from headrace.checkpoint.collection import Audit, audit, collect, owner_of
from headrace.checkpoint.inspection import (
    Change,
    CheckpointReport,
    OperatorReport,
    change_since,
    predecessor_of,
    report_of,
)
from headrace.checkpoint.places import FoundCheckpoint, JobPlace, Place, find_place
from headrace.checkpoint.verification import DEFAULT_THREADS, verify
from headrace.cli.exit_codes import ExitCode
from headrace.cli.looking import console, echo_json, moment, refusals, table
from headrace.errors import RestoreError
from headrace.runtime.job.status_text import counted, duration, size_text

_PATH = click.argument("path")
_JSON = click.option("--json", "as_json", is_flag=True, help="The same as JSON, for programs.")
_COLOURS = {"complete": "green", "superseded": "yellow", "damaged": "bold red"}


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def checkpoints() -> None:
    """Look at checkpoints and savepoints.

    PATH is the directory of a job, of one of its runs, of a checkpoint (chk-000007) or of a savepoint, as a plain path
    or a URI. None of these commands needs Spark or the program.
    """


@checkpoints.command("list")
@_PATH
@_JSON
def list_(path: str, as_json: bool) -> None:
    """List the checkpoints under PATH: when, how long, how large.

    `new` is what a checkpoint had to store; the rest it shares with the one before.
    """
    with refusals():
        reports = [report_of(found) for found in find_place(path).checkpoints()]
    if as_json:
        echo_json({"checkpoints": [_summary(report) for report in reports]})
        return
    if not reports:
        click.echo(f"{path} holds no completed checkpoint.")
        return
    several_jobs = len({report.job_id for report in reports}) > 1
    numbers = ("run", "id", "took", "aligned", "size", "new", "shared", "files")
    rows = table(*(("job",) if several_jobs else ()), *_LIST, right=numbers)
    for report in reports:
        rows.add_row(*((escape(report.job_name),) if several_jobs else ()), *_row(report))
    console().print(rows)
    for report in reports:
        if report.problem is not None:
            console().print(f"[bold red]damaged:[/] {escape(report.problem)}", soft_wrap=True)


_LIST = ("run", "id", "kind", "mode", "status", "completed", "took", "aligned", "size", "new", "shared", "files")


def _row(report: CheckpointReport) -> tuple[str, ...]:
    status = f"[{_COLOURS[report.status]}]{report.status}[/]"
    if report.problem is not None:
        return (str(report.run), str(report.checkpoint_id), "", "", status, *[""] * 7)
    return (
        str(report.run),
        str(report.checkpoint_id),
        report.kind,
        report.mode,
        status,
        moment(report.created_ms),
        duration(report.duration_ms / 1_000),
        duration(report.alignment_ms / 1_000),
        size_text(report.bytes.total),
        size_text(report.bytes_uploaded),
        size_text(report.bytes.shared),
        str(report.bytes.files),
    )


def _summary(report: CheckpointReport) -> dict[str, object]:
    """What a row of the list shows; `inspect` has the rest."""
    fields = {name: getattr(report, name) for name in report.__struct_fields__}
    return {name: value for name, value in fields.items() if name not in ("operators", "tasks")}


@checkpoints.command()
@_PATH
@_JSON
def inspect(path: str, as_json: bool) -> None:
    """Show what one checkpoint holds, operator by operator, and what changed since the last.

    For the directory of a job: its newest checkpoint.
    """
    with refusals():
        place = find_place(path)
        found = place.one()
        found.whole  # noqa: B018  # a damaged one is refused here, by name
        report = report_of(found)
        change = _change(found)
    if as_json:
        echo_json({"checkpoint": report, "change": change})
        return
    out = console()
    _show_head(out, report)
    _show_operators(out, report.operators)
    _show_tasks(out, report)
    if change is not None:
        _show_change(out, change)


def _change(found: FoundCheckpoint) -> Change | None:
    """Compared with the checkpoint before it in its own run; None for a savepoint and for the first."""
    metadata = found.checkpoint.metadata
    if not found.run or metadata is None:
        return None
    neighbours = JobPlace(found.storage, metadata.job_id, found.run).checkpoints()
    before = predecessor_of(found, neighbours)
    if before is None or before.checkpoint.metadata is None:
        return None
    return change_since(before.checkpoint.metadata, metadata)


def _show_head(out: Console, report: CheckpointReport) -> None:
    took = ", ".join(
        f"{label} {duration(value / 1_000)}"
        for label, value in (
            ("alignment", report.alignment_ms),
            ("standstill", report.sync_ms),
            ("writing", report.async_ms),
        )
    )
    sizes = report.bytes
    flight = f"{counted(report.cells_in_flight, 'cell')}, {size_text(report.bytes_in_flight)}"
    lines = {
        report.kind: f"{report.checkpoint_id} of job {report.job_name} (run {report.run}, attempt {report.attempt})",
        "path": report.path,
        "status": report.status,
        "completed": f"{moment(report.created_ms)}, {report.mode}",
        "took": f"{duration(report.duration_ms / 1_000)} ({took})",
        "size": f"{size_text(sizes.total)} in {counted(sizes.files, 'file')}, {size_text(sizes.inline)} in _metadata "
        f"(which has {size_text(report.metadata_bytes)}); {size_text(report.bytes_uploaded)} stored anew, "
        f"{size_text(sizes.shared)} in files that other checkpoints may share",
        "in flight": flight if report.cells_in_flight else "nothing",
    }
    for label, text in lines.items():
        out.print(f"[bold]{label:<11}[/] {escape(text)}", soft_wrap=True)
    out.print()


def _show_operators(out: Console, operators: tuple[OperatorReport, ...]) -> None:
    rows = table("operator", "uid", "tasks", "size", "shared", "format", "holds", right=("tasks", "size", "shared"))
    for operator in operators:
        holds = [f"{state.name}: {state.kind} of {state.type}" for state in operator.keyed if state.kind != "timers"]
        holds += [f"{state.name}: {state.kind} of {state.elements} elements" for state in operator.operator_state]
        if operator.splits:
            holds.append(counted(operator.splits, "split"))
        if operator.prepared:
            holds.append(f"{counted(operator.prepared, 'item')} of prepared output")
        if operator.ended:
            holds.append(f"ended in {operator.ended} of {operator.parallelism}")
        rows.add_row(
            escape(operator.name),
            escape(operator.uid),
            f"{operator.parallelism}/{operator.max_parallelism}",
            size_text(operator.bytes.total),
            size_text(operator.bytes.shared),
            ", ".join(operator.formats),
            escape("\n".join(holds)),
        )
    out.print(rows)


def _show_tasks(out: Console, report: CheckpointReport) -> None:
    if not report.tasks:
        return
    numbers = ("level", "slot", "aligned", "standstill", "wrote", "size", "new")
    rows = table(*numbers, right=numbers)
    for task in report.tasks:
        rows.add_row(
            str(task.level),
            str(task.slot),
            duration(task.alignment_ms / 1_000),
            duration(task.sync_ms / 1_000),
            duration(task.async_ms / 1_000),
            size_text(task.bytes_total),
            size_text(task.bytes_uploaded),
        )
    out.print()
    out.print(rows)


def _show_change(out: Console, change: Change) -> None:
    out.print()
    out.print(
        f"[bold]since {change.since}[/]    {counted(change.new_files, 'file')} new ({size_text(change.new_bytes)}), "
        f"{change.same_files} the same ({size_text(change.same_bytes)}), "
        f"{change.gone_files} no longer needed ({size_text(change.gone_bytes)})",
        soft_wrap=True,
    )
    for operator in change.operators:
        out.print(
            f"            {escape(operator.uid)}: {size_text(operator.bytes_before)} → {size_text(operator.bytes_now)}",
            soft_wrap=True,
        )


@checkpoints.command(
    "verify",
    epilog="\b\nExit codes:\n    0  everything is as it was written\n    1  something is damaged; it is named\n"
    "    3  there is no checkpoint at PATH",
)
@_PATH
@_JSON
@click.option(
    "--threads", type=click.IntRange(min=1), default=DEFAULT_THREADS, show_default="cores, at most 4", help="Readers."
)
def verify_(path: str, as_json: bool, threads: int) -> None:
    """Read every file of every checkpoint under PATH and compare size and SHA-256 with what was recorded.

    Of a job or a run, also the small files beside its checkpoints, which say which of them count.
    """
    with refusals():
        place = find_place(path)
        found = place.checkpoints(although_damaged=True)
        outcome = verify(found, threads, place.jobs)
        if not found and outcome.whole:
            raise RestoreError(f"{path} holds no completed checkpoint.")
    if as_json:
        echo_json(outcome)
    else:
        for finding in outcome.findings:
            needed_by = f" [dim]needed by {escape(', '.join(finding.checkpoints))}[/]" if finding.checkpoints else ""
            console().print(f"[bold red]{finding.damage.value}:[/] {escape(finding.detail)}{needed_by}", soft_wrap=True)
        pace = size_text(outcome.bytes / outcome.seconds) if outcome.seconds else "–"
        verdict = "[green]whole[/]" if outcome.whole else f"[bold red]{len(outcome.findings)} damaged[/]"
        console().print(
            f"{verdict}: {counted(outcome.checkpoints, 'checkpoint')}, {counted(outcome.files, 'file')}, "
            f"{size_text(outcome.bytes)} in {duration(outcome.seconds)} ({pace}/s)",
            soft_wrap=True,
        )
    if not outcome.whole:
        sys.exit(ExitCode.FAILED)


@checkpoints.command(
    epilog="\b\nExit codes:\n    0  done\n    3  the newest checkpoint is damaged, or there is no job at PATH\n"
    "    4  the job is running"
)
@_PATH
@_JSON
@click.option("--delete", is_flag=True, help="Remove what is listed. Without it, nothing is changed.")
def gc(path: str, as_json: bool, delete: bool) -> None:
    """Find files in the directory of a job that nothing needs: left behind by crashes and abandoned checkpoints.

    Shows them, and removes them only with --delete, which is refused while the job runs.
    """
    with refusals():
        jobs = _jobs(find_place(path), path)
        running = {job.job_id for job in jobs if not delete and owner_of(job) is not None}
        audits = [collect(job) if delete else audit(job) for job in jobs]
    if as_json:
        echo_json({"deleted": delete, "jobs": audits})
        return
    for found in audits:
        _show_audit(found, deleted=delete, running=found.job_id in running)


def _jobs(place: Place, path: str) -> tuple[JobPlace, ...]:
    if not place.jobs:
        raise RestoreError(
            f"{path} is no directory of a job. A checkpoint is collected with its job: give the directory above run-…"
        )
    return place.jobs


def _show_audit(found: Audit, *, deleted: bool, running: bool) -> None:
    out = console()
    if found.garbage:
        rows = table("size", "why", "file", right=("size",))
        for item in found.garbage:
            rows.add_row(size_text(item.size), item.why.value, escape(item.path))
        out.print(rows)
    for sentence in found.kept_back:
        out.print(f"[yellow]kept:[/] {escape(sentence)}", soft_wrap=True)
    what = f"{counted(len(found.garbage), 'file')} ({size_text(found.garbage_bytes)})"
    done = "removed" if deleted else "would be removed with --delete"
    out.print(
        f"{escape(found.job_id)}: {what} {done}; {counted(found.needed_files, 'file')} in use"
        if found.garbage
        else f"{escape(found.job_id)}: nothing to remove; {counted(found.needed_files, 'file')} in use",
        soft_wrap=True,
    )
    if running:
        out.print("The job is running: files of a checkpoint under way are listed too.", style="yellow", soft_wrap=True)
