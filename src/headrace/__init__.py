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
    from headrace.connectors.sensors import SensorSource
    from headrace.connectors.sequence import NumberSequenceSource
    from headrace.connectors.sink import Sink
    from headrace.connectors.source import Source
    from headrace.connectors.two_phase import TwoPhaseCommitSink
    from headrace.datastream.backends import (
        EmbeddedRocksDBStateBackend,
        FsStateBackend,
        HashMapStateBackend,
        MemoryStateBackend,
        RocksDBStateBackend,
    )
    from headrace.datastream.checkpointing import CheckpointConfig
    from headrace.datastream.collect import CloseableIterator
    from headrace.datastream.config import ExecutionConfig
    from headrace.datastream.environment import StreamExecutionEnvironment
    from headrace.datastream.sink import DataStreamSink
    from headrace.datastream.streams import DataStream, KeyedStream
    from headrace.durations import Duration, Time
    from headrace.errors import HeadraceError, JobDefinitionError, JobFailedError
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
    from headrace.state.states import AggregatingState, ListState, MapState, ReducingState, ValueState
    from headrace.types.information import TypeInformation, Types
    from headrace.types.rows import Row

_HOMES = {
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
    "headrace.connectors.sensors": ("SensorSource",),
    "headrace.connectors.sequence": ("NumberSequenceSource",),
    "headrace.connectors.sink": ("Sink",),
    "headrace.connectors.source": ("Source",),
    "headrace.connectors.two_phase": ("TwoPhaseCommitSink",),
    "headrace.datastream.backends": (
        "EmbeddedRocksDBStateBackend",
        "FsStateBackend",
        "HashMapStateBackend",
        "MemoryStateBackend",
        "RocksDBStateBackend",
    ),
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
    "headrace.state.states": (
        "AggregatingState",
        "ListState",
        "MapState",
        "ReducingState",
        "ValueState",
    ),
    "headrace.types.information": (
        "TypeInformation",
        "Types",
    ),
    "headrace.types.rows": ("Row",),
}
"""Where each public name is defined."""

__all__ = [
    "MAX_WATERMARK",
    "MIN_WATERMARK",
    "AggregateFunction",
    "AggregatingState",
    "AggregatingStateDescriptor",
    "CheckpointConfig",
    "CheckpointListener",
    "CheckpointStorage",
    "CheckpointingMode",
    "CloseableIterator",
    "Configuration",
    "DataStream",
    "DataStreamSink",
    "Duration",
    "EmbeddedRocksDBStateBackend",
    "Encoder",
    "ExecutionConfig",
    "ExponentialDelayRestart",
    "ExternalizedCheckpointRetention",
    "FailureRateRestart",
    "FileSink",
    "FileSource",
    "FileSystemCheckpointStorage",
    "FilterFunction",
    "FixedDelayRestart",
    "FlatMapFunction",
    "FsStateBackend",
    "HashMapStateBackend",
    "HeadraceError",
    "HeapOptions",
    "JobClient",
    "JobDefinitionError",
    "JobExecutionResult",
    "JobFailedError",
    "JobManagerCheckpointStorage",
    "JobStatus",
    "KeySelector",
    "KeyedProcessFunction",
    "KeyedStream",
    "ListState",
    "ListStateDescriptor",
    "MapFunction",
    "MapState",
    "MapStateDescriptor",
    "MemoryStateBackend",
    "NoRestart",
    "NumberSequenceSource",
    "OutputTag",
    "Partitioner",
    "ProcessFunction",
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
    "RuntimeContext",
    "SensorSource",
    "Sink",
    "Source",
    "StreamExecutionEnvironment",
    "StreamFormat",
    "Time",
    "TimeDomain",
    "TimerService",
    "TimestampAssigner",
    "TwoPhaseCommitSink",
    "TypeInformation",
    "Types",
    "ValueState",
    "ValueStateDescriptor",
    "WatermarkGenerator",
    "WatermarkStrategy",
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
