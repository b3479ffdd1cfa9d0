"""What a job is doing: one board that the coordinator writes and the live line, the status file and clients read."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any

from headrace.clocks import wall_ms
from headrace.operators.sink import UNCOMMITTED_CHECKPOINTS
from headrace.runtime.control.messages import Progress

TaskKey = tuple[int, int]


class JobStatus(Enum):
    """Flink's names for the states of a job."""

    CREATED = "CREATED"
    RUNNING = "RUNNING"
    FAILING = "FAILING"
    FAILED = "FAILED"
    CANCELLING = "CANCELLING"
    CANCELED = "CANCELED"
    FINISHED = "FINISHED"
    RESTARTING = "RESTARTING"
    SUSPENDED = "SUSPENDED"
    RECONCILING = "RECONCILING"
    """Flink's, for a job that finds its running tasks again; no job is ever in it here."""

    @property
    def is_terminal(self) -> bool:
        return self in (JobStatus.FAILED, JobStatus.CANCELED, JobStatus.FINISHED, JobStatus.SUSPENDED)


@dataclass(frozen=True, slots=True)
class CheckpointReport:
    """One completed checkpoint, for people."""

    checkpoint_id: int
    kind: str
    completed_at_ms: int
    duration_ms: int
    size_bytes: int
    uploaded_bytes: int
    alignment_ms: int
    sync_ms: int
    channel_bytes: int = 0


@dataclass(frozen=True, slots=True)
class StatusReport:
    """A job at one moment."""

    job_id: str
    name: str
    status: JobStatus = JobStatus.CREATED
    pid: int = 0
    attempt: int = 0
    restarts: int = 0
    restored_checkpoint: int | None = None
    restored_bytes: dict[str, int] = field(default_factory=dict)
    """Of the restored state `local`: from copies on the tasks' hosts, `from_store`: from checkpoint storage, `damaged`:
    copies that could not be used."""
    records_read: int = 0
    records_written: int = 0
    read_per_second: float = 0.0
    written_per_second: float = 0.0
    latency_ms: float | None = None
    watermark: int | None = None
    watermark_lag_ms: int | None = None
    busy: float = 0.0
    checkpoints_completed: int = 0
    checkpoints_failed: int = 0
    tolerated_failures: int = 0
    last_checkpoint: CheckpointReport | None = None
    savepoints_completed: int = 0
    last_savepoint: str = ""
    """Where the last savepoint of this run lies."""
    last_failure: str = ""
    starting: str = ""
    """How far an attempt is whose tasks do not run yet; empty while they do."""
    storage: str = ""
    task_pids: dict[str, int] = field(default_factory=dict)
    metrics: dict[str, float | int] = field(default_factory=dict)
    updated_at_ms: int = 0

    def as_json(self) -> dict[str, Any]:
        """Plain data for the status file."""
        report = asdict(self)
        report["status"] = self.status.value
        return report


@dataclass(frozen=True, slots=True)
class JobEvent:
    """Something worth telling: a checkpoint, a failure, a restart."""

    kind: str
    at_ms: int
    detail: dict[str, Any]


Listener = Callable[[StatusReport], None]
EventListener = Callable[[JobEvent], None]

_SMALLEST = -(2**63)
_LARGEST = 2**63 - 1


class StatusBoard:
    """Thread-safe. The coordinator updates it; listeners are called from the coordinator's thread."""

    def __init__(self, report: StatusReport) -> None:
        self._report = report
        self._lock = threading.Lock()
        self._tasks: dict[TaskKey, Progress] = {}
        self._before = (0, 0)
        """Records read and written in attempts before this one."""
        self._rate_from: tuple[float, int, int] = (time.monotonic(), 0, 0)
        self.listeners: list[Listener] = []
        self.event_listeners: list[EventListener] = []

    @property
    def report(self) -> StatusReport:
        with self._lock:
            return self._report

    def update(self, **changes: Any) -> None:
        with self._lock:
            self._report = replace(self._report, updated_at_ms=wall_ms(), **changes)
            report = self._report
        for listener in self.listeners:
            listener(report)

    def event(self, kind: str, **detail: Any) -> None:
        event = JobEvent(kind, wall_ms(), detail)
        for listener in self.event_listeners:
            listener(event)

    def begin_attempt(self) -> None:
        """Tasks count from zero again; what was counted before stays."""
        with self._lock:
            self._before = (self._report.records_read, self._report.records_written)
            self._tasks.clear()
            self._rate_from = (time.monotonic(), *self._before)

    def progress(self, task: TaskKey, progress: Progress) -> None:
        """A task's own counts. The whole is published by `tick`."""
        with self._lock:
            self._tasks[task] = progress

    def tick(self) -> None:
        """Work out rates and publish; called about once a second."""
        with self._lock:
            tasks = list(self._tasks.values())
            since, read_before, written_before = self._rate_from
        if not tasks:
            self.update()
            return
        now = time.monotonic()
        read = self._before[0] + sum(t.records_read for t in tasks)
        written = self._before[1] + sum(t.records_written for t in tasks)
        passed = max(now - since, 1e-6)
        self._rate_from = (now, read, written)
        latencies = [t.latency_ms for t in tasks if t.latency_ms is not None]
        marks = [t.watermark for t in tasks if t.watermark is not None and _SMALLEST < t.watermark < _LARGEST]
        watermark = min(marks) if marks else None
        metrics: dict[str, float | int] = {}
        for task in tasks:
            for name, value in task.metrics.items():
                known = metrics.get(name, 0)
                # How far the subtask lags that lags most, not all of them together.
                metrics[name] = max(known, value) if name.endswith(f".{UNCOMMITTED_CHECKPOINTS}") else known + value
        self.update(
            records_read=read,
            records_written=written,
            read_per_second=max(0.0, (read - read_before) / passed),
            written_per_second=max(0.0, (written - written_before) / passed),
            latency_ms=max(latencies) if latencies else None,
            watermark=watermark,
            watermark_lag_ms=None if watermark is None else max(0, wall_ms() - watermark),
            busy=max(t.busy for t in tasks),
            metrics=metrics,
        )
