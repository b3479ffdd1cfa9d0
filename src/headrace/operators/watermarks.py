"""Event time: who reads the timestamp of a record, and how far the stream has come.

A watermark *t* says that no record with a timestamp ≤ *t* is still expected. A strategy is a light
value that travels to the tasks; every split (or subtask) gets a generator of its own from it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeAlias

from headrace.durations import DurationLike, to_millis
from headrace.errors import ConfigurationError, JobDefinitionError

MIN_WATERMARK = -(2**63)
"""Nothing is known yet."""
MAX_WATERMARK = 2**63 - 1
"""The end of the stream: every event-time timer fires."""


class TimestampAssigner(ABC):
    """Reads the event time of a record."""

    @abstractmethod
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        """Milliseconds since 1970. `record_timestamp` is what the source gave, or `MIN_WATERMARK`."""


AssignerLike: TypeAlias = TimestampAssigner | Callable[[Any, int], int]


class WatermarkGenerator(ABC):
    """Decides how far event time has come. Called on one thread."""

    only_timestamps: ClassVar[bool] = False
    """The generator looks at nothing but the largest timestamp, so the runtime may call `on_event` once for
    a whole batch, with None as the value and the batch's largest timestamp."""

    @abstractmethod
    def on_event(self, value: Any, timestamp: int) -> None:
        """Called for every record, after its timestamp is known."""

    @abstractmethod
    def on_periodic_emit(self) -> int | None:
        """The watermark as of now, or None if there is none yet. Called periodically.

        A watermark below one that was emitted before is ignored.
        """


class BoundedOutOfOrdernessWatermarks(WatermarkGenerator):
    """The largest timestamp seen, less the lateness that is allowed, less one."""

    only_timestamps: ClassVar[bool] = True

    __slots__ = ("_largest", "_late_ms")

    def __init__(self, late_ms: int) -> None:
        self._late_ms = late_ms
        self._largest: int | None = None

    def on_event(self, value: Any, timestamp: int) -> None:
        if self._largest is None or timestamp > self._largest:
            self._largest = timestamp

    def on_periodic_emit(self) -> int | None:
        # Another record with the largest timestamp may still come, hence the one less.
        return None if self._largest is None else max(self._largest - self._late_ms - 1, MIN_WATERMARK)


class NoWatermarks(WatermarkGenerator):
    """Never says anything; event time stands still until the end of the input."""

    only_timestamps: ClassVar[bool] = True

    def on_event(self, value: Any, timestamp: int) -> None:
        pass

    def on_periodic_emit(self) -> int | None:
        return None


@dataclass(frozen=True, slots=True)
class _BoundedFactory:
    late_ms: int

    def __call__(self) -> WatermarkGenerator:
        return BoundedOutOfOrdernessWatermarks(self.late_ms)


@dataclass(frozen=True, slots=True)
class WatermarkAlignment:
    """How far splits of a source may be ahead of the slowest of their group."""

    group: str
    max_drift_ms: int
    update_interval_ms: int
    """How often subtasks tell each other how far they are."""


