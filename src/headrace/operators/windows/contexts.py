"""The contexts that assigners, triggers, evictors and window functions get; one object each per operator.

A state object of the backend has one namespace at a time. What is handed to user code is therefore a `ScopedState`,
which names its namespace at every access: state of a window, state of another one and state over all windows can be
held side by side, even under one name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headrace.errors import JobDefinitionError, KeyedStateError
from headrace.operators.context import StreamRuntimeContext
from headrace.operators.functions import KeyedStateStore, RuntimeContext
from headrace.operators.metrics import MetricGroup
from headrace.operators.windows.assigners import WindowAssignerContext
from headrace.operators.windows.evictors import EvictorContext
from headrace.operators.windows.functions import ProcessWindowContext
from headrace.operators.windows.triggers import OnMergeContext
from headrace.state.backend import KeyedStateBackend
from headrace.state.descriptors import AggregatingStateDescriptor, ReducingStateDescriptor, StateDescriptor
from headrace.state.folding import FoldingAggregatingDescriptor, FoldingReducingDescriptor
from headrace.state.states import ListState

if TYPE_CHECKING:
    from headrace.operators.windows.operator import WindowOperator

VOID = b""
_TRIGGER_PREFIX = "_trigger."
"""Keeps a trigger's states apart from those of the window function."""


