"""The environment, under the name of `pyflink.datastream.stream_execution_environment`."""

from __future__ import annotations

import os
import sys
from typing import Any, ClassVar, NoReturn

from headrace import options
from headrace.datastream import environment
from headrace.datastream.batch import RuntimeExecutionMode
from headrace.datastream.ignored import ignored
from headrace.durations import DurationLike
from headrace.errors import JobDefinitionError
from headrace.options import Configuration
from headrace.plan.settings import CheckpointingMode
from headrace.pyflink.common.configuration import tell_ignored_keys
from headrace.pyflink.common.execution_config import ExecutionConfig

__all__ = ["RuntimeExecutionMode", "StreamExecutionEnvironment"]


class StreamExecutionEnvironment(environment.StreamExecutionEnvironment):
    """Headrace's own with PyFlink's defaults, and with the calls of PyFlink's that do nothing here.

    As in Flink, the first checkpoint that fails fails the job, and a record that keeps failing is retried as often as
    any other failure, unless the program or the configuration says otherwise.
    """

    _default_local_parallelism: ClassVar[int] = os.cpu_count() or 1

    def __init__(self, configuration: Configuration | None = None, spark: Any | None = None) -> None:
        super().__init__(configuration, spark)
        if configuration is not None:
            tell_ignored_keys(configuration)
        self._changelog = False
        told = [Configuration.from_environment(), *([] if configuration is None else [configuration])]
        if not any(given.contains(options.CHECKPOINT_TOLERABLE_FAILURES) for given in told):
            self._choices.checkpoint(tolerable_failures=0)
        if not any(given.contains(options.SAME_RECORD_LIMIT) for given in told):
            self._choices.set_same_record_limit(None)

    @staticmethod
    def get_execution_environment(
        configuration: Configuration | None = None, spark: Any | None = None
    ) -> StreamExecutionEnvironment:
        """A new environment. `spark` is Headrace's: a session of one's own, with the settings of `spark_conf()`."""
        return StreamExecutionEnvironment(configuration, spark)

    # Settings

    def configure(self, configuration: Configuration) -> None:
        """Take over every option that the configuration sets; Flink's others are told once."""
        super().configure(configuration)
        tell_ignored_keys(configuration)

    def get_config(self) -> ExecutionConfig:
        return ExecutionConfig(self._choices)

    def set_buffer_timeout(self, timeout_millis: DurationLike) -> StreamExecutionEnvironment:
        """How long a record waits for company; 0 sends each at once. Flink's -1, for full buffers only, is left out."""
        if timeout_millis == -1:
            ignored("set_buffer_timeout(-1)", "records never wait without end here. The default holds.")
        else:
            super().set_buffer_timeout(timeout_millis)
        return self

    @classmethod
    def set_default_local_parallelism(cls, parallelism: int) -> None:
        """Flink's default for local runs."""
        ignored("set_default_local_parallelism()", "a job has parallelism 1 unless set_parallelism() says otherwise.")
        StreamExecutionEnvironment._default_local_parallelism = int(parallelism)

    @classmethod
    def get_default_local_parallelism(cls) -> int:
        return cls._default_local_parallelism

    def get_checkpointing_consistency_mode(self) -> CheckpointingMode:
        return self.get_checkpointing_mode()

    def enable_changelog_state_backend(self, enabled: bool) -> StreamExecutionEnvironment:
        """Flink's log of state changes, for checkpoints at short intervals."""
        ignored("enable_changelog_state_backend()", "snapshots of RocksDB are incremental, of the heap asynchronous.")
        self._changelog = bool(enabled)
        return self

    def is_changelog_state_backend_enabled(self) -> bool:
        return self._changelog

    def register_slot_sharing_group(self, slot_sharing_group: Any) -> StreamExecutionEnvironment:
        ignored("register_slot_sharing_group()", "operators share slots by chaining alone.")
        return self

    # What a job needs besides itself

    def add_python_file(self, file_path: str) -> None:
        """A module, a zip or a folder that the job imports from: here from now on, and in all workers of the job."""
        path = os.path.abspath(file_path)
        folder = path if os.path.isdir(path) else os.path.dirname(path)
        if not os.path.exists(path):
            raise JobDefinitionError(
                f"add_python_file() got {file_path!r}, which is not there. Give a file or a folder."
            )
        entry = path if path.endswith((".zip", ".egg")) else folder
        if entry not in sys.path:
            sys.path.append(entry)
        self._choices.python_files[path] = None

    def set_python_requirements(self, requirements_file_path: str, requirements_cache_dir: str | None = None) -> None:
        ignored("set_python_requirements()", "workers use the driver's interpreter. Install the packages there.")

    def add_python_archive(self, archive_path: str, target_dir: str | None = None) -> None:
        ignored("add_python_archive()", "workers use the driver's interpreter. Ship archives with Spark's --archives.")

    def set_python_executable(self, python_exec: str) -> None:
        ignored("set_python_executable()", "workers use the driver's interpreter, or Spark's PYSPARK_PYTHON.")

    def add_jars(self, *jars_path: str) -> None:
        ignored("add_jars()", "connectors are written in Python; there is no Java to add.")

    def add_classpaths(self, *classpaths: str) -> None:
        ignored("add_classpaths()", "connectors are written in Python; there is no Java to add.")

    def register_cached_file(self, file_path: str, name: str, executable: bool = False) -> None:
        ignored("register_cached_file()", "open the file by its path, or ship it with Spark's --files.")

    def create_input(self, input_format: Any, type_info: Any = None) -> NoReturn:
        """Flink's input formats are classes of Java."""
        raise JobDefinitionError(
            "create_input() takes an input format of Flink, which is a class of Java. "
            "Use env.from_source() with FileSource, such as FileSource.csv(path)."
        )

    def close(self) -> None:
        """Forget what was declared and not yet executed."""
        self._declared.clear()
