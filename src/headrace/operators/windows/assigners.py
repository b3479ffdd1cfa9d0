"""Window assigners: which windows a record belongs to.

An assigner is a light value that travels to the tasks. Sizes are milliseconds; `of` takes any duration.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

from headrace.durations import DurationLike, to_millis
from headrace.errors import JobDefinitionError
from headrace.operators.functions import RuntimeContext, Subscriptable
from headrace.operators.windows.triggers import (
    CountTrigger,
    EventTimeTrigger,
    NeverTrigger,
    ProcessingTimeTrigger,
    PurgingTrigger,
    Trigger,
)
from headrace.operators.windows.windows import (
    CountWindow,
    CountWindowSerializer,
    GlobalWindow,
    GlobalWindowSerializer,
    TimeWindow,
    TimeWindowSerializer,
    WindowSerializer,
)
from headrace.state.descriptors import ValueStateDescriptor
from headrace.types.information import Types


class WindowAssignerContext(ABC):
    """What an assigner may ask. Valid only during the call."""

    @abstractmethod
    def get_current_processing_time(self) -> int: ...

    @abstractmethod
    def get_runtime_context(self) -> RuntimeContext:
        """For state of the current key, over all its windows."""


_WindowAssignerContext: TypeAlias = WindowAssignerContext


class WindowAssigner(Subscriptable, ABC):
    """Names the windows of each record."""

    WindowAssignerContext: TypeAlias = _WindowAssignerContext
    assigns_one: ClassVar[bool] = False
    """Every record belongs to exactly one window."""

    @abstractmethod
    def assign_windows(self, element: Any, timestamp: int, context: _WindowAssignerContext) -> Collection[Any]:
        """The windows of a record. `timestamp` is `MIN_WATERMARK` if it has none; never so in event time."""

    @abstractmethod
    def get_default_trigger(self, env: Any) -> Trigger:
        """When windows fire if the program does not say. `env` is the environment of the job."""

    @abstractmethod
    def get_window_serializer(self) -> WindowSerializer:
        """How windows are written as bytes."""

    @abstractmethod
    def is_event_time(self) -> bool:
        """Whether windows end by the watermark; else by the clock."""


class MergeCallback(ABC):
    """How an assigner says which windows become one."""

    @abstractmethod
    def merge(self, to_be_merged: Iterable[Any], merge_result: Any) -> None: ...


_MergeCallback: TypeAlias = MergeCallback


class MergingWindowAssigner(WindowAssigner):
    """An assigner whose windows of one key may grow together."""

    MergeCallback: TypeAlias = _MergeCallback

    @abstractmethod
    def merge_windows(self, windows: Iterable[Any], callback: _MergeCallback) -> None:
        """Call `callback.merge` once for each group of two windows or more that become one."""


class _TimeWindows(WindowAssigner):
    """What assigners of time windows share."""

    def get_default_trigger(self, env: Any) -> Trigger:
        return EventTimeTrigger() if self.is_event_time() else ProcessingTimeTrigger()

    def get_window_serializer(self) -> WindowSerializer:
        return TimeWindowSerializer()


@dataclass(frozen=True)
class _Tumbling(_TimeWindows):
    assigns_one: ClassVar[bool] = True

    size: int
    offset: int = 0

    def __post_init__(self) -> None:
        _check_lengths(type(self).__name__, self.offset, self.size, size=self.size)

    def _windows(self, time: int) -> list[TimeWindow]:
        start = time - (time - self.offset) % self.size
        return [TimeWindow(start, start + self.size)]


class TumblingEventTimeWindows(_Tumbling):
    """Windows of one size, one after the other, by the records' timestamps."""

    @staticmethod
    def of(size: DurationLike, offset: DurationLike | None = None) -> TumblingEventTimeWindows:
        """An offset of -8 hours gives days in China, whose midnight is at 16:00 UTC."""
        return TumblingEventTimeWindows(_millis(size), _millis(offset))

    def assign_windows(self, element: Any, timestamp: int, context: WindowAssignerContext) -> list[TimeWindow]:
        return self._windows(timestamp)

    def is_event_time(self) -> bool:
        return True


class TumblingProcessingTimeWindows(_Tumbling):
    """Windows of one size, one after the other, by the clock."""

    @staticmethod
    def of(size: DurationLike, offset: DurationLike | None = None) -> TumblingProcessingTimeWindows:
        return TumblingProcessingTimeWindows(_millis(size), _millis(offset))

    def assign_windows(self, element: Any, timestamp: int, context: WindowAssignerContext) -> list[TimeWindow]:
        return self._windows(context.get_current_processing_time())

    def is_event_time(self) -> bool:
        return False


