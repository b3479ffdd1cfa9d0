"""Headrace: Flink's model of state and fault tolerance on Spark, in Python.

Everyday names live here and load when they are first used, so that `import headrace` is quick and needs neither Spark
nor a connector. Specialist ones live a level down, such as `headrace.connectors.files.RollingPolicy`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.backends.heap.options import HeapOptions
    from headrace.backends.rocksdb.options import RocksDBOptions
    from headrace.checkpoint.storage.base import CheckpointStorage
    from headrace.checkpoint.storage.filesystem import FileSystemCheckpointStorage
    from headrace.checkpoint.storage.memory import JobManagerCheckpointStorage
    from headrace.connectors.files.encoders import Encoder
    from headrace.connectors.files.sink import FileSink
    from headrace.connectors.files.source import FileSource, StreamFormat
    from headrace.connectors.idempotent import IdempotentSink
    from headrace.connectors.sensors import SensorSource
    from headrace.connectors.sequence import NumberSequenceSource
    from headrace.connectors.sink import Sink
    from headrace.connectors.socket_source import SocketSource
    from headrace.connectors.source import Source
    from headrace.connectors.two_phase import TwoPhaseCommitSink, TwoPhaseCommitSinkFunction
    from headrace.connectors.write_ahead import GenericWriteAheadSink, WriteAheadSink
    from headrace.datastream.async_stream import AsyncDataStream
    from headrace.datastream.backends import (
        EmbeddedRocksDBStateBackend,
        FsStateBackend,
        HashMapStateBackend,
        MemoryStateBackend,
        RocksDBStateBackend,
    )
    from headrace.datastream.batch import RuntimeExecutionMode
    from headrace.datastream.checkpointing import CheckpointConfig
    from headrace.datastream.collect import CloseableIterator
    from headrace.datastream.config import ExecutionConfig
    from headrace.datastream.connected import (
        BroadcastConnectedStream,
        BroadcastStream,
        ConnectedStreams,
    )
    from headrace.datastream.environment import StreamExecutionEnvironment
    from headrace.datastream.sink import DataStreamSink
    from headrace.datastream.streams import DataStream, KeyedStream
    from headrace.datastream.windowed import AllWindowedStream, WindowedStream
    from headrace.durations import Duration, Time
    from headrace.errors import HeadraceError, JobDefinitionError, JobFailedError
    from headrace.operators.async_functions import AsyncFunction, AsyncRetryStrategy
    from headrace.operators.checkpointed import (
        CheckpointedFunction,
        FunctionInitializationContext,
        FunctionSnapshotContext,
    )
    from headrace.operators.connected_functions import (
        BroadcastProcessFunction,
        CoFlatMapFunction,
        CoMapFunction,
        CoProcessFunction,
        KeyedBroadcastProcessFunction,
        KeyedCoProcessFunction,
        ProcessJoinFunction,
    )
    from headrace.operators.functions import (
        AggregateFunction,
        CheckpointListener,
        FilterFunction,
        FlatMapFunction,
        KeyedProcessFunction,
        KeySelector,
        MapFunction,
        OutputTag,
        Partitioner,
        ProcessFunction,
        ReduceFunction,
        RichAggregateFunction,
        RichFilterFunction,
        RichFlatMapFunction,
        RichFunction,
        RichMapFunction,
        RichReduceFunction,
        RuntimeContext,
        TimeDomain,
        TimerService,
    )
    from headrace.operators.watermarks import (
        MAX_WATERMARK,
        MIN_WATERMARK,
        TimestampAssigner,
        WatermarkGenerator,
        WatermarkStrategy,
    )
    from headrace.operators.windows.assigners import (
        CountSlidingWindowAssigner,
        CountTumblingWindowAssigner,
        EventTimeSessionWindows,
        GlobalWindows,
        MergingWindowAssigner,
        ProcessingTimeSessionWindows,
        SessionWindowTimeGapExtractor,
        SlidingEventTimeWindows,
        SlidingProcessingTimeWindows,
        TumblingEventTimeWindows,
        TumblingProcessingTimeWindows,
        WindowAssigner,
    )
    from headrace.operators.windows.evictors import CountEvictor, DeltaEvictor, Evictor, TimeEvictor
    from headrace.operators.windows.functions import (
        AllWindowFunction,
        CoGroupFunction,
        FlatJoinFunction,
        JoinFunction,
        ProcessAllWindowFunction,
        ProcessWindowFunction,
        WindowFunction,
    )
    from headrace.operators.windows.triggers import (
        ContinuousEventTimeTrigger,
        ContinuousProcessingTimeTrigger,
        CountTrigger,
        DeltaTrigger,
        EventTimeTrigger,
        NeverTrigger,
        ProcessingTimeTrigger,
        PurgingTrigger,
        Trigger,
        TriggerResult,
    )
    from headrace.operators.windows.windows import CountWindow, GlobalWindow, TimeWindow, Window
    from headrace.options import Configuration
    from headrace.plan.restart import (
        ExponentialDelayRestart,
        FailureRateRestart,
        FixedDelayRestart,
        NoRestart,
        RestartStrategies,
    )
    from headrace.plan.settings import CheckpointingMode, ExternalizedCheckpointRetention
    from headrace.runtime.job.client import JobClient, JobExecutionResult
    from headrace.runtime.job.status import JobStatus
    from headrace.runtime.spark.settings import spark_conf
    from headrace.state.descriptors import (
        AggregatingStateDescriptor,
        ListStateDescriptor,
        MapStateDescriptor,
        ReducingStateDescriptor,
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
        ValueState,
    )
    from headrace.state.ttl import StateTtlConfig
    from headrace.types.information import TypeInformation, Types
    from headrace.types.rows import Row, RowKind

_HOMES = {
    "headrace.datastream.async_stream": ("AsyncDataStream",),
    "headrace.datastream.connected": (
        "BroadcastConnectedStream",
        "BroadcastStream",
        "ConnectedStreams",
    ),
    "headrace.datastream.windowed": (
        "AllWindowedStream",
        "WindowedStream",
    ),
    "headrace.operators.async_functions": (
        "AsyncFunction",
        "AsyncRetryStrategy",
    ),
    "headrace.operators.checkpointed": (
        "CheckpointedFunction",
        "FunctionInitializationContext",
        "FunctionSnapshotContext",
    ),
    "headrace.operators.connected_functions": (
        "BroadcastProcessFunction",
        "CoFlatMapFunction",
        "CoMapFunction",
        "CoProcessFunction",
        "KeyedBroadcastProcessFunction",
        "KeyedCoProcessFunction",
        "ProcessJoinFunction",
    ),
    "headrace.operators.windows.assigners": (
        "CountSlidingWindowAssigner",
        "CountTumblingWindowAssigner",
        "EventTimeSessionWindows",
        "GlobalWindows",
        "MergingWindowAssigner",
        "ProcessingTimeSessionWindows",
        "SessionWindowTimeGapExtractor",
        "SlidingEventTimeWindows",
        "SlidingProcessingTimeWindows",
        "TumblingEventTimeWindows",
        "TumblingProcessingTimeWindows",
        "WindowAssigner",
    ),
    "headrace.operators.windows.evictors": (
        "CountEvictor",
        "DeltaEvictor",
        "Evictor",
        "TimeEvictor",
    ),
    "headrace.operators.windows.functions": (
        "AllWindowFunction",
        "CoGroupFunction",
        "FlatJoinFunction",
        "JoinFunction",
        "ProcessAllWindowFunction",
        "ProcessWindowFunction",
        "WindowFunction",
    ),
    "headrace.operators.windows.triggers": (
        "ContinuousEventTimeTrigger",
        "ContinuousProcessingTimeTrigger",
        "CountTrigger",
        "DeltaTrigger",
        "EventTimeTrigger",
        "NeverTrigger",
        "ProcessingTimeTrigger",
        "PurgingTrigger",
        "Trigger",
        "TriggerResult",
    ),
    "headrace.operators.windows.windows": (
        "CountWindow",
        "GlobalWindow",
        "TimeWindow",
        "Window",
    ),
    "headrace.backends.heap.options": ("HeapOptions",),
    "headrace.backends.rocksdb.options": ("RocksDBOptions",),
    "headrace.checkpoint.storage.base": ("CheckpointStorage",),
    "headrace.checkpoint.storage.filesystem": ("FileSystemCheckpointStorage",),
    "headrace.checkpoint.storage.memory": ("JobManagerCheckpointStorage",),
    "headrace.connectors.files.encoders": ("Encoder",),
    "headrace.connectors.files.sink": ("FileSink",),
    "headrace.connectors.files.source": (
        "FileSource",
        "StreamFormat",
    ),
    "headrace.connectors.idempotent": ("IdempotentSink",),
    "headrace.connectors.sensors": ("SensorSource",),
    "headrace.connectors.sequence": ("NumberSequenceSource",),
    "headrace.connectors.sink": ("Sink",),
    "headrace.connectors.source": ("Source",),
    "headrace.connectors.socket_source": ("SocketSource",),
    "headrace.connectors.two_phase": ("TwoPhaseCommitSink", "TwoPhaseCommitSinkFunction"),
    "headrace.connectors.write_ahead": ("GenericWriteAheadSink", "WriteAheadSink"),
    "headrace.datastream.backends": (
        "EmbeddedRocksDBStateBackend",
        "FsStateBackend",
        "HashMapStateBackend",
        "MemoryStateBackend",
        "RocksDBStateBackend",
    ),
    "headrace.datastream.batch": ("RuntimeExecutionMode",),
    "headrace.datastream.checkpointing": ("CheckpointConfig",),
    "headrace.datastream.collect": ("CloseableIterator",),
    "headrace.datastream.config": ("ExecutionConfig",),
    "headrace.datastream.environment": ("StreamExecutionEnvironment",),
    "headrace.datastream.sink": ("DataStreamSink",),
    "headrace.datastream.streams": (
        "DataStream",
        "KeyedStream",
    ),
    "headrace.durations": (
        "Duration",
        "Time",
    ),
    "headrace.errors": (
        "HeadraceError",
        "JobDefinitionError",
        "JobFailedError",
    ),
    "headrace.operators.functions": (
        "AggregateFunction",
        "CheckpointListener",
        "FilterFunction",
        "FlatMapFunction",
        "KeySelector",
        "KeyedProcessFunction",
        "MapFunction",
        "OutputTag",
        "Partitioner",
        "ProcessFunction",
        "ReduceFunction",
        "RichAggregateFunction",
        "RichFilterFunction",
        "RichFlatMapFunction",
        "RichFunction",
        "RichMapFunction",
        "RichReduceFunction",
        "RuntimeContext",
        "TimeDomain",
        "TimerService",
    ),
    "headrace.operators.watermarks": (
        "MAX_WATERMARK",
        "MIN_WATERMARK",
        "TimestampAssigner",
        "WatermarkGenerator",
        "WatermarkStrategy",
    ),
    "headrace.options": ("Configuration",),
    "headrace.plan.settings": (
        "CheckpointingMode",
        "ExternalizedCheckpointRetention",
    ),
    "headrace.plan.restart": (
        "ExponentialDelayRestart",
        "FailureRateRestart",
        "FixedDelayRestart",
        "NoRestart",
        "RestartStrategies",
    ),
    "headrace.runtime.job.client": ("JobClient", "JobExecutionResult"),
    "headrace.runtime.job.status": ("JobStatus",),
    "headrace.runtime.spark.settings": ("spark_conf",),
    "headrace.state.descriptors": (
        "AggregatingStateDescriptor",
        "ListStateDescriptor",
        "MapStateDescriptor",
        "ReducingStateDescriptor",
        "ValueStateDescriptor",
    ),
    "headrace.state.operator_state": ("OperatorStateStore",),
    "headrace.state.states": (
        "AggregatingState",
        "BroadcastState",
        "ListState",
        "MapState",
        "ReadOnlyBroadcastState",
        "ReducingState",
        "ValueState",
    ),
    "headrace.state.ttl": ("StateTtlConfig",),
    "headrace.types.information": (
        "TypeInformation",
        "Types",
    ),
    "headrace.types.rows": ("Row", "RowKind"),
}
"""Where each public name is defined."""

__all__ = [
    "MAX_WATERMARK",
    "MIN_WATERMARK",
    "AggregateFunction",
    "AggregatingState",
    "AggregatingStateDescriptor",
    "AllWindowFunction",
    "AllWindowedStream",
    "AsyncDataStream",
    "AsyncFunction",
    "AsyncRetryStrategy",
    "BroadcastConnectedStream",
    "BroadcastProcessFunction",
    "BroadcastState",
    "BroadcastStream",
    "CheckpointConfig",
    "CheckpointListener",
    "CheckpointStorage",
    "CheckpointedFunction",
    "CheckpointingMode",
    "CloseableIterator",
    "CoFlatMapFunction",
    "CoGroupFunction",
    "CoMapFunction",
    "CoProcessFunction",
    "Configuration",
    "ConnectedStreams",
    "ContinuousEventTimeTrigger",
    "ContinuousProcessingTimeTrigger",
    "CountEvictor",
    "CountSlidingWindowAssigner",
    "CountTrigger",
    "CountTumblingWindowAssigner",
    "CountWindow",
    "DataStream",
    "DataStreamSink",
    "DeltaEvictor",
    "DeltaTrigger",
    "Duration",
    "EmbeddedRocksDBStateBackend",
    "Encoder",
    "EventTimeSessionWindows",
    "EventTimeTrigger",
    "Evictor",
    "ExecutionConfig",
    "ExponentialDelayRestart",
    "ExternalizedCheckpointRetention",
    "FailureRateRestart",
    "FileSink",
    "FileSource",
    "FileSystemCheckpointStorage",
    "FilterFunction",
    "FixedDelayRestart",
    "FlatJoinFunction",
    "FlatMapFunction",
    "FsStateBackend",
    "FunctionInitializationContext",
    "FunctionSnapshotContext",
    "GenericWriteAheadSink",
    "GlobalWindow",
    "GlobalWindows",
    "HashMapStateBackend",
    "HeadraceError",
    "HeapOptions",
    "IdempotentSink",
    "JobClient",
    "JobDefinitionError",
    "JobExecutionResult",
    "JobFailedError",
    "JobManagerCheckpointStorage",
    "JobStatus",
    "JoinFunction",
    "KeySelector",
    "KeyedBroadcastProcessFunction",
    "KeyedCoProcessFunction",
    "KeyedProcessFunction",
    "KeyedStream",
    "ListState",
    "ListStateDescriptor",
    "MapFunction",
    "MapState",
    "MapStateDescriptor",
    "MemoryStateBackend",
    "MergingWindowAssigner",
    "NeverTrigger",
    "NoRestart",
    "NumberSequenceSource",
    "OperatorStateStore",
    "OutputTag",
    "Partitioner",
    "ProcessAllWindowFunction",
    "ProcessFunction",
    "ProcessJoinFunction",
    "ProcessWindowFunction",
    "ProcessingTimeSessionWindows",
    "ProcessingTimeTrigger",
    "PurgingTrigger",
    "ReadOnlyBroadcastState",
    "ReduceFunction",
    "ReducingState",
    "ReducingStateDescriptor",
    "RestartStrategies",
    "RichAggregateFunction",
    "RichFilterFunction",
    "RichFlatMapFunction",
    "RichFunction",
    "RichMapFunction",
    "RichReduceFunction",
    "RocksDBOptions",
    "RocksDBStateBackend",
    "Row",
    "RowKind",
    "RuntimeContext",
    "RuntimeExecutionMode",
    "SensorSource",
    "SessionWindowTimeGapExtractor",
    "Sink",
    "SlidingEventTimeWindows",
    "SlidingProcessingTimeWindows",
    "SocketSource",
    "Source",
    "StateTtlConfig",
    "StreamExecutionEnvironment",
    "StreamFormat",
    "Time",
    "TimeDomain",
    "TimeEvictor",
    "TimeWindow",
    "TimerService",
    "TimestampAssigner",
    "Trigger",
    "TriggerResult",
    "TumblingEventTimeWindows",
    "TumblingProcessingTimeWindows",
    "TwoPhaseCommitSink",
    "TwoPhaseCommitSinkFunction",
    "TypeInformation",
    "Types",
    "ValueState",
    "ValueStateDescriptor",
    "WatermarkGenerator",
    "WatermarkStrategy",
    "Window",
    "WindowAssigner",
    "WindowFunction",
    "WindowedStream",
    "WriteAheadSink",
    "spark_conf",
]

_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
