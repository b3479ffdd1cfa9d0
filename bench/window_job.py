"""Our side of the window measures: the average of each sensor and minute; one JSON line, as in `headrace_job`."""

from __future__ import annotations

import argparse
import json
import os
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench import headrace_job, window_dataset
from headrace import (
    AggregateFunction,
    DataStream,
    FileSource,
    Sink,
    TumblingEventTimeWindows,
    Types,
    WatermarkStrategy,
)
from headrace.connectors.sink import SinkWriter, WriterContext
from headrace.runtime.spark.session import obtain_session

STARTED = time.time()
SLOTS = 8
MINUTE = TumblingEventTimeWindows.of(window_dataset.SIZE_MS)


class Average(AggregateFunction):
    """As a user writes it: called with every reading."""

    def create_accumulator(self) -> tuple[float, int]:
        return 0.0, 0

    def add(self, value: Any, accumulator: tuple[float, int]) -> tuple[float, int]:
        return accumulator[0] + value.temperature, accumulator[1] + 1

    def get_result(self, accumulator: tuple[float, int]) -> float:
        return accumulator[0] / accumulator[1]

    def merge(self, acc1: tuple[float, int], acc2: tuple[float, int]) -> tuple[float, int]:
        return acc1[0] + acc2[0], acc1[1] + acc2[1]


def averages(readings: DataStream, columns: bool) -> DataStream:
    """The stream of averages, the mean being the record itself or its field."""
    if columns:
        return readings.key_by("id").window(MINUTE).aggregate_columns(mean=("temperature", "avg"))
    accumulator = Types.TUPLE([Types.DOUBLE(), Types.LONG()])
    return readings.key_by("id").window(MINUTE).aggregate(Average(), accumulator_type=accumulator)


class MeanSink(Sink):
    """Counts and adds up the averages, and notes when the last came."""

    def __init__(self, directory: Path, columns: bool) -> None:
        self.directory = directory
        self.columns = columns

    def create_writer(self, context: WriterContext) -> SinkWriter:
        return (_ColumnWriter if self.columns else _MeanWriter)(self.directory / str(context.subtask))


class _MeanWriter(SinkWriter):
    def __init__(self, path: Path) -> None:
        self._path = path
        self._count = 0
        self._sum = 0.0

    def write(self, value: Any, timestamp: int | None) -> None:
        self._count += 1
        self._sum += value

    def flush(self) -> None:
        self._path.write_text(f"{self._count} {self._sum!r} {time.time()!r}")


class _ColumnWriter(_MeanWriter):
    def write(self, value: Any, timestamp: int | None) -> None:
        self._count += 1
        self._sum += value.mean


def windows(args: argparse.Namespace, data: window_dataset.WindowDataset, name: str) -> dict[str, Any]:
    env = headrace_job.environment(args, name)
    files = sorted(str(path) for path in data.directory.glob("*.parquet"))
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda row, _: row.ts)
    readings = env.from_source(FileSource.parquet(*files), strategy, "readings")
    sink = MeanSink(headrace_job._fresh(args.scratch, name), args.api == "columns")
    averages(readings, args.api == "columns").sink_to(sink)
    client, watcher = headrace_job.run(env, name)
    result = client.get_job_execution_result().result()
    notes = [path.read_text().split() for path in sink.directory.iterdir()]
    count = sum(int(note[0]) for note in notes)
    data.check(result.records_read, count, sum(float(note[1]) for note in notes))
    start = watcher.running_at[0]
    return {
        "records": result.records_read,
        "windows": count,
        "seconds_between_first_and_last_record": max(float(note[2]) for note in notes) - start,
        "startup_seconds": start - STARTED,
        "checkpoints": watcher.checkpoints() if args.checkpoint_interval_ms else None,
    }


def main() -> None:
    """Warm up, run, print the one line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--api", choices=["python", "columns"], default="python")
    parser.add_argument("--backend", choices=["heap", "rocksdb"], default="heap")
    parser.add_argument("--mode", choices=["exactly-once", "at-least-once", "unaligned"], default="exactly-once")
    parser.add_argument("--checkpoint-interval-ms", type=int, default=0)
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--scratch", type=Path, required=True)
    args = parser.parse_args()
    os.environ.setdefault("HEADRACE_STATE_DIR", str(args.scratch / "status"))
    data = window_dataset.ensure(args.keys, args.rows)
    small = window_dataset.ensure(args.keys, min(window_dataset.WARM_UP_ROWS, args.rows))
    handle = obtain_session(None, SLOTS, args.parallelism, "bench-windows", None)
    try:
        first = windows(args, small, "warm-up")
        line = windows(args, data, "windows")
    finally:
        handle.stop()
    variant = f"{args.api}, {args.backend}, {args.checkpoint_interval_ms or 'no checkpoints'}"
    versions = {"headrace": version("headrace"), "pyspark": version("pyspark")}
    line["startup_seconds"] = first["startup_seconds"]
    print(json.dumps({"peer": "headrace", "variant": variant, **line, "versions": versions}), flush=True)


if __name__ == "__main__":
    main()
