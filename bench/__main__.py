"""`python -m bench`: list the measures, run them, report what was found.

python -m bench list
python -m bench run throughput-vs-bytewax --pairs 3
python -m bench run all --pairs 3
python -m bench report
python -m bench interval
python -m bench install [bytewax …]
python -m bench data --keys 10000 --rows 400000
python -m bench nexmark --events 2000000
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path

from rich.console import Console

from bench import dataset, environments, interval_measures, results
from bench.harness import Verdict, measure
from bench.measures import ALL, Measure, by_name
from bench.programs import Limits


def main() -> int:
    """Return 0 if everything asked for is there, and every judged figure reached."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="Headrace side by side with its peers")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="all measures with their targets")
    commands.add_parser("report", help="the newest figure of every measure; never run is shown as missing")
    running = commands.add_parser("run", help="run measures and keep their results in bench/results/")
    running.add_argument("measures", nargs="+", metavar="MEASURE", help='a name of `list`, or "all"')
    running.add_argument("--pairs", type=int, default=3)
    running.add_argument("--rows", type=int, help="smoke run: at most so many rows on both sides; not judged")
    running.add_argument("--seconds", type=float, help="smoke run: seconds of the latency workloads; not judged")
    running.add_argument("--timeout", type=float, default=1_800, help="seconds after which one run is given up")
    spacing = commands.add_parser("interval", help="checkpoint interval against speed and recovery, with a picture")
    spacing.add_argument("--intervals", default="off,10000,3000,1000,300", help="milliseconds")
    spacing.add_argument("--rounds", type=int, default=3)
    spacing.add_argument("--rows", type=int, default=interval_measures.ROWS, help="fewer: a smoke run")
    spacing.add_argument("--timeout", type=float, default=1_800, help="seconds after which one run is given up")
    spacing.add_argument("--picture", type=Path, help="where the picture goes, if not beside the figures")
    installing = commands.add_parser("install", help="make the peers' environments now; `run` does it by itself")
    installing.add_argument("environments", nargs="*", metavar="ENVIRONMENT", default=[])
    making = commands.add_parser("data", help="make a dataset now; `run` does it by itself")
    making.add_argument("--keys", type=int, required=True)
    making.add_argument("--rows", type=int, required=True)
    commands.add_parser("nexmark", add_help=False, help="the Nexmark queries and their rates: see its --help")
    args, rest = parser.parse_known_args()
    if rest and args.command != "nexmark":
        parser.error(f"unrecognized arguments: {' '.join(rest)}")

    console = Console()
    match args.command:
        case "list":
            results.show_list(console)
        case "report":
            results.show_report(console)
        case "install":
            for name in args.environments or environments.NAMES:
                console.print(f"{name}: {environments.ensure(name)}")
        case "nexmark":
            # Imported here: it needs the engine, the other commands do not.
            return int(import_module("bench.nexmark.command").main(rest, console))
        case "interval":
            return interval_measures.main(args, console)
        case "data":
            made = dataset.ensure(keys=args.keys, rows=args.rows)
            console.print(f"{made.directory}: {made.rows} rows, {made.keys} keys, {made.alerts} alerts")
        case "run":
            try:
                chosen = list(ALL) if args.measures == ["all"] else [by_name(name) for name in args.measures]
            except KeyError as error:
                parser.error(str(error.args[0]))
            return run(chosen, args.pairs, Limits(args.timeout, args.rows, args.seconds), console)
    return 0


def run(chosen: list[Measure], pairs: int, limits: Limits, console: Console) -> int:
    """Run the measures one after another; each result is kept as soon as it is there."""
    good = True
    for wanted in chosen:
        result = measure(wanted, pairs=pairs, limits=limits, tell=lambda text: print(text, file=sys.stderr))
        results.show(result, console)
        console.print(f"kept in {results.write(result)}")
        fine = (Verdict.REACHED, Verdict.FOR_THE_RECORD, Verdict.SMOKE)
        good = good and all(judged.verdict in fine for judged in result.figures)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
