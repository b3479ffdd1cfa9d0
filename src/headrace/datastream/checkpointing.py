"""`env.get_checkpoint_config()`: PyFlink's setters over the checkpoint settings of an environment."""

from __future__ import annotations

from datetime import timedelta

from headrace.checkpoint.storage.base import CheckpointStorage
from headrace.datastream.choices import Choices
from headrace.durations import Duration, DurationLike, to_millis
from headrace.errors import ConfigurationError
from headrace.plan.settings import CheckpointingMode, ExternalizedCheckpointRetention

_UNLIMITED_FAILURES = 2**31 - 1


class CheckpointConfig:
    """Changes take effect at the next `execute`. Durations are int milliseconds, `timedelta`, `Time` or `Duration`."""

    DEFAULT_TIMEOUT = 600_000
    DEFAULT_MIN_PAUSE_BETWEEN_CHECKPOINTS = 0
    DEFAULT_MAX_CONCURRENT_CHECKPOINTS = 1

    def __init__(self, choices: Choices) -> None:
        self._choices = choices

    def is_checkpointing_enabled(self) -> bool:
        return self._choices.checkpointing.enabled

    def get_checkpointing_mode(self) -> CheckpointingMode:
        return self._choices.checkpointing.mode

    def set_checkpointing_mode(self, checkpointing_mode: CheckpointingMode) -> CheckpointConfig:
        if not isinstance(checkpointing_mode, CheckpointingMode):
            names = " or ".join(f"CheckpointingMode.{mode.name}" for mode in CheckpointingMode)
            raise ConfigurationError(f"{checkpointing_mode!r} is no checkpointing mode. Give {names}.")
        self._choices.checkpoint(mode=checkpointing_mode)
        return self

    def get_checkpoint_interval(self) -> int:
        """Milliseconds, -1 while checkpointing is off."""
        interval = self._choices.checkpointing.interval_ms
        return -1 if interval is None else interval

    def set_checkpoint_interval(self, checkpoint_interval: DurationLike) -> CheckpointConfig:
        self._choices.checkpoint(interval_ms=to_millis(checkpoint_interval, "checkpoint interval"))
        return self

    def get_checkpoint_timeout(self) -> int:
        return self._choices.checkpointing.timeout_ms

    def set_checkpoint_timeout(self, checkpoint_timeout: DurationLike) -> CheckpointConfig:
        """A checkpoint that takes longer is given up."""
        self._choices.checkpoint(timeout_ms=to_millis(checkpoint_timeout, "checkpoint timeout"))
        return self

    def get_min_pause_between_checkpoints(self) -> int:
        return self._choices.checkpointing.min_pause_ms

    def set_min_pause_between_checkpoints(self, min_pause_between_checkpoints: DurationLike) -> CheckpointConfig:
        """At least this long from the end of a checkpoint to the begin of the next."""
        pause = to_millis(min_pause_between_checkpoints, "min pause between checkpoints")
        self._choices.checkpoint(min_pause_ms=pause)
        return self

    def get_max_concurrent_checkpoints(self) -> int:
        return self._choices.checkpointing.max_concurrent

    def set_max_concurrent_checkpoints(self, max_concurrent_checkpoints: int) -> CheckpointConfig:
        self._choices.checkpoint(max_concurrent=max_concurrent_checkpoints)
        return self

    def get_tolerable_checkpoint_failure_number(self) -> int:
        return self._choices.checkpointing.tolerable_failures

    def set_tolerable_checkpoint_failure_number(self, tolerable_checkpoint_failure_number: int) -> CheckpointConfig:
        """This many checkpoints in a row may fail; one more fails the job. A success begins the count anew."""
        self._choices.checkpoint(tolerable_failures=tolerable_checkpoint_failure_number)
        return self

    def is_fail_on_checkpointing_errors(self) -> bool:
        return self._choices.checkpointing.tolerable_failures == 0

    def set_fail_on_checkpointing_errors(self, fail_on_checkpointing_errors: bool) -> CheckpointConfig:
        """True: the first failed checkpoint fails the job. False: none ever does."""
        return self.set_tolerable_checkpoint_failure_number(0 if fail_on_checkpointing_errors else _UNLIMITED_FAILURES)

    def get_num_retained_checkpoints(self) -> int:
        return self._choices.checkpointing.retain

    def set_num_retained_checkpoints(self, num_retained_checkpoints: int) -> CheckpointConfig:
        """How many completed checkpoints are kept."""
        self._choices.checkpoint(retain=num_retained_checkpoints)
        return self

    def get_externalized_checkpoint_retention(self) -> ExternalizedCheckpointRetention:
        return self._choices.checkpointing.retention

    def set_externalized_checkpoint_retention(self, retention: ExternalizedCheckpointRetention) -> CheckpointConfig:
        """What becomes of the checkpoints when the job is cancelled."""
        self._choices.checkpoint(retention=ExternalizedCheckpointRetention(retention))
        return self

    def enable_externalized_checkpoints(self, cleanup_mode: ExternalizedCheckpointRetention) -> CheckpointConfig:
        """Older name of `set_externalized_checkpoint_retention`."""
        return self.set_externalized_checkpoint_retention(cleanup_mode)

    def is_externalized_checkpoints_enabled(self) -> bool:
        return self.get_externalized_checkpoint_retention() is not (
            ExternalizedCheckpointRetention.NO_EXTERNALIZED_CHECKPOINTS
        )

    def is_unaligned_checkpoints_enabled(self) -> bool:
        return self._choices.checkpointing.unaligned

    def enable_unaligned_checkpoints(self, enabled: bool = True) -> CheckpointConfig:
        """Barriers overtake records on the way, which become part of the checkpoint."""
        self._choices.checkpoint(unaligned=bool(enabled))
        return self

    def disable_unaligned_checkpoints(self) -> CheckpointConfig:
        return self.enable_unaligned_checkpoints(False)

    def is_force_unaligned_checkpoints(self) -> bool:
        return self._choices.force_unaligned

    def set_force_unaligned_checkpoints(self, force_unaligned_checkpoints: bool = True) -> CheckpointConfig:
        """Flink's permission for graphs with loops. Headrace has none, so nothing depends on it."""
        self._choices.force_unaligned = bool(force_unaligned_checkpoints)
        return self

    def get_aligned_checkpoint_timeout(self) -> Duration:
        return Duration.of_millis(self._choices.checkpointing.aligned_timeout_ms)

    def set_aligned_checkpoint_timeout(self, aligned_checkpoint_timeout: DurationLike) -> CheckpointConfig:
        """With unaligned checkpoints: stay aligned for this long first; 0 for not at all."""
        timeout = to_millis(aligned_checkpoint_timeout, "aligned checkpoint timeout")
        self._choices.checkpoint(aligned_timeout_ms=timeout)
        return self

    def get_alignment_timeout(self) -> timedelta:
        """Older name of `get_aligned_checkpoint_timeout`."""
        return timedelta(milliseconds=self._choices.checkpointing.aligned_timeout_ms)

    def set_alignment_timeout(self, alignment_timeout: DurationLike) -> CheckpointConfig:
        """Older name of `set_aligned_checkpoint_timeout`."""
        return self.set_aligned_checkpoint_timeout(alignment_timeout)

    def get_checkpoint_storage(self) -> CheckpointStorage:
        return self._choices.checkpointing.storage

    def set_checkpoint_storage(self, storage: CheckpointStorage | str) -> CheckpointConfig:
        """Where checkpoints go: a URI, or a storage object. Without any: the coordinator's memory."""
        self._choices.set_storage(storage)
        return self

    def set_checkpoint_storage_dir(self, checkpoint_path: str) -> CheckpointConfig:
        """Older name of `set_checkpoint_storage` with a URI."""
        return self.set_checkpoint_storage(checkpoint_path)
