"""`python -m bench nexmark`: run the queries and print a table of their rates."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench import machine
from bench.nexmark.queries import QUERIES
from bench.programs import ROOT, SCRATCH

RESULT = Path(__file__).parents[1] / "results" / "nexmark.json"
EVENTS = 2_000_000


def main(arguments: list[str], console: Console) -> int:
    """Run, print and keep; 0 if every query came to its end."""
    parser = argparse.ArgumentParser(prog="python -m bench nexmark", description=__doc__)
    parser.add_argument("--queries", nargs="+", choices=list(QUERIES), default=list(QUERIES))
    parser.add_argument("--events", type=int, default=EVENTS, help="events of the stretch that every query sees")
    parser.add_argument("--backend", choices=["heap", "rocksdb", "both"], default="both")
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--checkpoint-interval-ms", type=int, default=0)
    args = parser.parse_args(arguments)
    facts = machine.facts()
    backends = ["heap", "rocksdb"] if args.backend == "both" else [args.backend]
    lines = [line for backend in backends for line in _lines(args, backend)]
    table = Table("query", "what", *(f"{backend}, records/s" for backend in backends), "answers")
    for name in args.queries:
        found = [line for line in lines if line["query"] == name]
        rates = [f"{rate(line):,.0f}" for line in found]
        answers = f"{found[0]['answers']:,}" if found else "missing"
        meaning = (QUERIES[name].__doc__ or "").split(":")[0]
        table.add_row(name, meaning, *rates, *["missing"] * (len(backends) - len(rates)), answers)
    console.print(table)
    complete = len(lines) == len(backends) * len(args.queries)
    if complete and args.events >= EVENTS and args.queries == list(QUERIES):
        RESULT.write_text(
            json.dumps(
                {
                    "finished_at": datetime.now(UTC).isoformat(timespec="seconds"),
                    "machine": facts,
                    "events": args.events,
                    "parallelism": args.parallelism,
                    "checkpoint_interval_ms": args.checkpoint_interval_ms,
                    "lines": [line | {"records_per_second": rate(line)} for line in lines],
                },
                indent=2,
            )
            + "\n"
        )
        console.print(f"kept in {RESULT}")
    return 0 if complete else 1


def rate(line: dict[str, Any]) -> float:
    """Records a second."""
    return float(line["records"] / line["seconds_between_first_and_last_record"])


def _lines(args: argparse.Namespace, backend: str) -> Iterator[dict[str, Any]]:
    """What `bench.nexmark.job` prints; it runs in a process of its own, for Spark to begin and end with it."""
    SCRATCH.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="nexmark-", dir=SCRATCH) as scratch:
        command = [sys.executable, "-m", "bench.nexmark.job", "--scratch", scratch, "--backend", backend]
        command += ["--events", str(args.events), "--parallelism", str(args.parallelism)]
        command += ["--checkpoint-interval-ms", str(args.checkpoint_interval_ms), "--queries", *args.queries]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for text in process.stdout:
                start = text.find('{"peer"')
                if start >= 0:
                    line = json.loads(text[start:])
                    print(f"{line['variant']}: {rate(line):,.0f} records/s", file=sys.stderr)
                    yield line