@dataclass(frozen=True)
class _Sliding(_TimeWindows):
    size: int
    slide: int
    offset: int = 0

    def __post_init__(self) -> None:
        _check_lengths(type(self).__name__, self.offset, self.slide, size=self.size, slide=self.slide)

    def _windows(self, time: int) -> list[TimeWindow]:
        last = time - (time - self.offset) % self.slide
        return [TimeWindow(start, start + self.size) for start in range(last, time - self.size, -self.slide)]


class SlidingEventTimeWindows(_Sliding):
    """Windows of one size that begin every `slide`, by the records' timestamps; a record may be in several."""

    @staticmethod
    def of(size: DurationLike, slide: DurationLike, offset: DurationLike | None = None) -> SlidingEventTimeWindows:
        return SlidingEventTimeWindows(_millis(size), _millis(slide), _millis(offset))

    def assign_windows(self, element: Any, timestamp: int, context: WindowAssignerContext) -> list[TimeWindow]:
        return self._windows(timestamp)

    def is_event_time(self) -> bool:
        return True


class SlidingProcessingTimeWindows(_Sliding):
    """The same by the clock."""

    @staticmethod
    def of(size: DurationLike, slide: DurationLike, offset: DurationLike | None = None) -> SlidingProcessingTimeWindows:
        return SlidingProcessingTimeWindows(_millis(size), _millis(slide), _millis(offset))

    def assign_windows(self, element: Any, timestamp: int, context: WindowAssignerContext) -> list[TimeWindow]:
        return self._windows(context.get_current_processing_time())

    def is_event_time(self) -> bool:
        return False


class SessionWindowTimeGapExtractor(ABC):
    """The gap after which a session ends, as each of its elements sees it."""

    @abstractmethod
    def extract(self, element: Any) -> int:
        """Milliseconds, more than 0."""


GapLike: TypeAlias = SessionWindowTimeGapExtractor | Callable[[Any], int]


@dataclass(frozen=True)
class _Sessions(_TimeWindows, MergingWindowAssigner):
    """A window per record that reaches as far as its gap; windows that overlap or touch become one."""

    assigns_one: ClassVar[bool] = True

    gap: int | None
    extract: Callable[[Any], int] | None = field(default=None)

    def __post_init__(self) -> None:
        if self.gap is not None and self.gap <= 0:
            raise JobDefinitionError(f"{type(self).__name__} got a gap of {self.gap} ms. Give more than 0.")

    def _windows(self, element: Any, time: int) -> list[TimeWindow]:
        gap = self.gap
        if gap is None:
            assert self.extract is not None
            gap = self.extract(element)
            if gap <= 0:
                raise JobDefinitionError(f"The gap extractor gave {gap} ms for {element!r}. Give more than 0.")
        return [TimeWindow(time, time + gap)]

    def merge_windows(self, windows: Iterable[TimeWindow], callback: MergeCallback) -> None:
        group: list[TimeWindow] = []
        cover: TimeWindow | None = None
        for window in sorted(windows):
            if cover is not None and cover.intersects(window):
                group.append(window)
                cover = cover.cover(window)
                continue
            if cover is not None and len(group) > 1:
                callback.merge(group, cover)
            group, cover = [window], window
        if cover is not None and len(group) > 1:
            callback.merge(group, cover)


class EventTimeSessionWindows(_Sessions):
    """Sessions by the records' timestamps: a session ends when nothing came for the gap."""

    @staticmethod
    def with_gap(size: DurationLike) -> EventTimeSessionWindows:
        return EventTimeSessionWindows(_millis(size))

    @staticmethod
    def with_dynamic_gap(session_window_time_gap_extractor: GapLike) -> EventTimeSessionWindows:
        """Each element says how long it keeps its session open."""
        return EventTimeSessionWindows(None, _gap_function(session_window_time_gap_extractor))

    def assign_windows(self, element: Any, timestamp: int, context: WindowAssignerContext) -> list[TimeWindow]:
        return self._windows(element, timestamp)

    def is_event_time(self) -> bool:
        return True


class ProcessingTimeSessionWindows(_Sessions):
    """Sessions by the clock."""

    @staticmethod
    def with_gap(size: DurationLike) -> ProcessingTimeSessionWindows:
        return ProcessingTimeSessionWindows(_millis(size))

    @staticmethod
    def with_dynamic_gap(session_window_time_gap_extractor: GapLike) -> ProcessingTimeSessionWindows:
        return ProcessingTimeSessionWindows(None, _gap_function(session_window_time_gap_extractor))

    def assign_windows(self, element: Any, timestamp: int, context: WindowAssignerContext) -> list[TimeWindow]:
        return self._windows(element, context.get_current_processing_time())

    def is_event_time(self) -> bool:
        return False


