"""State time-to-live: how long an entry is kept after it was last written (or read), and how it goes.

    config = StateTtlConfig.new_builder(Time.hours(1)).never_return_expired().build()
    descriptor.enable_time_to_live(config)

The names are Flink's. A config is a value: it travels with the program, and changing the length or the cleanup of a
restored state is allowed. Whether a state has a time-to-live at all is part of its stored shape.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, TypeAlias

from headrace.durations import Duration, DurationLike, Time, to_millis
from headrace.errors import ConfigurationError

DEFAULT_CLEANUP_SIZE = 5
DEFAULT_QUERY_TIME_AFTER = 1_000
DEFAULT_PERIODIC_COMPACTION = Duration.of_days(30)


class UpdateType(Enum):
    """What counts as use and begins the time of an entry anew."""

    Disabled = 0
    """The state has no time-to-live."""
    OnCreateAndWrite = 1
    OnReadAndWrite = 2


class StateVisibility(Enum):
    """Whether an expired entry that is still there may be seen."""

    ReturnExpiredIfNotCleanedUp = 0
    NeverReturnExpired = 1


class TtlTimeCharacteristic(Enum):
    """By which clock entries grow old."""

    ProcessingTime = 0


@dataclass(frozen=True, slots=True)
class IncrementalCleanupStrategy:
    """Heap: how many keys each access looks at, and whether every record counts as an access."""

    cleanup_size: int = DEFAULT_CLEANUP_SIZE
    every_record: bool = False

    def get_cleanup_size(self) -> int:
        return self.cleanup_size

    def run_cleanup_for_every_record(self) -> bool:
        return self.every_record


@dataclass(frozen=True, slots=True)
class RocksdbCompactFilterCleanupStrategy:
    """RocksDB: after so many accesses as many entries are looked at, and ranges that got sparse are compacted."""

    query_time_after_num_entries: int = DEFAULT_QUERY_TIME_AFTER
    periodic_compaction_time: Duration = DEFAULT_PERIODIC_COMPACTION

    def get_query_time_after_num_entries(self) -> int:
        return self.query_time_after_num_entries

    def get_periodic_compaction_time(self) -> Duration:
        return self.periodic_compaction_time


@dataclass(frozen=True, slots=True)
class CleanupStrategies:
    """How expired entries go that nobody asks for. A strategy of the other backend does nothing."""

    full_snapshot: bool = False
    incremental: IncrementalCleanupStrategy | None = None
    compact_filter: RocksdbCompactFilterCleanupStrategy | None = None
    in_background: bool = True

    @property
    def filters_full_snapshots(self) -> bool:
        """Whether snapshots that hold all of the state leave expired entries out."""
        return self.full_snapshot or self.in_background

    def in_full_snapshot(self) -> bool:
        """Whether that was asked for by name."""
        return self.full_snapshot

    def is_cleanup_in_background(self) -> bool:
        return self.in_background

    def in_rocksdb_compact_filter(self) -> bool:
        return self.get_rocksdb_compact_filter_cleanup_strategy() is not None

    def get_incremental_cleanup_strategy(self) -> IncrementalCleanupStrategy | None:
        """What was asked for; without a word, the default, unless background cleanup is off."""
        return self.incremental or (IncrementalCleanupStrategy() if self.in_background else None)

    def get_rocksdb_compact_filter_cleanup_strategy(self) -> RocksdbCompactFilterCleanupStrategy | None:
        return self.compact_filter or (RocksdbCompactFilterCleanupStrategy() if self.in_background else None)


_UpdateType: TypeAlias = UpdateType
_StateVisibility: TypeAlias = StateVisibility
_TtlTimeCharacteristic: TypeAlias = TtlTimeCharacteristic
_CleanupStrategies: TypeAlias = CleanupStrategies
# StateTtlConfig offers them under the same names, as Flink does.
_DEFAULT_CLEANUP = CleanupStrategies()


@dataclass(frozen=True, slots=True)
class StateTtlConfig:
    """The time-to-live of a state. Made by `StateTtlConfig.new_builder(ttl)…build()`."""

    ttl_ms: int
    update_type: _UpdateType = _UpdateType.OnCreateAndWrite
    visibility: _StateVisibility = _StateVisibility.NeverReturnExpired
    cleanup: _CleanupStrategies = _DEFAULT_CLEANUP

    UpdateType: ClassVar = _UpdateType
    StateVisibility: ClassVar = _StateVisibility
    TtlTimeCharacteristic: ClassVar = _TtlTimeCharacteristic
    CleanupStrategies: ClassVar = _CleanupStrategies

    @staticmethod
    def new_builder(ttl: DurationLike) -> StateTtlConfigBuilder:
        """`ttl` after its last use an entry has expired."""
        return StateTtlConfigBuilder(ttl)

    def get_update_type(self) -> _UpdateType:
        return self.update_type

    def get_state_visibility(self) -> _StateVisibility:
        return self.visibility

    def get_ttl(self) -> Time:
        return Time.milliseconds(self.ttl_ms)

    def get_time_to_live(self) -> Time:
        return self.get_ttl()

    def get_ttl_time_characteristic(self) -> _TtlTimeCharacteristic:
        return _TtlTimeCharacteristic.ProcessingTime

    def is_enabled(self) -> bool:
        return self.update_type is not _UpdateType.Disabled

    def get_cleanup_strategies(self) -> _CleanupStrategies:
        return self.cleanup


class StateTtlConfigBuilder:
    """Collects the choices; each method gives the builder back, and the last word on a choice counts."""

    def __init__(self, ttl: DurationLike) -> None:
        self._ttl_ms = _positive(to_millis(ttl, "the time-to-live of a state"))
        self._update_type = UpdateType.OnCreateAndWrite
        self._visibility = StateVisibility.NeverReturnExpired
        self._full_snapshot = False
        self._incremental: IncrementalCleanupStrategy | None = None
        self._compact_filter: RocksdbCompactFilterCleanupStrategy | None = None
        self._in_background = True

    def set_ttl(self, ttl: DurationLike) -> StateTtlConfigBuilder:
        self._ttl_ms = _positive(to_millis(ttl, "the time-to-live of a state"))
        return self

    def set_update_type(self, update_type: UpdateType) -> StateTtlConfigBuilder:
        self._update_type = UpdateType(update_type)
        return self

    def update_ttl_on_create_and_write(self) -> StateTtlConfigBuilder:
        return self.set_update_type(UpdateType.OnCreateAndWrite)

    def update_ttl_on_read_and_write(self) -> StateTtlConfigBuilder:
        return self.set_update_type(UpdateType.OnReadAndWrite)

    def set_state_visibility(self, state_visibility: StateVisibility) -> StateTtlConfigBuilder:
        self._visibility = StateVisibility(state_visibility)
        return self

    def return_expired_if_not_cleaned_up(self) -> StateTtlConfigBuilder:
        return self.set_state_visibility(StateVisibility.ReturnExpiredIfNotCleanedUp)

    def never_return_expired(self) -> StateTtlConfigBuilder:
        return self.set_state_visibility(StateVisibility.NeverReturnExpired)

    def set_ttl_time_characteristic(self, ttl_time_characteristic: TtlTimeCharacteristic) -> StateTtlConfigBuilder:
        """Processing time is the only one there is."""
        TtlTimeCharacteristic(ttl_time_characteristic)
        return self

    def use_processing_time(self) -> StateTtlConfigBuilder:
        return self

    def cleanup_full_snapshot(self) -> StateTtlConfigBuilder:
        """Leave expired entries out of heap checkpoints and of all savepoints. On by default."""
        self._full_snapshot = True
        return self

    def cleanup_incrementally(
        self, cleanup_size: int, run_cleanup_for_every_record: bool = False
    ) -> StateTtlConfigBuilder:
        """Heap: every access to the state, or every record, looks at `cleanup_size` keys and removes the expired."""
        size = _whole("cleanup_size", cleanup_size)
        self._incremental = IncrementalCleanupStrategy(size, bool(run_cleanup_for_every_record))
        return self

    def cleanup_in_rocksdb_compact_filter(
        self,
        query_time_after_num_entries: int = DEFAULT_QUERY_TIME_AFTER,
        periodic_compaction_time: DurationLike | None = None,
    ) -> StateTtlConfigBuilder:
        """RocksDB: after so many accesses sweep over as many entries; `periodic_compaction_time` changes nothing."""
        count = _whole("query_time_after_num_entries", query_time_after_num_entries)
        period = DEFAULT_PERIODIC_COMPACTION
        if periodic_compaction_time is not None:
            period = Duration.of_millis(to_millis(periodic_compaction_time, "periodic_compaction_time"))
        self._compact_filter = RocksdbCompactFilterCleanupStrategy(count, period)
        return self

    def disable_cleanup_in_background(self) -> StateTtlConfigBuilder:
        """Only what was asked for by name: without it, each backend has a default cleanup."""
        self._in_background = False
        return self

    def build(self) -> StateTtlConfig:
        cleanup = CleanupStrategies(self._full_snapshot, self._incremental, self._compact_filter, self._in_background)
        return StateTtlConfig(self._ttl_ms, self._update_type, self._visibility, cleanup)


def _positive(ttl_ms: int) -> int:
    if ttl_ms <= 0:
        raise ConfigurationError(f"The time-to-live of a state is {ttl_ms} ms; it must be above 0.")
    return ttl_ms


def _whole(setting: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigurationError(f"{setting} is {value!r}; wanted a whole number from 1 up.")
    return value
