"""The measures, each with its target: what is run on either side, how much of it, and what must come out.

A measure is data only. `harness.py` runs it, `programs.py` knows how to start each program it names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

Line = Mapping[str, Any]
"""The JSON line that a program prints."""

LONG_ROWS = 48_000_000
"""More than 20 s for a side that does two million records a second."""
SLOW_ROWS = 12_000_000
"""For peers of some 100,000 records a second; equal on both sides where the number of keys is large."""
SPARK_ROWS = 2_000_000
MINIMUM_SECONDS = 20.0


class Quantity(Enum):
    """What is read from a program's line; `None` where the line does not have it."""

    RECORDS_PER_SECOND = "records/s"
    STARTUP_SECONDS = "start-up s"
    CHECKPOINT_MEDIAN_MS = "checkpoint ms, median"
    CHECKPOINT_MAX_MS = "checkpoint ms, worst"
    LATENCY_P50_MS = "p50 ms"
    LATENCY_P99_MS = "p99 ms"
    RECOVERY_SECONDS = "recovery s"
    WORKER_RESIDENT_MB = "resident MB"
    STANDSTILL_MS = "standstill ms"
    COPY_RATIO = "speed, × plain copy"
    LOCAL_COPY_RATIO = "speed with local copies, × plain copy"
    SHA256SUM_RATIO = "speed, × sha256sum"
    UPLOADED_SHARE = "uploaded, share of the first"

    def read(self, line: Line) -> float | None:
        """Take the quantity from a line; a line without it gives None, never a guess."""
        try:
            value = _READERS[self](line)
        except (KeyError, TypeError, ZeroDivisionError, IndexError):
            return None
        return None if value is None else float(value)


def _durations(line: Line) -> list[float]:
    return sorted(line["checkpoints"]["durations_ms"])


