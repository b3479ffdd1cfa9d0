"""The environment: where a program begins, makes its settings and starts its job."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.checkpoint.storage.base import CheckpointStorage
from headrace.connectors.collection import CollectionSource
from headrace.connectors.socket_source import SocketSource
from headrace.connectors.source import Source
from headrace.datastream import submission
from headrace.datastream.backends import StateBackend
from headrace.datastream.batch import RuntimeExecutionMode, checkpoints_for_batch, for_batch, is_batch
from headrace.datastream.checkpointing import CheckpointConfig
from headrace.datastream.choices import Choices, default_job_name
from headrace.datastream.config import ExecutionConfig
from headrace.datastream.dataframes import FromDataFrames
from headrace.datastream.overrides import current_overrides
from headrace.datastream.streams import DataStream, with_timestamp_field
from headrace.durations import DurationLike, to_millis
from headrace.errors import JobDefinitionError
from headrace.operators.factories import SourceFactory
from headrace.operators.watermarks import WatermarkStrategy
from headrace.options import Configuration
from headrace.plan.builder import Draft, Outlet, build_graph
from headrace.plan.chaining import plan_job
from headrace.plan.explain import execution_plan
from headrace.plan.graph import JobPlan, StreamGraph
from headrace.plan.restart import FallBackRestart, RestartStrategy
from headrace.plan.settings import BackendOptions, CheckpointingMode, JobSettings
from headrace.types.information import TypeLike, type_of

if TYPE_CHECKING:
    from headrace.runtime.job.client import JobClient, JobExecutionResult


class StreamExecutionEnvironment(FromDataFrames):
    """Builds jobs and starts them. Building needs no Spark; `execute` makes a session, or takes the one given."""

    def __init__(self, configuration: Configuration | None = None, spark: Any | None = None) -> None:
        self._choices = Choices()
        self._spark = spark
        self._declared: list[Draft] = []
        self._unnamed_jobs = 0
        self.declared_count = 0
        """How many operators were ever declared here."""
        self._choices.configure(Configuration.from_environment())
        if configuration is not None:
            self._choices.configure(configuration)

    @staticmethod
    def get_execution_environment(
        configuration: Configuration | None = None, spark: Any | None = None
    ) -> StreamExecutionEnvironment:
        """A new environment. `spark` is a SparkSession of one's own, which must have the settings of `spark_conf()`."""
        return StreamExecutionEnvironment(configuration, spark)

    # Settings

    def configure(self, configuration: Configuration) -> None:
        """Take over every option that the configuration sets."""
        self._choices.configure(configuration)

    def get_config(self) -> ExecutionConfig:
        return ExecutionConfig(self._choices)

    def get_checkpoint_config(self) -> CheckpointConfig:
        return CheckpointConfig(self._choices)

    def set_parallelism(self, parallelism: int) -> StreamExecutionEnvironment:
        """Subtasks of every operator that does not say otherwise."""
        self._choices.set_parallelism(parallelism)
        return self

    def get_parallelism(self) -> int:
        return self._choices.parallelism

    def set_max_parallelism(self, max_parallelism: int) -> StreamExecutionEnvironment:
        """Key groups of every operator that does not say otherwise: 128 unless set."""
        self._choices.set_max_parallelism(max_parallelism)
        return self

    def get_max_parallelism(self) -> int:
        """-1 while it is the default."""
        return self.get_config().get_max_parallelism()

    def set_buffer_timeout(self, timeout: DurationLike) -> StreamExecutionEnvironment:
        """How long a record waits for company before it leaves its task; 0 sends each at once."""
        self._choices.set_buffer_timeout(to_millis(timeout, "buffer timeout"))
        return self

    def get_buffer_timeout(self) -> int:
        return self._choices.buffer_timeout_ms

    def set_runtime_mode(self, execution_mode: RuntimeExecutionMode) -> StreamExecutionEnvironment:
        """Batch: a bounded job gives the last result of each key only. Streaming, the default: each as it changes."""
        self._choices.runtime_mode = RuntimeExecutionMode(execution_mode)
        return self

    def disable_operator_chaining(self) -> StreamExecutionEnvironment:
        """Run every operator in tasks of its own."""
        self._choices.chaining = False
        return self

    def is_chaining_enabled(self) -> bool:
        return self._choices.chaining

    def enable_checkpointing(
        self, interval: DurationLike, mode: CheckpointingMode | None = None
    ) -> StreamExecutionEnvironment:
        """Take a checkpoint each `interval`, exactly-once unless `mode` says otherwise."""
        config = self.get_checkpoint_config().set_checkpoint_interval(interval)
        if mode is not None:
            config.set_checkpointing_mode(mode)
        return self

    def get_checkpoint_interval(self) -> int:
        """Milliseconds, -1 while checkpointing is off."""
        return self.get_checkpoint_config().get_checkpoint_interval()

    def get_checkpointing_mode(self) -> CheckpointingMode:
        return self._choices.checkpointing.mode

    def is_unaligned_checkpoints_enabled(self) -> bool:
        return self._choices.checkpointing.unaligned

    def is_force_unaligned_checkpoints(self) -> bool:
        return self._choices.force_unaligned

    def set_checkpoint_storage(self, storage: CheckpointStorage | str) -> StreamExecutionEnvironment:
        """Where checkpoints go: a URI, or a storage object."""
        self._choices.set_storage(storage)
        return self

    def set_default_savepoint_directory(self, directory: str) -> StreamExecutionEnvironment:
        """Where savepoints go that are asked for without a place."""
        self._choices.savepoint_dir = str(directory)
        return self

    def get_default_savepoint_directory(self) -> str | None:
        return self._choices.savepoint_dir

    def set_state_backend(self, state_backend: StateBackend | BackendOptions) -> StreamExecutionEnvironment:
        """Where state lives. The last call wins; the older names bring their checkpoint storage with them."""
        self._choices.set_backend(state_backend)
        return self

    def get_state_backend(self) -> BackendOptions:
        return self._choices.backend

    def set_restart_strategy(self, restart_strategy: RestartStrategy | FallBackRestart) -> StreamExecutionEnvironment:
        """What follows a failure. Not set: none without checkpointing, exponential delay with it."""
        self._choices.set_restart(restart_strategy)
        return self

    def get_restart_strategy(self) -> RestartStrategy | FallBackRestart:
        return FallBackRestart() if self._choices.restart is None else self._choices.restart

    # Where streams begin

    def from_source(
        self,
        source: Source[Any],
        watermark_strategy: WatermarkStrategy,
        source_name: str,
        type_info: TypeLike | None = None,
    ) -> DataStream:
        """The records of a source. `type_info` is for sources that do not know the type of their records."""
        if not isinstance(source, Source):
            hint = f" Write {source.__name__}(...)." if isinstance(source, type) and issubclass(source, Source) else ""
            raise JobDefinitionError(f"from_source() got {source!r}; wanted a Source object.{hint}")
        split_type = getattr(source, "split_type", None)
        if (
            isinstance(split_type, type)
            and issubclass(split_type, msgspec.Struct)
            and split_type.__module__ == "__main__"
        ):
            raise JobDefinitionError(
                f'The split type {split_type.__name__} of source "{source_name}" is a msgspec.Struct of the program '
                "itself, which does not reach the workers. Make it a dataclass, or move it into a module of its own."
            )
        produced = source.produced_type
        declared = produced if type_info is None else type_of(type_info)
        if produced is not None and declared != produced:
            raise JobDefinitionError(
                f'Source "{source_name}" produces {produced}, but from_source() declares {declared}. '
                "Leave type_info out, and convert the records with map(..., output_type=...)."
            )
        strategy = with_timestamp_field(watermark_strategy, declared)
        draft = self.declare(Draft(str(source_name), SourceFactory(source, strategy), output_type=declared))
        return DataStream(self, (Outlet(draft, type=declared),))

    def add_source(
        self, source: Source[Any], source_name: str = "Custom Source", type_info: TypeLike | None = None
    ) -> DataStream:
        """A source without event time."""
        return self.from_source(source, WatermarkStrategy.no_watermarks(), source_name, type_info)

    def from_collection(self, collection: Iterable[Any], type_info: TypeLike | None = None) -> DataStream:
        """These values, in this order, read by one subtask. Every value is checked against the type at once."""
        declared = None if type_info is None else type_of(type_info)
        values = list(collection)
        if declared is not None:
            for i, value in enumerate(values):
                declared.check(value, f"from_collection(), value {i}")
        stream = self.from_source(
            CollectionSource(values, declared), WatermarkStrategy.no_watermarks(), "collection", declared
        )
        return stream.set_parallelism(1)

    def socket_text_stream(self, host: str, port: int, delimiter: str = "\n", max_retry: int = 0) -> DataStream:
        """Text from a TCP socket, one record a line, for teaching: it cannot be replayed, so the job is at-most-once.

        `max_retry` is for how many seconds to try again while nobody listens: 0 for once only, -1 for ever.
        """
        source = SocketSource(host, port, delimiter, max_retry)
        return self.from_source(source, WatermarkStrategy.no_watermarks(), f"socket {host}:{port}").set_parallelism(1)

    # Running

    def execute(self, job_name: str | None = None) -> JobExecutionResult:
        """Run the job to its end; raises `JobFailedError` if it failed for good.

        The same program started again goes on from its newest complete checkpoint: jobs are known by their name.
        """
        return submission.run(*self._taken(job_name), self._spark)  # type: ignore[no-any-return]

    def execute_async(self, job_name: str | None = None) -> JobClient:
        """Start the job and return at once."""
        return submission.start(*self._taken(job_name), self._spark)  # type: ignore[no-any-return]

    def start_collecting(self, job_name: str | None = None) -> Any | None:
        """Start the job for `execute_and_collect`; None where execution is intercepted."""
        return submission.start_collecting(*self._taken(job_name), self._spark)

    def get_execution_plan(self) -> str:
        """The graph so far, as JSON in the form of Flink's."""
        return execution_plan(self._graph(self._choices.job_name or default_job_name()))

    def build(self, job_name: str | None = None) -> tuple[JobPlan, JobSettings]:
        """The plan and settings of the job so far. Runs nothing and changes nothing."""
        overrides = current_overrides()
        name = job_name or self._choices.job_name or self._default_name()
        settings = self._choices.job_settings(name, overrides)
        graph = self._graph(name)
        if is_batch(graph, self._choices.runtime_mode):
            settings = replace(settings, batch=True, checkpointing=checkpoints_for_batch(settings.checkpointing))
        return plan_job(graph), settings

    def use_session(self, spark: Any) -> None:
        """Run in this session, unless one was given. Called where a DataFrame of it becomes part of the job."""
        self._spark = self._spark or spark

    def declare(self, draft: Draft) -> Draft:
        """Add an operator. Called by streams."""
        self._declared.append(draft)
        self.declared_count += 1
        return draft

    def _taken(self, job_name: str | None) -> tuple[JobPlan, JobSettings]:
        """The job so far; what is declared from now on belongs to the next one."""
        built = self.build(job_name)
        self._declared.clear()
        if not (job_name or self._choices.job_name):
            self._unnamed_jobs += 1
        return built

    def _graph(self, name: str) -> StreamGraph:
        graph = build_graph(
            name,
            self._declared,
            parallelism=self._choices.effective_parallelism(current_overrides()),
            max_parallelism=self._choices.max_parallelism,
            chaining=self._choices.chaining,
        )
        batch = is_batch(graph, self._choices.runtime_mode)
        return for_batch(graph, self._choices.sort_memory_bytes) if batch else graph

    def _default_name(self) -> str:
        # A second job of one program must not take the first one's checkpoints for its own.
        name = default_job_name()
        return name if self._unnamed_jobs == 0 else f"{name}-{self._unnamed_jobs + 1}"
