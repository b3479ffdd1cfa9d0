"""Our side of the join measures: orders and shipments, joined by key and time; one JSON line, as in `headrace_job`."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench import headrace_job, join_dataset
from headrace import DataStream, FileSource, ProcessJoinFunction, StreamExecutionEnvironment, Types, WatermarkStrategy
from headrace.runtime.spark.session import obtain_session

STARTED = time.time()
SLOTS = 8
WARM_UP_ROWS = 200_000


class Pair(ProcessJoinFunction):
    """The pair as a row: key, both times and both amounts."""

    def process_element(self, left: Any, right: Any, ctx: Any) -> Iterator[tuple[str, int, int, float, float]]:
        yield left.id, left.ts, right.ts, left.amount, right.amount


PAIR = Types.TUPLE([Types.STRING(), Types.LONG(), Types.LONG(), Types.DOUBLE(), Types.DOUBLE()])


def side(env: StreamExecutionEnvironment, data: Path, name: str) -> DataStream:
    files = sorted(str(path) for path in data.glob(f"{name}-*.parquet"))
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda row, _: row.ts)
    return env.from_source(FileSource.parquet(*files), strategy, name)


def join(args: argparse.Namespace, data: join_dataset.JoinDataset, name: str) -> dict[str, Any]:
    env = headrace_job.environment(args, name)
    sink = headrace_job.EndNote(headrace_job._fresh(args.scratch, name))
    orders = side(env, data.directory, "orders").key_by(lambda row: row.id)
    shipments = side(env, data.directory, "shipments").key_by(lambda row: row.id)
    joined = orders.interval_join(shipments).between(0, join_dataset.WITHIN_MS).process(Pair(), output_type=PAIR)
    joined.sink_to(sink)
    client, watcher = headrace_job.run(env, name)
    result = client.get_job_execution_result().result()
    notes = [path.read_text().split() for path in sink.directory.iterdir()]
    pairs = sum(int(count) for count, _ in notes)
    if (result.records_read, pairs) != (data.rows, data.pairs):
        raise SystemExit(
            f"The join is wrong: {result.records_read} records and {pairs} pairs, where {data.directory.name} has "
            f"{data.rows} and {data.pairs}."
        )
    start = watcher.running_at[0]
    return {
        "records": result.records_read,
        "pairs": pairs,
        "seconds_between_first_and_last_record": max(float(last) for _, last in notes) - start,
        "startup_seconds": start - STARTED,
        "checkpoints": watcher.checkpoints() if args.checkpoint_interval_ms else None,
    }


def main() -> None:
    """Warm up, run, print the one line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--backend", choices=["heap", "rocksdb"], default="heap")
    parser.add_argument("--mode", choices=["exactly-once", "at-least-once", "unaligned"], default="exactly-once")
    parser.add_argument("--checkpoint-interval-ms", type=int, default=0)
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--scratch", type=Path, required=True)
    args = parser.parse_args()
    os.environ.setdefault("HEADRACE_STATE_DIR", str(args.scratch / "status"))
    data = join_dataset.ensure(args.keys, args.rows)
    warm_up = join_dataset.ensure(args.keys, min(WARM_UP_ROWS, args.rows))
    handle = obtain_session(None, SLOTS, args.parallelism, "bench-join", None)
    try:
        first = join(args, warm_up, "warm-up")
        line = join(args, data, "join")
    finally:
        handle.stop()
    variant = f"{args.backend}, {args.checkpoint_interval_ms or 'no checkpoints'}"
    versions = {"headrace": version("headrace"), "pyspark": version("pyspark")}
    line["startup_seconds"] = first["startup_seconds"]
    print(json.dumps({"peer": "headrace", "variant": variant, **line, "versions": versions}), flush=True)


if __name__ == "__main__":
    main()
