"""What a checkpoint interval costs while the job runs, and what it saves when it recovers: measured and drawn.

    python -m bench interval                                       # 5 intervals, 3 rounds, some 20 minutes
    python -m bench interval --rows 300000 --rounds 1 --intervals off,1000   # smoke run
    python -m bench interval --picture docs/img/checkpoint-interval.svg

For each interval two programs run: `headrace_job` to its end, for records a second (against the same without
checkpoints, in the same round); and `interval_job`, whose worker is killed shortly before the next checkpoint is due,
for the time until everything is processed again that was processed before. Rounds are interleaved. Results are kept in
`bench/results/checkpoint-interval.json` and `.svg`; with fewer rows than the measure wants, in `….smoke.*`.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench import dataset, machine
from bench.measures import Quantity, Rows, Run
from bench.programs import OURS, SCRATCH, FailedRunError, Limits, check_counts, run, run_for_line

OFF = 0
INTERVALS_MS = (OFF, 10_000, 3_000, 1_000, 300)
ROWS = 12_000_000
KEYS = 100_000
NAME = "checkpoint-interval"
TITLE = "What a checkpoint interval costs and saves"
HOME = Path(__file__).parent / "results"

WIDTH, HEIGHT = 860, 400
LEFT, RIGHT, TOP, BOTTOM = 72, 72, 84, 64
INK, PALE, GRID, COST, RECOVERY = "#1f2933", "#616e7c", "#e4e7eb", "#2f80c3", "#c92a2a"


@dataclass
class Point:
    """All that was measured at one interval; a figure that is not there was not measured."""

    interval_ms: int
    records_per_second: list[float] = field(default_factory=list)
    of_speed_without: list[float] = field(default_factory=list)
    """Records a second, as a share of those of the same round without checkpoints."""
    restart_seconds: list[float] = field(default_factory=list)
    caught_up_seconds: list[float] = field(default_factory=list)
    replayed: list[int] = field(default_factory=list)
    checkpoint_ms: list[float] = field(default_factory=list)
    state_bytes: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def label(self) -> str:
        return "off" if self.interval_ms == OFF else f"{self.interval_ms / 1_000:g} s"


def measure(
    intervals_ms: Sequence[int], rounds: int, rows: int, timeout_seconds: float, console: Console
) -> list[Point]:
    """Never raises for a run that fails or counts wrongly: its point says so."""
    points = {interval: Point(interval) for interval in intervals_ms}
    for number in range(1, rounds + 1):
        without: float | None = None
        for interval, point in points.items():
            console.print(f"round {number} of {rounds}, interval {point.label}: to the end", style="dim")
            speed = _to_the_end(point, rows, timeout_seconds)
            if interval == OFF:
                without = speed
            if speed is not None and without:
                point.of_speed_without.append(speed / without)
            if interval != OFF:
                console.print(f"round {number} of {rounds}, interval {point.label}: with a kill", style="dim")
                _with_a_kill(point, rows, timeout_seconds)
    return list(points.values())


def _to_the_end(point: Point, rows: int, timeout_seconds: float) -> float | None:
    side = Run(OURS, Rows(KEYS, rows), ("--backend", "rocksdb", "--checkpoint-interval-ms", str(point.interval_ms)))
    try:
        line = run(side, (), Limits(timeout_seconds))
    except FailedRunError as error:
        point.problems.append(str(error))
        return None
    speed = Quantity.RECORDS_PER_SECOND.read(line)
    if speed is not None:
        point.records_per_second.append(speed)
    if line.get("checkpoints"):
        point.checkpoint_ms += line["checkpoints"]["durations_ms"]
    return speed


def _with_a_kill(point: Point, rows: int, timeout_seconds: float) -> None:
    data = dataset.ensure(keys=min(KEYS, rows), rows=rows)
    SCRATCH.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="interval-", dir=SCRATCH) as scratch:
        command = [sys.executable, "-m", "bench.interval_job", "--interval-ms", str(point.interval_ms)]
        command += ["--data", str(data.directory), "--scratch", scratch]
        try:
            line = run_for_line(command, timeout_seconds, Path(scratch))
            check_counts("interval_job", line, data)
        except FailedRunError as error:
            point.problems.append(str(error))
            return
    point.restart_seconds.append(line["restart_seconds"])
    point.caught_up_seconds.append(line["caught_up_seconds"])
    point.replayed.append(line["replayed"])
    point.state_bytes = line["state_bytes"]


def keep(points: list[Point], rows: int, *, home: Path = HOME, picture: Path | None = None) -> tuple[Path, Path]:
    """Write the figures and the picture."""
    home.mkdir(exist_ok=True)
    stem = NAME if rows >= ROWS else f"{NAME}.smoke"
    figures, drawn = home / f"{stem}.json", picture or home / f"{stem}.svg"
    content = {
        "measure": NAME,
        "finished_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine.facts(),
        "rows": rows,
        "keys": min(KEYS, rows),
        "backend": "rocksdb",
        "points": [asdict(point) for point in points],
    }
    figures.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    drawn.write_text(draw(points, rows))
    return figures, drawn


def show(points: list[Point], console: Console) -> None:
    table = Table(title="Checkpoint interval")
    for column in ("interval", "records/s", "of speed without", "checkpoint", "restart", "caught up", "replayed"):
        table.add_column(column, justify="right")
    for point in points:
        table.add_row(
            point.label,
            _shown(point.records_per_second, "{:,.0f}"),
            _shown(point.of_speed_without, "{:.1%}"),
            _shown(point.checkpoint_ms, "{:,.0f} ms"),
            _shown(point.restart_seconds, "{:.2f} s"),
            _shown(point.caught_up_seconds, "{:.2f} s"),
            _shown(point.replayed, "{:,.0f}"),
        )
    console.print(table)
    for point in points:
        for problem in point.problems:
            console.print(f"[yellow]{point.label}: {escape(problem)}")


def _shown(values: Sequence[float], form: str) -> str:
    return form.format(statistics.median(values)) if values else "missing"


# The picture


def draw(points: Sequence[Point], rows: int) -> str:
    """Speed and recovery against the interval, as the text of an SVG file. The interval grows to the right."""
    timed = sorted((p for p in points if p.interval_ms != OFF), key=lambda p: p.interval_ms)
    highest = max((statistics.median(p.caught_up_seconds) for p in timed if p.caught_up_seconds), default=1.0)
    plot = _Plot([p.interval_ms for p in timed] or [1_000], _round_up(highest))
    speed = [(p.interval_ms, statistics.median(p.of_speed_without)) for p in timed if p.of_speed_without]
    caught = [(p.interval_ms, statistics.median(p.caught_up_seconds)) for p in timed if p.caught_up_seconds]
    restart = [(p.interval_ms, statistics.median(p.restart_seconds)) for p in timed if p.restart_seconds]
    rounds = max((len(p.records_per_second) for p in points), default=0)
    subtitle = f"{rows:,} records, RocksDB, 2 tasks; median of {rounds}; killed at 0.9 of the interval"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="system-ui, Helvetica, Arial, sans-serif" font-size="12">',
        f"<title>{TITLE}</title>",
        f"<desc>Speed against none, and seconds after a kill, by checkpoint interval; {subtitle}</desc>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        _text(LEFT, 26, TITLE, INK, size=17, weight=600),
        _text(LEFT, 46, subtitle, PALE),
        *plot.axes(),
        *plot.line([(at, plot.share(value)) for at, value in speed], COST),
        *plot.line([(at, plot.seconds(value)) for at, value in caught], RECOVERY),
        *plot.line([(at, plot.seconds(value)) for at, value in restart], RECOVERY, dashed=True),
        *_legend(),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


class _Plot:
    """Intervals on a logarithmic axis; shares of speed on the left, seconds on the right."""

    def __init__(self, intervals: Sequence[int], most_seconds: float) -> None:
        self._intervals = intervals
        self._low, self._high = math.log(min(intervals)), math.log(max(intervals))
        self._most = most_seconds

    def x(self, interval_ms: int) -> float:
        span = self._high - self._low
        share = 0.5 if span == 0 else (math.log(interval_ms) - self._low) / span
        return LEFT + 30 + share * (WIDTH - LEFT - RIGHT - 60)

    def share(self, value: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - min(value, 1.1) / 1.1)

    def seconds(self, value: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / self._most / 1.1)

    def axes(self) -> list[str]:
        parts = []
        for i in range(5):
            y = self.share(i / 4)
            parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="{GRID}"/>')
            parts.append(_text(LEFT - 8, y + 4, f"{i / 4:.0%}", COST, anchor="end"))
            parts.append(_text(WIDTH - RIGHT + 8, y + 4, f"{self._most * i / 4:g} s", RECOVERY))
        for interval in self._intervals:
            label = f"{interval / 1_000:g} s"
            parts.append(_text(self.x(interval), HEIGHT - BOTTOM + 20, label, PALE, anchor="middle"))
        parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 18, "checkpoint interval", INK, anchor="middle"))
        return parts

    def line(self, points: Sequence[tuple[int, float]], colour: str, *, dashed: bool = False) -> list[str]:
        if not points:
            return []
        path = " ".join(f"{self.x(at):.1f},{y:.1f}" for at, y in points)
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        dots = [f'<circle cx="{self.x(at):.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>' for at, y in points]
        return [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>', *dots]


def _legend() -> list[str]:
    entries = [
        (COST, "", "speed, against none"),
        (RECOVERY, "", "caught up after a kill"),
        (RECOVERY, ' stroke-dasharray="5 4"', "running again after a kill"),
    ]
    parts = []
    for place, (colour, dash, text) in enumerate(entries):
        x = LEFT + 200 * place
        parts.append(f'<line x1="{x}" y1="66" x2="{x + 22}" y2="66" stroke="{colour}" stroke-width="2"{dash}/>')
        parts.append(_text(x + 28, 70, text, INK))
    return parts


def _text(x: float, y: float, text: str, fill: str, *, anchor: str = "start", size: int = 12, weight: int = 400) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{fill}" text-anchor="{anchor}" font-size="{size}" '
        f'font-weight="{weight}">{escape(text)}</text>'
    )


def _round_up(value: float) -> float:
    """To a number with one or two digits, so that a quarter of it can be read."""
    step = 10 ** math.floor(math.log10(max(value, 0.1)))
    return math.ceil(value / step) * step


def parse_intervals(text: str) -> list[int]:
    """`off,10000,300`: milliseconds; off comes first, for the others are compared with it."""
    found = {OFF if part == "off" else int(part) for part in text.split(",")}
    return sorted(found, key=lambda interval: (interval != OFF, -interval))


def main(args: Any, console: Console) -> int:
    """Called by `python -m bench interval`; 1 if anything is missing."""
    points = measure(parse_intervals(args.intervals), args.rounds, args.rows, args.timeout, console)
    show(points, console)
    figures, drawn = keep(points, args.rows, picture=args.picture)
    console.print(f"kept in {figures} and {drawn}")
    return 1 if any(point.problems for point in points) else 0
