"""Triggers: when a window gives its result, and whether it keeps its contents then.

A trigger object serves all windows of an operator, so what it remembers of one window it keeps in state, by
`get_partitioned_state`. Timers that it sets belong to the window and the key at hand and are part of every checkpoint.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import Enum
from typing import Any, TypeAlias

from headrace.durations import DurationLike, to_millis
from headrace.errors import JobDefinitionError
from headrace.operators.functions import MetricGroup, Subscriptable
from headrace.operators.windows.windows import Window
from headrace.state.descriptors import ReducingStateDescriptor, StateDescriptor, ValueStateDescriptor
from headrace.types.information import TypeLike, Types


class TriggerResult(Enum):
    """What happens to the window."""

    CONTINUE = (False, False)
    FIRE = (True, False)
    """Give the result and keep the contents."""
    PURGE = (False, True)
    """Forget the contents and give nothing. The window itself, its timers and its state stay."""
    FIRE_AND_PURGE = (True, True)

    def is_fire(self) -> bool:
        return self.value[0]

    def is_purge(self) -> bool:
        return self.value[1]


class TriggerContext(ABC):
    """What a trigger may ask and do. Speaks of the key and window at hand and is valid only during the call."""

    @abstractmethod
    def get_current_processing_time(self) -> int: ...

    @abstractmethod
    def get_current_watermark(self) -> int: ...

    @abstractmethod
    def get_metric_group(self) -> MetricGroup: ...

    @abstractmethod
    def register_processing_time_timer(self, time: int) -> None:
        """Call `on_processing_time` when the clock has reached `time`."""

    @abstractmethod
    def register_event_time_timer(self, time: int) -> None:
        """Call `on_event_time` when the watermark has reached `time`."""

    @abstractmethod
    def delete_processing_time_timer(self, time: int) -> None: ...

    @abstractmethod
    def delete_event_time_timer(self, time: int) -> None: ...

    @abstractmethod
    def get_partitioned_state(self, state_descriptor: StateDescriptor) -> Any:
        """The trigger's state of that name for the key and window at hand."""


class OnMergeContext(TriggerContext):
    """What `on_merge` may do besides."""

    @abstractmethod
    def merge_partitioned_state(self, state_descriptor: StateDescriptor) -> None:
        """Bring that state of the merged windows into the new one. List, reducing and aggregating states can merge."""


_TriggerContext: TypeAlias = TriggerContext
_OnMergeContext: TypeAlias = OnMergeContext
# Trigger offers both under the same names, as Flink does.


class Trigger(Subscriptable, ABC):
    """Decides for every element and timer of a window."""

    TriggerContext: TypeAlias = _TriggerContext
    OnMergeContext: TypeAlias = _OnMergeContext

    @abstractmethod
    def on_element(self, element: Any, timestamp: int, window: Any, ctx: _TriggerContext) -> TriggerResult:
        """An element was added. `timestamp` is `MIN_WATERMARK` if it has none."""

    @abstractmethod
    def on_processing_time(self, time: int, window: Any, ctx: _TriggerContext) -> TriggerResult:
        """A processing-time timer of the window fired."""

    @abstractmethod
    def on_event_time(self, time: int, window: Any, ctx: _TriggerContext) -> TriggerResult:
        """An event-time timer of the window fired; also called at the window's own end of life."""

    def can_merge(self) -> bool:
        """Whether `on_merge` is there. Session windows take no other triggers."""
        return False

    def on_merge(self, window: Any, ctx: _OnMergeContext) -> None:
        """Windows have become `window`: bring their state together and set the new one's timers."""
        raise NotImplementedError(
            f"{type(self).__name__}.can_merge() is true, but it has no on_merge(). Write one, or leave can_merge() out."
        )

    @abstractmethod
    def clear(self, window: Any, ctx: _TriggerContext) -> None:
        """The window's life is over: clear the trigger's state and delete its timers."""


