"""Levels run as one Spark job: they stream, stop, fail and wait for slots as the driver needs them to.

Tasks and test meet by named pipes: opening one blocks until the other side has opened it too, so nothing here sleeps.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.runtime.spark.errors import InsufficientSlotsError, SparkJobError
from headrace.runtime.spark.session import SparkHandle, obtain_session
from headrace.runtime.spark.submit import LevelSpec, SparkJob
from headrace.runtime.spark.taskcontext import task_attempt_number

pytestmark = pytest.mark.spark

SLOTS = 4
PATIENCE = 120.0
"""Seconds after which a job that should have ended is called stuck. Never waited for when all is well."""

CELLS = pa.schema([("slot", pa.int32()), ("channel", pa.int32()), ("data", pa.binary())])
NUDGE = b""


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkHandle]:
    handle = obtain_session(None, SLOTS, 2, "test-submit", None)
    yield handle
    handle.stop()


@pytest.fixture
def pipe(tmp_path: Path) -> Callable[[str], Path]:
    def make(name: str) -> Path:
        path = tmp_path / name
        os.mkfifo(path)
        return path

    return make


def cell(slot: int, data: bytes) -> pa.RecordBatch:
    columns = [pa.array([slot], pa.int32()), pa.array([0], pa.int32()), pa.array([data], pa.binary())]
    return pa.record_batch(columns, schema=CELLS)


def payloads(batches: Iterator[pa.RecordBatch]) -> Iterator[bytes]:
    for batch in batches:
        assert batch.num_rows == 1, "a cell is a row is a batch"
        yield from (data for data in batch.column(2).to_pylist() if data != NUDGE)


def emit_one_and_wait(release: Path, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A source that gives one record and ends only when somebody opens the pipe `release`."""
    list(batches)
    yield cell(0, b"first")
    yield cell(0, NUDGE)
    release.read_bytes()


def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for data in payloads(batches):
        yield cell(0, data)
        yield cell(0, NUDGE)


