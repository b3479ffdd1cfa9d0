"""When checkpoints are taken and how many may fail."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class LifecycleSettings:
    """All durations in milliseconds."""

    interval_ms: int | None
    """From one trigger to the next; None takes no periodic checkpoints."""
    timeout_ms: int = 600_000
    """A checkpoint that tasks have not all acknowledged by then is abandoned."""
    min_pause_ms: int = 0
    """From the end of the last checkpoint, complete or not, to the next trigger."""
    max_concurrent: int = 1
    tolerable_failures: int = 3
    """So many checkpoints in a row may fail; one more fails the job."""
    retain: int = 1
    unaligned: bool = False
    """Unaligned checkpoints run one at a time, whatever `max_concurrent` says."""
    unaligned_at_once: bool = False
    """Periodic checkpoints are unaligned from their trigger on, not only after a timeout of the alignment."""
    final_checkpoint: bool = False
    """Take one at the end of bounded input though `interval_ms` is None; with an interval it is always taken."""

    def __post_init__(self) -> None:
        for name, least in (
            ("interval_ms", 1),
            ("timeout_ms", 1),
            ("min_pause_ms", 0),
            ("max_concurrent", 1),
            ("tolerable_failures", 0),
            ("retain", 1),
        ):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigurationError(f"Checkpoint setting {name} is {value}; it must be at least {least}.")

    @property
    def concurrent_limit(self) -> int:
        return 1 if self.unaligned else self.max_concurrent

    @property
    def takes_final(self) -> bool:
        return self.interval_ms is not None or self.final_checkpoint