@dataclass(frozen=True, slots=True)
class WatermarkStrategy:
    """How a stream gets timestamps and watermarks. Immutable: the `with_…` methods return another one."""

    generator_factory: Callable[[], WatermarkGenerator]
    assigner: Callable[[Any, int], int] | None = None
    """`(value, record_timestamp) -> timestamp`, or None to keep the timestamps of the source."""
    idleness_ms: int | None = None
    """After this long without a record an input no longer holds back the watermark of the others."""
    timestamp_field: str | None = None
    """The row field that `assigner` merely returns, where the plan found that out: whole columns can be used."""
    alignment: WatermarkAlignment | None = None
    """Sources only."""

    @classmethod
    def for_monotonous_timestamps(cls) -> WatermarkStrategy:
        """Timestamps never go back within a split."""
        return cls(_BoundedFactory(0))

    @classmethod
    def for_bounded_out_of_orderness(cls, max_out_of_orderness: DurationLike) -> WatermarkStrategy:
        """A record comes at most this long after one with a larger timestamp."""
        late_ms = to_millis(max_out_of_orderness, "max_out_of_orderness")
        if late_ms < 0:
            raise ConfigurationError(f"max_out_of_orderness is {late_ms} ms; wanted 0 or more.")
        return cls(_BoundedFactory(late_ms))

    @classmethod
    def no_watermarks(cls) -> WatermarkStrategy:
        """No event time: timers on it fire at the end of a bounded input only."""
        return cls(NoWatermarks)

    @classmethod
    def for_generator(cls, factory: Callable[[], WatermarkGenerator]) -> WatermarkStrategy:
        """A generator of one's own: a `WatermarkGenerator` class, or anything that makes one when called."""
        if isinstance(factory, WatermarkGenerator):
            raise JobDefinitionError(
                f"for_generator got the generator {type(factory).__name__} itself, but every split needs its own. "
                f"Give the class, or `lambda: {type(factory).__name__}(...)`."
            )
        if not callable(factory):
            raise JobDefinitionError(f"for_generator wants a callable that makes a generator, not {factory!r}.")
        return cls(factory)

    def with_timestamp_assigner(self, timestamp_assigner: AssignerLike) -> WatermarkStrategy:
        """Read timestamps with this assigner, or with a plain `(value, record_timestamp) -> ms`."""
        if isinstance(timestamp_assigner, TimestampAssigner):
            return replace(self, assigner=timestamp_assigner.extract_timestamp, timestamp_field=None)
        if isinstance(timestamp_assigner, type) or not callable(timestamp_assigner):
            raise JobDefinitionError(
                f"{timestamp_assigner!r} is no timestamp assigner. Give a TimestampAssigner object, or a callable "
                "`(value, record_timestamp) -> milliseconds`."
            )
        return replace(self, assigner=timestamp_assigner, timestamp_field=None)

    def with_idleness(self, idle_timeout: DurationLike) -> WatermarkStrategy:
        """Leave an input out of the minimum when it was silent for this long."""
        idleness_ms = to_millis(idle_timeout, "idle_timeout")
        if idleness_ms <= 0:
            raise ConfigurationError(f"idle_timeout is {idleness_ms} ms; wanted more than 0.")
        return replace(self, idleness_ms=idleness_ms)

    def with_watermark_alignment(
        self,
        watermark_group: str,
        max_allowed_watermark_drift: DurationLike,
        update_interval: DurationLike | None = None,
    ) -> WatermarkStrategy:
        """Have splits of a source wait while they are ahead of the slowest of the group by more than the drift.

        A group may span several sources. Splits of one subtask know of each other at once, those of different subtasks
        every `update_interval`, a second by default. A split that never has a record holds the others up: give
        `with_idleness` too.
        """
        drift_ms = to_millis(max_allowed_watermark_drift, "max_allowed_watermark_drift")
        interval_ms = 1_000 if update_interval is None else to_millis(update_interval, "update_interval")
        if drift_ms < 0 or interval_ms <= 0 or not watermark_group:
            raise ConfigurationError(
                f"with_watermark_alignment() has group {watermark_group!r}, drift {drift_ms} ms and update interval "
                f"{interval_ms} ms; wanted a name, 0 or more and more than 0."
            )
        if self.generator_factory is NoWatermarks:
            raise ConfigurationError(
                f'A strategy without watermarks cannot be aligned with the group "{watermark_group}": all others would '
                "wait for it for ever. Begin with for_bounded_out_of_orderness() or for_monotonous_timestamps()."
            )
        return replace(self, alignment=WatermarkAlignment(watermark_group, drift_ms, interval_ms))

    def create_generator(self) -> WatermarkGenerator:
        """A new generator. Called once per split, or per subtask in the middle of a stream, and attempt."""
        generator = self.generator_factory()
        if not isinstance(generator, WatermarkGenerator):
            raise JobDefinitionError(
                f"The watermark generator factory {self.generator_factory!r} made {generator!r}, "
                "which is no WatermarkGenerator. Let it inherit from WatermarkGenerator."
            )
        return generator
