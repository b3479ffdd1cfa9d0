"""Snapshots are written while records go on; one that fails is dropped, and only a run of failures fails the job."""

from __future__ import annotations

import errno
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from ledger import Ledger, LedgerSink, ledger_stream
from tallies import log

from headrace import (
    CheckpointListener,
    FileSystemCheckpointStorage,
    JobManagerCheckpointStorage,
    KeyedProcessFunction,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from headrace.checkpoint.handles import StateFile
from headrace.errors import JobFailedError, StorageError
from headrace.testing import CRASH, TestSource, WaitUntil, run_until_done

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


def lines(path: Path | str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []


class PatientStorage(FileSystemCheckpointStorage):
    """Notes that the first keyed state is about to be written, and writes it when the test says so."""

    def __init__(self, uri: str, uploading: str, go_on: str) -> None:
        super().__init__(uri, file_state_size_threshold=0)
        self._uploading = uploading
        self._go_on = go_on

    def file_store(self, prefix: str, known_shared: frozenset[str] = frozenset()) -> Any:
        return _PatientStore(super().file_store(prefix, known_shared), Path(self._uploading), Path(self._go_on))


class _PatientStore:
    def __init__(self, store: Any, uploading: Path, go_on: Path) -> None:
        self._store = store
        self._uploading = uploading
        self._go_on = go_on

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def write(self, name: str, chunks: Any) -> StateFile:
        if name.startswith("keyed-"):
            self._wait()
        return self._store.write(name, chunks)  # type: ignore[no-any-return]

    def write_shared(self, path: Path) -> StateFile:
        self._wait()
        return self._store.write_shared(path)  # type: ignore[no-any-return]

    def _wait(self) -> None:
        self._uploading.touch()
        while not self._go_on.exists():
            time.sleep(0.005)


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_what_is_written_while_a_snapshot_uploads_is_not_in_it(bench: Any, backend: str) -> None:
    calls, checkpoints = str(bench.directory / "calls"), Path(bench.directory, "checkpoints")
    uploading, go_on = bench.directory / "uploading", bench.directory / "go on"

    def is_counted() -> bool:
        if len(lines(calls)) >= 2:
            go_on.touch()
        return go_on.exists()

    def count(value: int, before: int | None) -> tuple[Any, int]:
        complete = len(list(checkpoints.glob("*/run-*/chk-*/_metadata")))
        log(calls, f"{before} + {value}, {complete} complete")
        return (value, (before or 0) + value), (before or 0) + value

    script = TestSource(
        [
            1,
            WaitUntil(uploading.exists),  # the barrier has passed, its snapshot is being written
            10,
            WaitUntil(is_counted),  # and meanwhile the next record is processed
            WaitUntil(lambda: bool(list(checkpoints.glob("*/run-*/chk-*/_metadata")))),
            CRASH,
        ]
    )
    # Long enough for the first record to go before the one barrier.
    env = bench.env(parallelism=1, backend=backend, interval=2_000)
    storage = PatientStorage(bench.storage, str(uploading), str(go_on))
    env.get_checkpoint_config().set_checkpoint_storage(storage).set_min_pause_between_checkpoints(3_600_000)
    numbers = env.from_source(script, WatermarkStrategy.no_watermarks(), "numbers").uid("numbers")
    sums = numbers.key_by(lambda n: "k").map_with_state(count, state_type=int).uid("sums")

    outcome = run_until_done(sums, "v1 and v2", restarts=1)

    first_life, second_life = lines(calls)[:2], lines(calls)[2:]
    assert first_life == ["None + 1, 0 complete", "1 + 10, 0 complete"]
    assert second_life == ["1 + 10, 1 complete"]
    assert outcome.committed == [(1, 1), (10, 11)]


def test_a_checkpoint_that_hangs_times_out_and_the_next_one_carries_its_output(
    bench: Any, faults: Any, start: Any
) -> None:
    faults.plan("after_snapshot_local=hang@2#1.0")
    ledger = Ledger(length=400, rate=3_000).holding_for(faults)
    sink = LedgerSink(bench.directory / "out")
    env = bench.env(interval=50)
    # On a busy machine others may take that long too.
    env.get_checkpoint_config().set_checkpoint_timeout(2_000).set_tolerable_checkpoint_failure_number(1_000)
    ledger_stream(env, ledger).sink_to(sink).uid("sink")

    job = start(env)
    result = job.finish()

    assert len(faults.happened) == 1
    failed = job.kinds("checkpoint-failed")
    assert {failure["reason"] for failure in failed} == {"timed out"}
    completed = [checkpoint["checkpoint_id"] for checkpoint in job.kinds("checkpoint")]
    assert not {failure["checkpoint_id"] for failure in failed} & set(completed)
    assert max(completed) > failed[0]["checkpoint_id"]
    assert result.restarts == 0
    assert ledger.problems(sink.lines()) == []


@pytest.mark.parametrize(("tolerated", "fails"), [(3, False), (2, True)])
def test_so_many_failed_checkpoints_in_a_row_are_borne_and_one_more_fails_the_job(
    bench: Any, faults: Any, start: Any, tolerated: int, fails: bool
) -> None:
    faults.plan(*(f"before_ack=raise@{n}#1.0" for n in (2, 3, 4)))
    ledger = Ledger(length=400, rate=3_000).holding_for(faults)
    sink = LedgerSink(bench.directory / "out")
    env = bench.env(interval=50, restarts=0)
    env.get_checkpoint_config().set_tolerable_checkpoint_failure_number(tolerated)
    ledger_stream(env, ledger).sink_to(sink).uid("sink")

    job = start(env)
    if fails:
        with pytest.raises(JobFailedError, match="3 checkpoints failed in a row, 2 are tolerated"):
            job.finish()
    else:
        assert job.finish().restarts == 0
        assert ledger.problems(sink.lines()) == []
    assert len(faults.happened) == 3
    assert len(job.kinds("checkpoint-failed")) == 3


def test_a_success_between_failures_begins_the_count_anew(bench: Any, faults: Any, start: Any) -> None:
    faults.plan("before_ack=raise@2#1.0", "before_ack=raise@4#1.0", "before_ack=raise@6#1.0")
    ledger = Ledger(length=400, rate=3_000).holding_for(faults)
    sink = LedgerSink(bench.directory / "out")
    env = bench.env(interval=50, restarts=0)
    env.get_checkpoint_config().set_tolerable_checkpoint_failure_number(1)
    ledger_stream(env, ledger).sink_to(sink).uid("sink")

    job = start(env)
    job.finish()

    assert len(job.kinds("checkpoint-failed")) == 3
    assert ledger.problems(sink.lines()) == []


class Hoarder(KeyedProcessFunction, CheckpointListener):
    """Keeps what it is given as state, and notes which checkpoints were given up."""

    def __init__(self, aborted: str) -> None:
        self._aborted = aborted

    def open(self, runtime_context: Any) -> None:
        self._kept = runtime_context.get_state(ValueStateDescriptor("kept", Types.STRING()))

    def process_element(self, value: str, ctx: Any) -> Iterable[Any]:
        if value:
            self._kept.update(value)
        else:
            self._kept.clear()
        yield len(value)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        log(self._aborted, f"complete {checkpoint_id}")

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        log(self._aborted, f"aborted {checkpoint_id}")


def test_state_too_large_for_the_coordinators_memory_fails_the_checkpoint_and_not_the_job(
    bench: Any, start: Any
) -> None:
    told = str(bench.directory / "told")
    script = TestSource(
        ["x" * (6 * 2**20), WaitUntil(lambda: any(line.startswith("aborted") for line in lines(told))), ""]
    )
    env = bench.env(parallelism=1, interval=200, restarts=0)
    env.get_checkpoint_config().set_checkpoint_storage(JobManagerCheckpointStorage())
    env.get_checkpoint_config().set_tolerable_checkpoint_failure_number(100)
    texts = env.from_source(script, WatermarkStrategy.no_watermarks(), "texts").uid("texts")
    sink = LedgerSink(bench.directory / "out")
    kept = texts.key_by(lambda text: "k").process(Hoarder(told)).uid("hoarder")
    kept.map(lambda size: ("size", size)).sink_to(sink).uid("sink")

    job = start(env)
    result = job.finish()

    assert result.restarts == 0
    reasons = {failed["reason"] for failed in job.kinds("checkpoint-failed")}
    assert reasons == {"state larger than the storage allows"}
    declined = job.kinds("checkpoint-declined")[0]["reason"]
    assert '"kept"' in declined or "5242880" in declined
    assert "max_state_size" in declined
    assert sorted(sink.lines()) == [("size", 0), ("size", 6 * 2**20)]


class FullDisk(FileSystemCheckpointStorage):
    """Storage that has no room while a file is there."""

    def __init__(self, uri: str, full: str) -> None:
        super().__init__(uri)
        self._full = full

    def file_store(self, prefix: str, known_shared: frozenset[str] = frozenset()) -> Any:
        return _StoreOnFullDisk(super().file_store(prefix, known_shared), self._full)


class _StoreOnFullDisk:
    def __init__(self, store: Any, full: str) -> None:
        self._store = store
        self._full = full

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def write(self, name: str, chunks: Any) -> StateFile:
        self._check(name)
        return self._store.write(name, chunks)  # type: ignore[no-any-return]

    def write_shared(self, path: Path) -> StateFile:
        self._check(str(path))
        return self._store.write_shared(path)  # type: ignore[no-any-return]

    def _check(self, name: str) -> None:
        if Path(self._full).exists():
            raise StorageError(errno.ENOSPC, f"No space left on device: {name}")


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_a_full_disk_fails_checkpoints_until_there_is_room_and_loses_nothing(
    bench: Any, faults: Any, start: Any, backend: str
) -> None:
    full, go = bench.directory / "full", bench.directory / "go"
    ledger = Ledger(length=400, rate=3_000, faults=1, fault_log=str(go))
    sink = LedgerSink(bench.directory / "out")
    env = bench.env(interval=50, backend=backend)
    env.get_checkpoint_config().set_checkpoint_storage(FullDisk(bench.storage, str(full)))
    env.get_checkpoint_config().set_tolerable_checkpoint_failure_number(10_000)
    ledger_stream(env, ledger).sink_to(sink).uid("sink")

    job = start(env)
    job.wait_for("checkpoint")
    full.touch()
    failed = job.wait_for("checkpoint-failed")
    assert failed["reason"] == "storage failed"
    assert "No space left on device" in job.kinds("checkpoint-declined")[0]["reason"]
    full.unlink()
    job.wait_for("checkpoint", lambda checkpoint: checkpoint["checkpoint_id"] > failed["checkpoint_id"])
    go.mkdir()
    (go / "now").touch()

    assert job.finish().restarts == 0
    assert ledger.problems(sink.lines()) == []


def test_checkpoint_storage_that_cannot_be_written_is_told_before_anything_runs(bench: Any, start: Any) -> None:
    Path(bench.directory, "checkpoints").write_text("a file where the directory should be")
    env = bench.env()
    ledger_stream(env, Ledger(length=50)).sink_to(LedgerSink(bench.directory / "out")).uid("sink")
    job = start(env)
    with pytest.raises(StorageError, match="checkpoints"):
        job.finish()
    assert not (bench.directory / "out").exists()
