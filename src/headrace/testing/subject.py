"""What an operator harness runs: a user function, an operator factory, or the one operator of a small program."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from typing import Any

from headrace.connectors.collection import CollectionSource
from headrace.datastream.environment import StreamExecutionEnvironment
from headrace.datastream.streams import DataStream
from headrace.errors import JobDefinitionError
from headrace.operators.factories import (
    FilterFactory,
    FlatMapFactory,
    MapFactory,
    ProcessFactory,
    ReduceFactory,
    SourceFactory,
)
from headrace.operators.factory import OperatorFactory
from headrace.operators.functions import (
    FilterFunction,
    FlatMapFunction,
    KeyedProcessFunction,
    MapFunction,
    ProcessFunction,
    ReduceFunction,
)
from headrace.operators.watermarks import WatermarkStrategy
from headrace.plan.graph import Broadcast, Hash
from headrace.plan.keys import KeyLike, key_spec
from headrace.types.information import TypeInformation, TypeLike, Types, type_of


@dataclass(frozen=True, slots=True)
class Input:
    """One input of the operator."""

    key: Callable[[Any], Any] | None = None
    broadcast: bool = False
    """Every record goes to every subtask."""


@dataclass(frozen=True, slots=True)
class Subject:
    """An operator that can be made as often as a test restarts it."""

    factory: OperatorFactory
    inputs: tuple[Input, ...]
    uid: str
    name: str
    output_type: TypeInformation | None = None


def subject_of(function: Any, key_by: KeyLike | None, uid: str) -> Subject:
    """The subject for a function object or a factory."""
    key = None if key_by is None else key_spec(key_by, None).selector
    factory = function if isinstance(function, OperatorFactory) else _factory_for(function, key is not None)
    if factory.keyed and key is None:
        raise JobDefinitionError(
            f"{type(function).__name__} works per key: give the harness key_by=, a function from a record to its key."
        )
    name = type(function).__name__
    return Subject(factory, (Input(key),), uid, name)


def _factory_for(function: Any, keyed: bool) -> OperatorFactory:
    match function:
        case KeyedProcessFunction():
            return ProcessFactory(function, keyed=True)
        case ProcessFunction():
            return ProcessFactory(function)
        case MapFunction():
            return MapFactory(function, keyed)
        case FlatMapFunction():
            return FlatMapFactory(function, keyed)
        case FilterFunction():
            return FilterFactory(function, keyed)
        case ReduceFunction():
            return ReduceFactory(function, Types.ANY())
    raise JobDefinitionError(
        f"An operator harness cannot tell what operator {function!r} belongs to. Use "
        "OperatorHarness.of(lambda stream: stream.map(...)), which takes anything that a program can say."
    )


def subject_of_program(
    build: Callable[..., DataStream], input_types: tuple[TypeLike | None, ...], uid: str | None
) -> Subject:
    """The one operator that `build` puts behind its input streams, of which it gets as many as it has parameters."""
    env = StreamExecutionEnvironment()
    wanted = len(signature(build).parameters)
    types = [None if t is None else type_of(t) for t in input_types] + [None] * (wanted - len(input_types))
    streams = [
        env.from_source(CollectionSource([], t), WatermarkStrategy.no_watermarks(), f"input {number}", t)
        for number, t in enumerate(types[:wanted])
    ]
    build(*streams)
    plan, _ = env.build("harness")
    graph = plan.graph
    nodes = [node for node in graph.nodes if not isinstance(node.factory, SourceFactory)]
    if len(nodes) != 1:
        names = ", ".join(f'"{node.name}"' for node in nodes) or "none"
        raise JobDefinitionError(
            f"An operator harness runs one operator, but the program has {len(nodes)}: {names}. "
            "Give it one, or run the whole program with a JobHarness."
        )
    [node] = nodes
    inputs: dict[int, Input] = {}
    for edge in graph.inputs(node.id):
        how = edge.partitioning
        key = how.key.selector if isinstance(how, Hash) else None
        inputs[edge.input] = Input(key, isinstance(how, Broadcast))
    return Subject(
        node.factory,
        tuple(inputs[number] for number in range(len(inputs))),
        uid or node.uid,
        node.name,
        node.output_type,
    )


def own_copy(factory: OperatorFactory) -> OperatorFactory:
    """A copy of the factory and its function, or the factory itself if it holds what cannot be copied."""
    try:
        return copy.deepcopy(factory)
    except TypeError:
        # Such as a lock: a handle of the test's own, by which it steers the function.
        return factory