_READERS: dict[Quantity, Callable[[Line], float | None]] = {
    Quantity.RECORDS_PER_SECOND: lambda line: line["records"] / line["seconds_between_first_and_last_record"],
    Quantity.STARTUP_SECONDS: lambda line: line["startup_seconds"],
    Quantity.CHECKPOINT_MEDIAN_MS: lambda line: _durations(line)[len(_durations(line)) // 2],
    Quantity.CHECKPOINT_MAX_MS: lambda line: _durations(line)[-1],
    Quantity.LATENCY_P50_MS: lambda line: line["latency_p50_ms"],
    Quantity.LATENCY_P99_MS: lambda line: line["latency_p99_ms"],
    Quantity.RECOVERY_SECONDS: lambda line: line["recovery_seconds"],
    Quantity.WORKER_RESIDENT_MB: lambda line: line["worker_resident_bytes"] / 1e6,
    Quantity.STANDSTILL_MS: lambda line: line["standstill_ms"],
    Quantity.COPY_RATIO: lambda line: line["copy_ratio"],
    Quantity.LOCAL_COPY_RATIO: lambda line: line["local_copy_ratio"],
    Quantity.SHA256SUM_RATIO: lambda line: line["sha256sum_ratio"],
    Quantity.UPLOADED_SHARE: lambda line: line["uploaded_share"],
}


class Bound(Enum):
    """On which side of the target a figure must lie."""

    AT_LEAST = "≥"
    AT_MOST = "≤"
    BELOW = "<"

    def holds(self, value: float, target: float) -> bool:
        """Whether the value reaches the target."""
        return {"≥": value >= target, "≤": value <= target, "<": value < target}[self.value]


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of a measure.

    As a `ratio` it is ours divided by the other side's, pair by pair, and then the median of the pairs. Without,
    it is the median of our own runs, as seen on the machine.
    """

    quantity: Quantity
    ratio: bool = True
    bound: Bound | None = None
    target: float | None = None
    """None: printed for the record, nothing must be reached."""

    @property
    def title(self) -> str:
        """How the figure is called in tables and files."""
        return f"{self.quantity.value}, ratio" if self.ratio else f"{self.quantity.value}, ours"


@dataclass(frozen=True, slots=True)
class Rows:
    """A dataset by its size; the same seed always."""

    keys: int
    rows: int


@dataclass(frozen=True, slots=True)
class Run:
    """One side of a measure: a program, its dataset and its arguments."""

    program: str
    """`headrace`, or a peer of `programs.py`."""
    data: Rows | None = None
    """None for programs that make their own records."""
    arguments: tuple[str, ...] = ()
    variants: tuple[tuple[str, ...], ...] = ((),)
    """Each is run; the best counts, so that a peer is met with the settings that suit it best."""


@dataclass(frozen=True, slots=True)
class Measure:
    """A named measure; `python -m bench run NAME` runs it."""

    name: str
    title: str
    ours: Run
    other: Run | None
    figures: tuple[Figure, ...]
    minimum_seconds: float = MINIMUM_SECONDS
    """Between first and last record of our side; a shorter run is not judged."""
    note: str = ""


def headrace(
    workload: str = "jumps",
    *arguments: str,
    data: Rows | None = None,
    backend: str = "heap",
    checkpoint_ms: int = 0,
    mode: str = "exactly-once",
) -> Run:
    """Our side; the arguments are those documented in `harness.py`."""
    fixed = (
        "--workload",
        workload,
        "--backend",
        backend,
        "--checkpoint-interval-ms",
        str(checkpoint_ms),
        "--mode",
        mode,
    )
    return Run("headrace", data, fixed + arguments)


def throughput(target: float, bound: Bound = Bound.AT_LEAST) -> tuple[Figure, ...]:
    """The ratio of the rates with its target; start-up beside it, for the record."""
    return (
        Figure(Quantity.RECORDS_PER_SECOND, bound=bound, target=target),
        Figure(Quantity.STARTUP_SECONDS, ratio=False),
        Figure(Quantity.STARTUP_SECONDS),
    )


K10 = Rows(10_000, LONG_ROWS)
K100 = Rows(100_000, LONG_ROWS)
M1 = Rows(1_000_000, LONG_ROWS)
M1_ROCKSDB = Rows(1_000_000, SLOW_ROWS)
SLOWED = Rows(100_000, 2_000_000)

SPARK_APIS = (("--api", "row"), ("--api", "pandas"))
BYTEWAX_PROCESSES = (("--processes", "1"), ("--processes", "2"))
REAL_TIME_MODE = "Spark's Real-time Mode would be the peer for latency, but it has no Python state."
LATENCY_LOAD = ("--rate", "1000", "--keys", "1000", "--seconds", "60", "--warm-up-seconds", "20")

ALL: tuple[Measure, ...] = (
    Measure(
        "throughput-vs-transform-with-state",
        "10,000 keys, heap, against PySpark transformWithState on RocksDB, micro-batches of 200,000 rows",
        headrace(data=K10),
        Run("transform-with-state", Rows(10_000, SPARK_ROWS), ("--rows-per-batch", "200000"), SPARK_APIS),
        throughput(15),
        note="The size of the micro-batch is our choice: quote the measure with one batch beside this one.",
    ),
    Measure(
        "throughput-vs-transform-with-state-one-batch",
        "the same with all the peer's rows in one micro-batch, Spark's default: a batch job, for the record",
        headrace(data=K10),
        Run("transform-with-state", Rows(10_000, SPARK_ROWS), ("--rows-per-batch", "0"), SPARK_APIS),
        (Figure(Quantity.RECORDS_PER_SECOND),),
    ),
    Measure(
        "throughput-vs-bytewax",
        "10,000 keys, heap, against Bytewax 0.21, per record (`stateful_flat_map`) in batches of 1,000, the default of "
        "the sources that come with it, best of 1 or 2 processes",
        headrace(data=K10),
        Run(
            "bytewax",
            Rows(10_000, SLOW_ROWS),
            ("--operator", "stateful_flat_map", "--batch-rows", "1000"),
            variants=BYTEWAX_PROCESSES,
        ),
        throughput(3),
    ),
    Measure(
        "throughput-vs-bytewax-large-batches",
        "the same in batches of 65,536 rows, pyarrow's default for Parquet",
        headrace(data=K10),
        Run("bytewax", Rows(10_000, SLOW_ROWS), ("--operator", "stateful_flat_map"), variants=BYTEWAX_PROCESSES),
        throughput(3),
    ),
    Measure(
        "throughput-vs-bytewax-batch",
        "the same against Bytewax's `stateful_batch`, whose function gets a list of records instead of one",
        headrace(data=K10),
        Run("bytewax", Rows(10_000, SLOW_ROWS), variants=BYTEWAX_PROCESSES),
        (Figure(Quantity.RECORDS_PER_SECOND),),
    ),
    Measure(
        "throughput-vs-bare-loop",
        "10,000 keys, heap, against two bare Python processes with a dict",
        headrace(data=K10),
        Run("bare-loop", K10),
        throughput(0.5),
    ),
    Measure(
        "throughput-vs-bare-loop-rows",
        "the same against the loop that takes each record as a dict (`to_pylist` of a batch) instead of two columns",
        headrace(data=K10),
        Run("bare-loop", Rows(10_000, SLOW_ROWS), ("--rows",)),
        (Figure(Quantity.RECORDS_PER_SECOND),),
    ),
    Measure(
        "throughput-vs-flink-heap",
        "10,000 keys, heap, against Flink in Java on heap",
        headrace(data=K10),
        Run("flink", K10, ("--backend", "heap")),
        throughput(0.2),
    ),
    Measure(
        "throughput-vs-flink-rocksdb-10k",
        "10,000 keys, RocksDB, against Flink in Java on RocksDB",
        headrace(data=K10, backend="rocksdb"),
        Run("flink", Rows(10_000, SLOW_ROWS), ("--backend", "rocksdb")),
        throughput(1.2),
    ),
    Measure(
        "throughput-vs-flink-rocksdb-1m",
        "1,000,000 keys, RocksDB, against Flink in Java on RocksDB",
        headrace(data=M1_ROCKSDB, backend="rocksdb"),
        Run("flink", M1_ROCKSDB, ("--backend", "rocksdb")),
        throughput(1.2),
    ),
    Measure(
        "rocksdb-vs-heap",
        "our RocksDB against our heap, 10,000 keys",
        headrace(data=K10, backend="rocksdb"),
        headrace(data=K10),
        throughput(0.5),
    ),
    Measure(
        "heap-1m-vs-10k",
        "our heap with 1,000,000 keys against 10,000",
        headrace(data=M1),
        headrace(data=K10),
        throughput(0.5),
    ),
    Measure(
        "checkpoint-cost-heap",
        "a checkpoint every second against none, 100,000 keys, heap",
        headrace(data=K100, checkpoint_ms=1_000),
        headrace(data=K100),
        throughput(0.95),
    ),
    Measure(
        "checkpoint-cost-rocksdb",
        "a checkpoint every second against none, 100,000 keys, RocksDB",
        headrace(data=K100, backend="rocksdb", checkpoint_ms=1_000),
        headrace(data=K100, backend="rocksdb"),
        throughput(0.9),
    ),
    Measure(
        "checkpoint-duration",
        "an aligned checkpoint at full load, 100,000 keys, heap",
        headrace(data=K100, checkpoint_ms=1_000),
        None,
        (
            Figure(Quantity.CHECKPOINT_MEDIAN_MS, ratio=False, bound=Bound.AT_MOST, target=500),
            Figure(Quantity.CHECKPOINT_MAX_MS, ratio=False),
        ),
    ),
    Measure(
        "latency-vs-transform-with-state",
        "1,000 records/s through one exchange, a checkpoint every second, creation to sink",
        headrace("latency", *LATENCY_LOAD, checkpoint_ms=1_000),
        Run("transform-with-state-latency", arguments=LATENCY_LOAD, variants=(("--api", "row"),)),
        (
            Figure(Quantity.LATENCY_P50_MS, bound=Bound.AT_MOST, target=0.05),
            Figure(Quantity.LATENCY_P99_MS, bound=Bound.AT_MOST, target=0.1),
            Figure(Quantity.LATENCY_P50_MS, ratio=False, bound=Bound.AT_MOST, target=15),
            Figure(Quantity.LATENCY_P99_MS, ratio=False),
        ),
        note=REAL_TIME_MODE,
    ),
    Measure(
        "unaligned-vs-aligned",
        "checkpoint duration with a slowed operator and full buffers, unaligned against aligned",
        headrace("jumps", "--operator-delay-us", "20", data=SLOWED, checkpoint_ms=1_000, mode="unaligned"),
        headrace("jumps", "--operator-delay-us", "20", data=SLOWED, checkpoint_ms=1_000),
        (Figure(Quantity.CHECKPOINT_MEDIAN_MS, bound=Bound.AT_MOST, target=0.5), Figure(Quantity.CHECKPOINT_MAX_MS)),
    ),
    Measure(
        "at-least-once-vs-aligned",
        "two inputs of unequal speed, p99 latency, at-least-once against aligned exactly-once",
        headrace(
            "two-inputs",
            *("--second-rate", "200", "--operator-delay-us", "10000"),
            *LATENCY_LOAD,
            checkpoint_ms=1_000,
            mode="at-least-once",
        ),
        headrace(
            "two-inputs", *("--second-rate", "200", "--operator-delay-us", "10000"), *LATENCY_LOAD, checkpoint_ms=1_000
        ),
        (Figure(Quantity.LATENCY_P99_MS, bound=Bound.BELOW, target=1.0), Figure(Quantity.LATENCY_P50_MS)),
    ),
    Measure(
        "recovery-time",
        "from SIGKILL of a worker to the first record processed again, 100 MB of state",
        headrace("recovery", "--value-bytes", "100", data=Rows(1_000_000, SLOW_ROWS), checkpoint_ms=1_000),
        None,
        (Figure(Quantity.RECOVERY_SECONDS, ratio=False, bound=Bound.AT_MOST, target=3),),
        minimum_seconds=0,
    ),
    Measure(
        "resident-memory",
        "one Python worker on RocksDB, 5 million keys of 100 bytes",
        headrace(
            "memory",
            *("--keys", "5000000", "--value-bytes", "100", "--rows", "5000000"),
            backend="rocksdb",
        ),
        None,
        (Figure(Quantity.WORKER_RESIDENT_MB, ratio=False, bound=Bound.AT_MOST, target=500),),
        minimum_seconds=0,
    ),
)

# Below the classes of this file, of which those measures are made.
from bench.join_measures import JOINS  # noqa: E402
from bench.window_measures import WINDOWS  # noqa: E402

ALL += JOINS + WINDOWS
from bench.checkpoint_measures import CHECKPOINTS  # noqa: E402

ALL += CHECKPOINTS
from bench.kafka_measures import KAFKA  # noqa: E402

ALL += KAFKA
from bench.dataframe_measures import DATAFRAMES  # noqa: E402

ALL += DATAFRAMES


def by_name(name: str) -> Measure:
    """Find a measure; an unknown name is answered with the known ones."""
    for measure in ALL:
        if measure.name == name:
            return measure
    known = ", ".join(measure.name for measure in ALL)
    raise KeyError(f'No measure is called "{name}". There are: {known}, and "all".')
