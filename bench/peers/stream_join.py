"""Peer: Spark SQL's stream–stream join (inner, by key and time range), PySpark 4.3, `local[2]`, all of it in the JVM.

    python bench/peers/stream_join.py --keys N --rows N --rows-per-batch N [--state memory|rocksdb]

Both streams have a watermark, and the condition bounds the times on both sides, so that Spark forgets rows as time goes
on. Before the clock starts the rows of each side are cut into time slices; a micro-batch takes one slice of each.
The clock runs from the start of the first micro-batch with rows to the end of the last one, after a shorter run.
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

import pyarrow as pa  # noqa: E402  (imports are part of the start-up that is timed)
import pyarrow.compute as pc  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402
from pyspark.sql import DataFrame, SparkSession  # noqa: E402
from pyspark.sql import functions as F  # noqa: E402

from bench import join_dataset  # noqa: E402

INPUT = "id string, ts long, amount double"
PROVIDER = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
WARM_UP_ROWS = 200_000


def make_session(scratch: str, state: str) -> SparkSession:
    """Make the `local[2]` session, one state partition for each core."""
    settings = {
        "spark.driver.memory": "3g",
        "spark.ui.enabled": "false",
        "spark.local.dir": scratch,
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.streaming.numRecentProgressUpdates": "100000",
    }
    if state == "rocksdb":
        settings["spark.sql.streaming.stateStore.providerClass"] = PROVIDER
        settings["spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"] = "true"
    builder = SparkSession.builder.master("local[2]").appName("bench-stream-join")
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def cut_into_slices(data: Path, name: str, rows_per_slice: int, target: Path) -> Path:
    """Write one side as time slices of two files each; Spark takes files in the order of their modification times."""
    tables = [pq.read_table(path) for path in sorted(data.glob(f"{name}-*.parquet"))]
    span = max(1, rows_per_slice // join_dataset.ROWS_PER_MS)
    first = min(pc.min(table["ts"]).as_py() for table in tables)
    last = max(pc.max(table["ts"]).as_py() for table in tables)
    target.mkdir(parents=True)
    for number, start in enumerate(range(first, last + 1, span)):
        for half, table in enumerate(tables):
            begin, end = (
                pc.sum(pc.cast(pc.less(table["ts"], edge), pa.int64())).as_py() for edge in (start, start + span)
            )
            path = target / f"slice-{number:05d}-{half}.parquet"
            pq.write_table(table.slice(begin, end - begin), path)
            os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
    return target


def stream(session: SparkSession, folder: Path, prefix: str) -> DataFrame:
    rows = session.readStream.schema(INPUT).option("maxFilesPerTrigger", join_dataset.FILES).parquet(str(folder))
    named = rows.select(
        F.col("id").alias(f"{prefix}_id"),
        F.timestamp_millis("ts").alias(f"{prefix}_time"),
        F.col("amount").alias(f"{prefix}_amount"),
    )
    return named.withWatermark(f"{prefix}_time", "0 seconds")


def run(session: SparkSession, data: Path, rows_per_batch: int, scratch: Path) -> list[dict[str, Any]]:
    """Run the join over the dataset; return the progress of every micro-batch that had rows."""
    sides = {}
    for name, prefix in (("orders", "order"), ("shipments", "shipment")):
        folder = cut_into_slices(data, name, rows_per_batch // 2, scratch / name)
        sides[prefix] = stream(session, folder, prefix)
    condition = F.expr(
        "order_id = shipment_id AND shipment_time >= order_time AND "
        f"shipment_time <= order_time + INTERVAL {join_dataset.WITHIN_MS / 1000} SECONDS"
    )
    joined = sides["order"].join(sides["shipment"], condition, "inner")
    pairs = joined.observe("sink", F.count(F.lit(1)).alias("pairs"))
    query = (
        pairs.writeStream.format("noop")
        .trigger(availableNow=True)
        .option("checkpointLocation", str(scratch / "checkpoint"))
        .start()
    )
    query.awaitTermination()
    batches = [json.loads(progress.json) for progress in query.recentProgress]
    return [batch for batch in batches if batch["numInputRows"]]


def started_at(batch: dict[str, Any]) -> float:
    """The start of a micro-batch, in seconds since the epoch."""
    return datetime.fromisoformat(batch["timestamp"]).timestamp()


def main() -> None:
    """Warm up, run, print the one line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--rows-per-batch", type=int, default=200_000)
    parser.add_argument("--state", choices=["memory", "rocksdb"], default="memory")
    args = parser.parse_args()
    data = join_dataset.ensure(args.keys, args.rows)
    small = join_dataset.ensure(args.keys, min(WARM_UP_ROWS, args.rows))
    with tempfile.TemporaryDirectory(prefix="bench-spark-") as scratch:
        session = make_session(scratch, args.state)
        warm_up = run(session, small.directory, args.rows_per_batch, Path(scratch) / "warm-up")
        batches = run(session, data.directory, args.rows_per_batch, Path(scratch) / "timed")
        session.stop()
    records = sum(batch["numInputRows"] for batch in batches)
    pairs = sum(batch["observedMetrics"]["sink"]["pairs"] for batch in batches)
    if (records, pairs) != (data.rows, data.pairs):
        raise SystemExit(f"Spark found {pairs} pairs in {records} records, wanted {data.pairs} in {data.rows}.")
    last = batches[-1]
    result = {
        "peer": "stream-join",
        "variant": f"{args.state}, {len(batches)} micro-batches",
        "records": records,
        "pairs": pairs,
        "seconds_between_first_and_last_record": (
            started_at(last) + last["durationMs"]["triggerExecution"] / 1000 - started_at(batches[0])
        ),
        "startup_seconds": started_at((warm_up or batches)[0]) - STARTED,
        "versions": {package: importlib.metadata.version(package) for package in ("pyspark", "pyarrow")},
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
