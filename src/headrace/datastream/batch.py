"""Batch mode: a bounded job gives its final results only.

In streaming mode a keyed `reduce`, `sum` and their kin emit at every record; in batch mode once for each key, at the
end of the input. There are no watermarks before the end, so nothing is late and every window holds all its records. The
rest, state, timers and checkpoints among it, is as in streaming mode.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from enum import Enum
from typing import Any

from headrace.connectors.source import Boundedness
from headrace.errors import JobDefinitionError
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
from headrace.operators.watermarks import MAX_WATERMARK, NoWatermarks
from headrace.plan.graph import StreamGraph
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


def in_mode(graph: StreamGraph, mode: RuntimeExecutionMode) -> StreamGraph:
    """The graph as the mode wants it. Refuses batch mode for a source without an end."""
    if mode is RuntimeExecutionMode.STREAMING:
        return graph
    endless = [
        node.name
        for node in graph.nodes
        if isinstance(node.factory, SourceFactory) and node.factory.source.boundedness is not Boundedness.BOUNDED
    ]
    if endless and mode is RuntimeExecutionMode.AUTOMATIC:
        return graph
    if endless:
        raise JobDefinitionError(
            f'Source "{endless[0]}" has no end, so a job in batch mode would never give a result. Bound the source, or '
            "use RuntimeExecutionMode.STREAMING or AUTOMATIC."
        )
    return replace(graph, nodes=tuple(replace(node, factory=_for_batch(node.factory)) for node in graph.nodes))


def _for_batch(factory: OperatorFactory) -> OperatorFactory:
    match factory:
        case SourceFactory(strategy=strategy) | TimestampsFactory(strategy=strategy):
            return replace(factory, strategy=replace(strategy, generator_factory=NoWatermarks))
        case ReduceFactory(function=function, value_type=value_type):
            return ProcessFactory(LastOfEachKey(function, value_type), keyed=True)
    return factory
