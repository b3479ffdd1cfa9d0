"""The measures of `from_dataframe`; `measures.ALL` takes them in."""

from __future__ import annotations

from bench.measures import Bound, Figure, Measure, Quantity, Run

PROGRAM = "headrace-dataframe"
SIZE = ("--keys", "10000", "--rows", "12000000")
NOTE = (
    "From the moment all tasks run to the last record, so the query of the batch DataFrame counts too: reading Parquet,"
    " writing the spool, and then reading it."
)

DATAFRAMES: tuple[Measure, ...] = (
    Measure(
        "from-dataframe",
        "a batch DataFrame over Parquet → spool → key_by → keyed count, 10,000 keys, a checkpoint every second",
        Run(PROGRAM, arguments=(*SIZE, "--kind", "batch")),
        None,
        (
            Figure(Quantity.RECORDS_PER_SECOND, ratio=False, bound=Bound.AT_LEAST, target=300_000),
            Figure(Quantity.STARTUP_SECONDS, ratio=False),
        ),
        note=NOTE,
    ),
    Measure(
        "from-dataframe-streaming",
        "the same rows as a streaming DataFrame in micro-batches of one file, read while the next one is written",
        Run(PROGRAM, arguments=(*SIZE, "--kind", "streaming")),
        None,
        (
            Figure(Quantity.RECORDS_PER_SECOND, ratio=False, bound=Bound.AT_LEAST, target=300_000),
            Figure(Quantity.STARTUP_SECONDS, ratio=False),
        ),
        note=NOTE,
    ),
)
