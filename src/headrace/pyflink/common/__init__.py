"""What all of PyFlink's APIs share, under the names of `pyflink.common`."""

from __future__ import annotations

from headrace.pyflink.absence import absent
from headrace.pyflink.common.completable_future import CompletableFuture
from headrace.pyflink.common.configuration import Configuration
from headrace.pyflink.common.execution_config import ExecutionConfig
from headrace.pyflink.common.job_client import JobClient
from headrace.pyflink.common.job_execution_result import JobExecutionResult
from headrace.pyflink.common.job_status import JobStatus
from headrace.pyflink.common.restart_strategy import RestartStrategies, RestartStrategyConfiguration
from headrace.pyflink.common.serialization import (
    DeserializationSchema,
    Encoder,
    SerializationSchema,
    SimpleStringSchema,
)
from headrace.pyflink.common.time import Duration, Instant, Time
from headrace.pyflink.common.typeinfo import TypeInformation, Types
from headrace.pyflink.common.types import Row, RowKind
from headrace.pyflink.common.watermark_strategy import WatermarkStrategy

__all__ = [
    "CompletableFuture",
    "Configuration",
    "DeserializationSchema",
    "Duration",
    "Encoder",
    "ExecutionConfig",
    "Instant",
    "JobClient",
    "JobExecutionResult",
    "JobStatus",
    "RestartStrategies",
    "RestartStrategyConfiguration",
    "Row",
    "RowKind",
    "SerializationSchema",
    "SimpleStringSchema",
    "Time",
    "TypeInformation",
    "Types",
    "WatermarkStrategy",
]

__getattr__ = absent(
    __name__,
    {
        "JobID": "JobClient.get_job_id() gives a str.",
        "ExecutionMode": "Spark schedules the tasks; there is nothing to choose.",
        "InputDependencyConstraint": "Spark schedules the tasks; there is nothing to choose.",
        "BulkWriterFactory": "FileSink.for_bulk_format() takes a headrace.connectors.files.OutputFormat.",
        "RowDataBulkWriterFactory": "FileSink.for_bulk_format() takes a headrace.connectors.files.OutputFormat.",
    },
)