DynamicEventTimeSessionWindows: TypeAlias = EventTimeSessionWindows
DynamicProcessingTimeSessionWindows: TypeAlias = ProcessingTimeSessionWindows
# PyFlink's names for what `with_dynamic_gap` gives.


class GlobalWindows(WindowAssigner):
    """All records of a key in one window without end; give it a trigger, or it never fires."""

    assigns_one: ClassVar[bool] = True

    @staticmethod
    def create() -> GlobalWindows:
        return GlobalWindows()

    def assign_windows(self, element: Any, timestamp: int, context: WindowAssignerContext) -> list[GlobalWindow]:
        return [GlobalWindow.get()]

    def get_default_trigger(self, env: Any) -> Trigger:
        return NeverTrigger()

    def get_window_serializer(self) -> WindowSerializer:
        return GlobalWindowSerializer()

    def is_event_time(self) -> bool:
        return False


@dataclass(frozen=True)
class CountTumblingWindowAssigner(WindowAssigner):
    """Every `window_size` records of a key are a window."""

    assigns_one: ClassVar[bool] = True

    window_size: int

    def __post_init__(self) -> None:
        _check_counts(type(self).__name__, size=self.window_size)

    @staticmethod
    def of(window_size: int) -> CountTumblingWindowAssigner:
        return CountTumblingWindowAssigner(window_size)

    def assign_windows(self, element: Any, timestamp: int, context: WindowAssignerContext) -> list[CountWindow]:
        return [CountWindow(_next_number(context) // self.window_size)]

    def get_default_trigger(self, env: Any) -> Trigger:
        # A full window has had its last element, so nothing of it need be kept.
        return PurgingTrigger(CountTrigger(self.window_size))

    def get_window_serializer(self) -> WindowSerializer:
        return CountWindowSerializer()

    def is_event_time(self) -> bool:
        return False


@dataclass(frozen=True)
class CountSlidingWindowAssigner(WindowAssigner):
    """Windows of `window_size` records of a key that begin at every `window_slide`-th record."""

    window_size: int
    window_slide: int

    def __post_init__(self) -> None:
        _check_counts(type(self).__name__, size=self.window_size, slide=self.window_slide)

    @staticmethod
    def of(window_size: int, window_slide: int) -> CountSlidingWindowAssigner:
        return CountSlidingWindowAssigner(window_size, window_slide)

    def assign_windows(self, element: Any, timestamp: int, context: WindowAssignerContext) -> list[CountWindow]:
        number = _next_number(context)
        slide = self.window_slide
        first = max(0, (number - self.window_size) // slide + 1)
        return [CountWindow(i) for i in range(number // slide, first - 1, -1)]

    def get_default_trigger(self, env: Any) -> Trigger:
        return PurgingTrigger(CountTrigger(self.window_size))

    def get_window_serializer(self) -> WindowSerializer:
        return CountWindowSerializer()

    def is_event_time(self) -> bool:
        return False


_COUNT = ValueStateDescriptor("_counted", Types.LONG())


def _next_number(context: WindowAssignerContext) -> int:
    """How many records of the key came before this one."""
    counted = context.get_runtime_context().get_state(_COUNT)
    number: int = counted.value() or 0
    counted.update(number + 1)
    return number


def _millis(value: DurationLike | None) -> int:
    return 0 if value is None else to_millis(value, "The length of a window")


def _gap_function(extractor: Any) -> Callable[[Any], int]:
    call = getattr(extractor, "extract", extractor)
    if not callable(call):
        raise JobDefinitionError(
            f"with_dynamic_gap() got {extractor!r}; wanted a SessionWindowTimeGapExtractor or a function of an element."
        )
    return call  # type: ignore[no-any-return]


def _check_lengths(name: str, offset: int, period: int, **lengths: int) -> None:
    for what, length in lengths.items():
        if length <= 0:
            raise JobDefinitionError(f"{name} got a {what} of {length} ms. Give more than 0.")
    if abs(offset) >= period:
        raise JobDefinitionError(
            f"{name} got an offset of {offset} ms, but windows begin every {period} ms. Give an offset below that."
        )


def _check_counts(name: str, **counts: int) -> None:
    for what, number in counts.items():
        if isinstance(number, bool) or not isinstance(number, int) or number <= 0:
            raise JobDefinitionError(f"{name} got {number!r} as its {what}. Give a whole number of records above 0.")
