"""What happened when, read from the job's event log and the demo's own notes about whom it killed."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Crash:
    """Something that the demo killed."""

    at_ms: int
    victim: str
    """`worker` or `process tree`."""


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time in which records were read at one rate."""

    from_ms: int
    to_ms: int
    records: int

    @property
    def per_second(self) -> float:
        return self.records * 1_000 / max(1, self.to_ms - self.from_ms)


@dataclass(slots=True)
class Timeline:
    """All of a demo, over every process and attempt of the job."""

    crashes: list[Crash] = field(default_factory=list)
    starts: list[tuple[int, int | None]] = field(default_factory=list)
    """When tasks began to run, and the checkpoint that they were restored from."""
    checkpoints: list[int] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    restarts: int = 0
    """By the job's own restart strategy, within one process."""
    processes: int = 0

    @property
    def began_ms(self) -> int:
        return self.starts[0][0] if self.starts else 0

    @property
    def ended_ms(self) -> int:
        return max([s.to_ms for s in self.spans] + self.checkpoints + [at for at, _ in self.starts], default=0)

    def recovery_ms(self, crash: Crash) -> int | None:
        """From the kill until all tasks ran again, restored; None if they never did."""
        return next((at - crash.at_ms for at, _ in self.starts if at >= crash.at_ms), None)

    def records_per_second(self) -> float:
        """While tasks ran: recovery is a figure of its own."""
        running_ms = sum(s.to_ms - s.from_ms for s in self.spans)
        return sum(s.records for s in self.spans) * 1_000 / running_ms if running_ms else 0.0


def read_event_log(path: Path) -> list[dict[str, Any]]:
    """The entries so far. A killed process may have left half a line: it is no entry."""
    entries = []
    if path.exists():
        for line in path.read_text().splitlines():
            try:
                entries.append(json.loads(line))
            except json.JSONDecodeError:
                continue
    return entries


def timeline_of(entries: Iterable[dict[str, Any]], crashes: list[Crash]) -> Timeline:
    """Put together what the log and the demo know."""
    timeline = Timeline(crashes=list(crashes))
    last: tuple[int, int] | None = None
    """When records were last counted, and how many; None while no task runs."""
    counted = 0
    for entry in entries:
        at_ms = entry["at_ms"]
        match entry["kind"]:
            case "opened":
                timeline.processes += 1
                last, counted = None, 0
            case "running":
                timeline.starts.append((at_ms, entry.get("restored")))
                last = at_ms, counted
            case "checkpoint":
                timeline.checkpoints.append(at_ms)
            case "failure":
                last = None
            case "restarting":
                timeline.restarts += 1
            case "report":
                read = entry["records_read"]
                # Every update of the status is a report; the count of records changes about once a second.
                if last is not None and read > last[1] and at_ms > last[0]:
                    timeline.spans.append(Span(last[0], at_ms, read - last[1]))
                    last = at_ms, read
                counted = read
    return timeline
