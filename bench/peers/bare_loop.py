"""Peer: no framework at all. Two processes, pyarrow, a dict.

A key lives in one file, so each process takes its share of the files and needs nobody else: no exchange, no
checkpoint, no recovery. This is about as fast as a Python loop over these rows can be.

    python bench/peers/bare_loop.py --data DIR [--processes 2] [--rows]

`--rows` takes each record as the dict that pyarrow makes of it, as most programs do, instead of two columns.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from pathlib import Path

STARTED = time.monotonic()

import pyarrow  # noqa: E402  (imports are part of the start-up that is timed)
import pyarrow.parquet as pq  # noqa: E402

THRESHOLD = 1.7


def find_jumps(paths: list[str]) -> tuple[float, float, int, int]:
    """Run the job over these files; return (first record at, last record at, records, alerts), monotonic seconds."""
    first = time.monotonic()
    records = 0
    alerts: list[tuple[str, int, float, float]] = []
    for path in paths:
        last: dict[str, float] = {}
        for batch in pq.ParquetFile(path).iter_batches(batch_size=65_536):
            ids, stamps, temperatures = batch.columns
            row = 0
            for key, temperature in zip(ids.to_pylist(), temperatures.to_pylist(), strict=True):
                previous = last.get(key)
                if previous is not None and abs(temperature - previous) > THRESHOLD:
                    alerts.append((key, stamps[row].as_py(), previous, temperature))
                last[key] = temperature
                row += 1
            records += row
    return first, time.monotonic(), records, len(alerts)


def find_jumps_in_rows(paths: list[str]) -> tuple[float, float, int, int]:
    """The same over records as dicts."""
    first = time.monotonic()
    records = 0
    alerts: list[tuple[str, int, float, float]] = []
    for path in paths:
        last: dict[str, float] = {}
        for batch in pq.ParquetFile(path).iter_batches(batch_size=65_536):
            for row in batch.to_pylist():
                previous = last.get(row["id"])
                if previous is not None and abs(row["temperature"] - previous) > THRESHOLD:
                    alerts.append((row["id"], row["ts"], previous, row["temperature"]))
                last[row["id"]] = row["temperature"]
            records += batch.num_rows
    return first, time.monotonic(), records, len(alerts)


def main() -> None:
    """Deal the files to the processes, run, print the one line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rows", action="store_true")
    args = parser.parse_args()

    paths = sorted(str(path) for path in args.data.glob("*.parquet"))
    shares = [paths[index :: args.processes] for index in range(args.processes)]
    with multiprocessing.get_context("spawn").Pool(args.processes) as pool:
        runs = pool.map(find_jumps_in_rows if args.rows else find_jumps, shares, chunksize=1)
    first = min(run[0] for run in runs)
    result = {
        "peer": "bare-loop",
        "variant": f"{args.processes} processes{', rows as dicts' if args.rows else ''}",
        "records": sum(run[2] for run in runs),
        "alerts": sum(run[3] for run in runs),
        "seconds_between_first_and_last_record": max(run[1] for run in runs) - first,
        "startup_seconds": first - STARTED,
        "versions": {"pyarrow": pyarrow.__version__},
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
