"""The measures of the interval join; `measures.ALL` takes them in."""

from __future__ import annotations

from bench.measures import Bound, Figure, Measure, Quantity, Run

PEER = "stream-join"
OURS = "headrace-join"
SIZE = ("--keys", "10000", "--rows", "6000000")
BATCHES = tuple(("--rows-per-batch", str(rows)) for rows in (200_000, 1_000_000))

RATE = Figure(Quantity.RECORDS_PER_SECOND, bound=Bound.AT_LEAST, target=0.5)
STARTUP = Figure(Quantity.STARTUP_SECONDS, ratio=False)
NOTE = (
    "Spark's join runs in the JVM, ours calls a Python function for each pair. Of two sizes of micro-batches the "
    "better counts."
)

JOINS: tuple[Measure, ...] = (
    Measure(
        "interval-join-vs-spark-sql",
        "orders and shipments of 10,000 keys within a second, heap, against Spark SQL's stream–stream join in memory",
        Run(OURS, arguments=(*SIZE, "--backend", "heap")),
        Run(PEER, arguments=(*SIZE, "--state", "memory"), variants=BATCHES),
        (RATE, STARTUP),
        note=NOTE,
    ),
    Measure(
        "interval-join-vs-spark-sql-rocksdb",
        "the same, both sides on RocksDB",
        Run(OURS, arguments=(*SIZE, "--backend", "rocksdb")),
        Run(PEER, arguments=(*SIZE, "--state", "rocksdb"), variants=BATCHES),
        (Figure(Quantity.RECORDS_PER_SECOND), STARTUP),
        note=NOTE,
    ),
    Measure(
        "interval-join-rocksdb-vs-heap",
        "our interval join on RocksDB against heap",
        Run(OURS, arguments=(*SIZE, "--backend", "rocksdb")),
        Run(OURS, arguments=(*SIZE, "--backend", "heap")),
        (Figure(Quantity.RECORDS_PER_SECOND),),
    ),
)
