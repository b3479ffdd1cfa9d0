"""What the command line says about a job, kept for the process in which the job's program runs.

`headrace run` and `headrace explain` set this and then run the program, which knows nothing of it. Overrides win over
what the program sets; an operator's own `set_parallelism` stays, since it belongs to what the operator is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from headrace.plan.graph import JobPlan
from headrace.plan.settings import JobSettings


@dataclass(frozen=True, slots=True)
class Overrides:
    """None, or False, leaves the program's own choice."""

    parallelism: int | None = None
    checkpoint_dir: str | None = None
    backend: str | None = None
    """`heap`, `hashmap` or `rocksdb`."""
    restore_from: str | None = None
    claim: bool = False
    take_over: bool = False
    args: tuple[str, ...] = ()
    """Arguments of the job's program, after `--`."""
    master: str | None = None
    allow_non_restored: bool = False
    allow_duplicates: bool = False
    allow_pickle: bool = False
    fresh: bool = False
    on_execute: Callable[[JobPlan, JobSettings], Any] | None = None
    """Called in place of running the job, by `execute`, `execute_async` and `execute_and_collect` alike; what it
    returns is what `execute` returns."""


_NONE = Overrides()
_current = _NONE


def set_overrides(overrides: Overrides | None) -> None:
    """From now on these hold for every job of the process; None for no overrides."""
    global _current
    _current = _NONE if overrides is None else overrides


def current_overrides() -> Overrides:
    """What holds now."""
    return _current


@contextmanager
def overriding(overrides: Overrides) -> Iterator[None]:
    """These overrides hold inside the block, and what held before afterwards."""
    before = _current
    set_overrides(overrides)
    try:
        yield
    finally:
        set_overrides(before)