class EventTimeTrigger(Trigger):
    """Fires when the watermark passes the end of the window, and again for each late element that is allowed."""

    @staticmethod
    def create() -> EventTimeTrigger:
        return EventTimeTrigger()

    def on_element(self, element: Any, timestamp: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        if window.max_timestamp() <= ctx.get_current_watermark():
            return TriggerResult.FIRE
        ctx.register_event_time_timer(window.max_timestamp())
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        return TriggerResult.FIRE if time == window.max_timestamp() else TriggerResult.CONTINUE

    def can_merge(self) -> bool:
        return True

    def on_merge(self, window: Window, ctx: OnMergeContext) -> None:
        # Once the watermark is past the end, the element that made the windows merge fires it.
        if window.max_timestamp() > ctx.get_current_watermark():
            ctx.register_event_time_timer(window.max_timestamp())

    def clear(self, window: Window, ctx: TriggerContext) -> None:
        ctx.delete_event_time_timer(window.max_timestamp())


class ProcessingTimeTrigger(Trigger):
    """Fires when the clock passes the end of the window."""

    @staticmethod
    def create() -> ProcessingTimeTrigger:
        return ProcessingTimeTrigger()

    def on_element(self, element: Any, timestamp: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        ctx.register_processing_time_timer(window.max_timestamp())
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        return TriggerResult.FIRE

    def on_event_time(self, time: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        return TriggerResult.CONTINUE

    def can_merge(self) -> bool:
        return True

    def on_merge(self, window: Window, ctx: OnMergeContext) -> None:
        if window.max_timestamp() > ctx.get_current_processing_time():
            ctx.register_processing_time_timer(window.max_timestamp())

    def clear(self, window: Window, ctx: TriggerContext) -> None:
        ctx.delete_processing_time_timer(window.max_timestamp())


class _ContinuousTrigger(Trigger):
    """What both continuous triggers share: when the next early result is due, as state."""

    def __init__(self, interval: int) -> None:
        if interval <= 0:
            raise JobDefinitionError(f"{type(self).__name__}.of() got an interval of {interval} ms. Give more than 0.")
        self._interval = interval
        self._next_fire = ReducingStateDescriptor("fire-time", min, Types.LONG())

    def can_merge(self) -> bool:
        return True

    def _set_next(self, time: int, window: Window, register: Callable[[int], None], state: Any) -> None:
        due = min(time + self._interval, window.max_timestamp())
        state.add(due)
        register(due)


class ContinuousEventTimeTrigger(_ContinuousTrigger):
    """Fires at every full interval of event time and at the end of the window."""

    @staticmethod
    def of(interval: DurationLike) -> ContinuousEventTimeTrigger:
        return ContinuousEventTimeTrigger(to_millis(interval, "ContinuousEventTimeTrigger.of()"))

    def on_element(self, element: Any, timestamp: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        if window.max_timestamp() <= ctx.get_current_watermark():
            return TriggerResult.FIRE
        ctx.register_event_time_timer(window.max_timestamp())
        state = ctx.get_partitioned_state(self._next_fire)
        if state.get() is None:
            self._set_next(timestamp - timestamp % self._interval, window, ctx.register_event_time_timer, state)
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        if time == window.max_timestamp():
            return TriggerResult.FIRE
        state = ctx.get_partitioned_state(self._next_fire)
        if state.get() != time:
            return TriggerResult.CONTINUE
        state.clear()
        self._set_next(time, window, ctx.register_event_time_timer, state)
        return TriggerResult.FIRE

    def on_merge(self, window: Window, ctx: OnMergeContext) -> None:
        ctx.merge_partitioned_state(self._next_fire)
        due = ctx.get_partitioned_state(self._next_fire).get()
        if due is not None:
            ctx.register_event_time_timer(due)

    def clear(self, window: Window, ctx: TriggerContext) -> None:
        state = ctx.get_partitioned_state(self._next_fire)
        due = state.get()
        if due is not None:
            ctx.delete_event_time_timer(due)
            state.clear()
        ctx.delete_event_time_timer(window.max_timestamp())


class ContinuousProcessingTimeTrigger(_ContinuousTrigger):
    """Fires at every full interval of the clock for which there was an element before."""

    @staticmethod
    def of(interval: DurationLike) -> ContinuousProcessingTimeTrigger:
        return ContinuousProcessingTimeTrigger(to_millis(interval, "ContinuousProcessingTimeTrigger.of()"))

    def on_element(self, element: Any, timestamp: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        state = ctx.get_partitioned_state(self._next_fire)
        if state.get() is None:
            now = ctx.get_current_processing_time()
            self._set_next(now - now % self._interval, window, ctx.register_processing_time_timer, state)
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        state = ctx.get_partitioned_state(self._next_fire)
        if state.get() != time:
            return TriggerResult.CONTINUE
        state.clear()
        if time < window.max_timestamp():
            self._set_next(time, window, ctx.register_processing_time_timer, state)
        return TriggerResult.FIRE

    def on_event_time(self, time: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_merge(self, window: Window, ctx: OnMergeContext) -> None:
        ctx.merge_partitioned_state(self._next_fire)
        due = ctx.get_partitioned_state(self._next_fire).get()
        if due is not None:
            ctx.register_processing_time_timer(due)

    def clear(self, window: Window, ctx: TriggerContext) -> None:
        state = ctx.get_partitioned_state(self._next_fire)
        due = state.get()
        if due is not None:
            ctx.delete_processing_time_timer(due)
            state.clear()


def _sum(a: int, b: int) -> int:
    return a + b


class CountTrigger(Trigger):
    """Fires at every n-th element of the window. The elements stay; wrap it in `PurgingTrigger` to let them go."""

    def __init__(self, window_size: int) -> None:
        if window_size <= 0:
            raise JobDefinitionError(f"CountTrigger.of() got {window_size}. Give a number of elements above 0.")
        self._window_size = window_size
        self._count = ReducingStateDescriptor("count", _sum, Types.LONG())

    @staticmethod
    def of(window_size: int) -> CountTrigger:
        return CountTrigger(window_size)

    def on_element(self, element: Any, timestamp: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        count = ctx.get_partitioned_state(self._count)
        count.add(1)
        if count.get() < self._window_size:
            return TriggerResult.CONTINUE
        count.clear()
        return TriggerResult.FIRE

    def on_processing_time(self, time: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        return TriggerResult.CONTINUE

    def can_merge(self) -> bool:
        return True

    def on_merge(self, window: Window, ctx: OnMergeContext) -> None:
        ctx.merge_partitioned_state(self._count)

    def clear(self, window: Window, ctx: TriggerContext) -> None:
        ctx.get_partitioned_state(self._count).clear()


class DeltaTrigger(Trigger):
    """Fires when an element lies further than `threshold` from the one at which it fired last."""

    def __init__(self, threshold: float, delta_function: Callable[[Any, Any], float], element_type: TypeLike) -> None:
        self._threshold = threshold
        self._delta = delta_function
        self._last = ValueStateDescriptor("last-element", element_type)

    @staticmethod
    def of(threshold: float, delta_function: Any, element_type: TypeLike | None = None) -> DeltaTrigger:
        """`delta_function(last element, element) -> distance`; the elements' type, if it is not plain values."""
        call = getattr(delta_function, "get_delta", delta_function)
        if not callable(call):
            raise JobDefinitionError(f"DeltaTrigger.of() got {delta_function!r}; wanted a function of two elements.")
        return DeltaTrigger(threshold, call, Types.ANY() if element_type is None else element_type)

    def on_element(self, element: Any, timestamp: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        state = ctx.get_partitioned_state(self._last)
        last = state.value()
        if last is None:
            state.update(element)
            return TriggerResult.CONTINUE
        if self._delta(last, element) <= self._threshold:
            return TriggerResult.CONTINUE
        state.update(element)
        return TriggerResult.FIRE

    def on_processing_time(self, time: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        return TriggerResult.CONTINUE

    def clear(self, window: Window, ctx: TriggerContext) -> None:
        ctx.get_partitioned_state(self._last).clear()


class PurgingTrigger(Trigger):
    """Another trigger, whose every firing also forgets the contents."""

    def __init__(self, nested_trigger: Trigger) -> None:
        self.nested_trigger = nested_trigger

    @staticmethod
    def of(nested_trigger: Trigger) -> PurgingTrigger:
        return PurgingTrigger(nested_trigger)

    def on_element(self, element: Any, timestamp: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        return _purging(self.nested_trigger.on_element(element, timestamp, window, ctx))

    def on_processing_time(self, time: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        return _purging(self.nested_trigger.on_processing_time(time, window, ctx))

    def on_event_time(self, time: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        return _purging(self.nested_trigger.on_event_time(time, window, ctx))

    def can_merge(self) -> bool:
        return self.nested_trigger.can_merge()

    def on_merge(self, window: Window, ctx: OnMergeContext) -> None:
        self.nested_trigger.on_merge(window, ctx)

    def clear(self, window: Window, ctx: TriggerContext) -> None:
        self.nested_trigger.clear(window, ctx)


def _purging(result: TriggerResult) -> TriggerResult:
    return TriggerResult.FIRE_AND_PURGE if result.is_fire() else result


class NeverTrigger(Trigger):
    """Never fires: the default of global windows, which have no end."""

    def on_element(self, element: Any, timestamp: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        return TriggerResult.CONTINUE

    def can_merge(self) -> bool:
        return True

    def on_merge(self, window: Window, ctx: OnMergeContext) -> None:
        """There is nothing to bring together."""

    def clear(self, window: Window, ctx: TriggerContext) -> None:
        """There is nothing to clear."""
