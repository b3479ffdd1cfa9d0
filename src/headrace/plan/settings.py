"""The settings of one run, as the program and the command line left them: small values that can be compared."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from headrace.backends.heap.options import HeapOptions
from headrace.backends.rocksdb.options import RocksDBOptions
from headrace.checkpoint.storage.base import CheckpointStorage
from headrace.checkpoint.storage.memory import JobManagerCheckpointStorage
from headrace.errors import ConfigurationError
from headrace.plan.restart import NoRestart, RestartStrategy
from headrace.state.object_batches import RecordPickles

DEFAULT_MAX_PARALLELISM = 128
LARGEST_MAX_PARALLELISM = 32_768
"""A key group travels as two bytes, and Flink has the same bound."""

LARGEST_PORT = 65_535

BackendOptions: TypeAlias = HeapOptions | RocksDBOptions


class CheckpointingMode(Enum):
    """What a record's effect on state is after a failure."""

    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"


class ExternalizedCheckpointRetention(Enum):
    """What becomes of the checkpoints when the job is cancelled or has finished. They survive a failure in any case."""

    DELETE_ON_CANCELLATION = "deleted when the job is cancelled, or has finished"
    RETAIN_ON_CANCELLATION = "kept when the job is cancelled, or has finished"
    NO_EXTERNALIZED_CHECKPOINTS = "deleted when the job is cancelled or finished"


@dataclass(frozen=True, slots=True)
class CheckpointSettings:
    """When and how checkpoints are taken, and where they go. Durations in milliseconds."""

    interval_ms: int | None = None
    """None: checkpointing is off."""
    only_final: bool = False
    """One checkpoint when all input has ended, and none before: batch mode. Without an interval."""
    mode: CheckpointingMode = CheckpointingMode.EXACTLY_ONCE
    unaligned: bool = False
    aligned_timeout_ms: int = 0
    """With `unaligned`: how long a checkpoint may stay aligned before it goes on unaligned; 0 for at once."""
    timeout_ms: int = 600_000
    min_pause_ms: int = 0
    max_concurrent: int = 1
    tolerable_failures: int = 3
    """This many checkpoints in a row may fail before the job does."""
    retain: int = 1
    retention: ExternalizedCheckpointRetention = ExternalizedCheckpointRetention.NO_EXTERNALIZED_CHECKPOINTS
    alignment_max_bytes: int = 64 * 1024 * 1024
    """A task that had to set aside more than this takes its snapshot before the last barrier."""
    storage: CheckpointStorage = field(default_factory=JobManagerCheckpointStorage)
    local_recovery: bool = True
    """Whether hosts keep copies of what their tasks stored, so that a restart there need not read it from storage."""

    def __post_init__(self) -> None:
        if self.interval_ms is not None:
            _at_least("checkpoint interval", self.interval_ms, 10, "ms")
        _at_least("aligned checkpoint timeout", self.aligned_timeout_ms, 0, "ms")
        _at_least("checkpoint timeout", self.timeout_ms, 10, "ms")
        _at_least("min pause between checkpoints", self.min_pause_ms, 0, "ms")
        _at_least("max concurrent checkpoints", self.max_concurrent, 1)
        _at_least("tolerable checkpoint failure number", self.tolerable_failures, 0)
        _at_least("number of retained checkpoints", self.retain, 1)
        _at_least("alignment max bytes", self.alignment_max_bytes, 1)

    @property
    def enabled(self) -> bool:
        return self.interval_ms is not None or self.only_final


