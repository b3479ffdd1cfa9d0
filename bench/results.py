"""Results as files and as tables.

bench/results/<measure>.json         the newest judged run of a measure
bench/results/<measure>.smoke.json   the newest run with `--rows` or `--seconds`: not judged, not committed
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bench.harness import Judged, Outcome, Result
from bench.measures import ALL, Figure, Measure, Quantity

HOME = Path(__file__).parent / "results"
COLOURS = {"reached": "green", "missed": "red", "missing": "yellow", "too short": "yellow"}


def write(result: Result, home: Path = HOME) -> Path:
    """Keep a result; an earlier one of the same measure is replaced."""
    home.mkdir(exist_ok=True)
    path = home / f"{result.measure.name}{'.smoke' if result.smoke else ''}.json"
    content = {
        "measure": result.measure.name,
        "title": result.measure.title,
        "note": result.measure.note,
        "finished_at": result.finished_at,
        "machine": result.machine,
        "number_of_pairs": len(result.pairs),
        "figures": [_figure_entry(judged) for judged in result.figures],
        "problems": result.problems,
        "pairs": [{"ours": _outcome_entry(pair.ours), "other": _outcome_entry(pair.other)} for pair in result.pairs],
    }
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    return path


def _figure_entry(judged: Judged) -> dict[str, Any]:
    return {
        "figure": judged.figure.title,
        "target": target_text(judged.figure),
        "median": judged.value,
        "lowest": min(judged.values, default=None),
        "highest": max(judged.values, default=None),
        "values": list(judged.values),
        "verdict": judged.verdict.value,
    }


def _outcome_entry(outcome: Outcome | None) -> dict[str, Any] | None:
    if outcome is None:
        return None
    if outcome.line is None:
        return {"problem": outcome.problem}
    return {**outcome.line, "records_per_second": Quantity.RECORDS_PER_SECOND.read(outcome.line)}


def target_text(figure: Figure) -> str:
    """The target in short: `≥ 3 ×`."""
    if figure.bound is None or figure.target is None:
        return "–"
    unit = " ×" if figure.ratio else ""
    return f"{figure.bound.value} {figure.target:g}{unit}"


def show_list(console: Console) -> None:
    """Print all measures with their targets."""
    table = Table(title="Measures")
    for column in ("measure", "what", "must reach"):
        table.add_column(column)
    for measure in ALL:
        targets = "\n".join(
            f"{figure.title} {target_text(figure)}" for figure in measure.figures if figure.target is not None
        )
        table.add_row(measure.name, measure.title, targets or "for the record")
    console.print(table)


def show(result: Result, console: Console) -> None:
    """Print one result: each run, then each figure."""
    runs = Table(title=escape(f"{result.measure.name}: {result.measure.title}"))
    for column in ("pair", "side", "variant"):
        runs.add_column(column)
    shown = list(dict.fromkeys([Quantity.RECORDS_PER_SECOND, *(figure.quantity for figure in result.measure.figures)]))
    for column in ("seconds", *(quantity.value for quantity in shown)):
        runs.add_column(column, justify="right")
    for number, pair in enumerate(result.pairs, 1):
        for side, outcome in (("ours", pair.ours), ("other", pair.other)):
            if outcome is None:
                continue
            line = outcome.line or {}
            seconds = line.get("seconds_between_first_and_last_record")
            cells = [number_text(seconds), *(number_text(quantity.read(line)) for quantity in shown)]
            runs.add_row(str(number), line.get("peer", side), line.get("variant", "missing"), *cells)
    console.print(runs)

    console.print(_figure_table([(result.measure, _figure_entry(judged)) for judged in result.figures]))
    for problem in result.problems:
        console.print(f"[yellow]missing:[/] {escape(problem)}")
    if result.measure.note:
        console.print(escape(result.measure.note))


def show_report(console: Console, home: Path = HOME) -> None:
    """Print the newest judged figure of every measure; one that was never run is shown as missing."""
    rows: list[tuple[Measure, dict[str, Any]]] = []
    for measure in ALL:
        path = home / f"{measure.name}.json"
        entries = json.loads(path.read_text())["figures"] if path.exists() else []
        stored = {entry["figure"]: entry for entry in entries}
        for figure in measure.figures:
            never_run = {"figure": figure.title, "target": target_text(figure), "verdict": "missing"}
            rows.append((measure, stored.get(figure.title, never_run)))
    console.print(_figure_table(rows))


def _figure_table(rows: list[tuple[Measure, dict[str, Any]]]) -> Table:
    table = Table()
    for column in ("measure", "figure", "must reach"):
        table.add_column(column)
    for column in ("median", "lowest – highest", "pairs"):
        table.add_column(column, justify="right")
    table.add_column("verdict")
    before = None
    for measure, entry in rows:
        verdict = entry["verdict"]
        values = entry.get("values", [])
        spread = f"{number_text(min(values))} – {number_text(max(values))}" if values else "–"
        colour = COLOURS.get(verdict, "default")
        table.add_row(
            measure.name if measure is not before else "",
            entry["figure"],
            entry["target"],
            number_text(entry.get("median")),
            spread,
            str(len(values)),
            f"[{colour}]{verdict}[/]",
        )
        before = measure
    return table


def number_text(value: float | None) -> str:
    """A number with three significant digits; what is not there is "missing"."""
    if value is None:
        return "missing"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
