"""Every setting that has a name, declared once: key, type, default, a sentence.

Keys are Flink's where Flink has one, so a `flink-conf` section works as it is. The reference page is generated from
`all_options()`. Each option is also read from an environment variable (`HEADRACE_` and the key in capitals, with `_`
for every dot and dash); what the program sets wins over it, and what the command line says wins over both.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Generic, TypeVar

from headrace.durations import Duration, Time, to_millis
from headrace.errors import ConfigurationError

T = TypeVar("T")

_PREFIX = "HEADRACE_"


@dataclass(frozen=True, slots=True)
class OptionType(Generic[T]):
    """How the text of a setting is read."""

    name: str
    """As the reference page says it."""
    wanted: str
    """What an error asks for."""
    parse: Callable[[str], T] = field(compare=False)
    """Raises ValueError for a text that is none."""


@dataclass(frozen=True, slots=True)
class Option(Generic[T]):
    """One setting."""

    key: str
    type: OptionType[T]
    default: T | None
    doc: str
    former: tuple[str, ...] = ()
    """Keys it had before; still read, the present key wins."""
    secret: bool = False
    """Printed as `***`."""

    @property
    def variable(self) -> str:
        """The environment variable it is read from."""
        return _PREFIX + re.sub(r"[.-]", "_", self.key).upper()

    def parse(self, text: str, origin: str = "") -> T:
        """The value of `text`; the error names the key and what is wanted. `origin` says where the text stood."""
        try:
            return self.type.parse(text.strip())
        except ValueError:
            shown = "***" if self.secret else repr(text)
            where = f" (from {origin})" if origin else ""
            raise ConfigurationError(f"{self.key}{where} is {shown}; wanted {self.type.wanted}.") from None


_TIME_UNITS = {
    "ms": 1, "milli": 1, "millis": 1, "millisecond": 1, "milliseconds": 1,
    "s": 1_000, "sec": 1_000, "second": 1_000, "seconds": 1_000,
    "m": 60_000, "min": 60_000, "minute": 60_000, "minutes": 60_000,
    "h": 3_600_000, "hour": 3_600_000, "hours": 3_600_000,
    "d": 86_400_000, "day": 86_400_000, "days": 86_400_000,
}  # fmt: skip
_SIZE_UNITS = {
    "": 1, "b": 1, "bytes": 1, "k": 2**10, "kb": 2**10, "kib": 2**10,
    "m": 2**20, "mb": 2**20, "mib": 2**20, "g": 2**30, "gb": 2**30, "gib": 2**30,
}  # fmt: skip


def _number_and_unit(text: str, units: Mapping[str, int], bare: str) -> int:
    match = re.fullmatch(r"(\d+)\s*([A-Za-z]*)", text)
    if match is None:
        raise ValueError(text)
    unit = match[2].lower() or bare
    if unit not in units:
        raise ValueError(text)
    return int(match[1]) * units[unit]


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


def _pairs(text: str) -> dict[str, str]:
    pairs = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, sign, value = part.partition(":")
        if not sign or not name.strip():
            raise ValueError(text)
        pairs[name.strip()] = value.strip()
    return pairs


STRING: OptionType[str] = OptionType("string", "a text", str)
INTEGER: OptionType[int] = OptionType("integer", "a whole number", int)
FLOAT: OptionType[float] = OptionType("number", "a number", float)
BOOLEAN: OptionType[bool] = OptionType("boolean", "true or false", _flag)
DURATION: OptionType[int] = OptionType(
    "duration",
    'a duration such as "500 ms", "10 s" or "5 min" (a bare number is milliseconds)',
    lambda text: _number_and_unit(text, _TIME_UNITS, "ms"),
)
"""Parsed to milliseconds."""
SIZE: OptionType[int] = OptionType(
    "memory size",
    'a size such as "64 mb" (a bare number is bytes)',
    lambda text: _number_and_unit(text, _SIZE_UNITS, ""),
)
"""Parsed to bytes."""
MAP: OptionType[dict[str, str]] = OptionType("map", "pairs such as key1:value1,key2:value2", _pairs)


def choice(*names: str) -> OptionType[str]:
    """One of a few words, written with `-` or `_`, in capitals or not."""

    def parse(text: str) -> str:
        word = text.lower().replace("_", "-")
        if word not in names:
            raise ValueError(text)
        return word

    return OptionType("one of " + ", ".join(names), f"one of {', '.join(names)}", parse)


PIPELINE_NAME = Option("pipeline.name", STRING, None, "Name of the job where execute() gives none.")
PARALLELISM = Option("parallelism.default", INTEGER, 1, "Parallelism of operators that have none of their own.")
MAX_PARALLELISM = Option(
    "pipeline.max-parallelism",
    INTEGER,
    128,
    "Number of key groups, and so the most subtasks an operator can ever have. Saved state does not follow a change.",
)
OPERATOR_CHAINING = Option(
    "pipeline.operator-chaining.enabled",
    BOOLEAN,
    True,
    "Whether operators joined by forward edges run in one task.",
    former=("pipeline.operator-chaining",),
)
OBJECT_REUSE = Option(
    "pipeline.object-reuse",
    BOOLEAN,
    False,
    "Hand mutable values to functions without a copy. Quicker, and safe only if no function keeps or changes them.",
)
GENERIC_TYPES = Option(
    "pipeline.generic-types",
    BOOLEAN,
    True,
    "Whether checkpoints may keep records of untyped streams by pickle if they have no other form, and whether such "
    "records are loaded. If not, only streams and states that are typed as pickled use pickle.",
)
JOB_PARAMETERS = Option(
    "pipeline.global-job-parameters",
    MAP,
    None,
    "Parameters that functions read with RuntimeContext.get_job_parameter().",
)
RUNTIME_MODE = Option(
    "execution.runtime-mode",
    choice("streaming", "batch", "automatic"),
    "streaming",
    "streaming gives results as they change; batch, for bounded input, the last result of each key only; automatic is "
    "batch if all sources are bounded.",
)
SORT_MEMORY = Option(
    "execution.sorted-inputs.memory",
    SIZE,
    128 * 1024 * 1024,
    "Batch mode: memory in which a subtask of a keyed operator sorts its records; beyond it, on the local disk.",
)
BUFFER_TIMEOUT = Option(
    "execution.buffer-timeout.interval",
    DURATION,
    5,
    "How long a record waits for company before it leaves its task; 0 sends each at once.",
    former=("execution.buffer-timeout",),
)
INITIALIZATION_TIMEOUT = Option(
    "execution.initialization.timeout",
    DURATION,
    1_800_000,
    "How long tasks may take to restore their state and to open their functions. An attempt whose tasks are not ready "
    "then has failed.",
)
CHECKPOINT_INTERVAL = Option(
    "execution.checkpointing.interval", DURATION, None, "Time between two checkpoints. Not set: checkpointing is off."
)
CHECKPOINT_MODE = Option(
    "execution.checkpointing.mode",
    choice("exactly-once", "at-least-once"),
    "exactly-once",
    "Whether tasks align barriers (exactly-once) or go on and may count twice after a failure (at-least-once).",
)
CHECKPOINT_TIMEOUT = Option(
    "execution.checkpointing.timeout", DURATION, 600_000, "A checkpoint that takes longer is given up."
)
CHECKPOINT_MIN_PAUSE = Option(
    "execution.checkpointing.min-pause",
    DURATION,
    0,
    "Least time between the end of a checkpoint and the begin of the next.",
)
CHECKPOINT_MAX_CONCURRENT = Option(
    "execution.checkpointing.max-concurrent-checkpoints", INTEGER, 1, "How many checkpoints may be under way at once."
)
CHECKPOINT_TOLERABLE_FAILURES = Option(
    "execution.checkpointing.tolerable-failed-checkpoints",
    INTEGER,
    3,
    "How many checkpoints in a row may fail before the job does.",
)
CHECKPOINT_RETAINED = Option(
    "execution.checkpointing.num-retained",
    INTEGER,
    1,
    "How many completed checkpoints are kept.",
    former=("state.checkpoints.num-retained",),
)
CHECKPOINT_RETENTION = Option(
    "execution.checkpointing.externalized-checkpoint-retention",
    choice("delete-on-cancellation", "retain-on-cancellation", "no-externalized-checkpoints"),
    "no-externalized-checkpoints",
    "What becomes of the checkpoints when the job is cancelled.",
)
CHECKPOINT_UNALIGNED = Option(
    "execution.checkpointing.unaligned.enabled",
    BOOLEAN,
    False,
    "Let barriers overtake records on the way, which become part of the checkpoint.",
    former=("execution.checkpointing.unaligned",),
)
CHECKPOINT_ALIGNED_TIMEOUT = Option(
    "execution.checkpointing.aligned-checkpoint-timeout",
    DURATION,
    0,
    "With unaligned checkpoints: how long one may stay aligned before it goes on unaligned; 0 for at once.",
)
CHECKPOINT_ALIGNMENT_MAX = Option(
    "execution.checkpointing.alignment.max-size",
    SIZE,
    64 * 2**20,
    "How much a task sets aside while it waits for barriers before it takes its snapshot early.",
)
CHECKPOINT_STORAGE = Option(
    "execution.checkpointing.storage",
    choice("jobmanager", "filesystem"),
    None,
    "jobmanager keeps checkpoints in the coordinator's memory, filesystem in the checkpoint directory. "
    "Not set: filesystem if there is a directory.",
    former=("state.checkpoint-storage",),
)
CHECKPOINT_DIRECTORY = Option(
    "execution.checkpointing.dir",
    STRING,
    None,
    "Directory or URI of the checkpoints.",
    former=("state.checkpoints.dir",),
)
SAVEPOINT_DIRECTORY = Option(
    "execution.checkpointing.savepoint-dir",
    STRING,
    None,
    "Directory or URI of savepoints that are asked for without a place.",
    former=("state.savepoints.dir",),
)
INCREMENTAL = Option(
    "execution.checkpointing.incremental",
    BOOLEAN,
    True,
    "Whether RocksDB uploads only files that the last completed checkpoint did not have.",
    former=("state.backend.incremental",),
)
FILE_MERGING = Option(
    "execution.checkpointing.file-merging.enabled",
    BOOLEAN,
    True,
    "Whether RocksDB stores small files of one checkpoint together, as one object for each subtask.",
)
SNAPSHOT_COMPRESSION = Option(
    "execution.checkpointing.snapshot-compression",
    BOOLEAN,
    False,
    "Whether the heap backend's checkpoints, and savepoints of both backends, are compressed (zstd). RocksDB "
    "compresses its own files in any case.",
)
LOCAL_RECOVERY = Option(
    "state.backend.local-recovery",
    BOOLEAN,
    True,
    "Whether hosts keep copies of the files of the newest checkpoint, so that a restart there need not read them from "
    "checkpoint storage.",
    former=("execution.state-recovery.from-local", "execution.checkpointing.local-backup.enabled"),
)
RESTORE_FROM = Option(
    "execution.state-recovery.path",
    STRING,
    None,
    "Checkpoint or savepoint to begin from. Not set: the job's newest complete checkpoint, if there is one.",
    former=("execution.savepoint.path",),
)
CLAIM_MODE = Option(
    "execution.state-recovery.claim-mode",
    choice("no-claim", "claim"),
    "no-claim",
    "Whose the checkpoint or savepoint is that a job begins from: no-claim leaves it untouched, claim makes it the "
    "job's own, which deletes it once it has checkpoints of its own.",
    former=("execution.savepoint-restore-mode",),
)
ALLOW_NON_RESTORED = Option(
    "execution.state-recovery.ignore-unclaimed-state",
    BOOLEAN,
    False,
    "Whether state that no operator of the program claims may be left behind.",
    former=("execution.savepoint.ignore-unclaimed-state",),
)
ALLOW_DUPLICATES = Option(
    "execution.state-recovery.allow-duplicate-output",
    BOOLEAN,
    False,
    "Whether a job may begin from a checkpoint or savepoint that is older than output which its sinks have committed, "
    "so that this output is written a second time.",
)
ALLOW_PICKLE = Option(
    "execution.state-recovery.allow-pickle",
    BOOLEAN,
    False,
    "Whether a job that begins from a checkpoint or savepoint named by a person loads pickled records of untyped "
    "streams from it. This runs code from the checkpoint, so only if its origin is trusted.",
)
STATE_BACKEND = Option(
    "state.backend.type",
    choice("hashmap", "heap", "rocksdb"),
    "hashmap",
    "Where state lives: hashmap (or heap) as objects in memory, rocksdb on local disk, larger than memory.",
    former=("state.backend",),
)
HEAP_ASYNCHRONOUS = Option(
    "state.backend.heap.asynchronous-snapshots",
    BOOLEAN,
    True,
    "Whether the heap backend writes large snapshots while processing goes on.",
    former=("state.backend.async",),
)
HEAP_FORK_THRESHOLD = Option(
    "state.backend.heap.fork-threshold",
    INTEGER,
    200_000,
    "Up to so many entries the heap backend takes a snapshot from a copy of its tables instead of a forked process.",
)
ROCKSDB_CACHE_ENTRIES = Option(
    "state.backend.rocksdb.object-cache.entries",
    INTEGER,
    1_000_000,
    "Decoded entries that each subtask keeps in memory above RocksDB.",
)
ROCKSDB_DIRTY_LIMIT = Option(
    "state.backend.rocksdb.object-cache.dirty-limit",
    INTEGER,
    200_000,
    "Changed entries not yet in RocksDB, at most half of the object cache; at a barrier they are written beside the "
    "stream. Of lists and maps, for which the barrier waits, a tenth.",
)
ROCKSDB_TIMERS = Option(
    "state.backend.rocksdb.timer-service.cache-size",
    INTEGER,
    100_000,
    "Timers of one time domain that each subtask keeps in memory; later ones are in RocksDB.",
)
ROCKSDB_WRITE_BUFFER = Option(
    "state.backend.rocksdb.writebuffer.size", SIZE, 16 * 2**20, "What RocksDB collects before it makes a file."
)
ROCKSDB_BLOCK_CACHE = Option(
    "state.backend.rocksdb.block.cache-size", SIZE, 64 * 2**20, "RocksDB's cache of blocks, shared by all states."
)
ROCKSDB_BLOCK_SIZE = Option("state.backend.rocksdb.block.blocksize", SIZE, 4 * 2**10, "Size of a block of a file.")
ROCKSDB_OPEN_FILES = Option("state.backend.rocksdb.files.open", INTEGER, 256, "Most files a database keeps open.")
ROCKSDB_THREADS = Option("state.backend.rocksdb.thread.num", INTEGER, 2, "Threads for flushes and compactions.")
ROCKSDB_TARGET_FILE = Option(
    "state.backend.rocksdb.compaction.level.target-file-size-base",
    SIZE,
    16 * 2**20,
    "Size of the files compaction makes.",
)
RESTART_STRATEGY = Option(
    "restart-strategy.type",
    choice("none", "disable", "off", "fixed-delay", "failure-rate", "exponential-delay"),
    None,
    "What follows a failure. Not set: none without checkpointing, exponential-delay with it.",
    former=("restart-strategy",),
)
FIXED_DELAY_ATTEMPTS = Option("restart-strategy.fixed-delay.attempts", INTEGER, 1, "How many restarts there are.")
FIXED_DELAY_DELAY = Option("restart-strategy.fixed-delay.delay", DURATION, 1_000, "Wait before each restart.")
FAILURE_RATE_MAX = Option(
    "restart-strategy.failure-rate.max-failures-per-interval", INTEGER, 1, "Most failures within the interval."
)
FAILURE_RATE_INTERVAL = Option(
    "restart-strategy.failure-rate.failure-rate-interval", DURATION, 60_000, "The interval over which failures count."
)
FAILURE_RATE_DELAY = Option("restart-strategy.failure-rate.delay", DURATION, 1_000, "Wait before each restart.")
EXPONENTIAL_INITIAL = Option(
    "restart-strategy.exponential-delay.initial-backoff", DURATION, 1_000, "Wait before the first restart."
)
EXPONENTIAL_MAX = Option("restart-strategy.exponential-delay.max-backoff", DURATION, 60_000, "Longest wait.")
EXPONENTIAL_MULTIPLIER = Option(
    "restart-strategy.exponential-delay.backoff-multiplier", FLOAT, 1.5, "By what the wait grows at each failure."
)
EXPONENTIAL_RESET = Option(
    "restart-strategy.exponential-delay.reset-backoff-threshold",
    DURATION,
    3_600_000,
    "After this long without failure the wait begins anew.",
)
EXPONENTIAL_JITTER = Option(
    "restart-strategy.exponential-delay.jitter-factor",
    FLOAT,
    0.1,
    "Share of the wait by which it varies.",
)
SAME_RECORD_LIMIT = Option(
    "restart-strategy.same-record-limit",
    INTEGER,
    3,
    "The job ends when this many attempts in a row fail on the same record. 0: never, as in `headrace.pyflink`.",
)
CONTROL_BIND_ADDRESS = Option(
    "control.bind-address",
    STRING,
    None,
    "Address of the driver's machine on which the driver listens for its tasks. Not set: loopback if tasks run on the "
    "driver's machine (local mode), else spark.driver.bindAddress or, without that, spark.driver.host.",
)
CONTROL_PORT = Option(
    "control.port",
    INTEGER,
    0,
    "Port on which the driver listens for its tasks, for firewalls that want a fixed one; 0 is any free port. Two jobs "
    "on one machine cannot share a port.",
)
HEARTBEAT_INTERVAL = Option(
    "heartbeat.interval",
    DURATION,
    2_000,
    "How often the driver and each task report to each other that they are alive.",
)
HEARTBEAT_TIMEOUT = Option(
    "heartbeat.timeout",
    DURATION,
    50_000,
    "A task that the driver has not heard from for this long, or that took nothing of what it was sent, is lost, and "
    "the attempt has failed. A task that has not heard from the driver for this long commits nothing more and exits. "
    "Longer than a user function may hold Python's global lock without a break.",
)
SPARK_MASTER = Option(
    "spark.master",
    STRING,
    None,
    "Spark's master URL. Not set: the session that exists, or as many local slots as the job needs.",
)


def all_options() -> tuple[Option[Any], ...]:
    """Every option, in order of its key."""
    return tuple(sorted((o for o in globals().values() if isinstance(o, Option)), key=lambda o: o.key))


class Configuration:
    """Settings by key, as text. Keys that Headrace does not know are kept and left alone."""

    def __init__(self, values: Mapping[str, Any] | Configuration | None = None) -> None:
        self._values: dict[str, str] = {}
        if isinstance(values, Configuration):
            values = values.to_dict()
        for key, value in (values or {}).items():
            self.set(key, value)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Configuration:
        """What the `HEADRACE_…` variables say; variables that are no option are left alone."""
        found = os.environ if environ is None else environ
        return cls({o.key: found[o.variable] for o in all_options() if o.variable in found})

    def set(self, key: str | Option[Any], value: Any) -> Configuration:
        """Set a key, or an option, whose value is checked at once."""
        option = key if isinstance(key, Option) else _option_of(key)
        text = _text(value)
        if option is not None:
            option.parse(text)
        self._values[key.key if isinstance(key, Option) else key] = text
        return self

    def get(self, option: Option[T]) -> T | None:
        """The typed value of an option, or its default."""
        for key in (option.key, *option.former):
            if key in self._values:
                return option.parse(self._values[key])
        return option.default

    def contains(self, option: Option[Any]) -> bool:
        """Whether the option was set, under any of its keys."""
        return any(key in self._values for key in (option.key, *option.former))

    def set_string(self, key: str, value: str) -> Configuration:
        return self.set(key, value)

    def set_integer(self, key: str, value: int) -> Configuration:
        return self.set(key, value)

    def set_float(self, key: str, value: float) -> Configuration:
        return self.set(key, value)

    def set_boolean(self, key: str, value: bool) -> Configuration:
        return self.set(key, value)

    def get_string(self, key: str, default_value: str | None = None) -> str | None:
        return self._values.get(key, default_value)

    def get_integer(self, key: str, default_value: int | None = None) -> int | None:
        return self._typed(key, INTEGER, default_value)

    def get_float(self, key: str, default_value: float | None = None) -> float | None:
        return self._typed(key, FLOAT, default_value)

    def get_boolean(self, key: str, default_value: bool | None = None) -> bool | None:
        return self._typed(key, BOOLEAN, default_value)

    def contains_key(self, key: str) -> bool:
        return key in self._values

    def remove_config(self, key: str) -> bool:
        """Forget a key; False if it was not set."""
        return self._values.pop(key, None) is not None

    def add_all(self, other: Configuration) -> None:
        """Take over everything that `other` has set."""
        self._values.update(other._values)

    def key_set(self) -> AbstractSet[str]:
        return self._values.keys()

    def to_dict(self) -> dict[str, str]:
        return dict(self._values)

    def _typed(self, key: str, kind: OptionType[T], default: T | None) -> T | None:
        return Option(key, kind, default, "").parse(self._values[key]) if key in self._values else default

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Configuration) and self._values == other._values

    __hash__ = None  # type: ignore[assignment]  # it can be changed

    def __repr__(self) -> str:
        shown = {k: "***" if (o := _option_of(k)) is not None and o.secret else v for k, v in self._values.items()}
        return f"Configuration({shown})"


def _option_of(key: str) -> Option[Any] | None:
    return next((o for o in all_options() if key == o.key or key in o.former), None)


def _text(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case timedelta() | Time() | Duration():
            return f"{to_millis(value, 'duration')} ms"
        case dict():
            return ",".join(f"{k}:{v}" for k, v in value.items())
        case _:
            return str(value)
