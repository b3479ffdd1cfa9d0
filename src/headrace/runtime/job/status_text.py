"""A job's report and its events in words: the same for the live line, for log lines and for the command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.durations import duration as duration
from headrace.operators.sink import UNCOMMITTED_BYTES, UNCOMMITTED_CHECKPOINTS
from headrace.plan.settings import JobSettings
from headrace.runtime.job.status import JobEvent, JobStatus, StatusReport

Part = tuple[str, str]
"""A label and a value, as in `("lag", "0.3 s")`."""


def status_parts(report: StatusReport) -> list[Part]:
    """What a running job is worth saying in one line, the most wanted first: a narrow terminal cuts the end off."""
    parts: list[Part] = []
    if report.status is not JobStatus.RUNNING:
        parts.append(("", report.status.value.lower()))
    if report.starting:
        parts.append(("", report.starting))
    parts += [("", text) for text in lagging_sinks(report.metrics)]
    parts += [
        ("in", f"{report.read_per_second:,.0f}/s"),
        ("out", f"{report.written_per_second:,.0f}/s"),
        ("latency", "–" if report.latency_ms is None else duration(report.latency_ms / 1_000)),
        ("lag", "–" if report.watermark_lag_ms is None else duration(report.watermark_lag_ms / 1_000)),
    ]
    checkpoint = report.last_checkpoint
    if checkpoint is None:
        parts.append(("checkpoint", "–"))
    else:
        took, size = duration(checkpoint.duration_ms / 1_000), size_text(checkpoint.size_bytes)
        parts.append(("checkpoint", f"{checkpoint.checkpoint_id} in {took}, {size}"))
    parts.append(("restarts", str(report.restarts)))
    if report.checkpoints_failed:
        parts.append(("failed checkpoints", str(report.checkpoints_failed)))
    return parts


def lagging_sinks(metrics: Mapping[str, float | int]) -> list[str]:
    """Sinks that commit more slowly than checkpoints complete, from the metrics of a report."""
    end = f".{UNCOMMITTED_CHECKPOINTS}"
    found: list[str] = []
    for name, checkpoints in sorted(metrics.items()):
        if name.endswith(end):
            uid = name.removesuffix(end)
            size = size_text(metrics.get(f"{uid}.{UNCOMMITTED_BYTES}", 0))
            found.append(f"sink {uid} lags: {counted(int(checkpoints), 'checkpoint')}, {size} uncommitted")
    return found


def event_text(event: JobEvent, report: StatusReport, settings: JobSettings) -> str | None:
    """The line for an event; None for those of every second, which the status itself shows."""
    job = f'job "{settings.name}"'
    detail = event.detail
    match event.kind:
        case "running":
            restored = detail.get("restored")
            since = f"restored from checkpoint {restored}{_origin(detail)}"
            since = "from the beginning" if restored is None else since
            return f"{job} running, pid {report.pid}, attempt {detail['attempt']}, {since}; {storage_text(settings)}"
        case "failure":
            return f"{job} lost attempt {report.attempt}: {detail['message']}"
        case "restarting":
            return f"{job} restarts in {duration(detail['delay_ms'] / 1_000)} (restart {report.restarts})"
        case "abandoned":
            left = f" {detail['left']}" if detail["left"] else ""
            return f"{job} ended while it was {detail['step']}, which did not end in time and was abandoned.{left}"
        case "checkpoint-failed":
            cause = f": {detail['detail']}" if detail["detail"] not in ("", detail["reason"]) else ""
            return f"{job}: checkpoint {detail['checkpoint_id']} failed: {detail['reason']}{cause}"
        case "checkpoint-declined":
            return f"{job}: a task declined checkpoint {detail['checkpoint_id']}: {detail['reason']}"
        case "savepoint":
            after = "; the job stops" if detail["stop"] else ""
            took = duration(detail["duration_ms"] / 1_000)
            return f"{job}: savepoint {detail['path']}, {size_text(detail['bytes'])} in {took}{after}"
        case "savepoint-failed":
            return f"{job}: savepoint {detail['path']} failed: {detail['reason']}"
        case "going-back":
            return f"{job} goes on from its last checkpoint: {detail['reason']}"
        case "left-behind":
            return f"{job} leaves behind what no operator claims: {'; '.join(detail['what'])}"
        case "advice":
            return f"{job}: {detail['text']}"
        case "suspending":
            return f"{job} is being suspended; press Ctrl-C again to end at once, without waiting for its tasks"
        case "no-channel":
            return f"{job} cannot be reached by headrace savepoint, stop and cancel: {detail['reason']}"
        case "storage-trouble":
            return f"{job}: checkpoint storage: {detail['reason']}"
    return None


def _origin(running: dict[str, Any]) -> str:
    """Where restored state came from; nothing for what travelled inside the metadata alone."""
    found = running.get("bytes", {})
    local, stored, damaged = (found.get(name, 0) for name in ("local", "from_store", "damaged"))
    if not local and not stored:
        return ""
    unusable = f"; local copies that could not be used: {damaged}" if damaged else ""
    return f" ({size_text(local)} locally, {size_text(stored)} from storage{unusable})"


def storage_text(settings: JobSettings) -> str:
    """Where checkpoints go and what that survives."""
    checkpointing = settings.checkpointing
    if settings.batch:
        return "batch mode: a failure begins the job anew"
    if checkpointing.interval_ms is None:
        return "checkpoints off: a failure loses the state"
    every = duration(checkpointing.interval_ms / 1_000)
    storage = checkpointing.storage
    where = "coordinator memory" if storage.location == "memory:" else storage.location
    return f"checkpoints every {every} in {where}, which survives {storage.survives}"


def resume_text(report: StatusReport, settings: JobSettings) -> str:
    """From where the same command goes on, for a job that was stopped by hand."""
    checkpointing = settings.checkpointing
    if not checkpointing.enabled:
        return "Checkpoints are off: the same command begins from the beginning."
    location = checkpointing.storage.location
    if location == "memory:":
        return (
            "Its checkpoints were in coordinator memory and are gone with this process: the same command begins from "
            "the beginning. Keep them with --checkpoint-dir."
        )
    last = report.last_checkpoint
    if last is not None:
        since = f"checkpoint {last.checkpoint_id}"
    elif report.restored_checkpoint is not None:
        since = f"checkpoint {report.restored_checkpoint}"
    else:
        since = "the beginning, as no checkpoint was complete yet"
    return f"The same command resumes from {since} ({location})."


def ending_text(report: StatusReport, elapsed_s: float) -> str:
    """The last line about a job."""
    took = duration(elapsed_s)
    facts = (
        f"{report.records_read:,} records in, {report.records_written:,} out, "
        f"{counted(report.checkpoints_completed, 'checkpoint')}, {counted(report.restarts, 'restart')}"
    )
    return f'job "{report.name}" {report.status.value.lower()} after {took}: {facts}'


def size_text(size: float) -> str:
    """Bytes in the unit that leaves two or three digits.

    >>> [size_text(n) for n in (0, 999, 2_048, 5_400_000, 3 * 2**30)]
    ['0 B', '999 B', '2.0 KiB', '5.1 MiB', '3.0 GiB']
    """
    if size < 1_000:
        return f"{size:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if size < 1_000:
            return f"{size:.1f} {unit}"
    return f"{size / 1024:.1f} TiB"


def counted(number: int, thing: str) -> str:
    """`1 restart`, `2 restarts`."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"
