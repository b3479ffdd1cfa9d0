"""Peer: Bytewax 0.21 windows, the average of each sensor and minute, in one process or in two.

    python bench/peers/bytewax_windows.py --keys N --rows N --processes 1|2 [--batch-rows N]

`fold_window` with an `EventClock` and a `TumblingWindower`. It need not bring readings into the order of their times
(`ordered=False`), which an average does not ask for and which would cost it more. No recovery store is configured.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

STARTED = time.monotonic()
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parent)]

from bytewax_job import free_ports  # noqa: E402

from bench import window_dataset  # noqa: E402

Reading = tuple[int, float]


class Tally:
    """What this process saw; written to a file when its dataflow ends."""

    first_at: float | None = None
    records = 0
    windows = 0
    sum_of_means = 0.0


def build_flow() -> Any:
    """Build the dataflow; called by `bytewax.run` in each process."""
    import bytewax.operators as op
    import pyarrow.parquet as pq
    from bytewax.dataflow import Dataflow
    from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
    from bytewax.operators import windowing as w
    from bytewax.outputs import DynamicSink, StatelessSinkPartition

    data = Path(os.environ["BENCH_DATA"])
    report = Path(os.environ["BENCH_REPORT"])
    batch_rows = int(os.environ["BENCH_BATCH_ROWS"])

    class FileReader(StatefulSourcePartition[tuple[str, Reading], None]):
        def __init__(self, path: Path) -> None:
            self._batches = pq.ParquetFile(path).iter_batches(batch_size=batch_rows)

        def next_batch(self) -> Iterable[tuple[str, Reading]]:
            if Tally.first_at is None:
                Tally.first_at = time.monotonic()
            ids, times, temperatures = (column.to_pylist() for column in next(self._batches).columns)
            Tally.records += len(ids)
            return list(zip(ids, zip(times, temperatures, strict=True), strict=True))

        def snapshot(self) -> None:
            return None

    class Readings(FixedPartitionedSource[tuple[str, Reading], None]):
        def list_parts(self) -> list[str]:
            return sorted(path.name for path in data.glob("*.parquet"))

        def build_part(self, step_id: str, for_part: str, resume_state: None) -> FileReader:
            return FileReader(data / for_part)

    class Means(StatelessSinkPartition[Any]):
        def write_batch(self, items: list[Any]) -> None:
            Tally.windows += len(items)
            Tally.sum_of_means += sum(total / count for _, (_, (total, count)) in items)

        def close(self) -> None:
            facts = {
                "first": Tally.first_at,
                "last": time.monotonic(),
                "records": Tally.records,
                "windows": Tally.windows,
                "sum_of_means": Tally.sum_of_means,
            }
            (report / f"{os.getpid()}.json").write_text(json.dumps(facts))

    class MeanSink(DynamicSink[Any]):
        def build(self, step_id: str, worker_index: int, worker_count: int) -> Means:
            return Means()

    def time_of(reading: Reading) -> datetime:
        return EPOCH + timedelta(milliseconds=reading[0])

    def add(sums: tuple[float, int], reading: Reading) -> tuple[float, int]:
        return sums[0] + reading[1], sums[1] + 1

    flow = Dataflow("windows")
    readings = op.input("readings", flow, Readings())
    means = w.fold_window(
        "mean",
        readings,
        w.EventClock(time_of, wait_for_system_duration=timedelta(seconds=10)),
        w.TumblingWindower(length=timedelta(milliseconds=window_dataset.SIZE_MS), align_to=EPOCH),
        lambda: (0.0, 0),
        add,
        lambda a, b: (a[0] + b[0], a[1] + b[1]),
        ordered=False,
    )
    op.output("means", means.down, MeanSink())
    return flow


def main() -> None:
    """Start the processes, wait for them, print the one line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--batch-rows", type=int, default=65_536)
    args = parser.parse_args()
    data = window_dataset.ensure(args.keys, args.rows)

    with tempfile.TemporaryDirectory(prefix="bench-bytewax-") as report:
        environment = dict(
            os.environ, BENCH_DATA=str(data.directory), BENCH_REPORT=report, BENCH_BATCH_ROWS=str(args.batch_rows)
        )
        command = [sys.executable, "-m", "bytewax.run", f"{Path(__file__).resolve()}:build_flow()"]
        commands = [command]
        if args.processes > 1:
            addresses = ";".join(f"127.0.0.1:{port}" for port in free_ports(args.processes))
            commands = [[*command, "-i", str(index), "-a", addresses] for index in range(args.processes)]
        processes = [subprocess.Popen(one, env=environment, stdout=sys.stderr) for one in commands]
        codes = [process.wait() for process in processes]
        if any(codes):
            raise SystemExit(f"Bytewax processes ended with {codes}; their own words are above.")
        runs = [json.loads(path.read_text()) for path in Path(report).glob("*.json")]

    records, windows = (sum(run[what] for run in runs) for what in ("records", "windows"))
    data.check(records, windows, sum(run["sum_of_means"] for run in runs))
    # A process that was dealt no file has read nothing, and no first moment to tell of.
    first = min(run["first"] for run in runs if run["first"] is not None)
    result = {
        "peer": "bytewax-windows",
        "variant": f"processes: {args.processes}, batches of {args.batch_rows}",
        "records": records,
        "windows": windows,
        "seconds_between_first_and_last_record": max(run["last"] for run in runs) - first,
        "startup_seconds": first - STARTED,
        "versions": {package: importlib.metadata.version(package) for package in ("bytewax", "pyarrow")},
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
