"""Peer: Spark SQL's windowed aggregation (`groupBy(window, id).avg`), PySpark 4.3, `local[2]`, all of it in the JVM.

    python bench/peers/spark_windows.py --keys N --rows N --mode stream|batch --rows-per-batch N --state memory|rocksdb

As a stream: with a watermark, in append mode, rows cut into time slices before the clock starts, one slice for each
micro-batch; the clock runs from the start of the first micro-batch with rows to the end of the last one. Spark gives no
window that the watermark has not closed, so the last minute is not among its results. As a batch: one query over all
files, from its start to its end. A shorter run comes first in the same session.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import Any

STARTED = time.time()

sys.path.insert(0, str(Path(__file__).parents[2]))

import pyarrow.parquet as pq  # noqa: E402  (imports are part of the start-up that is timed)
from pyspark.sql import DataFrame, Observation, SparkSession  # noqa: E402
from pyspark.sql import functions as F  # noqa: E402

from bench import window_dataset  # noqa: E402

INPUT = "id string, ts long, temperature double"
PROVIDER = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
WINDOW = f"{window_dataset.SIZE_MS // 1000} seconds"


def make_session(scratch: str, state: str) -> SparkSession:
    """Make the `local[2]` session, one state partition for each core."""
    settings = {
        "spark.driver.memory": "3g",
        "spark.ui.enabled": "false",
        "spark.local.dir": scratch,
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.numRecentProgressUpdates": "100000",
    }
    if state == "rocksdb":
        settings["spark.sql.streaming.stateStore.providerClass"] = PROVIDER
        settings["spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"] = "true"
    builder = SparkSession.builder.master("local[2]").appName("bench-windows")
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def means(readings: DataFrame) -> DataFrame:
    """The average of each sensor and minute."""
    timed = readings.select("id", F.timestamp_millis("ts").alias("time"), "temperature")
    if readings.isStreaming:
        timed = timed.withWatermark("time", "0 seconds")
    return timed.groupBy(F.window("time", WINDOW), "id").agg(F.avg("temperature").alias("mean"))


def cut_into_slices(data: Path, rows_per_batch: int, target: Path) -> Path:
    """Write the rows as time slices of two files each; Spark takes files in the order of their modification times."""
    tables = [pq.read_table(path) for path in sorted(data.glob("*.parquet"))]
    each = max(1, rows_per_batch // len(tables))
    target.mkdir(parents=True)
    for number, start in enumerate(range(0, tables[0].num_rows, each)):
        for half, table in enumerate(tables):
            path = target / f"slice-{number:05d}-{half}.parquet"
            pq.write_table(table.slice(start, each), path)
            os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
    return target


def stream(session: SparkSession, data: Path, rows_per_batch: int, scratch: Path) -> dict[str, Any]:
    """Run the job as a stream; return what it counted and when it began and ended."""
    folder = cut_into_slices(data, rows_per_batch, scratch / "slices")
    readings = session.readStream.schema(INPUT).option("maxFilesPerTrigger", window_dataset.FILES).parquet(str(folder))
    counted = means(readings).observe("sink", F.count(F.lit(1)).alias("windows"), F.sum("mean").alias("sum"))
    query = (
        counted.writeStream.format("noop")
        .outputMode("append")
        .trigger(availableNow=True)
        .option("checkpointLocation", str(scratch / "checkpoint"))
        .start()
    )
    query.awaitTermination()
    batches = [json.loads(progress.json) for progress in query.recentProgress]
    seen = [batch["observedMetrics"]["sink"] for batch in batches if "sink" in batch.get("observedMetrics", {})]
    # The last micro-batch has no rows: the watermark of the one before it closes windows. That is part of the work.
    worked = [batch for batch in batches if batch["numInputRows"] or batch["durationMs"].get("addBatch")]
    last = worked[-1]
    return {
        "records": sum(batch["numInputRows"] for batch in batches),
        "windows": sum(one["windows"] for one in seen),
        "sum": sum(one["sum"] or 0.0 for one in seen),
        "first": started_at(worked[0]),
        "last": started_at(last) + last["durationMs"]["triggerExecution"] / 1000,
        "batches": len(worked),
    }


def batch(session: SparkSession, data: Path) -> dict[str, Any]:
    """Run the job as one query over all files."""
    first = time.time()
    readings = session.read.schema(INPUT).parquet(f"{data}/*.parquet")
    rows, sink = Observation("rows"), Observation("sink")
    counted = means(readings.observe(rows, F.count(F.lit(1)).alias("records"))).observe(
        sink, F.count(F.lit(1)).alias("windows"), F.sum("mean").alias("sum")
    )
    counted.write.format("noop").mode("overwrite").save()
    last = time.time()
    return {"records": rows.get["records"], **sink.get, "first": first, "last": last, "batches": 1}


def started_at(progress: dict[str, Any]) -> float:
    """The start of a micro-batch, in seconds since the epoch."""
    return datetime.fromisoformat(progress["timestamp"]).timestamp()


def main() -> None:
    """Warm up, run, print the one line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--rows-per-batch", type=int, default=1_000_000)
    parser.add_argument("--state", choices=["memory", "rocksdb"], default="memory")
    parser.add_argument("--mode", choices=["stream", "batch"], default="stream")
    args = parser.parse_args()
    data = window_dataset.ensure(args.keys, args.rows)
    small = window_dataset.ensure(args.keys, min(window_dataset.WARM_UP_ROWS, args.rows))
    with tempfile.TemporaryDirectory(prefix="bench-spark-") as scratch:
        session = make_session(scratch, args.state)
        if args.mode == "batch":
            warm_up = batch(session, small.directory)
            found = batch(session, data.directory)
        else:
            warm_up = stream(session, small.directory, args.rows_per_batch, Path(scratch) / "warm-up")
            found = stream(session, data.directory, args.rows_per_batch, Path(scratch) / "timed")
        session.stop()
    data.check(found["records"], found["windows"], found["sum"], all_closed=args.mode == "batch")
    result = {
        "peer": "spark-windows",
        "variant": f"{args.mode}, {args.state}, {found['batches']} micro-batches",
        "records": found["records"],
        "windows": found["windows"],
        "seconds_between_first_and_last_record": found["last"] - found["first"],
        "startup_seconds": warm_up["first"] - STARTED,
        "versions": {package: importlib.metadata.version(package) for package in ("pyspark", "pyarrow")},
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