@dataclass(frozen=True, slots=True)
class ControlSettings:
    """The connections between the driver and its tasks. Durations in milliseconds."""

    bind_address: str | None = None
    """None: loopback for local tasks, else Spark's `driver.bindAddress` or `driver.host`."""
    port: int = 0
    """0: any free one."""
    heartbeat_interval_ms: int = 2_000
    heartbeat_timeout_ms: int = 50_000

    def __post_init__(self) -> None:
        _at_least("control.port", self.port, 0)
        if self.port > LARGEST_PORT:
            raise ConfigurationError(f"control.port is {self.port}; wanted 0 for any free port, up to {LARGEST_PORT}.")
        _at_least("heartbeat.interval", self.heartbeat_interval_ms, 10, "ms")
        if self.heartbeat_timeout_ms < 3 * self.heartbeat_interval_ms:
            raise ConfigurationError(
                f"heartbeat.timeout is {self.heartbeat_timeout_ms} ms and heartbeat.interval is "
                f"{self.heartbeat_interval_ms} ms; wanted a timeout of at least three intervals, or a single late "
                "heartbeat fails the job."
            )


@dataclass(frozen=True, slots=True)
class JobSettings:
    """Everything a run needs to know besides its plan."""

    name: str
    job_id: str
    """Names the job's directory and its lease. Made from the name, so the same program finds its checkpoints."""
    parallelism: int = 1
    max_parallelism: int = DEFAULT_MAX_PARALLELISM
    checkpointing: CheckpointSettings = field(default_factory=CheckpointSettings)
    backend: BackendOptions = field(default_factory=HeapOptions)
    restart: RestartStrategy = field(default_factory=NoRestart)
    object_reuse: bool = False
    buffer_timeout_ms: int = 5
    """How long a record waits for company before its cell leaves; 0 sends each record at once."""
    initialization_timeout_ms: int = 1_800_000
    """How long tasks may take, after the last of them has joined, to restore their state and open their functions."""
    control: ControlSettings = field(default_factory=ControlSettings)
    job_parameters: dict[str, str] = field(default_factory=dict)
    restore_from: str | None = None
    """A checkpoint or savepoint to begin from; None for the newest complete one of this job."""
    claim: bool = False
    """Whether what `restore_from` names becomes this job's own, which deletes it when it needs it no more."""
    allow_non_restored: bool = False
    """Whether state in the checkpoint that no operator claims may be left behind."""
    generic_types: bool = True
    """Whether checkpoints may keep records of untyped streams by pickle, if they have no other form."""
    allow_pickle: bool = False
    """Whether such records are loaded from a checkpoint outside of the job's own directory."""
    allow_duplicates: bool = False
    """Whether the checkpoint that is restored may be older than what sinks have committed."""
    fresh: bool = False
    """Whether to begin a new run that restores nothing, and leave the job's checkpoints where they are."""
    take_over: bool = False
    """Whether to take the job's directory from a live owner."""
    master: str | None = None
    """Spark's master URL; None for the session that exists, or local slots as many as are needed."""
    python_files: tuple[str, ...] = ()
    """Modules, zips and folders of the driver that workers must find too, wherever they run."""
    batch: bool = False
    """Whether the job gives final results of bounded input: a failure begins it anew."""
    savepoint_dir: str | None = None
    """Where savepoints go that are asked for without a place."""

    def pickles(self, *, chosen: bool) -> RecordPickles:
        """What pickle may do for records of untyped streams. `chosen`: a person named the checkpoint to begin from."""
        return RecordPickles(self.generic_types, self.generic_types and (self.allow_pickle or not chosen))


def job_id_of(name: str) -> str:
    """A directory name made from a job's name: lower case, letters, digits, dots and dashes.

    >>> job_id_of("Temperature alerts (hourly)")
    'temperature-alerts-hourly'
    """
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    slug = re.sub(r"[^a-z0-9.]+", "-", plain).strip("-.")
    if not slug:
        raise ConfigurationError(
            f"The job name {name!r} has no letter or digit from which its directory could be named. "
            "Give execute() a name with some."
        )
    return slug[:100].rstrip("-.")


def _at_least(setting: str, value: int, least: int, unit: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        shown = f"{value!r} {unit}".strip()
        raise ConfigurationError(f"{setting} is {shown}; wanted a whole number, {f'{least} {unit}'.strip()} or more.")
