"""A stream that meets a broadcast: every subtask holds the broadcast state, and changes it alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from headrace.errors import JobDefinitionError
from headrace.operators.base import Attention, Block, Operator, OperatorContext, Outputs, failure_in
from headrace.operators.connected_functions import (
    BroadcastOnTimerContext,
    KeyedBroadcastContext,
    KeyedReadOnlyBroadcastContext,
)
from headrace.operators.context import ElementContext, OperatorTimerService
from headrace.operators.process import KeyedProcessOperator, ProcessOperator, emit_all
from headrace.operators.stateless import FunctionOperator
from headrace.state.backend import KeyContext
from headrace.state.descriptors import MapStateDescriptor, StateDescriptor
from headrace.state.keys import raw_key
from headrace.state.operator_state import ReadOnlyView
from headrace.state.states import BroadcastState


class BroadcastStates:
    """The states that `broadcast(...)` named, for both sides."""

    def __init__(self, operator: Operator, descriptors: Sequence[MapStateDescriptor]) -> None:
        self._name = operator.context.name
        self._states = {d.name: (d, operator.operator_states.get_broadcast_state(d)) for d in descriptors}
        self._views = {name: ReadOnlyView(state, name) for name, (_, state) in self._states.items()}

    def state(self, descriptor: MapStateDescriptor) -> BroadcastState[Any, Any]:
        self._check(descriptor)
        return self._states[descriptor.name][1]

    def view(self, descriptor: MapStateDescriptor) -> ReadOnlyView:
        self._check(descriptor)
        return self._views[descriptor.name]

    def _check(self, descriptor: MapStateDescriptor) -> None:
        known = self._states.get(descriptor.name)
        if known is None or (known[0] is not descriptor and known[0] != descriptor):
            raise JobDefinitionError(
                f'Operator "{self._name}" asks for broadcast state {descriptor!r}, which broadcast() did not name; '
                f"it named {', '.join(self._states)}. Give that descriptor to broadcast(...)."
            )


class BroadcastSide(KeyedBroadcastContext):
    """What `process_broadcast_element` gets; moved along from record to record."""

    def __init__(self, operator: Operator, states: BroadcastStates) -> None:
        self._operator = operator
        self._states = states
        self.current_timestamp: int | None = None

    def timestamp(self) -> int | None:
        return self.current_timestamp

    def current_processing_time(self) -> int:
        return self._operator.context.now_ms()

    def current_watermark(self) -> int:
        return self._operator.current_watermark

    def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> BroadcastState[Any, Any]:
        return self._states.state(state_descriptor)

    def apply_to_keyed_state(self, state_descriptor: StateDescriptor, function: Callable[[Any, Any], None]) -> None:
        backend = self._operator.context.backend
        if backend is None:
            raise JobDefinitionError(
                f'Operator "{self._operator.context.name}" applies a function to keyed state, but its stream has no '
                "key. Connect a keyed stream with the broadcast, and use a KeyedBroadcastProcessFunction."
            )
        state = backend.state(state_descriptor)
        try:
            for key in backend.keys(state_descriptor.name):
                backend.key_context.key = key
                function(raw_key(key), state)
        finally:
            backend.key_context.key = None


class ReadOnlySide(ElementContext, KeyedReadOnlyBroadcastContext, BroadcastOnTimerContext):
    """What `process_element` and `on_timer` get; moved along from record to record."""

    __slots__ = ("_operator", "_states")

    def __init__(self, operator: Operator, states: BroadcastStates, timers: Any, keys: KeyContext | None) -> None:
        super().__init__(timers, keys)
        self._operator = operator
        self._states = states

    def current_processing_time(self) -> int:
        return self._operator.context.now_ms()

    def current_watermark(self) -> int:
        return self._operator.current_watermark

    def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> ReadOnlyView:
        return self._states.view(state_descriptor)


class _BroadcastInput(FunctionOperator):
    """The second input, whose records have no key."""

    METHOD = "process_element"

    _side: BroadcastSide

    def __init__(self, function: Any, descriptors: Sequence[MapStateDescriptor]) -> None:
        super().__init__(function)
        self._descriptors = descriptors

    def input(self, number: int) -> Callable[[Block, Attention], None]:
        return self.process_block if number == 0 else self.process_broadcast_block

    def process_broadcast_block(self, block: Block, attention: Attention) -> None:
        if self.context.backend is not None:
            self.context.backend.key_context.key = None
        call, side = self._function.process_broadcast_element, self._side
        values, timestamps = block.values, block.timestamps
        while block.position < len(values):
            at = block.position
            block.position = at + 1
            side.current_timestamp = None if timestamps is None else timestamps[at]
            try:
                results = call(values[at], side)
                if results is not None:
                    emit_all(self, results, side.current_timestamp)
            except Exception as error:
                raise failure_in(self, values[at], error) from error
            if attention.raised:
                break


class BroadcastOperator(_BroadcastInput, ProcessOperator):
    """A `BroadcastProcessFunction`: the stream has no key."""

    def open(self) -> None:
        states = BroadcastStates(self, self._descriptors)
        self._side = BroadcastSide(self, states)
        self._element = ReadOnlySide(self, states, OperatorTimerService(self, None, None), None)
        super().open()


class KeyedBroadcastOperator(_BroadcastInput, KeyedProcessOperator):
    """A `KeyedBroadcastProcessFunction`: keyed state and timers for the stream's side."""

    def setup(self, context: OperatorContext, outputs: Outputs) -> None:
        super().setup(context, outputs)
        self._timer_service = OperatorTimerService(self, self._event, self._processing)

    def open(self) -> None:
        states = BroadcastStates(self, self._descriptors)
        self._side = BroadcastSide(self, states)
        self._element = ReadOnlySide(self, states, self._timer_service, self._keys)
        super().open()
