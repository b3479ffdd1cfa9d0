"""`headrace demo`: the sensor job, killed twice, and the proof that nothing is lost or double."""

from __future__ import annotations

import secrets
import sys
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from headrace.cli.exit_codes import ExitCode, exit_code_of
from headrace.demo.show import Demo, Outcome, Story
from headrace.errors import HeadraceError
from headrace.runtime.job.status_text import counted, duration


@click.command()
@click.option("--readings", type=click.IntRange(min=10), default=1_000_000, show_default=True, help="Readings in all.")
@click.option("--rate", type=click.FloatRange(min=1), default=50_000, show_default=True, help="Readings per second.")
@click.option("--seed", type=int, help="Of the readings and of the moments of the kills; at random if not given.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("demo-out"),
    show_default=True,
    help="Directory for output, checkpoints, log and picture.",
)
def demo(readings: int, rate: float, seed: int | None, out: Path) -> None:
    """Kill a running job twice, and count what arrived.

    A job on Spark compares each sensor's temperature with the one before, with its state in RocksDB and a checkpoint
    each second, and writes an alert for every jump into files. One of its workers is killed at a random moment, later
    all of its processes. In the end every alert must be there exactly once; the exit code is 1 if not.
    """
    chosen = secrets.randbelow(1_000_000) if seed is None else seed
    console = Console(highlight=False)
    what = f"{readings:,} readings at {rate:,.0f} a second"
    console.print(f"{what}, RocksDB state, a checkpoint each second; seed {chosen}", soft_wrap=True)
    story = Story(readings, rate, chosen, out.resolve())
    try:
        with console.status("…") as status:

            def say(text: str) -> None:
                console.print(escape(text), soft_wrap=True)
                status.update(escape(text.partition(" s  ")[2]) + " …")

            outcome = Demo(story, say).run()
    except HeadraceError as error:
        Console(stderr=True, highlight=False).print(f"[bold red]headrace:[/] {escape(str(error))}", soft_wrap=True)
        sys.exit(exit_code_of(error, ever_ran=False))
    show(outcome, readings, console)
    sys.exit(ExitCode.FINISHED if outcome.ok else ExitCode.FAILED)


def show(outcome: Outcome, readings: int, console: Console) -> None:
    """The table that the demo ends with."""
    verdict, timeline = outcome.verdict, outcome.timeline
    table = Table(box=None, show_header=False, padding=(0, 3, 0, 0))
    table.add_column(style="dim")
    table.add_column()
    table.add_row("readings", f"{readings:,}")
    table.add_row("alerts expected", f"{verdict.expected:,}")
    table.add_row("alerts received", f"{verdict.received:,}")
    table.add_row("lost", _bad_if(verdict.lost))
    table.add_row("duplicated", _bad_if(verdict.duplicated))
    if verdict.unexpected:
        table.add_row("unexpected", _bad_if(verdict.unexpected))
    table.add_row("checkpoints", f"{len(timeline.checkpoints):,}")
    processes = counted(max(0, timeline.processes - 1), "new process").replace("processs", "processes")
    table.add_row("restarts", f"{timeline.restarts} within the process, {processes}")
    table.add_row("time to recover", "; ".join(_recovery(outcome)) or "nothing was killed")
    table.add_row("records/s", f"{timeline.records_per_second():,.0f} while running")
    table.add_row("whole demo", duration(outcome.seconds))
    console.print()
    console.print(table)
    console.print()
    if outcome.ok:
        console.print("[bold green]Every alert arrived exactly once.[/]")
    elif verdict.exactly_once:
        console.print("[bold red]Nothing is lost or double, but the job was not killed as the demo wants it.[/]")
    else:
        console.print("[bold red]NOT exactly once.[/]")
    console.print(f"Picture: {outcome.picture}", soft_wrap=True)


def _recovery(outcome: Outcome) -> list[str]:
    shown = []
    for crash in outcome.timeline.crashes:
        took = outcome.timeline.recovery_ms(crash)
        shown.append(f"{crash.victim} {'never' if took is None else duration(took / 1_000)}")
    return shown


def _bad_if(count: int) -> str:
    return f"[bold red]{count:,}[/]" if count else "[green]0[/]"
