"""Concrete contexts that user functions get: runtime context, timer service, process contexts."""

from __future__ import annotations

from typing import Any

from headrace.errors import JobDefinitionError, KeyedStateError
from headrace.operators.base import Operator
from headrace.operators.checkpointed import FunctionInitializationContext, FunctionSnapshotContext
from headrace.operators.functions import (
    KeyedStateStore,
    OnTimerContext,
    RuntimeContext,
    TimeDomain,
    TimerService,
)
from headrace.operators.metrics import MetricGroup
from headrace.state.backend import KeyContext, TimerQueue
from headrace.state.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from headrace.state.keys import raw_key
from headrace.state.operator_state import OperatorStateStore
from headrace.state.states import AggregatingState, ListState, MapState, ReducingState, ValueState


class StreamRuntimeContext(RuntimeContext):
    """What `open()` gets. State is had from here, and only on keyed operators."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        self._context = operator.context
        self._metrics = MetricGroup(operator.context.metrics)

    def _state(self, descriptor: StateDescriptor) -> Any:
        backend = self._context.backend
        if backend is None:
            raise KeyedStateError(
                f'Operator "{self._context.name}" (uid "{self._context.uid}") asks for keyed state '
                f'"{descriptor.name}", but its input has no key. Call key_by(...) before it.'
            )
        return backend.state(descriptor)

    def get_state(self, state_descriptor: ValueStateDescriptor) -> ValueState[Any]:
        return self._state(state_descriptor)  # type: ignore[no-any-return]

    def get_list_state(self, state_descriptor: ListStateDescriptor) -> ListState[Any]:
        return self._state(state_descriptor)  # type: ignore[no-any-return]

    def get_map_state(self, state_descriptor: MapStateDescriptor) -> MapState[Any, Any]:
        return self._state(state_descriptor)  # type: ignore[no-any-return]

    def get_reducing_state(self, state_descriptor: ReducingStateDescriptor) -> ReducingState[Any]:
        return self._state(state_descriptor)  # type: ignore[no-any-return]

    def get_aggregating_state(self, state_descriptor: AggregatingStateDescriptor) -> AggregatingState[Any, Any]:
        return self._state(state_descriptor)  # type: ignore[no-any-return]

    def get_task_name(self) -> str:
        return self._context.name

    def get_task_name_with_subtasks(self) -> str:
        return f"{self._context.name} ({self._context.subtask + 1}/{self._context.parallelism})#{self._context.attempt}"

    def get_number_of_parallel_subtasks(self) -> int:
        return self._context.parallelism

    def get_max_number_of_parallel_subtasks(self) -> int:
        return self._context.max_parallelism

    def get_index_of_this_subtask(self) -> int:
        return self._context.subtask

    def get_attempt_number(self) -> int:
        return self._context.attempt - 1

    def get_job_parameter(self, key: str, default_value: str) -> str:
        return self._context.job_parameters.get(key, default_value)

    def get_metrics_group(self) -> MetricGroup:
        return self._metrics


class InitializationContext(FunctionInitializationContext):
    """What `initialize_state` gets."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator

    def is_restored(self) -> bool:
        return self._operator.restored

    def get_operator_state_store(self) -> OperatorStateStore:
        return self._operator.operator_states

    def get_keyed_state_store(self) -> KeyedStateStore:
        return StreamRuntimeContext(self._operator)


class SnapshotContext(FunctionSnapshotContext):
    """What `snapshot_state` gets."""

    def __init__(self, checkpoint_id: int) -> None:
        self._checkpoint_id = checkpoint_id

    def get_checkpoint_id(self) -> int:
        return self._checkpoint_id


class OperatorTimerService(TimerService):
    """Timers of the current key, in both time domains."""

    def __init__(self, operator: Operator, event: TimerQueue | None, processing: TimerQueue | None) -> None:
        self._operator = operator
        self._event = event
        self._processing = processing
        backend = operator.context.backend
        self._keys: KeyContext | None = None if backend is None else backend.key_context

    def current_processing_time(self) -> int:
        return self._operator.context.now_ms()

    def current_watermark(self) -> int:
        return self._operator.current_watermark

    def register_event_time_timer(self, timestamp: int) -> None:
        queue, key = self._need(self._event)
        queue.register(timestamp, key)

    def register_processing_time_timer(self, timestamp: int) -> None:
        queue, key = self._need(self._processing)
        queue.register(timestamp, key)

    def delete_event_time_timer(self, timestamp: int) -> None:
        queue, key = self._need(self._event)
        queue.delete(timestamp, key)

    def delete_processing_time_timer(self, timestamp: int) -> None:
        queue, key = self._need(self._processing)
        queue.delete(timestamp, key)

    def _need(self, queue: TimerQueue | None) -> tuple[TimerQueue, Any]:
        if queue is None or self._keys is None:
            context = self._operator.context
            raise KeyedStateError(
                f'Operator "{context.name}" (uid "{context.uid}") sets a timer, but timers belong to a key. '
                "Call key_by(...) before it and use a KeyedProcessFunction."
            )
        return queue, self._keys.key


class ElementContext(OnTimerContext):
    """One object per operator, moved along from record to record (hence never to be kept by user code)."""

    __slots__ = ("_domain", "_keys", "_timers", "current_timestamp")

    def __init__(self, timers: TimerService, keys: KeyContext | None) -> None:
        self._timers = timers
        self._keys = keys
        self._domain = TimeDomain.EVENT_TIME
        self.current_timestamp: int | None = None

    def timestamp(self) -> int | None:
        return self.current_timestamp

    def timer_service(self) -> TimerService:
        return self._timers

    def get_current_key(self) -> Any:
        if self._keys is None:
            raise JobDefinitionError("get_current_key() was called on a stream without a key. Call key_by(...) first.")
        return raw_key(self._keys.key)

    def time_domain(self) -> TimeDomain:
        return self._domain

    def at_timer(self, timestamp: int, domain: TimeDomain) -> None:
        self.current_timestamp = timestamp
        self._domain = domain
