"""`headrace doctor`: one screen about what a job needs and what is here."""

from __future__ import annotations

import secrets
import sys
from dataclasses import dataclass

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from headrace.cli.exit_codes import ExitCode
from headrace.errors import HeadraceError, StorageError
from headrace.runtime.spark.errors import SparkSettingsError
from headrace.runtime.spark.machine import Finding, check_machine

SLOTS_OF_A_SMALL_JOB = 4
"""Two levels at parallelism 2."""


@click.command()
@click.option("--slots", type=click.IntRange(min=1), help="Slots your job needs (`headrace explain` says how many).")
@click.option("--master", metavar="URL", help="Spark's master; without it local[N] on this machine.")
@click.option("--checkpoint-dir", metavar="URI", help="Checkpoint storage to try.")
@click.option(
    "--backend", type=click.Choice(["heap", "rocksdb"]), default="heap", help="Where your job keeps its state."
)
@click.option("--keys", type=click.IntRange(min=0), help="Keys your job's state will have: reckons the heap's memory.")
@click.option("--no-spark", is_flag=True, help="Only what can be checked without starting Spark.")
def doctor(
    slots: int | None, master: str | None, checkpoint_dir: str | None, backend: str, keys: int | None, no_spark: bool
) -> None:
    """Check whether jobs can run here, and say what to do where they cannot.

    Looks at Python, Java, PySpark and the packages of a worker, then starts Spark and looks at its settings, its
    Python worker, its free slots and the memory that workers need beside the JVM. Exit code 1 if something is wrong.
    """
    wanted = Wanted(slots or SLOTS_OF_A_SMALL_JOB, backend, keys)
    console = Console(highlight=False)
    with console.status("Looking around …" if no_spark else "Starting Spark to look at it …"):
        findings = examine(wanted, master, checkpoint_dir, with_spark=not no_spark)
    show(findings, console)
    sys.exit(ExitCode.FINISHED if all(finding.ok for finding in findings) else ExitCode.FAILED)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The job that is to run here."""

    slots: int
    backend: str = "heap"
    keys: int | None = None


def examine(wanted: Wanted, master: str | None, checkpoint_dir: str | None, *, with_spark: bool) -> list[Finding]:
    """Everything worth knowing, in the order in which it would stop a job."""
    findings = check_machine()
    if with_spark:
        if all(finding.ok for finding in findings):
            findings += _spark(wanted, master, checkpoint_dir)
        else:
            findings.append(Finding("Spark", False, "not started", "the above", "Put the above right first."))
    if all(finding.ok for finding in findings):
        findings.append(storage_finding(checkpoint_dir))
    return findings


def _spark(wanted: Wanted, master: str | None, checkpoint_dir: str | None) -> list[Finding]:
    # Only now: without PySpark this import fails, and the machine's findings say so better.
    from headrace.backends.heap.options import HeapOptions
    from headrace.backends.rocksdb.options import RocksDBOptions
    from headrace.checkpoint.storage.base import storage_for
    from headrace.plan.memory import need_of_slots
    from headrace.runtime.job.reach import reach_of_executors
    from headrace.runtime.spark.preflight import preflight
    from headrace.runtime.spark.session import obtain_session

    slots = wanted.slots
    options = RocksDBOptions() if wanted.backend == "rocksdb" else HeapOptions()
    try:
        handle = obtain_session(None, slots, max(1, slots // 2), "headrace doctor", master)
    except SparkSettingsError as error:
        return [
            Finding(m.name, False, m.found or "not set", m.wanted, "See headrace.spark_conf().")
            for m in error.mismatches
        ]
    except HeadraceError as error:
        return [Finding("Spark", False, str(error), "a session", "")]
    except Exception as error:
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        remedy = "See what Spark wrote above, and whether JAVA_HOME and SPARK_HOME are what you want."
        return [Finding("Spark", False, f"does not start: {first}", "a session", remedy)]
    try:
        findings = preflight(handle, slots, need_of_slots(slots, options, wanted.keys))
        if checkpoint_dir is None or handle.is_local or not all(finding.ok for finding in findings):
            return findings
        # A first trial makes the directory. Where it fails, and where all is well, the finding about storage says so.
        if storage_finding(checkpoint_dir).ok:
            findings += [f for f in reach_of_executors(handle, storage_for(checkpoint_dir)) if not f.ok]
        return findings
    finally:
        handle.stop()


def storage_finding(checkpoint_dir: str | None) -> Finding:
    """What checkpoint storage survives, and whether it can be written."""
    # Only now, as it needs packages that the machine's findings may have found missing.
    from headrace.checkpoint.storage.base import storage_for
    from headrace.checkpoint.storage.memory import JobManagerCheckpointStorage

    name = "Checkpoint storage"
    wanted = "storage that can be written"
    if checkpoint_dir is None:
        survives = JobManagerCheckpointStorage().survives
        return Finding(name, True, f"coordinator memory unless a job says otherwise: survives {survives}", wanted)
    try:
        storage = storage_for(checkpoint_dir)
        probe = f"doctor-{secrets.token_hex(6)}"
        storage.create_exclusive(probe, b"headrace doctor")
        storage.delete(probe)
        storage.check_exclusive_create()
    except StorageError as error:
        return Finding(name, False, str(error), wanted, "Make it writable, or choose another place.")
    except HeadraceError as error:
        return Finding(name, False, str(error), wanted)
    return Finding(name, True, f"{storage.location}: survives {storage.survives}", wanted)


def show(findings: list[Finding], console: Console) -> None:
    """A table of everything, then what to do about what is wrong."""
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("", no_wrap=True)
    table.add_column("checked", no_wrap=True)
    table.add_column("found", overflow="fold")
    table.add_column("wanted", overflow="fold", style="dim")
    for finding in findings:
        mark = "[bold red]✗[/]" if not finding.ok else "[yellow]![/]" if finding.is_advice else "[green]✓[/]"
        table.add_row(mark, escape(finding.name), escape(finding.found), escape(finding.wanted))
    console.print(table)
    wrong = [finding for finding in findings if not finding.ok]
    advice = [finding for finding in findings if finding.is_advice]
    console.print()
    for finding in advice:
        console.print(f"[yellow]{escape(finding.name)}:[/] {escape(finding.remedy)}", soft_wrap=True)
    if not wrong:
        console.print("[yellow]Jobs can run; see the above.[/]" if advice else "[green]All is well.[/]")
        return
    console.print(f"[bold red]{len(wrong)} of {len(findings)} to put right:[/]")
    for finding in wrong:
        console.print(f"  {escape(finding.name)}: {escape(finding.remedy or finding.found)}", soft_wrap=True)
