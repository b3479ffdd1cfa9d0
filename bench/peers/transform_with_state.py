"""Peer: PySpark 4.3 `transformWithState`, a `StatefulProcessor` in Python on the RocksDB state store, `local[2]`.

    python bench/peers/transform_with_state.py --data DIR [--warm-up DIR] [--api row|pandas] [--rows-per-batch N]

The processor reads its state once and writes it once for each key of a micro-batch, whatever the number of rows,
because every state call is a round trip to the JVM. How many rows of a key meet in one micro-batch is therefore
part of the result, and a choice of the caller:

- `--rows-per-batch 0`: Spark's default, all files that are there in one batch. The stream is then a batch job, its
  first result as late as its last.
- `--rows-per-batch N`: the same rows cut, before the clock starts, into time slices of N rows, one slice a batch.

The clock runs from the start of the first micro-batch with rows to the end of the last one. Session, Python workers
and code generation are warm by a run over another dataset.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

STARTED = time.time()

import numpy as np  # noqa: E402  (imports are part of the start-up that is timed)
import pandas as pd  # noqa: E402
import pyarrow as pa  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402
from pyspark.sql import DataFrame, Row, SparkSession  # noqa: E402
from pyspark.sql import functions as F  # noqa: E402
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle  # noqa: E402

THRESHOLD = 1.7
INPUT = "id string, ts long, temperature double"
OUTPUT = "id string, ts long, last double, temperature double"


class JumpsByRow(StatefulProcessor):
    """The job on `transformWithState`: rows come as `Row`."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._last = handle.getValueState("last", "temperature double")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        stored = self._last.get()
        last = None if stored is None else stored[0]
        # A shuffle does not keep the order of rows, so a key's rows of a batch are brought into time order here.
        for ts, temperature in sorted((row.ts, row.temperature) for row in rows):
            if last is not None and abs(temperature - last) > THRESHOLD:
                yield Row(id=key[0], ts=ts, last=last, temperature=temperature)
            last = temperature
        self._last.update((last,))


class JumpsByFrame(StatefulProcessor):
    """The job on `transformWithStateInPandas`: rows come as data frames, compared as a whole."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._last = handle.getValueState("last", "temperature double")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        frames = list(rows)
        stamps = np.concatenate([frame["ts"].to_numpy() for frame in frames])
        temperatures = np.concatenate([frame["temperature"].to_numpy() for frame in frames])
        if (stamps[1:] < stamps[:-1]).any():
            order = stamps.argsort()
            stamps, temperatures = stamps[order], temperatures[order]
        stored = self._last.get()
        # NaN compares as no jump, which is what a key's first reading is.
        lasts = np.concatenate([[np.nan if stored is None else stored[0]], temperatures[:-1]])
        jumps = np.flatnonzero(np.abs(temperatures - lasts) > THRESHOLD)
        self._last.update((float(temperatures[-1]),))
        if len(jumps):
            columns = {"id": key[0], "ts": stamps[jumps], "last": lasts[jumps], "temperature": temperatures[jumps]}
            yield pd.DataFrame(columns)


def make_session(scratch: str, more: dict[str, str] | None = None) -> SparkSession:
    """Make the `local[2]` session: RocksDB state with changelog checkpoints, one state partition for each core."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = {
        "spark.driver.memory": "3g",
        "spark.ui.enabled": "false",
        "spark.local.dir": scratch,
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.sql.streaming.numRecentProgressUpdates": "100000",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
        "spark.python.unix.domain.socket.enabled": "true",
    }
    builder = SparkSession.builder.master("local[2]").appName("bench-transform-with-state")
    for key, value in {**settings, **(more or {})}.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def jumps(readings: DataFrame, api: str) -> DataFrame:
    """Put the stateful processor on a stream of readings."""
    grouped = readings.groupBy("id")
    if api == "row":
        return grouped.transformWithState(JumpsByRow(), OUTPUT, "append", "none")
    return grouped.transformWithStateInPandas(JumpsByFrame(), OUTPUT, "append", "none")


def run(session: SparkSession, data: Path, api: str, files_per_batch: int, checkpoint: str) -> list[dict[str, Any]]:
    """Run the job over all files of the directory; return the progress of every micro-batch that had rows."""
    reader = session.readStream.schema(INPUT)
    if files_per_batch:
        reader = reader.option("maxFilesPerTrigger", files_per_batch)
    # `observe` counts the alerts in the same pass, so that the sink may be the cheapest there is.
    alerts = jumps(reader.parquet(f"{data}/*.parquet"), api).observe("sink", F.count(F.lit(1)).alias("alerts"))
    query = (
        alerts.writeStream.format("noop").trigger(availableNow=True).option("checkpointLocation", checkpoint).start()
    )
    query.awaitTermination()
    batches = [json.loads(progress.json) for progress in query.recentProgress]
    return [batch for batch in batches if batch["numInputRows"]]


def cut_into_slices(data: Path, rows_per_batch: int, target: Path) -> Path:
    """Write the rows as time slices of two files each; Spark takes files in the order of their modification times."""
    tables = [pq.read_table(path) for path in sorted(data.glob("*.parquet"))]
    each = max(1, rows_per_batch // len(tables))
    target.mkdir(parents=True)
    for number, start in enumerate(range(0, tables[0].num_rows, each)):
        for half in range(2):
            path = target / f"slice-{number:05d}-{half}.parquet"
            pq.write_table(pa.concat_tables([table.slice(start, each) for table in tables[half::2]]), path)
            os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
    return target


def started_at(batch: dict[str, Any]) -> float:
    """The start of a micro-batch, in seconds since the epoch."""
    return datetime.fromisoformat(batch["timestamp"]).timestamp()


def main() -> None:
    """Warm up, run, print the one line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--warm-up", type=Path)
    parser.add_argument("--api", choices=["row", "pandas"], default="pandas")
    parser.add_argument("--rows-per-batch", type=int, default=0)
    args = parser.parse_args()

    with tempfile.TemporaryDirectory(prefix="bench-spark-") as scratch:
        session = make_session(scratch)
        warm_up = run(session, args.warm_up, args.api, 0, f"{scratch}/warm-up") if args.warm_up else []
        data, files_per_batch = args.data, 0
        if args.rows_per_batch:
            data, files_per_batch = cut_into_slices(args.data, args.rows_per_batch, Path(scratch) / "slices"), 2
        batches = run(session, data, args.api, files_per_batch, f"{scratch}/timed")
        session.stop()

    last = batches[-1]
    result = {
        "peer": "transform-with-state",
        "variant": f"{args.api}, {len(batches)} micro-batches",
        "records": sum(batch["numInputRows"] for batch in batches),
        "alerts": sum(batch["observedMetrics"]["sink"]["alerts"] for batch in batches),
        "seconds_between_first_and_last_record": (
            started_at(last) + last["durationMs"]["triggerExecution"] / 1000 - started_at(batches[0])
        ),
        "startup_seconds": started_at((warm_up or batches)[0]) - STARTED,
        "versions": {package: importlib.metadata.version(package) for package in ("pyspark", "pyarrow", "pandas")},
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