def open_pipe_on_first_record(release: Path, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for data in payloads(batches):
        release.write_bytes(data)
    yield from ()


def drain(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        pass
    yield from ()


def announce_and_wait(started: Path, release: Path, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A source that tells its pid and then is idle until the pipe `release` is opened."""
    list(batches)
    started.write_text(str(os.getpid()))
    release.read_bytes()
    yield from ()


def announce_and_drain(started: Path, slot: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    if task_attempt_number().partition_id == slot:
        started.write_text(str(os.getpid()))
    yield from drain(batches)


def deal_out(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    list(batches)
    for number in range(10):
        yield cell(number % 3, str(number).encode())


def write_down(folder: Path, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    received = b" ".join(payloads(batches)).decode()
    (folder / f"slot-{task_attempt_number().partition_id}").write_text(received)
    yield from ()


def fail_on_a_record(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for data in payloads(batches):
        raise ValueError(f"cannot take {data.decode()!r}")
    yield from ()


def finish(job: SparkJob) -> Exception | None:
    """Wait for the end of a job; one that is stuck is cancelled, so that the next test finds its slots free."""
    ended = job.join(PATIENCE)
    job.cancel()
    assert ended, "the job did not end"
    return job.error


def start(spark: SparkHandle, *levels: LevelSpec, slot_timeout: float = PATIENCE) -> SparkJob:
    job = SparkJob(spark, levels, "test", "a job of the tests", slot_timeout=slot_timeout)
    job.start()
    return job


def test_a_record_reaches_the_last_level_while_the_source_still_runs(
    spark: SparkHandle, pipe: Callable[[str], Path]
) -> None:
    release = pipe("release")
    job = start(
        spark,
        LevelSpec(1, partial(emit_one_and_wait, release)),
        LevelSpec(1, pass_on),
        LevelSpec(1, partial(open_pipe_on_first_record, release)),
    )
    # The source waits for the last level, and the last level for the record: it ends only if records stream.
    assert finish(job) is None


def test_each_cell_arrives_once_in_order_at_the_slot_it_names(spark: SparkHandle, tmp_path: Path) -> None:
    job = start(spark, LevelSpec(1, deal_out), LevelSpec(3, partial(write_down, tmp_path)))
    assert finish(job) is None
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "slot-0": "0 3 6 9",
        "slot-1": "1 4 7",
        "slot-2": "2 5 8",
    }


def test_a_cancelled_job_ends_without_error_and_the_next_takes_its_slots(
    spark: SparkHandle, pipe: Callable[[str], Path]
) -> None:
    for turn in range(2):
        started = pipe(f"started-{turn}")
        idle = partial(announce_and_wait, started, pipe(f"never-{turn}"))
        job = start(spark, LevelSpec(1, idle), LevelSpec(SLOTS - 1, drain))
        started.read_text()
        assert not job.done.is_set()
        job.cancel()
        assert finish(job) is None
        assert job.cancelled


def test_cancelling_a_job_before_spark_has_seen_it_is_enough(spark: SparkHandle, pipe: Callable[[str], Path]) -> None:
    job = SparkJob(
        spark, [LevelSpec(1, partial(announce_and_wait, pipe("started"), pipe("never")))], "test", "cancelled early"
    )
    job.cancel()
    job.start()
    assert finish(job) is None


def test_a_killed_worker_fails_the_job_and_is_named(spark: SparkHandle, pipe: Callable[[str], Path]) -> None:
    source_started, sink_started = pipe("source"), pipe("sink")
    job = start(
        spark,
        LevelSpec(1, partial(announce_and_wait, source_started, pipe("never"))),
        LevelSpec(2, partial(announce_and_drain, sink_started, 1)),
    )
    source_started.read_text()
    os.kill(int(sink_started.read_text()), signal.SIGKILL)
    error = finish(job)
    assert isinstance(error, SparkJobError)
    assert "Python worker exited unexpectedly" in error.detail
    assert job.failed_task == (1, 1)


def test_an_exception_in_a_task_is_the_headline_of_the_error(spark: SparkHandle, pipe: Callable[[str], Path]) -> None:
    never = pipe("never")
    job = start(spark, LevelSpec(1, partial(emit_one_and_wait, never)), LevelSpec(1, fail_on_a_record))
    error = finish(job)
    assert isinstance(error, SparkJobError)
    assert str(error) == "A task failed: ValueError: cannot take 'first'"
    assert "in fail_on_a_record" in error.detail


def test_more_slots_than_a_local_application_has_are_refused_at_once(spark: SparkHandle) -> None:
    job = start(spark, LevelSpec(2, drain), LevelSpec(SLOTS, drain), slot_timeout=3600)
    error = finish(job)
    assert isinstance(error, InsufficientSlotsError)
    assert (error.needed, error.total) == (SLOTS + 2, SLOTS)
    assert f"needs {SLOTS + 2} Spark task slots at once (by level: 2 + {SLOTS})" in str(error)


@pytest.mark.parametrize("levels", [1, 2])
def test_slots_that_another_job_holds_are_waited_for(
    spark: SparkHandle, pipe: Callable[[str], Path], levels: int
) -> None:
    started, release = pipe("started"), pipe("release")
    holder = start(spark, LevelSpec(1, partial(announce_and_wait, started, release)), LevelSpec(1, drain))
    started.read_text()
    wanted = [LevelSpec(SLOTS // levels, drain)] * levels
    assert isinstance(finish(start(spark, *wanted, slot_timeout=0.0)), InsufficientSlotsError)
    waiting = start(spark, *wanted)
    assert not holder.done.is_set()
    release.write_bytes(b"")
    assert finish(holder) is None
    assert finish(waiting) is None


def test_a_job_that_waits_for_slots_can_be_cancelled(spark: SparkHandle, pipe: Callable[[str], Path]) -> None:
    started, release = pipe("started"), pipe("release")
    holder = start(spark, LevelSpec(1, partial(announce_and_wait, started, release)), LevelSpec(1, drain))
    started.read_text()
    waiting = start(spark, LevelSpec(1, drain), LevelSpec(SLOTS - 1, drain), slot_timeout=3600)
    waiting.cancel()
    assert finish(waiting) is None
    assert not holder.done.is_set()
    release.write_bytes(b"")
    assert finish(holder) is None


def test_free_slots_are_those_no_task_holds(spark: SparkHandle, pipe: Callable[[str], Path]) -> None:
    started, release = pipe("started"), pipe("release")
    job = start(spark, LevelSpec(1, partial(announce_and_wait, started, release)), LevelSpec(1, drain))
    started.read_text()
    assert spark.total_slots() == SLOTS
    # The source runs; the other task has been given its slot together with it or is about to.
    assert spark.free_slots() in (SLOTS - 1, SLOTS - 2)
    release.write_bytes(b"")
    assert finish(job) is None


def test_functions_of_the_main_script_run_in_workers(spark: SparkHandle, tmp_path: Path) -> None:
    script: dict[str, object] = {"__name__": "__main__"}
    exec(
        "def write_it(batches):\n"
        "    for batch in batches:\n"
        "        with open(path, 'w') as file:\n"
        "            file.write(str(batch.num_rows))\n"
        "    yield from ()\n",
        script,
    )
    script["path"] = str(tmp_path / "out")
    write_it = script["write_it"]
    assert callable(write_it)
    assert write_it.__module__ == "__main__"
    assert finish(start(spark, LevelSpec(1, write_it))) is None
    assert (tmp_path / "out").read_text() == "1"


def test_a_job_starts_only_once(spark: SparkHandle) -> None:
    job = start(spark, LevelSpec(1, drain))
    with pytest.raises(RuntimeError, match="was started before"):
        job.start()
    assert finish(job) is None
