"""`from_dataframe` at full speed: Spark reads Parquet into a spool, the job counts the readings of each sensor.

The number of records and of hot readings is compared with what Spark itself counts; a run that differs has no speed.
Prints one line as `harness.py` wants it.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench import dataset
from bench.headrace_job import SLOTS, EndNote, environment, run
from headrace import KeyedProcessFunction, Types, ValueStateDescriptor
from headrace.runtime.spark.session import obtain_session

STARTED = time.time()
HOT = 39.0
WARM_UP_ROWS = 2_000_000


class CountReadings(KeyedProcessFunction):
    """Counts per sensor, and emits the hot ones: the same number in whatever order rows come."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, reading: Any, ctx: Any) -> Iterator[Any]:
        self.count.update((self.count.value() or 0) + 1)
        if reading.temperature > HOT:
            yield reading.id, reading.temperature


def table_of(spark: Any, place: Path) -> Any:
    return spark.read.option("pathGlobFilter", "*.parquet").parquet(str(place))


def frame_of(spark: Any, kind: str, place: Path) -> Any:
    if kind == "batch":
        return table_of(spark, place).select("id", "temperature")
    files = spark.readStream.schema("id string, ts long, temperature double").option("maxFilesPerTrigger", 1)
    return files.option("pathGlobFilter", "*.parquet").parquet(str(place)).select("id", "temperature")


def measured(args: argparse.Namespace, spark: Any, place: Path, name: str) -> dict[str, Any]:
    table = table_of(spark, place)
    rows, hot = table.count(), table.where(f"temperature > {HOT}").count()
    env = environment(args, name)
    directory = args.scratch / f"notes-{name}"
    directory.mkdir()
    trigger = {"availableNow": True} if args.kind == "streaming" else None
    readings = env.from_dataframe(frame_of(spark, args.kind, place), trigger=trigger, source_name="readings")
    readings.key_by(lambda r: r.id).process(CountReadings()).sink_to(EndNote(directory))
    client, watcher = run(env, name)
    result = client.get_job_execution_result().result()
    notes = [p.read_text().split() for p in directory.iterdir()]
    seen = (result.records_read, sum(int(count) for count, _ in notes))
    if seen != (rows, hot):
        raise SystemExit(f"{seen[0]} records and {seen[1]} hot ones, where Spark counts {rows} and {hot}.")
    return {
        "records": result.records_read,
        "alerts": None,
        "seconds_between_first_and_last_record": max(float(last) for _, last in notes) - watcher.running_at[0],
        "started_at": watcher.running_at[0],
        "checkpoints": watcher.checkpoints(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--kind", choices=["batch", "streaming"], default="batch")
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--rows", type=int, default=12_000_000)
    parser.add_argument("--parallelism", type=int, default=2)
    args = parser.parse_args()
    vars(args).update(checkpoint_interval_ms=1_000, mode="exactly-once", backend="heap")
    os.environ.setdefault("HEADRACE_STATE_DIR", str(args.scratch / "status"))
    data = dataset.ensure(keys=args.keys, rows=args.rows)
    warm_up = dataset.ensure(keys=args.keys, rows=min(args.rows, WARM_UP_ROWS))
    handle = obtain_session(None, SLOTS, args.parallelism, "bench", None)
    try:
        first = measured(args, handle.user_session, warm_up.directory, "warm-up")["started_at"]
        line = measured(args, handle.user_session, data.directory, "readings")
    finally:
        handle.stop()
    del line["started_at"]
    versions = {"headrace": version("headrace"), "pyspark": version("pyspark")}
    line = {"peer": "headrace", "variant": args.kind, "startup_seconds": first - STARTED, **line, "versions": versions}
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
