"""Peer: Bytewax 0.21, in one process or in several that exchange records by key.

The source is a `FixedPartitionedSource` with a partition for each file that hands over whole batches, and the keyed
step is `stateful_batch`, Bytewax's lowest and fastest stateful operator (`--operator stateful_flat_map` takes the
everyday one instead). No recovery store is configured, so nothing is snapshotted to disk.

    python bench/peers/bytewax_job.py --data DIR --processes 1|2

The program starts `bytewax.run` on itself, one process each, as Bytewax's documentation does for a local cluster.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

STARTED = time.monotonic()
THRESHOLD = 1.7

Alert = tuple[str, tuple[float, float]]


class Tally:
    """What this process saw; written to a file when its dataflow ends."""

    first_at: float | None = None
    records = 0
    alerts = 0


def build_flow() -> Any:
    """Build the dataflow; called by `bytewax.run` in each process."""
    import bytewax.operators as op
    import pyarrow.parquet as pq
    from bytewax.dataflow import Dataflow
    from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
    from bytewax.operators import StatefulBatchLogic
    from bytewax.outputs import DynamicSink, StatelessSinkPartition

    data = Path(os.environ["BENCH_DATA"])
    report = Path(os.environ["BENCH_REPORT"])
    batch_rows = int(os.environ["BENCH_BATCH_ROWS"])

    class FileReader(StatefulSourcePartition[tuple[str, float], None]):
        def __init__(self, path: Path) -> None:
            self._batches = pq.ParquetFile(path).iter_batches(batch_size=batch_rows)

        def next_batch(self) -> Iterable[tuple[str, float]]:
            if Tally.first_at is None:
                Tally.first_at = time.monotonic()
            batch = next(self._batches)  # its StopIteration is Bytewax's end of input
            Tally.records += batch.num_rows
            return list(zip(batch.column(0).to_pylist(), batch.column(2).to_pylist(), strict=True))

        def snapshot(self) -> None:
            return None

    class Readings(FixedPartitionedSource[tuple[str, float], None]):
        def list_parts(self) -> list[str]:
            return sorted(path.name for path in data.glob("*.parquet"))

        def build_part(self, step_id: str, for_part: str, resume_state: None) -> FileReader:
            return FileReader(data / for_part)

    class LastTemperature(StatefulBatchLogic[float, tuple[float, float], float]):
        __slots__ = ("last",)

        def __init__(self, last: float | None) -> None:
            self.last = last

        def on_batch(self, values: list[float]) -> tuple[list[tuple[float, float]], bool]:
            jumps = []
            last = self.last
            for temperature in values:
                if last is not None and abs(temperature - last) > THRESHOLD:
                    jumps.append((last, temperature))
                last = temperature
            self.last = last
            return jumps, False

        def snapshot(self) -> float | None:
            return self.last

    def compare(last: float | None, temperature: float) -> tuple[float, Iterable[tuple[float, float]]]:
        if last is not None and abs(temperature - last) > THRESHOLD:
            return temperature, [(last, temperature)]
        return temperature, ()

    class AlertCounter(StatelessSinkPartition[Alert]):
        def write_batch(self, items: list[Alert]) -> None:
            Tally.alerts += len(items)

        def close(self) -> None:
            facts = {
                "first": Tally.first_at,
                "last": time.monotonic(),
                "records": Tally.records,
                "alerts": Tally.alerts,
            }
            (report / f"{os.getpid()}.json").write_text(json.dumps(facts))

    class Alerts(DynamicSink[Alert]):
        def build(self, step_id: str, worker_index: int, worker_count: int) -> AlertCounter:
            return AlertCounter()

    flow = Dataflow("jumps")
    readings = op.input("readings", flow, Readings())
    if os.environ["BENCH_OPERATOR"] == "stateful_batch":
        alerts = op.stateful_batch("jump", readings, LastTemperature)
    else:
        alerts = op.stateful_flat_map("jump", readings, compare)
    op.output("alerts", alerts, Alerts())
    return flow


def main() -> None:
    """Start the processes, wait for them, print the one line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--operator", choices=["stateful_batch", "stateful_flat_map"], default="stateful_batch")
    parser.add_argument("--batch-rows", type=int, default=65_536)
    args = parser.parse_args()

    with tempfile.TemporaryDirectory(prefix="bench-bytewax-") as report:
        environment = dict(
            os.environ,
            BENCH_DATA=str(args.data),
            BENCH_REPORT=report,
            BENCH_OPERATOR=args.operator,
            BENCH_BATCH_ROWS=str(args.batch_rows),
        )
        command = [sys.executable, "-m", "bytewax.run", f"{Path(__file__).resolve()}:build_flow()"]
        if args.processes == 1:
            commands = [command]
        else:
            addresses = ";".join(f"127.0.0.1:{port}" for port in free_ports(args.processes))
            commands = [[*command, "-i", str(index), "-a", addresses] for index in range(args.processes)]
        processes = [subprocess.Popen(one, env=environment, stdout=sys.stderr) for one in commands]
        codes = [process.wait() for process in processes]
        if any(codes):
            raise SystemExit(f"Bytewax processes ended with {codes}; their own words are above.")
        runs = [json.loads(path.read_text()) for path in Path(report).glob("*.json")]

    # A process that was dealt no file has read nothing, and no first moment to tell of.
    first = min(run["first"] for run in runs if run["first"] is not None)
    result = {
        "peer": "bytewax",
        "variant": f"processes: {args.processes}, {args.operator}, batches of {args.batch_rows}",
        "records": sum(run["records"] for run in runs),
        "alerts": sum(run["alerts"] for run in runs),
        "seconds_between_first_and_last_record": max(run["last"] for run in runs) - first,
        "startup_seconds": first - STARTED,
        "versions": {package: importlib.metadata.version(package) for package in ("bytewax", "pyarrow")},
    }
    print(json.dumps(result))


def free_ports(count: int) -> list[int]:
    """Find ports nobody listens on; all are held open until all are found, so that they differ."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [held.getsockname()[1] for held in sockets]
    for held in sockets:
        held.close()
    return ports


if __name__ == "__main__":
    main()
