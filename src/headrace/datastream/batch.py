"""Batch mode: a bounded job gives its final results only.

In streaming mode a keyed `reduce`, `sum` and their kin emit at every record; in batch mode once for each key, at the
end of the input. There are no watermarks before the end, so nothing is late and every window holds all its records.

Operators with keys get their records sorted by key and time, key after key, and their timers fire at the end of each
key (`operators.sorted_input`). So they hold the state of one key at a time, whatever backend was chosen. What a
broadcast brings is all there before the first record meets it. Checkpoints are not taken, but for one at the very end,
with which sinks commit: a failure begins the job anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from enum import Enum
from typing import Any

from headrace.backends.heap.one_key import OneKeyBackend
from headrace.connectors.source import Boundedness
from headrace.errors import JobDefinitionError
from headrace.operators.columns.factories import ColumnWindowFactory, RunningAggregateFactory
from headrace.operators.connected_factories import BroadcastFactory
from headrace.operators.factories import ProcessFactory, ReduceFactory, SourceFactory, TimestampsFactory
from headrace.operators.factory import OperatorFactory
from headrace.operators.functions import (
    Function,
    KeyedProcessContext,
    KeyedProcessFunction,
    OnTimerContext,
    RuntimeContext,
    callable_of,
)
from headrace.operators.sorted_input import SortedInputFactory
from headrace.operators.watermarks import MAX_WATERMARK, NoWatermarks
from headrace.plan.graph import StreamGraph
from headrace.plan.settings import CheckpointSettings
from headrace.state.descriptors import ReducingStateDescriptor
from headrace.types.information import TypeInformation


class RuntimeExecutionMode(Enum):
    """Whether a job gives results as they change, or final ones."""

    STREAMING = "streaming"
    BATCH = "batch"
    AUTOMATIC = "automatic"
    """Batch if all sources are bounded, else streaming."""


class LastOfEachKey(KeyedProcessFunction):
    """A reduce that emits once for each key, when the input has ended."""

    def __init__(self, function: Any, value_type: TypeInformation) -> None:
        self._function = function
        self._value_type = value_type

    def open(self, runtime_context: RuntimeContext) -> None:
        if isinstance(self._function, Function):
            self._function.open(runtime_context)
        fold = callable_of(self._function, "reduce")
        self._state = runtime_context.get_reducing_state(ReducingStateDescriptor("_reduced", fold, self._value_type))

    def close(self) -> None:
        if isinstance(self._function, Function):
            self._function.close()

    def process_element(self, value: Any, ctx: KeyedProcessContext) -> None:
        self._state.add(value)
        ctx.timer_service().register_event_time_timer(MAX_WATERMARK)

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Iterable[Any]:
        yield self._state.get()
        self._state.clear()


def is_batch(graph: StreamGraph, mode: RuntimeExecutionMode) -> bool:
    """Whether the job runs in batch mode. Refuses that for a source without an end."""
    if mode is RuntimeExecutionMode.STREAMING:
        return False
    endless = [
        node.name
        for node in graph.nodes
        if isinstance(node.factory, SourceFactory) and node.factory.source.boundedness is not Boundedness.BOUNDED
    ]
    if endless and mode is RuntimeExecutionMode.AUTOMATIC:
        return False
    if endless:
        raise JobDefinitionError(
            f'Source "{endless[0]}" has no end, so a job in batch mode would never give a result. Bound the source, or '
            "use RuntimeExecutionMode.STREAMING or AUTOMATIC."
        )
    return True


def for_batch(graph: StreamGraph, sort_memory_bytes: int) -> StreamGraph:
    """The graph as batch mode wants it. Each subtask of a keyed operator sorts in that much memory, then on disk."""

    def changed(factory: OperatorFactory) -> OperatorFactory:
        match factory:
            case SourceFactory(strategy=strategy) | TimestampsFactory(strategy=strategy):
                return replace(factory, strategy=replace(strategy, generator_factory=NoWatermarks))
            case ReduceFactory(function=function, value_type=value_type):
                factory = ProcessFactory(LastOfEachKey(function, value_type), keyed=True)
            case RunningAggregateFactory():
                return replace(factory, at_end=True)
            case ColumnWindowFactory():
                # It holds an accumulator for each key, whatever the order of the records.
                return factory
        broadcast = frozenset({1}) if isinstance(factory, BroadcastFactory) else frozenset[int]()
        if factory.keyed or broadcast:
            return SortedInputFactory(factory, broadcast, sort_memory_bytes, OneKeyBackend, factory.keyed)
        return factory

    return replace(graph, nodes=tuple(replace(node, factory=changed(node.factory)) for node in graph.nodes))


def checkpoints_for_batch(checkpointing: CheckpointSettings) -> CheckpointSettings:
    """Where checkpointing is on, the one at the end alone, so that sinks keep their promise."""
    return replace(checkpointing, interval_ms=None, only_final=checkpointing.enabled)
