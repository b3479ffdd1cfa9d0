"""The measures of windows; `measures.ALL` takes them in."""

from __future__ import annotations

from bench.measures import Bound, Figure, Measure, Quantity, Run

OURS = "headrace-windows"
SIZE = ("--keys", "10000", "--rows", "4000000")
LONG = ("--keys", "10000", "--rows", "48000000")
"""Enough for a run of some seconds where columns are aggregated."""
PROCESSES = (("--processes", "1"), ("--processes", "2"))
"""In batches of 65,536. With 1,000, the default of its own sources, its windows are some ten times slower."""
BATCHES = tuple(("--rows-per-batch", str(rows)) for rows in (200_000, 1_000_000))

STARTUP = Figure(Quantity.STARTUP_SECONDS, ratio=False)


def rate(target: float) -> Figure:
    return Figure(Quantity.RECORDS_PER_SECOND, bound=Bound.AT_LEAST, target=target)


def ours(api: str, *more: str, size: tuple[str, ...] = SIZE, backend: str = "heap") -> Run:
    return Run(OURS, arguments=(*size, "--api", api, "--backend", backend, *more))


WINDOWS: tuple[Measure, ...] = (
    Measure(
        "window-average-vs-bytewax",
        "average of 10,000 sensors by the minute, 4 million readings, a Python function for each, heap, against "
        "Bytewax's `fold_window` in batches of 65,536, best of 1 or 2 processes",
        ours("python"),
        Run("bytewax-windows", arguments=SIZE, variants=PROCESSES),
        (rate(3), STARTUP),
        minimum_seconds=0,
    ),
    Measure(
        "window-columns-vs-spark-sql",
        "the same with `aggregate_columns`, against Spark SQL's windowed aggregation as a stream, state in memory",
        ours("columns"),
        Run("spark-windows", arguments=(*SIZE, "--mode", "stream"), variants=BATCHES),
        (rate(0.5), STARTUP),
        minimum_seconds=0,
        note="Of two sizes of micro-batches the better counts.",
    ),
    Measure(
        "window-columns-vs-spark-sql-long",
        "the same with 48 million readings",
        ours("columns", size=LONG),
        Run("spark-windows", arguments=(*LONG, "--mode", "stream"), variants=BATCHES),
        (rate(0.5), STARTUP),
        minimum_seconds=0,
    ),
    Measure(
        "window-columns-vs-spark-sql-batch",
        "the same 48 million against Spark SQL as one batch query, which has no state, watermark or checkpoint to keep",
        ours("columns", size=LONG),
        Run("spark-windows", arguments=(*LONG, "--mode", "batch")),
        (Figure(Quantity.RECORDS_PER_SECOND),),
        minimum_seconds=0,
    ),
    Measure(
        "window-columns-vs-python",
        "`aggregate_columns` against a Python function for each reading, 4 million readings",
        ours("columns"),
        ours("python"),
        (Figure(Quantity.RECORDS_PER_SECOND),),
        minimum_seconds=0,
    ),
    Measure(
        "window-columns-rocksdb-vs-heap",
        "`aggregate_columns` on RocksDB against heap, a checkpoint every second, 48 million readings",
        ours("columns", "--checkpoint-interval-ms", "1000", size=LONG, backend="rocksdb"),
        ours("columns", "--checkpoint-interval-ms", "1000", size=LONG),
        (Figure(Quantity.RECORDS_PER_SECOND),),
        minimum_seconds=0,
    ),
)