class ScopedState:
    """A keyed state of one namespace. Every access sets the namespace and puts the void one back."""

    __slots__ = ("_namespace", "_state")

    def __init__(self, state: Any, namespace: bytes) -> None:
        self._state = state
        self._namespace = namespace

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)

        method = getattr(self._state, name)

        def call(*arguments: Any) -> Any:
            set_namespace = self._state.set_namespace
            set_namespace(self._namespace)
            try:
                return method(*arguments)
            finally:
                set_namespace(VOID)

        return call

    def __iter__(self) -> Iterator[Any]:
        return iter(self.keys() if hasattr(self._state, "keys") else self.get())

    def __contains__(self, key: Any) -> bool:
        return bool(self.contains(key))

    def __getitem__(self, key: Any) -> Any:
        if not self.contains(key):
            raise KeyError(key)
        return self.get(key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.put(key, value)

    def __delitem__(self, key: Any) -> None:
        if not self.contains(key):
            raise KeyError(key)
        self.remove(key)


class ScopedStateStore(KeyedStateStore):
    """State of the current key in one namespace."""

    def __init__(self, backend: KeyedStateBackend, namespace: bytes) -> None:
        self._backend = backend
        self._namespace = namespace

    def _scoped(self, state_descriptor: StateDescriptor) -> Any:
        return ScopedState(self._backend.state(state_descriptor), self._namespace)

    get_state = _scoped
    get_list_state = _scoped
    get_map_state = _scoped
    get_reducing_state = _scoped
    get_aggregating_state = _scoped


class _RememberingRuntimeContext(StreamRuntimeContext):
    """Assigners ask for their state at every element, nearly always with the same descriptor."""

    def __init__(self, operator: WindowOperator) -> None:
        super().__init__(operator)
        self._known: dict[int, tuple[StateDescriptor, Any]] = {}

    def _state(self, descriptor: StateDescriptor) -> Any:
        known = self._known.get(id(descriptor))
        if known is not None and known[0] is descriptor:
            return known[1]
        state = super()._state(descriptor)
        # One per name: a program that makes a descriptor for every element must not fill the memory with them.
        self._known = {key: held for key, held in self._known.items() if held[0].name != descriptor.name}
        self._known[id(descriptor)] = (descriptor, state)
        return state


class OperatorAssignerContext(WindowAssignerContext):
    """The clock and the state that an assigner may use."""

    def __init__(self, operator: WindowOperator) -> None:
        self._now = operator.context.now_ms
        self._runtime = _RememberingRuntimeContext(operator)

    def get_current_processing_time(self) -> int:
        return self._now()

    def get_runtime_context(self) -> RuntimeContext:
        return self._runtime


class OperatorTriggerContext(OnMergeContext, EvictorContext):
    """Speaks of the operator's key and of `namespace`, which the operator moves along from window to window."""

    def __init__(self, operator: WindowOperator) -> None:
        backend = operator.context.backend
        assert backend is not None
        self._operator = operator
        self._backend = backend
        self._keys = backend.key_context
        self._event = backend.timers("event")
        self._processing = backend.timers("processing")
        self._metrics = MetricGroup(operator.context.metrics)
        self._states: dict[str, tuple[StateDescriptor, Any]] = {}
        self.namespace = VOID
        self.merged: Sequence[bytes] = ()
        """Namespaces of the windows that have become this one, during `on_merge`."""

    def get_current_processing_time(self) -> int:
        return self._operator.context.now_ms()

    def get_current_watermark(self) -> int:
        return self._operator.current_watermark

    def get_metric_group(self) -> MetricGroup:
        return self._metrics

    def register_processing_time_timer(self, time: int) -> None:
        self._processing.register(time, self._keys.key, self.namespace)

    def register_event_time_timer(self, time: int) -> None:
        self._event.register(time, self._keys.key, self.namespace)

    def delete_processing_time_timer(self, time: int) -> None:
        self._processing.delete(time, self._keys.key, self.namespace)

    def delete_event_time_timer(self, time: int) -> None:
        self._event.delete(time, self._keys.key, self.namespace)

    def get_partitioned_state(self, state_descriptor: StateDescriptor) -> Any:
        return ScopedState(self._state(state_descriptor), self.namespace)

    def merge_partitioned_state(self, state_descriptor: StateDescriptor) -> None:
        state = self._state(state_descriptor)
        if not merge_namespaces(state, self.namespace, self.merged):
            raise JobDefinitionError(
                f'A trigger of operator "{self._operator.context.name}" merges its state "{state_descriptor.name}", '
                f"which is a {state_descriptor.KIND} state. Only list, reducing and aggregating states without a "
                "time-to-live can be merged."
            )
        state.set_namespace(VOID)

    def _state(self, descriptor: StateDescriptor) -> Any:
        known = self._states.get(descriptor.name)
        # The same object nearly always, and then there is nothing to compare: triggers ask at every element.
        if known is not None and known[0] is descriptor:
            return known[1]
        state = self._backend.state(_of_trigger(descriptor))
        self._states[descriptor.name] = (descriptor, state)
        return state


def _of_trigger(descriptor: StateDescriptor) -> StateDescriptor:
    name = _TRIGGER_PREFIX + descriptor.name
    if descriptor.ttl_config is None:
        # Nobody else keeps their values, and folding states know how to merge.
        if isinstance(descriptor, ReducingStateDescriptor):
            return FoldingReducingDescriptor(name, descriptor.reduce_function, descriptor.type_info)
        if isinstance(descriptor, AggregatingStateDescriptor):
            return FoldingAggregatingDescriptor(name, descriptor.agg_function, descriptor.state_type_info)
    renamed = replace(descriptor, name=name)
    if descriptor.ttl_config is not None:
        renamed.enable_time_to_live(descriptor.ttl_config)
    return renamed


def merge_namespaces(state: Any, target: bytes, sources: Sequence[bytes]) -> bool:
    """Bring what the current key has in `sources` into `target`; False if the state has no way to."""
    merge = getattr(state, "merge_namespaces", None)
    if merge is not None:
        merge(target, sources)
        return True
    if not isinstance(state, ListState):
        return False
    for source in sources:
        state.set_namespace(source)  # type: ignore[attr-defined]
        moved = state.get()
        if moved:
            state.clear()
            state.set_namespace(target)  # type: ignore[attr-defined]
            state.add_all(moved)
    state.set_namespace(target)  # type: ignore[attr-defined]
    return True


class OperatorWindowContext(ProcessWindowContext):
    """What a process window function sees; moved along from window to window."""

    def __init__(self, operator: WindowOperator, per_window_state: bool) -> None:
        backend = operator.context.backend
        assert backend is not None
        self._operator = operator
        self._backend = backend
        self._per_window_state = per_window_state
        self._global = ScopedStateStore(backend, VOID)
        self.current: Any = None
        self.namespace = VOID

    def window(self) -> Any:
        return self.current

    def current_processing_time(self) -> int:
        return self._operator.context.now_ms()

    def current_watermark(self) -> int:
        return self._operator.current_watermark

    def window_state(self) -> KeyedStateStore:
        if not self._per_window_state:
            raise KeyedStateError(
                f'Operator "{self._operator.context.name}" asks for state of a window, but its windows merge, '
                "and state of a window would be lost. Use global_state(), which belongs to the key."
            )
        return ScopedStateStore(self._backend, self.namespace)

    def global_state(self) -> KeyedStateStore:
        return self._global
