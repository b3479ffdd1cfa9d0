"""Runs a program of PyFlink's style to its end, without Spark."""

from __future__ import annotations

from typing import Any

from headrace.pyflink.datastream import DataStream, StreamExecutionEnvironment
from headrace.testing import JobHarness, ManualClock


def environment(parallelism: int = 1) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(parallelism)
    return env


def collected(stream: DataStream, clock: ManualClock | None = None) -> list[Any]:
    """All records of the stream, when the input has ended."""
    with JobHarness(stream, clock=clock) as job:
        return job.run_to_end()
