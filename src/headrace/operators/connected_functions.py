"""Functions of two connected streams: one method for each input, and state that both share.

As with all functions, every call comes from one thread, `process_*` and `on_timer` are generators or return an
iterable, and `yield tag, value` sends to a side output.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from headrace.operators.functions import Function, KeyedProcessContext, OnTimerContext, ProcessContext
from headrace.state.descriptors import MapStateDescriptor, StateDescriptor
from headrace.state.states import BroadcastState, ReadOnlyBroadcastState


class CoMapFunction(Function):
    """One record in, one out, from either input."""

    @abstractmethod
    def map1(self, value: Any) -> Any: ...

    @abstractmethod
    def map2(self, value: Any) -> Any: ...


class CoFlatMapFunction(Function):
    """One record in from either input, any number out."""

    @abstractmethod
    def flat_map1(self, value: Any) -> Iterable[Any] | None: ...

    @abstractmethod
    def flat_map2(self, value: Any) -> Iterable[Any] | None: ...


class CoProcessFunction(Function):
    """Any number out for each record of either input, with time and side outputs.

    On streams connected by key it may keep keyed state and set timers too.
    """

    Context: TypeAlias = ProcessContext

    @abstractmethod
    def process_element1(self, value: Any, ctx: ProcessContext) -> Iterable[Any] | None: ...

    @abstractmethod
    def process_element2(self, value: Any, ctx: ProcessContext) -> Iterable[Any] | None: ...

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Iterable[Any] | None:
        """Called for every timer that is due, with the key it was registered under."""
        return None


_OnTimerContext: TypeAlias = OnTimerContext


class KeyedCoProcessFunction(Function):
    """Any number out for each record or timer; keyed state and timers belong to the key, not to one input."""

    Context: TypeAlias = KeyedProcessContext
    OnTimerContext: TypeAlias = _OnTimerContext

    @abstractmethod
    def process_element1(self, value: Any, ctx: KeyedProcessContext) -> Iterable[Any] | None: ...

    @abstractmethod
    def process_element2(self, value: Any, ctx: KeyedProcessContext) -> Iterable[Any] | None: ...

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Iterable[Any] | None:
        """Called for every timer that is due, with the key it was registered under."""
        return None


class BaseBroadcastContext(ABC):
    """What both sides of a broadcast may ask. Valid only during the call."""

    @abstractmethod
    def timestamp(self) -> int | None:
        """Event time of the record in milliseconds, or the timer's time; None if the record has none."""

    @abstractmethod
    def current_processing_time(self) -> int:
        """The task's clock in milliseconds since 1970."""

    @abstractmethod
    def current_watermark(self) -> int:
        """The operator's watermark; `MIN_WATERMARK` until the first one came."""


class ReadOnlyBroadcastContext(BaseBroadcastContext):
    """On the side without the broadcast, whose records come to one subtask each."""

    @abstractmethod
    def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> ReadOnlyBroadcastState[Any, Any]:
        """One of the states that `broadcast(...)` named. Changing it raises `ReadOnlyStateError`."""


class BroadcastContext(BaseBroadcastContext):
    """On the broadcast side, whose records come to every subtask. There is no key here."""

    @abstractmethod
    def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> BroadcastState[Any, Any]:
        """One of the states that `broadcast(...)` named. What is done to it must follow from the record alone,
        so that all subtasks do the same."""


class KeyedReadOnlyBroadcastContext(ReadOnlyBroadcastContext, KeyedProcessContext):
    """The side without the broadcast, with a key: timers and keyed state too."""


class BroadcastOnTimerContext(ReadOnlyBroadcastContext, OnTimerContext):
    """What `on_timer` may ask: keyed state, timers, and broadcast state to read."""


class KeyedBroadcastContext(BroadcastContext):
    """The broadcast side of an operator with keys."""

    @abstractmethod
    def apply_to_keyed_state(self, state_descriptor: StateDescriptor, function: Callable[[Any, Any], None]) -> None:
        """Call `function(key, state)` for every key of this subtask that has something in that keyed state.

        The state is scoped to that key during the call and may be changed.
        """


class BroadcastProcessFunction(Function):
    """A stream without keys that meets a broadcast, such as events and the rules for them."""

    Context: TypeAlias = BroadcastContext
    ReadOnlyContext: TypeAlias = ReadOnlyBroadcastContext

    @abstractmethod
    def process_element(self, value: Any, ctx: ReadOnlyBroadcastContext) -> Iterable[Any] | None:
        """One record of the stream, in one subtask."""

    @abstractmethod
    def process_broadcast_element(self, value: Any, ctx: BroadcastContext) -> Iterable[Any] | None:
        """One broadcast record, in every subtask."""


class KeyedBroadcastProcessFunction(Function):
    """A stream with keys that meets a broadcast. Keyed state and timers belong to the stream's side."""

    Context: TypeAlias = KeyedBroadcastContext
    ReadOnlyContext: TypeAlias = KeyedReadOnlyBroadcastContext
    OnTimerContext: TypeAlias = BroadcastOnTimerContext

    @abstractmethod
    def process_element(self, value: Any, ctx: KeyedReadOnlyBroadcastContext) -> Iterable[Any] | None:
        """One record of the stream, with its key."""

    @abstractmethod
    def process_broadcast_element(self, value: Any, ctx: KeyedBroadcastContext) -> Iterable[Any] | None:
        """One broadcast record, in every subtask. It has no key; `ctx.apply_to_keyed_state` visits all."""

    def on_timer(self, timestamp: int, ctx: BroadcastOnTimerContext) -> Iterable[Any] | None:
        """Called for every timer that is due, with the key it was registered under."""
        return None


class ProcessJoinContext(ABC):
    """What a `ProcessJoinFunction` may ask of the pair at hand."""

    @abstractmethod
    def get_left_timestamp(self) -> int: ...

    @abstractmethod
    def get_right_timestamp(self) -> int: ...

    @abstractmethod
    def get_timestamp(self) -> int:
        """The later of the two, which results carry on."""


class ProcessJoinFunction(Function):
    """Any number out for each pair of an interval join."""

    Context: TypeAlias = ProcessJoinContext

    @abstractmethod
    def process_element(self, left: Any, right: Any, ctx: ProcessJoinContext) -> Iterable[Any] | None: ...
