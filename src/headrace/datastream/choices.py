"""What the program has chosen so far; everything that has a setter ends up here.

Order of precedence, weakest first: defaults, `HEADRACE_…` variables, the configuration, setters in the order in which
they are called, the command line.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from headrace import options
from headrace.backends.heap.options import HeapOptions
from headrace.backends.rocksdb.options import RocksDBOptions
from headrace.checkpoint.storage.base import CheckpointStorage, storage_for
from headrace.checkpoint.storage.memory import JobManagerCheckpointStorage
from headrace.datastream.backends import StateBackend
from headrace.datastream.batch import RuntimeExecutionMode
from headrace.datastream.overrides import Overrides
from headrace.errors import ConfigurationError
from headrace.options import Configuration, Option
from headrace.plan.restart import (
    SAME_RECORD_LIMIT,
    ExponentialDelayRestart,
    FailureRateRestart,
    FallBackRestart,
    FixedDelayRestart,
    NoRestart,
    RestartStrategy,
    effective_restart,
)
from headrace.plan.settings import (
    DEFAULT_MAX_PARALLELISM,
    LARGEST_MAX_PARALLELISM,
    BackendOptions,
    CheckpointingMode,
    CheckpointSettings,
    ControlSettings,
    ExternalizedCheckpointRetention,
    JobSettings,
    job_id_of,
)


@dataclass(slots=True)
class Choices:
    """The choices of one environment."""

    parallelism: int = 1
    max_parallelism: int | None = None
    chaining: bool = True
    checkpointing: CheckpointSettings = field(default_factory=CheckpointSettings)
    backend: BackendOptions = field(default_factory=HeapOptions)
    heap: HeapOptions = field(default_factory=HeapOptions)
    """What a heap backend has where the program does not say."""
    rocksdb: RocksDBOptions = field(default_factory=RocksDBOptions)
    """The same for RocksDB."""
    restart: RestartStrategy | FallBackRestart | None = None
    same_record_limit: int | None = SAME_RECORD_LIMIT
    object_reuse: bool = False
    buffer_timeout_ms: int = 5
    initialization_timeout_ms: int = 1_800_000
    control: ControlSettings = field(default_factory=ControlSettings)
    runtime_mode: RuntimeExecutionMode = RuntimeExecutionMode.STREAMING
    sort_memory_bytes: int = 128 * 1024 * 1024
    job_parameters: dict[str, str] = field(default_factory=dict)
    python_files: dict[str, None] = field(default_factory=dict)
    """Modules, zips and folders that go to the workers, in order."""
    job_name: str | None = None
    restore_from: str | None = None
    claim: bool = False
    allow_non_restored: bool = False
    allow_duplicates: bool = False
    generic_types: bool = True
    allow_pickle: bool = False
    savepoint_dir: str | None = None
    master: str | None = None
    force_unaligned: bool = False
    storage_came_with_backend: bool = False
    """The storage was chosen by one of the older backend names, so the next backend takes it away again."""

    def set_parallelism(self, parallelism: int) -> None:
        self.parallelism = checked_width("parallelism", parallelism)

    def set_max_parallelism(self, max_parallelism: int) -> None:
        self.max_parallelism = checked_width("max parallelism", max_parallelism)

    def set_buffer_timeout(self, timeout_ms: int) -> None:
        if timeout_ms < 0:
            raise ConfigurationError(
                f"buffer timeout is {timeout_ms} ms; wanted 0 (send every record at once) or more. "
                "A cell that is full leaves at once in any case."
            )
        self.buffer_timeout_ms = timeout_ms

    def set_initialization_timeout(self, timeout_ms: int) -> None:
        if timeout_ms < 1:
            raise ConfigurationError(
                f"{options.INITIALIZATION_TIMEOUT.key} is {timeout_ms} ms, in which no task can get ready; wanted a "
                'duration such as "30 min".'
            )
        self.initialization_timeout_ms = timeout_ms

    def checkpoint(self, **changes: Any) -> None:
        """Change checkpoint settings; they are checked at once."""
        self.checkpointing = replace(self.checkpointing, **changes)

    def set_storage(self, storage: CheckpointStorage | str) -> None:
        if not isinstance(storage, CheckpointStorage | str):
            raise ConfigurationError(
                f"Checkpoint storage is {storage!r}; wanted a URI such as file:///checkpoints, or a CheckpointStorage."
            )
        self.checkpoint(storage=storage_for(storage) if isinstance(storage, str) else storage)
        self.storage_came_with_backend = False

    def set_backend(self, backend: StateBackend | BackendOptions) -> None:
        if isinstance(backend, HeapOptions | RocksDBOptions):
            self.backend, storage = backend, None
        elif isinstance(backend, StateBackend):
            self.backend, storage = backend.options(self.heap, self.rocksdb), backend.storage
        else:
            raise ConfigurationError(
                f"State backend is {backend!r}; wanted HashMapStateBackend() or EmbeddedRocksDBStateBackend()."
            )
        if storage is not None:
            self.set_storage(storage)
        elif self.storage_came_with_backend:
            self.set_storage(JobManagerCheckpointStorage())
        self.storage_came_with_backend = storage is not None

    def set_restart(self, strategy: RestartStrategy | FallBackRestart) -> None:
        if not isinstance(strategy, RestartStrategy | FallBackRestart):
            raise ConfigurationError(
                f"Restart strategy is {strategy!r}; wanted one of RestartStrategies, such as "
                "RestartStrategies.fixed_delay_restart(3, 10_000)."
            )
        self.restart = strategy

    def set_same_record_limit(self, limit: int | None) -> None:
        """For the strategy that was chosen so far, and for those that the configuration or Headrace chooses."""
        self.same_record_limit = limit
        if isinstance(self.restart, FixedDelayRestart | FailureRateRestart | ExponentialDelayRestart):
            self.restart = replace(self.restart, same_record_limit=limit)

    def configure(self, configuration: Configuration) -> None:
        """Take over every option that the configuration sets; all others stay."""

        def given(option: Option[Any]) -> bool:
            return configuration.contains(option)

        get = configuration.get
        for option, name in _PLAIN:
            if given(option):
                setattr(self, name, get(option))
        for option, setter in (
            (options.PARALLELISM, self.set_parallelism),
            (options.MAX_PARALLELISM, self.set_max_parallelism),
            (options.BUFFER_TIMEOUT, self.set_buffer_timeout),
            (options.INITIALIZATION_TIMEOUT, self.set_initialization_timeout),
        ):
            if given(option):
                setter(get(option))  # type: ignore[arg-type]  # an option that is given has a value
        if given(options.JOB_PARAMETERS):
            parameters = get(options.JOB_PARAMETERS)
            self.job_parameters = {**self.job_parameters, **(parameters or {})}
        self.checkpoint(**{name: get(option) for option, name in _CHECKPOINT if given(option)})
        if given(options.RUNTIME_MODE):
            runtime_mode = get(options.RUNTIME_MODE)
            self.runtime_mode = RuntimeExecutionMode(runtime_mode)
        if given(options.CLAIM_MODE):
            self.claim = get(options.CLAIM_MODE) == "claim"
        if given(options.CHECKPOINT_MODE):
            mode = get(options.CHECKPOINT_MODE)
            self.checkpoint(mode=CheckpointingMode(mode))
        if given(options.CHECKPOINT_RETENTION):
            self.checkpoint(retention=_RETENTION[get(options.CHECKPOINT_RETENTION) or ""])
        self.control = replace(self.control, **_given(configuration, _CONTROL))
        self._configure_backend(configuration)
        self._configure_storage(configuration)
        if given(options.RESTART_STRATEGY):
            self.restart = _restart(configuration, self.same_record_limit)
        if given(options.SAME_RECORD_LIMIT):
            self.set_same_record_limit(get(options.SAME_RECORD_LIMIT) or None)

    def _configure_backend(self, configuration: Configuration) -> None:
        self.heap = replace(self.heap, **_given(configuration, _HEAP))
        self.rocksdb = replace(self.rocksdb, **_given(configuration, _ROCKSDB))
        if configuration.contains(options.STATE_BACKEND):
            self.set_backend(self.rocksdb if configuration.get(options.STATE_BACKEND) == "rocksdb" else self.heap)
        elif isinstance(self.backend, HeapOptions):
            self.backend = replace(self.backend, **_given(configuration, _HEAP))
        else:
            self.backend = replace(self.backend, **_given(configuration, _ROCKSDB))

    def _configure_storage(self, configuration: Configuration) -> None:
        kind, directory = configuration.get(options.CHECKPOINT_STORAGE), configuration.get(options.CHECKPOINT_DIRECTORY)
        if kind == "jobmanager":
            self.set_storage(JobManagerCheckpointStorage(directory))
        elif directory is not None:
            self.set_storage(directory)
        elif kind == "filesystem":
            raise ConfigurationError(
                f"{options.CHECKPOINT_STORAGE.key} is filesystem, but there is no directory. "
                f"Set {options.CHECKPOINT_DIRECTORY.key}."
            )

    def job_settings(self, name: str, overrides: Overrides) -> JobSettings:
        """The settings of a run, with what the command line said on top."""
        checkpointing = self.checkpointing
        if overrides.checkpoint_dir is not None:
            checkpointing = replace(checkpointing, storage=storage_for(overrides.checkpoint_dir))
        if checkpointing.unaligned and checkpointing.mode is not CheckpointingMode.EXACTLY_ONCE:
            raise ConfigurationError(
                "Unaligned checkpoints are on, but the mode is AT_LEAST_ONCE, which has nothing to align. "
                "Call disable_unaligned_checkpoints(), or set CheckpointingMode.EXACTLY_ONCE."
            )
        return JobSettings(
            name=name,
            job_id=job_id_of(name),
            parallelism=self.effective_parallelism(overrides),
            max_parallelism=DEFAULT_MAX_PARALLELISM if self.max_parallelism is None else self.max_parallelism,
            checkpointing=checkpointing,
            backend=self._effective_backend(overrides),
            restart=effective_restart(self.restart, checkpointing.enabled, self.same_record_limit),
            object_reuse=self.object_reuse,
            buffer_timeout_ms=self.buffer_timeout_ms,
            initialization_timeout_ms=self.initialization_timeout_ms,
            control=self.control,
            job_parameters=dict(self.job_parameters),
            restore_from=self.restore_from if overrides.restore_from is None else overrides.restore_from,
            claim=self.claim or overrides.claim,
            allow_non_restored=self.allow_non_restored or overrides.allow_non_restored,
            allow_duplicates=self.allow_duplicates or overrides.allow_duplicates,
            generic_types=self.generic_types,
            allow_pickle=self.allow_pickle or overrides.allow_pickle,
            take_over=overrides.take_over,
            fresh=overrides.fresh,
            master=self.master if overrides.master is None else overrides.master,
            savepoint_dir=self.savepoint_dir,
            python_files=tuple(self.python_files),
        )

    def effective_parallelism(self, overrides: Overrides) -> int:
        if overrides.parallelism is None:
            return self.parallelism
        return checked_width("--parallelism", overrides.parallelism)

    def _effective_backend(self, overrides: Overrides) -> BackendOptions:
        if overrides.backend is None:
            return self.backend
        # What the program chose for this very backend still holds.
        if options.STATE_BACKEND.parse(overrides.backend, "--backend") == "rocksdb":
            return self.backend if isinstance(self.backend, RocksDBOptions) else self.rocksdb
        return self.backend if isinstance(self.backend, HeapOptions) else self.heap


_PLAIN: tuple[tuple[Option[Any], str], ...] = (
    (options.PIPELINE_NAME, "job_name"),
    (options.OPERATOR_CHAINING, "chaining"),
    (options.OBJECT_REUSE, "object_reuse"),
    (options.SORT_MEMORY, "sort_memory_bytes"),
    (options.RESTORE_FROM, "restore_from"),
    (options.ALLOW_NON_RESTORED, "allow_non_restored"),
    (options.ALLOW_DUPLICATES, "allow_duplicates"),
    (options.GENERIC_TYPES, "generic_types"),
    (options.ALLOW_PICKLE, "allow_pickle"),
    (options.SAVEPOINT_DIRECTORY, "savepoint_dir"),
    (options.SPARK_MASTER, "master"),
)

_CHECKPOINT: tuple[tuple[Option[Any], str], ...] = (
    (options.CHECKPOINT_INTERVAL, "interval_ms"),
    (options.CHECKPOINT_TIMEOUT, "timeout_ms"),
    (options.CHECKPOINT_MIN_PAUSE, "min_pause_ms"),
    (options.CHECKPOINT_MAX_CONCURRENT, "max_concurrent"),
    (options.CHECKPOINT_TOLERABLE_FAILURES, "tolerable_failures"),
    (options.CHECKPOINT_RETAINED, "retain"),
    (options.CHECKPOINT_UNALIGNED, "unaligned"),
    (options.CHECKPOINT_ALIGNED_TIMEOUT, "aligned_timeout_ms"),
    (options.CHECKPOINT_ALIGNMENT_MAX, "alignment_max_bytes"),
    (options.LOCAL_RECOVERY, "local_recovery"),
)

_CONTROL: tuple[tuple[Option[Any], str, int], ...] = (
    (options.CONTROL_BIND_ADDRESS, "bind_address", 1),
    (options.CONTROL_PORT, "port", 1),
    (options.HEARTBEAT_INTERVAL, "heartbeat_interval_ms", 1),
    (options.HEARTBEAT_TIMEOUT, "heartbeat_timeout_ms", 1),
)
_HEAP: tuple[tuple[Option[Any], str, int], ...] = (
    (options.HEAP_ASYNCHRONOUS, "asynchronous_snapshots", 1),
    (options.HEAP_FORK_THRESHOLD, "fork_threshold", 1),
    (options.SNAPSHOT_COMPRESSION, "compression", 1),
)
"""Option, field of HeapOptions, and what one unit of the field is."""

_ROCKSDB: tuple[tuple[Option[Any], str, int], ...] = (
    (options.INCREMENTAL, "incremental", 1),
    (options.FILE_MERGING, "merge_small_files", 1),
    (options.SNAPSHOT_COMPRESSION, "compression", 1),
    (options.ROCKSDB_CACHE_ENTRIES, "cache_entries", 1),
    (options.ROCKSDB_DIRTY_LIMIT, "dirty_limit", 1),
    (options.ROCKSDB_TIMERS, "timers_in_memory", 1),
    (options.ROCKSDB_WRITE_BUFFER, "write_buffer_mb", 2**20),
    (options.ROCKSDB_BLOCK_CACHE, "block_cache_mb", 2**20),
    (options.ROCKSDB_BLOCK_SIZE, "block_size_kb", 2**10),
    (options.ROCKSDB_OPEN_FILES, "max_open_files", 1),
    (options.ROCKSDB_THREADS, "background_jobs", 1),
    (options.ROCKSDB_TARGET_FILE, "target_file_mb", 2**20),
)

_RETENTION = {member.name.lower().replace("_", "-"): member for member in ExternalizedCheckpointRetention}


def _given(configuration: Configuration, fields: tuple[tuple[Option[Any], str, int], ...]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for option, name, unit in fields:
        if configuration.contains(option):
            value = configuration.get(option)
            # Rounded up, so that a small size is not taken for none.
            found[name] = value if unit == 1 else -(-(value or 0) // unit)
    return found


def _restart(configuration: Configuration, limit: int | None) -> RestartStrategy:
    def of(option: Option[Any]) -> Any:
        return configuration.get(option)

    match configuration.get(options.RESTART_STRATEGY):
        case "fixed-delay":
            return FixedDelayRestart(
                of(options.FIXED_DELAY_ATTEMPTS), of(options.FIXED_DELAY_DELAY), same_record_limit=limit
            )
        case "failure-rate":
            return FailureRateRestart(
                of(options.FAILURE_RATE_MAX),
                of(options.FAILURE_RATE_INTERVAL),
                of(options.FAILURE_RATE_DELAY),
                same_record_limit=limit,
            )
        case "exponential-delay":
            return ExponentialDelayRestart(
                initial=of(options.EXPONENTIAL_INITIAL),
                multiplier=of(options.EXPONENTIAL_MULTIPLIER),
                max=of(options.EXPONENTIAL_MAX),
                reset_after=of(options.EXPONENTIAL_RESET),
                jitter=of(options.EXPONENTIAL_JITTER),
                same_record_limit=limit,
            )
        case _:
            return NoRestart()


def checked_width(setting: str, value: int) -> int:
    """A parallelism or maximum parallelism that can be."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LARGEST_MAX_PARALLELISM:
        raise ConfigurationError(f"{setting} is {value!r}; wanted a whole number from 1 to {LARGEST_MAX_PARALLELISM}.")
    return value


def default_job_name() -> str:
    """Named after the program, so that two programs without a job name do not share their checkpoints."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    return Path(file).stem if file else "headrace-job"
