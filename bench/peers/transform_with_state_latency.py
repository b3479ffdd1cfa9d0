"""Peer: how long a reading takes through PySpark `transformWithState`, from its creation to the sink.

    python bench/peers/transform_with_state_latency.py [--rate 1000] [--seconds 60] [--keys 1000] [--api row|pandas]

A process of its own makes readings at an even rate and stamps each with the clock at the moment it is sent. They come
in over Spark's socket source, the quickest into a micro-batch (the rate source hands over whole seconds only), go
through one exchange by key and the stateful processor, and are stamped again when `foreachBatch` holds the rows.
Every reading is emitted with what it jumped by, so that every reading is a sample.

Tuned as far as Python allows: the default trigger (the next batch starts at once), two state partitions, changelog
checkpoints, no batches without data, no polling delay, checkpoint directory in memory where the machine has one.
Spark's Real-time Mode would be faster, but its list of allowed operators holds `TransformWithStateExec` (JVM) only:
Python has no state in it.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import multiprocessing
import random
import socket
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

STARTED = time.time()

import numpy as np  # noqa: E402  (imports are part of the start-up that is timed)
import pandas as pd  # noqa: E402
from pyspark.sql import DataFrame, Row  # noqa: E402
from pyspark.sql.streaming.query import StreamingQuery  # noqa: E402
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle  # noqa: E402
from transform_with_state import make_session  # noqa: E402

DRAIN_SECONDS = 120.0
OUTPUT = "id string, created double, jump double"


class JumpsByRow(StatefulProcessor):
    """Emits for every reading what it jumped by, with the moment of its creation."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._last = handle.getValueState("last", "temperature double")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        stored = self._last.get()
        last = None if stored is None else stored[0]
        for created, temperature in sorted((row.created, row.temperature) for row in rows):
            yield Row(id=key[0], created=created, jump=0.0 if last is None else temperature - last)
            last = temperature
        self._last.update((last,))


class JumpsByFrame(StatefulProcessor):
    """The same by data frames."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._last = handle.getValueState("last", "temperature double")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        readings = pd.concat(list(rows)).sort_values("created")
        temperatures = readings["temperature"].to_numpy()
        stored = self._last.get()
        lasts = np.concatenate([[temperatures[0] if stored is None else stored[0]], temperatures[:-1]])
        self._last.update((float(temperatures[-1]),))
        yield pd.DataFrame({"id": key[0], "created": readings["created"].to_numpy(), "jump": temperatures - lasts})


def send_readings(told: Connection, rate: int, keys: int) -> None:
    """Send readings to whoever connects, evenly, until the connection closes; runs in a process of its own."""
    generator = random.Random(42)
    with socket.create_server(("127.0.0.1", 0)) as server:
        told.send(server.getsockname()[1])
        connection, _ = server.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        begun, sent = time.monotonic(), 0
        try:
            while True:
                wait = begun + sent / rate - time.monotonic()
                if wait > 0:
                    time.sleep(wait)
                reading = f"sensor-{generator.randrange(keys):06d},{time.time():.6f},{generator.gauss(20, 1):.3f}\n"
                connection.sendall(reading.encode())
                sent += 1
        except OSError:
            return  # Spark has closed the connection: the run is over


def main() -> None:
    """Run for the asked time after a warm-up, print the one line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--warm-up-seconds", type=float, default=20.0)
    parser.add_argument("--keys", type=int, default=1000)
    parser.add_argument("--api", choices=["row", "pandas"], default="row")
    args = parser.parse_args()

    ours, theirs = multiprocessing.Pipe()
    sender = multiprocessing.get_context("fork").Process(
        target=send_readings, args=(theirs, args.rate, args.keys), daemon=True
    )
    sender.start()
    in_memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="bench-spark-", dir=in_memory if in_memory.is_dir() else None) as scratch:
        result = measure(args, ours.recv(), scratch)
    sender.terminate()
    sender.join()
    print(json.dumps(result))


def wait_for_readings_after(
    moment: float, arrivals: list[tuple[float, list[float]]], query: StreamingQuery, limit_seconds: float
) -> None:
    """Return as soon as a reading created after the moment is at the sink; give up past the limit."""
    deadline = time.monotonic() + limit_seconds
    while not any(created and max(created) > moment for _, created in arrivals[-1:]):
        if query.awaitTermination(0.1):
            raise SystemExit(f"The query ended too early: {query.exception()}")
        if time.monotonic() > deadline:
            raise SystemExit(f"The readings did not come through within {limit_seconds:.0f} s: the peer lags behind.")


def measure(args: argparse.Namespace, port: int, scratch: str) -> dict[str, Any]:
    """Run the query against the sender; return the line to print."""
    session = make_session(scratch)
    session.conf.set("spark.sql.streaming.pollingDelay", "0")
    session.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    session.conf.set("spark.sql.streaming.metricsEnabled", "false")
    lines = session.readStream.format("socket").option("host", "127.0.0.1").option("port", port).load()
    readings = lines.selectExpr("split(value, ',') AS f").selectExpr(
        "f[0] AS id", "CAST(f[1] AS DOUBLE) AS created", "CAST(f[2] AS DOUBLE) AS temperature"
    )
    grouped = readings.groupBy("id")
    if args.api == "row":
        jumps = grouped.transformWithState(JumpsByRow(), OUTPUT, "append", "none")
    else:
        jumps = grouped.transformWithStateInPandas(JumpsByFrame(), OUTPUT, "append", "none")

    arrivals: list[tuple[float, list[float]]] = []

    def take(batch: DataFrame, batch_id: int) -> None:
        rows = batch.select("created").collect()
        arrivals.append((time.time(), [row[0] for row in rows]))

    query = jumps.writeStream.foreachBatch(take).option("checkpointLocation", f"{scratch}/query").start()
    # The warm-up counts from the first rows at the sink, so that a slow start of Spark does not eat it up.
    wait_for_readings_after(0.0, arrivals, query, DRAIN_SECONDS)
    begin = time.time() + args.warm_up_seconds
    end = begin + args.seconds
    # Past the end until a later reading has come: a slow one must not be left out because it was slow.
    wait_for_readings_after(end, arrivals, query, args.warm_up_seconds + args.seconds + DRAIN_SECONDS)
    query.stop()
    session.stop()

    kept = []
    for arrived, created in arrivals:
        inside = [moment for moment in created if begin <= moment < end]
        if inside:
            kept.append((arrived, inside))
    if not kept:
        raise SystemExit(f"No reading made in the {args.seconds} s after the warm-up arrived: measure for longer.")
    latencies = np.concatenate([arrived - np.array(created) for arrived, created in kept]) * 1000
    everything = [moment for _, created in kept for moment in created]
    p50, p99 = np.percentile(latencies, [50, 99])
    return {
        "peer": "transform-with-state-latency",
        "variant": f"{args.api}, {len(kept)} micro-batches",
        "records": len(latencies),
        "alerts": None,
        "seconds_between_first_and_last_record": max(everything) - min(everything),
        "startup_seconds": arrivals[0][0] - STARTED,
        "latency_p50_ms": float(p50),
        "latency_p99_ms": float(p99),
        "latency_samples": len(latencies),
        "versions": {package: importlib.metadata.version(package) for package in ("pyspark", "pyarrow", "pandas")},
    }


if __name__ == "__main__":
    main()
