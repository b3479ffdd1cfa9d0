"""The measures of checkpoints as such: standstill, writing, restoring, rescaling, verifying; part of `measures.ALL`.

All work on one million keys of 1,000 bytes, 1 GB, and run on the backends without Spark (`checkpoint_job.py`).
"""

from __future__ import annotations

from bench.measures import Bound, Figure, Measure, Quantity, Run

PROGRAM = "headrace-checkpoints"


def run(measure: str, *arguments: str, rows: int = 1_000_000, value_bytes: int = 1_000) -> Run:
    """One measure of `checkpoint_job.py`."""
    size = ("--rows", str(rows), "--value-bytes", str(value_bytes))
    return Run(PROGRAM, arguments=("--measure", measure, *size, *arguments))


def copy_ratio(target: float | None) -> Figure:
    """Our speed over that of a plain copy, measured in turn in the same process."""
    bound = None if target is None else Bound.AT_LEAST
    return Figure(Quantity.COPY_RATIO, ratio=False, bound=bound, target=target)


STANDSTILL = Figure(Quantity.STANDSTILL_MS, ratio=False, bound=Bound.AT_MOST, target=100)
LOCAL = Figure(Quantity.LOCAL_COPY_RATIO, ratio=False)

CHECKPOINTS: tuple[Measure, ...] = (
    *(
        Measure(
            f"checkpoint-standstill-{backend}",
            f"longest standstill of a mailbox that a checkpoint of 1 GB causes, {backend}",
            run("standstill", "--backend", backend),
            None,
            (STANDSTILL,),
            minimum_seconds=0,
        )
        for backend in ("heap", "rocksdb")
    ),
    Measure(
        "checkpoint-write-rocksdb",
        "writing a whole checkpoint of 1 GB, against copying its files and syncing the copies, which ours are too",
        run("write"),
        None,
        (copy_ratio(0.5),),
        minimum_seconds=0,
    ),
    Measure(
        "checkpoint-restore-rocksdb",
        "restoring 1 GB, from storage and from the host's own copies, against copying the files",
        run("restore"),
        None,
        (copy_ratio(0.5), LOCAL),
        minimum_seconds=0,
    ),
    Measure(
        "checkpoint-restore-heap",
        "restoring 1 GB into objects in memory, against copying the file",
        run("restore", "--backend", "heap"),
        None,
        (copy_ratio(0.1), LOCAL),
        minimum_seconds=0,
    ),
    Measure(
        "checkpoint-rescale-2-to-4",
        "1 GB of two RocksDB subtasks restored as four, against copying the files of the two",
        run("rescale", "--old", "2", "--new", "4"),
        None,
        (copy_ratio(0.25),),
        minimum_seconds=0,
    ),
    Measure(
        "checkpoint-rescale-4-to-2",
        "1 GB of four RocksDB subtasks restored as two, against copying the files of the four",
        run("rescale", "--old", "4", "--new", "2"),
        None,
        (copy_ratio(None),),
        minimum_seconds=0,
    ),
    Measure(
        "checkpoint-upload-vs-change",
        "bytes that an incremental checkpoint uploads after 1 % of one million keys changed, as a share of the first",
        run("increments", value_bytes=100),
        None,
        (Figure(Quantity.UPLOADED_SHARE, ratio=False, bound=Bound.AT_MOST, target=0.05),),
        minimum_seconds=0,
        note="Other shares are plotted in bench/results/checkpoint-upload-vs-change.svg.",
    ),
    Measure(
        "checkpoint-verify",
        "`headrace checkpoints verify` of 1 GB, against sha256sum of the same files",
        run("verify"),
        None,
        (Figure(Quantity.SHA256SUM_RATIO, ratio=False, bound=Bound.AT_LEAST, target=0.7),),
        minimum_seconds=0,
    ),
)
