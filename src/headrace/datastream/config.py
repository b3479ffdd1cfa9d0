"""`env.get_config()`: what concerns execution as a whole."""

from __future__ import annotations

from collections.abc import Mapping

from headrace import options
from headrace.datastream.choices import Choices
from headrace.options import Configuration


class ExecutionConfig:
    """Changes take effect at the next `execute`."""

    def __init__(self, choices: Choices) -> None:
        self._choices = choices

    def enable_object_reuse(self) -> ExecutionConfig:
        """Hand mutable values to functions without a copy: quicker, and safe if no function keeps or changes them."""
        self._choices.object_reuse = True
        return self

    def disable_object_reuse(self) -> ExecutionConfig:
        self._choices.object_reuse = False
        return self

    def is_object_reuse_enabled(self) -> bool:
        return self._choices.object_reuse

    def enable_generic_types(self) -> ExecutionConfig:
        """Checkpoints may keep records of untyped streams by pickle if they have no other form: the default."""
        self._choices.generic_types = True
        return self

    def disable_generic_types(self) -> ExecutionConfig:
        """Only streams and states that are typed as pickled use pickle in checkpoints."""
        self._choices.generic_types = False
        return self

    def has_generic_types_disabled(self) -> bool:
        return not self._choices.generic_types

    def set_use_snapshot_compression(self, use_snapshot_compression: bool) -> ExecutionConfig:
        """Compress the heap backend's checkpoints, and savepoints of both backends."""
        self._choices.configure(Configuration().set(options.SNAPSHOT_COMPRESSION, use_snapshot_compression))
        return self

    def is_use_snapshot_compression(self) -> bool:
        return self._choices.backend.compression

    def get_parallelism(self) -> int:
        return self._choices.parallelism

    def set_parallelism(self, parallelism: int) -> ExecutionConfig:
        self._choices.set_parallelism(parallelism)
        return self

    def get_max_parallelism(self) -> int:
        """-1 while it is the default."""
        return -1 if self._choices.max_parallelism is None else self._choices.max_parallelism

    def set_max_parallelism(self, max_parallelism: int) -> ExecutionConfig:
        self._choices.set_max_parallelism(max_parallelism)
        return self

    def get_global_job_parameters(self) -> dict[str, str]:
        return dict(self._choices.job_parameters)

    def set_global_job_parameters(self, global_job_parameters: Mapping[str, object]) -> ExecutionConfig:
        """What functions read with `RuntimeContext.get_job_parameter`."""
        self._choices.job_parameters = {str(k): str(v) for k, v in global_job_parameters.items()}
        return self
