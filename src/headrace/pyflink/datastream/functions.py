"""User functions, under the names of `pyflink.datastream.functions`."""

from __future__ import annotations

from headrace.operators.async_functions import AsyncFunction, AsyncRetryStrategy
from headrace.operators.connected_functions import (
    BroadcastProcessFunction,
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
)
from headrace.operators.functions import (
    AggregateFunction,
    FilterFunction,
    FlatMapFunction,
    Function,
    KeyedProcessFunction,
    KeyedStateStore,
    KeySelector,
    MapFunction,
    Partitioner,
    ProcessFunction,
    ReduceFunction,
    RuntimeContext,
    TimerService,
)
from headrace.operators.windows.functions import (
    AllWindowFunction,
    ProcessAllWindowFunction,
    ProcessWindowFunction,
    WindowFunction,
)
from headrace.pyflink.absence import absent
from headrace.pyflink.datastream.async_retry_predicates import empty_result_predicate, has_exception_predicate

__all__ = [
    "AggregateFunction",
    "AllWindowFunction",
    "AsyncFunction",
    "AsyncRetryStrategy",
    "BroadcastProcessFunction",
    "CoFlatMapFunction",
    "CoMapFunction",
    "CoProcessFunction",
    "FilterFunction",
    "FlatMapFunction",
    "Function",
    "KeySelector",
    "KeyedBroadcastProcessFunction",
    "KeyedCoProcessFunction",
    "KeyedProcessFunction",
    "KeyedStateStore",
    "MapFunction",
    "Partitioner",
    "ProcessAllWindowFunction",
    "ProcessFunction",
    "ProcessWindowFunction",
    "ReduceFunction",
    "RuntimeContext",
    "TimerService",
    "WindowFunction",
    "empty_result_predicate",
    "has_exception_predicate",
]

__getattr__ = absent(
    __name__,
    {
        "SourceFunction": "it wraps a class of Java. Derive one from headrace.Source, or see headrace.connectors.",
        "SinkFunction": "it wraps a class of Java. Derive one from headrace.Sink, or see headrace.connectors.",
    },
)
