"""Runs queries on Spark, one after another in one session, and prints a JSON line for each.

    python -m bench.nexmark.job --queries q0 q5 --events 2000000 --backend heap --scratch DIR

The clock runs from the first record to the last; the first query is run once before, with fewer events, untimed.

    {"peer": "headrace", "variant": "q5, heap", "query": "q5", "events": int, "records": int, "answers": int,
     "seconds_between_first_and_last_record": float}

`events` counts all events of the stretch that the query saw, `records` those that it read: a query over bids reads 46
of every 50.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

from bench import headrace_job
from bench.nexmark.queries import QUERIES
from bench.nexmark.streams import Events
from headrace.runtime.spark.session import obtain_session

SLOTS = 12
"""The longest query has three levels of two subtasks and two sources."""
WARM_UP_EVENTS = 200_000


def run(name: str, events: int, args: argparse.Namespace) -> dict[str, Any]:
    """One query; the line of it."""
    env = headrace_job.environment(args, name)
    seen = Events(env, events)
    sink = headrace_job.EndNote(headrace_job._fresh(args.scratch, name))
    QUERIES[name](seen).sink_to(sink)
    client, watcher = headrace_job.run(env, f"nexmark-{name}")
    result = client.get_job_execution_result().result()
    if result.records_read != seen.records:
        raise SystemExit(f"{name} read {result.records_read} records, where the generator has {seen.records}.")
    notes = [path.read_text().split() for path in sink.directory.iterdir()]
    end = max(float(last) for _, last in notes)
    return {
        "peer": "headrace",
        "variant": f"{name}, {args.backend}",
        "query": name,
        "events": events,
        "records": seen.records,
        "answers": sum(int(count) for count, _ in notes),
        "seconds_between_first_and_last_record": end - watcher.running_at[0],
    }


def main() -> None:
    """Print a line for each query as soon as it is through."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", nargs="+", choices=list(QUERIES), default=list(QUERIES))
    parser.add_argument("--events", type=int, default=2_000_000)
    parser.add_argument("--backend", choices=["heap", "rocksdb"], default="heap")
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--checkpoint-interval-ms", type=int, default=0)
    parser.add_argument("--mode", choices=["exactly-once", "at-least-once", "unaligned"], default="exactly-once")
    parser.add_argument("--scratch", type=Path, required=True)
    args = parser.parse_args()
    os.environ.setdefault("HEADRACE_STATE_DIR", str(args.scratch / "status"))
    handle = obtain_session(None, SLOTS, args.parallelism, "nexmark", None)
    try:
        run(args.queries[0], min(WARM_UP_EVENTS, args.events), args)
        for name in args.queries:
            print(json.dumps(run(name, args.events, args)), flush=True)
    finally:
        handle.stop()


if __name__ == "__main__":
    main()
