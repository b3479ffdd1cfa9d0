"""State, under the names of `pyflink.datastream.state`."""

from __future__ import annotations

from headrace.pyflink.absence import absent
from headrace.state.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from headrace.state.operator_state import OperatorStateStore
from headrace.state.states import (
    AggregatingState,
    BroadcastState,
    ListState,
    MapState,
    ReadOnlyBroadcastState,
    ReducingState,
    State,
    ValueState,
)
from headrace.state.ttl import StateTtlConfig

__all__ = [
    "AggregatingState",
    "AggregatingStateDescriptor",
    "BroadcastState",
    "ListState",
    "ListStateDescriptor",
    "MapState",
    "MapStateDescriptor",
    "OperatorStateStore",
    "ReadOnlyBroadcastState",
    "ReducingState",
    "ReducingStateDescriptor",
    "State",
    "StateDescriptor",
    "StateTtlConfig",
    "ValueState",
    "ValueStateDescriptor",
]

__getattr__ = absent(
    __name__,
    {
        "AppendingState": "states derive from State; ask for the one you need by its own class.",
        "MergingState": "states derive from State; ask for the one you need by its own class.",
    },
)
