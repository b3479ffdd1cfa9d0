"""`headrace status`: what one job is doing."""

from __future__ import annotations

import json
import time
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from headrace.cli.exit_codes import ExitCode
from headrace.cli.job_control import as_json_option, asking, epilog
from headrace.cli.list_jobs import ended, report_from
from headrace.errors import JobControlError
from headrace.runtime.job.running_jobs import AmbiguousJobError, find_job, last_reports
from headrace.runtime.job.status_text import duration, lagging_sinks, size_text

_EPILOG = epilog(
    {
        ExitCode.FINISHED: "the job is known, running or not",
        ExitCode.NO_SUCH_JOB: "no job, or several, by that name",
    }
)


@click.command(epilog=_EPILOG)
@click.argument("job", metavar="JOB")
@as_json_option
def status(job: str, as_json: bool) -> None:
    """Show what the job JOB is doing, or how it ended."""
    with asking(f"asking {job}"):
        report = report_of(job)
    if as_json:
        click.echo(json.dumps(report, indent=1))
    else:
        Console(highlight=False).print(table(report, time.time()))


def report_of(job: str) -> dict[str, Any]:
    """From the job itself if it runs, else the last that its status file says."""
    try:
        found = find_job(job)
    except AmbiguousJobError:
        raise
    except JobControlError:
        last = [report for report in last_reports() if job in (report["job_id"], report["name"])]
        if not last:
            raise
        return ended(max(last, key=lambda report: int(report.get("updated_at_ms", 0))))
    return report_from(found)


def table(report: dict[str, Any], now_s: float) -> Table:
    """Two columns: what it is, and how it is."""
    shown = Table(box=None, show_header=False, pad_edge=False, padding=(0, 3, 0, 0))
    shown.add_column(style="dim", no_wrap=True)
    shown.add_column(overflow="fold")
    for label, value in rows(report, now_s):
        shown.add_row(label, escape(value))
    return shown


def rows(report: dict[str, Any], now_s: float) -> list[tuple[str, str]]:
    def number(name: str) -> str:
        return f"{report.get(name, 0):,}"

    found = [
        ("job", str(report["name"])),
        ("id", str(report["job_id"])),
        ("status", str(report["status"])),
        ("process", str(report["pid"])),
    ]
    if "attempt" not in report:
        return found
    restored = report["restored_checkpoint"]
    since = "from the beginning" if restored is None else f"from checkpoint {restored}"
    found += [
        ("attempt", f"{report['attempt']}, {since}"),
        ("restarts", number("restarts")),
        ("records", f"{number('records_read')} in, {number('records_written')} out"),
        ("per second", f"{report['read_per_second']:,.0f} in, {report['written_per_second']:,.0f} out"),
        ("latency", _milliseconds(report["latency_ms"])),
        ("watermark lag", _milliseconds(report["watermark_lag_ms"])),
        ("checkpoints", f"{number('checkpoints_completed')} complete, {number('checkpoints_failed')} failed"),
    ]
    found += [("sinks", text) for text in lagging_sinks(report.get("metrics", {}))]
    last = report["last_checkpoint"]
    if last:
        ago = duration(max(0.0, now_s - last["completed_at_ms"] / 1_000))
        size, took = size_text(last["size_bytes"]), duration(last["duration_ms"] / 1_000)
        found.append(("last checkpoint", f"{last['checkpoint_id']}, {size} in {took}, {ago} ago"))
    if report.get("last_savepoint"):
        found.append(("last savepoint", str(report["last_savepoint"])))
    if report["storage"]:
        found.append(("storage", str(report["storage"])))
    if report["last_failure"]:
        found.append(("last failure", str(report["last_failure"])))
    return found


def _milliseconds(value: float | None) -> str:
    return "–" if value is None else duration(value / 1_000)
