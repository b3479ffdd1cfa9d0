"""`headrace list`: the jobs of this user that run on this machine."""

from __future__ import annotations

import json
import time
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from headrace.cli.job_control import as_json_option, asking
from headrace.runtime.job.running_jobs import RunningJob, last_reports, running_jobs
from headrace.runtime.job.status import JobStatus
from headrace.runtime.job.status_text import duration

NO_ANSWER = "NO ANSWER"
LOST = "LOST"
"""It was running when it last said something, and its process is gone."""


@click.command(name="list")
@click.option("-a", "--all", "all_jobs", is_flag=True, help="Also jobs that have ended, as far as they are remembered.")
@as_json_option
def list_jobs(all_jobs: bool, as_json: bool) -> None:
    """List your jobs that run on this machine.

    Names and ids are what `savepoint`, `stop`, `cancel` and `status` take.
    """
    with asking("looking for jobs"):
        reports = found_reports(all_jobs=all_jobs)
    if as_json:
        click.echo(json.dumps(reports, indent=1))
        return
    if not reports:
        click.echo("No job is running." if not all_jobs else "No job is running, and none is remembered.", err=True)
        return
    Console(highlight=False).print(table(reports, time.time()))


def found_reports(*, all_jobs: bool) -> list[dict[str, Any]]:
    """Reports of running jobs and, if wanted, the last ones of others."""
    reports = [report_from(job) for job in running_jobs()]
    if all_jobs:
        seen = {(report["job_id"], report["pid"]) for report in reports}
        reports += [ended(report) for report in last_reports() if (report["job_id"], report.get("pid")) not in seen]
    return reports


def report_from(job: RunningJob) -> dict[str, Any]:
    """What it says of itself, or that it says nothing."""
    return job.report or {"job_id": job.job_id, "name": job.name, "pid": job.pid, "status": NO_ANSWER}


def ended(report: dict[str, Any]) -> dict[str, Any]:
    """The last report of a job that does not run: it cannot be doing what it said it did."""
    over = report["status"] in {status.value for status in JobStatus if status.is_terminal}
    return report if over else {**report, "status": LOST}


def table(reports: list[dict[str, Any]], now_s: float) -> Table:
    shown = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 3, 0, 0))
    for title in ("job", "id", "status", "pid", "attempt", "restarts", "last checkpoint"):
        shown.add_column(title, no_wrap=title in ("status", "pid"), overflow="fold")
    for report in reports:
        last = report.get("last_checkpoint")
        when = "–"
        if last:
            ago = duration(max(0.0, now_s - last["completed_at_ms"] / 1_000))
            when = f"{last['checkpoint_id']}, {ago} ago"
        shown.add_row(
            escape(str(report["name"])),
            escape(str(report["job_id"])),
            str(report["status"]),
            str(report["pid"]),
            str(report.get("attempt", "–")),
            str(report.get("restarts", "–")),
            when,
        )
    return shown
