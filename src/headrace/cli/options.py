"""Options that several commands share: what the command line may say about a job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from headrace.datastream.overrides import Overrides

_DECORATORS: tuple[Callable[[Any], Any], ...] = (
    click.argument("job", metavar="JOB.py", type=click.Path(exists=True, dir_okay=False, readable=True)),
    click.argument("args", metavar="[-- ARGS...]", nargs=-1, type=click.UNPROCESSED),
    click.option("-p", "--parallelism", type=click.IntRange(min=1), help="Subtasks of every operator without its own."),
    click.option(
        "--checkpoint-dir", metavar="URI", help="Where checkpoints go: a path or URI, such as file:///var/checkpoints."
    ),
    click.option(
        "--backend",
        type=click.Choice(["heap", "hashmap", "rocksdb"]),
        help="Where state lives: in the worker's memory (heap, alias hashmap), or on its disk (rocksdb).",
    ),
    click.option(
        "--from",
        "restore_from",
        metavar="PATH",
        help="Begin from this checkpoint or savepoint instead of the job's own newest checkpoint.",
    ),
    click.option(
        "--claim",
        is_flag=True,
        help="With --from: take possession of it; it is deleted once this job has checkpoints of its own.",
    ),
    click.option(
        "--allow-non-restored", is_flag=True, help="Leave behind state of the checkpoint that no operator claims."
    ),
    click.option(
        "--allow-duplicates",
        is_flag=True,
        help="Start although sinks have committed newer output than the checkpoint has: it is written again.",
    ),
    click.option(
        "--fresh",
        is_flag=True,
        help="Begin a new run from the very beginning. Checkpoints of the job stay where they are, unused.",
    ),
    click.option(
        "--allow-pickle",
        is_flag=True,
        help="With --from: load pickled records of untyped streams, too. This runs code from the checkpoint.",
    ),
    click.option("--take-over", is_flag=True, help="Take the checkpoint directory from the process that owns it."),
    click.option(
        "--master", metavar="URL", help="Spark's master; without it local[N] with as many slots as the job needs."
    ),
)


def job_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the arguments JOB.py and ARGS and every option that overrides what the program says."""
    for decorate in reversed(_DECORATORS):
        command = decorate(command)
    return command


def overrides_from(given: dict[str, Any]) -> Overrides:
    """The overrides that these parameters of a command stand for."""
    if given["claim"] and given["restore_from"] is None:
        raise click.UsageError("--claim goes with --from: it says whose the checkpoint is that the job begins from.")
    if given["fresh"] and given["restore_from"] is not None:
        raise click.UsageError("--fresh restores nothing, so it cannot be combined with --from.")
    return Overrides(
        parallelism=given["parallelism"],
        checkpoint_dir=given["checkpoint_dir"],
        backend=given["backend"],
        restore_from=given["restore_from"],
        claim=given["claim"],
        take_over=given["take_over"],
        args=given["args"],
        master=given["master"],
        allow_non_restored=given["allow_non_restored"],
        allow_duplicates=given["allow_duplicates"],
        allow_pickle=given["allow_pickle"],
        fresh=given["fresh"],
    )
