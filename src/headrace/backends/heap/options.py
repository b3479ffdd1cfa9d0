"""Settings of the heap backend; light, because they travel to every task."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class HeapOptions:
    """How the heap backend takes its snapshots."""

    asynchronous_snapshots: bool = True
    """Snapshots are written while processing goes on, from a copy or a forked process; False: at the barrier."""
    fork_threshold: int = 200_000
    """Up to so many entries a copy of the tables holds the stream up no longer than a fork and its copied pages."""
    compression: bool = False
    """Compress checkpoints and savepoints (zstd)."""

    def __post_init__(self) -> None:
        if self.fork_threshold < 0:
            raise ConfigurationError(f"fork_threshold is {self.fork_threshold}; it must be 0 (always fork) or more.")
