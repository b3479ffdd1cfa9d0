"""Two streams that one operator reads: connected streams, and a stream connected with a broadcast."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.errors import JobDefinitionError, KeyedStateError
from headrace.operators.connected_factories import BroadcastFactory, CoFlatMapFactory, CoMapFactory, CoProcessFactory
from headrace.operators.connected_functions import (
    BroadcastProcessFunction,
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
)
from headrace.operators.functions import Function
from headrace.plan.graph import Hash
from headrace.plan.keys import KeyLike
from headrace.state.descriptors import MapStateDescriptor
from headrace.types.information import TypeInformation, TypeLike

if TYPE_CHECKING:
    from headrace.datastream.streams import DataStream

_WHOLE = frozenset({"BYTE", "SHORT", "INT", "LONG", "BIG_INT"})
"""Types whose equal values are one key."""


class ConnectedStreams:
    """Two streams of any types. An operator on them keeps state that both share."""

    def __init__(self, stream1: DataStream, stream2: DataStream) -> None:
        self.stream1 = stream1
        self.stream2 = stream2
        check_same_environment("connect()", stream1, stream2)
        if self._is_keyed():
            check_key_types("connect()", stream1, stream2)

    def key_by(
        self, key_selector1: KeyLike, key_selector2: KeyLike, key_type: TypeLike | None = None
    ) -> ConnectedStreams:
        """Records of one key, of whichever stream, to one subtask. Both selectors must give keys of one type."""
        return ConnectedStreams(
            self.stream1.key_by(key_selector1, key_type), self.stream2.key_by(key_selector2, key_type)
        )

    def map(self, func: CoMapFunction, output_type: TypeLike | None = None) -> DataStream:
        """One record in from either stream, one out."""
        _check_kind("map()", func, CoMapFunction)
        return self.stream1.then_with(self.stream2, "co_map", CoMapFactory(func, self._is_keyed()), output_type)

    def flat_map(self, func: CoFlatMapFunction, output_type: TypeLike | None = None) -> DataStream:
        """One record in from either stream, any number out."""
        _check_kind("flat_map()", func, CoFlatMapFunction)
        factory = CoFlatMapFactory(func, self._is_keyed())
        return self.stream1.then_with(self.stream2, "co_flat_map", factory, output_type)

    def process(
        self, func: CoProcessFunction | KeyedCoProcessFunction, output_type: TypeLike | None = None
    ) -> DataStream:
        """Any number out for each record, with time and side outputs; with state and timers if both have keys."""
        if isinstance(func, KeyedCoProcessFunction) and not self._is_keyed():
            raise KeyedStateError(
                f"process() got the KeyedCoProcessFunction {type(func).__name__} on streams that are not both keyed. "
                "Call key_by(selector1, selector2) on the connected streams first."
            )
        _check_kind("process()", func, (CoProcessFunction, KeyedCoProcessFunction))
        factory = CoProcessFactory(func, self._is_keyed())
        return self.stream1.then_with(self.stream2, "co_process", factory, output_type)

    def _is_keyed(self) -> bool:
        return is_keyed(self.stream1) and is_keyed(self.stream2)


class BroadcastStream:
    """A stream whose records go to every subtask, with the states that they are kept in."""

    def __init__(self, stream: DataStream, descriptors: tuple[MapStateDescriptor, ...]) -> None:
        """`stream` is routed by broadcast already."""
        for descriptor in descriptors:
            if not isinstance(descriptor, MapStateDescriptor):
                raise JobDefinitionError(
                    f"broadcast() got {descriptor!r}; broadcast state is a map. Give a MapStateDescriptor."
                )
        names = [descriptor.name for descriptor in descriptors]
        if len(set(names)) != len(names):
            raise JobDefinitionError(f"broadcast() got one name for two states among {', '.join(names)}. Rename one.")
        self.stream = stream
        self.descriptors = descriptors


class BroadcastConnectedStream:
    """A stream, with keys or without, that meets a broadcast."""

    def __init__(self, stream: DataStream, broadcast: BroadcastStream) -> None:
        check_same_environment("connect()", stream, broadcast.stream)
        self.stream = stream
        self.broadcast_stream = broadcast

    def process(
        self, func: BroadcastProcessFunction | KeyedBroadcastProcessFunction, output_type: TypeLike | None = None
    ) -> DataStream:
        """Any number out for each record of either side."""
        keyed = is_keyed(self.stream)
        if isinstance(func, KeyedBroadcastProcessFunction) and not keyed:
            raise KeyedStateError(
                f"process() got the KeyedBroadcastProcessFunction {type(func).__name__} on a stream without keys. "
                "Call key_by() before connect(), or derive it from BroadcastProcessFunction."
            )
        if isinstance(func, BroadcastProcessFunction) and keyed:
            raise JobDefinitionError(
                f"process() on a keyed stream got the BroadcastProcessFunction {type(func).__name__}, which knows no "
                "key. Derive it from KeyedBroadcastProcessFunction, or connect the stream before key_by()."
            )
        _check_kind("process()", func, (BroadcastProcessFunction, KeyedBroadcastProcessFunction))
        factory = BroadcastFactory(func, self.broadcast_stream.descriptors, keyed)
        return self.stream.then_with(self.broadcast_stream.stream, "broadcast_process", factory, output_type)


def is_keyed(stream: DataStream) -> bool:
    """Whether every record of the stream has a key."""
    return all(isinstance(outlet.partitioning, Hash) for outlet in stream.outlets)


def key_type_of(stream: DataStream) -> TypeInformation | None:
    """Type of the stream's keys, where the program said it or the fields tell."""
    partitioning = stream.outlets[0].partitioning
    return partitioning.key.key_type if isinstance(partitioning, Hash) else None


def check_key_types(call: str, first: DataStream, second: DataStream) -> None:
    """Refuse two keyed streams whose keys can never be equal, as far as their types are known."""
    one, other = key_type_of(first), key_type_of(second)
    if one is None or other is None or one == other or {str(one), str(other)} <= _WHOLE:
        return
    raise JobDefinitionError(
        f"{call} joins keys of type {one} with keys of type {other}, which are never the same key. "
        "Let both selectors give keys of one type."
    )


def check_same_environment(call: str, first: DataStream, second: DataStream) -> None:
    """Refuse to put streams of two programs together."""
    if first.get_execution_environment() is not second.get_execution_environment():
        raise JobDefinitionError(f"{call} got a stream of another environment. Build both in one environment.")


def _check_kind(call: str, func: Any, wanted: type[Function] | tuple[type[Function], ...]) -> None:
    names = " or ".join(kind.__name__ for kind in (wanted if isinstance(wanted, tuple) else (wanted,)))
    if isinstance(func, type) and issubclass(func, Function):
        raise JobDefinitionError(f"{call} got the class {func.__name__}. Write {func.__name__}(...).")
    if not isinstance(func, wanted):
        raise JobDefinitionError(f"{call} of connected streams got {func!r}; wanted a {names}.")
