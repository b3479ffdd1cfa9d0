"""The DataStream API, under the names of `pyflink.datastream`."""

from __future__ import annotations

from headrace.pyflink.absence import absent
from headrace.pyflink.datastream.async_data_stream import AsyncDataStream
from headrace.pyflink.datastream.async_retry_strategies import AsyncRetryStrategy
from headrace.pyflink.datastream.checkpoint_config import CheckpointConfig
from headrace.pyflink.datastream.checkpoint_storage import (
    CheckpointStorage,
    FileSystemCheckpointStorage,
    JobManagerCheckpointStorage,
)
from headrace.pyflink.datastream.checkpointing_mode import CheckpointingMode
from headrace.pyflink.datastream.data_stream import (
    AllWindowedStream,
    BroadcastConnectedStream,
    BroadcastStream,
    CloseableIterator,
    ConnectedStreams,
    DataStream,
    DataStreamSink,
    KeyedStream,
    WindowedStream,
)
from headrace.pyflink.datastream.execution_mode import RuntimeExecutionMode
from headrace.pyflink.datastream.externalized_checkpoint_retention import ExternalizedCheckpointRetention
from headrace.pyflink.datastream.functions import (
    AggregateFunction,
    AllWindowFunction,
    AsyncFunction,
    BroadcastProcessFunction,
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    FilterFunction,
    FlatMapFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    KeySelector,
    MapFunction,
    Partitioner,
    ProcessAllWindowFunction,
    ProcessFunction,
    ProcessWindowFunction,
    ReduceFunction,
    RuntimeContext,
    WindowFunction,
)
from headrace.pyflink.datastream.output_tag import OutputTag
from headrace.pyflink.datastream.slot_sharing_group import MemorySize, SlotSharingGroup
from headrace.pyflink.datastream.state_backend import (
    EmbeddedRocksDBStateBackend,
    FsStateBackend,
    HashMapStateBackend,
    MemoryStateBackend,
    PredefinedOptions,
    RocksDBStateBackend,
    StateBackend,
)
from headrace.pyflink.datastream.stream_execution_environment import StreamExecutionEnvironment
from headrace.pyflink.datastream.time_domain import TimeDomain
from headrace.pyflink.datastream.timerservice import TimerService
from headrace.pyflink.datastream.window import (
    CountWindow,
    GlobalWindow,
    MergingWindowAssigner,
    TimeWindow,
    Trigger,
    TriggerResult,
    Window,
    WindowAssigner,
)

__all__ = [
    "AggregateFunction",
    "AllWindowFunction",
    "AllWindowedStream",
    "AsyncDataStream",
    "AsyncFunction",
    "AsyncRetryStrategy",
    "BroadcastConnectedStream",
    "BroadcastProcessFunction",
    "BroadcastStream",
    "CheckpointConfig",
    "CheckpointStorage",
    "CheckpointingMode",
    "CloseableIterator",
    "CoFlatMapFunction",
    "CoMapFunction",
    "CoProcessFunction",
    "ConnectedStreams",
    "CountWindow",
    "DataStream",
    "DataStreamSink",
    "EmbeddedRocksDBStateBackend",
    "ExternalizedCheckpointRetention",
    "FileSystemCheckpointStorage",
    "FilterFunction",
    "FlatMapFunction",
    "FsStateBackend",
    "GlobalWindow",
    "HashMapStateBackend",
    "JobManagerCheckpointStorage",
    "KeySelector",
    "KeyedBroadcastProcessFunction",
    "KeyedCoProcessFunction",
    "KeyedProcessFunction",
    "KeyedStream",
    "MapFunction",
    "MemorySize",
    "MemoryStateBackend",
    "MergingWindowAssigner",
    "OutputTag",
    "Partitioner",
    "PredefinedOptions",
    "ProcessAllWindowFunction",
    "ProcessFunction",
    "ProcessWindowFunction",
    "ReduceFunction",
    "RocksDBStateBackend",
    "RuntimeContext",
    "RuntimeExecutionMode",
    "SlotSharingGroup",
    "StateBackend",
    "StreamExecutionEnvironment",
    "TimeDomain",
    "TimeWindow",
    "TimerService",
    "Trigger",
    "TriggerResult",
    "Window",
    "WindowAssigner",
    "WindowFunction",
    "WindowedStream",
]

__getattr__ = absent(
    __name__,
    {
        "SourceFunction": "it wraps a class of Java. Derive one from headrace.Source, or see headrace.connectors.",
        "SinkFunction": "it wraps a class of Java. Derive one from headrace.Sink, or see headrace.connectors.",
        "CachedDataStream": "no results are kept between jobs. Write them with sink_to() and read them again.",
        "CustomStateBackend": "it wraps a class of Java. Use HashMapStateBackend or EmbeddedRocksDBStateBackend.",
        "CustomCheckpointStorage": "it wraps a class of Java. Derive a storage from headrace.CheckpointStorage.",
        "TimeCharacteristic": "time follows from the windows and timers that a job uses, as in Flink 2.",
        "ExternalizedCheckpointCleanup": "it is called ExternalizedCheckpointRetention, as in Flink 2.",
    },
)
