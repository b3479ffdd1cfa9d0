"""Savepoints of running jobs: moved, restored twice, at other widths and on other backends; stopping with one."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from checkpoints import published, timers_in
from ledger import THE_END, Ledger, LedgerSink, LedgerSource, ledger_stream
from programs import Program

from headrace import FileSink, KeyedProcessFunction, Types, ValueStateDescriptor, WatermarkStrategy
from headrace.checkpoint.location import open_checkpoint
from headrace.checkpoint.metadata.model import state_files
from headrace.datastream.overrides import Overrides, overriding
from headrace.errors import JobControlError, RestoreError, SavepointError, StateConflictError
from headrace.runtime.job.running_jobs import find_job
from headrace.types.rows import Row

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


def held(bench: Any, **sizes: Any) -> tuple[Ledger, Path]:
    """A ledger that does not end before the returned place exists."""
    go = bench.directory / "go"
    return Ledger(**({"length": 400, "rate": 3_000, "faults": 1, "fault_log": str(go)} | sizes)), go


def release(go: Path) -> None:
    go.mkdir(parents=True)
    (go / "now").touch()


class Output:
    """What a sink shows beyond what it had shown before."""

    def __init__(self, sink: LedgerSink) -> None:
        self._committed = Path(sink.directory, "committed")
        self._before = set(os.listdir(self._committed)) if self._committed.is_dir() else set()

    def lines(self) -> list[tuple[Any, ...]]:
        fresh = sorted(set(os.listdir(self._committed)) - self._before)
        return [tuple(json.loads(line)) for name in fresh for line in (self._committed / name).read_text().splitlines()]

    def rest_is_exact(self, ledger: Ledger) -> bool:
        """Whether this is the exact end of the ledger: from some number of each key on everything once, no alert, and
        the final state of every key, which no state but the right one could have led to."""
        found = Counter(self.lines())
        finals = {line: n for line, n in found.items() if line[0] == "final"}
        wanted = {line: n for line, n in ledger.expected().items() if line[0] == "final"}
        for key in range(ledger.keys):
            numbers = sorted(found_key[2] for found_key in found.elements() if found_key[:2] == ("seq", key))
            if numbers != list(range(ledger.length - len(numbers) + 1, ledger.length + 1)):
                return False
        return finals == wanted and not any(line[0] == "alert" for line in found)


def tree(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def test_a_savepoint_is_moved_its_original_deleted_and_it_is_restored_twice(bench: Any, start: Any) -> None:
    ledger, go = held(bench)
    sink = LedgerSink(bench.directory / "out")

    def launch(**settings: Any) -> Any:
        env = bench.env(interval=50, **settings)
        ledger_stream(env, ledger).sink_to(sink).uid("sink")
        return start(env)

    job = launch()
    job.wait_for("checkpoint", lambda checkpoint: checkpoint["checkpoint_id"] >= 2)
    path = job.client.trigger_savepoint(str(bench.directory / "saved")).result(180)
    told = job.wait_for("savepoint")
    assert told["path"] == path
    job.wait_for("checkpoint", lambda checkpoint: checkpoint["checkpoint_id"] > told["checkpoint_id"])
    assert not job.kinds("failure")
    job.client.cancel().result(180)

    place = Path(path.removeprefix("file://"))
    assert place.parent == bench.directory / "saved"
    assert place.name.startswith("savepoint-ledger-")
    metadata = open_checkpoint(path).metadata
    assert (metadata.kind, metadata.mode) == ("savepoint", "aligned")
    assert not any(file.shared for file in state_files(metadata))

    moved = bench.directory / "elsewhere" / "kept"
    shutil.copytree(place, moved)
    shutil.rmtree(bench.directory / "saved")
    shutil.rmtree(bench.directory / "checkpoints")
    before = tree(moved)
    release(go)
    for parallelism in (1, 3):
        shown = Output(sink)
        with overriding(Overrides(restore_from=str(moved))):
            job = launch(parallelism=parallelism)
        assert job.wait_for("running")["restored"] == metadata.checkpoint_id
        job.finish()
        assert shown.rest_is_exact(ledger)
        assert tree(moved) == before, "a restore wrote into the savepoint"


class Files(Output):
    """The same of files in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def lines(self) -> list[tuple[Any, ...]]:
        files = sorted(self._folder.glob("*.jsonl"))
        return [tuple(json.loads(line)) for file in files for line in file.read_text().splitlines()]


def test_a_savepoint_is_restored_by_a_program_that_writes_files_to_another_folder(bench: Any, start: Any) -> None:
    ledger, go = held(bench)

    def launch(folder: str) -> Any:
        env = bench.env(interval=50)
        ledger_stream(env, ledger).map(list).sink_to(FileSink.json_lines(bench.directory / folder)).uid("files")
        return start(env)

    job = launch("old")
    job.wait_for("checkpoint", lambda checkpoint: checkpoint["checkpoint_id"] >= 2)
    path = job.client.trigger_savepoint(str(bench.directory / "saved")).result(180)
    job.client.cancel().result(180)
    before = set(Files(bench.directory / "old").lines())

    release(go)
    with overriding(Overrides(restore_from=path)):
        job = launch("new")
    job.finish()

    assert not job.kinds("failure")
    new = Files(bench.directory / "new")
    assert new.rest_is_exact(ledger)
    assert before <= set(Files(bench.directory / "old").lines()), "what is prepared is committed where it was prepared"
    seen = [line for folder in ("old", "new") for line in Files(bench.directory / folder).lines()]
    assert set(ledger.expected()) <= set(seen)


def test_stopping_with_a_savepoint_commits_everything_before_it_and_the_next_start_goes_on_exactly_there(
    bench: Any, start: Any
) -> None:
    ledger, go = held(bench)
    sink = LedgerSink(bench.directory / "out")

    def launch(**settings: Any) -> Any:
        env = bench.env(interval=50, mode="unaligned", **settings)
        ledger_stream(env, ledger, levels=3).sink_to(sink).uid("sink")
        return start(env)

    job = launch()
    job.wait_for("checkpoint", lambda checkpoint: checkpoint["checkpoint_id"] >= 2)
    path = job.client.stop_with_savepoint(False, str(bench.directory / "saved")).result(180)
    assert job.finish().restarts == 0
    assert job.report.status.value == "FINISHED"
    assert job.kinds("savepoint")[-1]["stop"]
    assert os.listdir(bench.directory / "out" / "prepared") == []

    release(go)
    with overriding(Overrides(restore_from=path)):
        job = launch(parallelism=1)
    assert job.wait_for("running")["restored"] == open_checkpoint(path).metadata.checkpoint_id
    job.finish()
    assert ledger.problems(sink.lines()) == []


def test_a_job_without_checkpoints_can_be_stopped_with_a_savepoint_all_the_same(bench: Any, start: Any) -> None:
    ledger, go = held(bench)
    sink = LedgerSink(bench.directory / "out")
    env = bench.env(interval=None)
    ledger_stream(env, ledger).sink_to(sink).uid("sink")
    job = start(env)
    job.wait_for("running")
    path = job.client.stop_with_savepoint(False, str(bench.directory / "saved")).result(180)
    job.finish()

    release(go)
    env = bench.env(interval=50)
    ledger_stream(env, ledger).sink_to(sink).uid("sink")
    with overriding(Overrides(restore_from=path)):
        start(env).finish()
    assert ledger.problems(sink.lines()) == []


def test_drain_fires_every_window_and_event_time_timer_before_the_savepoint(bench: Any, start: Any) -> None:
    ledger, _ = held(bench)
    sink = LedgerSink(bench.directory / "out")
    env = bench.env(interval=50)
    ledger_stream(env, ledger).sink_to(sink).uid("sink")
    job = start(env)
    job.wait_for("checkpoint", lambda checkpoint: checkpoint["checkpoint_id"] >= 2)
    path = job.client.stop_with_savepoint(True, str(bench.directory / "saved")).result(180)
    job.finish()

    lines = Counter(sink.lines())
    read = Counter(line[1] for line in lines.elements() if line[0] == "seq")
    finals = [line for line in lines.elements() if line[0] == "final"]
    # Not the end of the ledger, but the end of time for what was read of it.
    assert sorted(line[1] for line in finals) == sorted(read)
    assert all(line[2] == line[3] == read[line[1]] for line in finals)
    assert all(line[4] == line[2] * (line[2] + 1) // 2 and line[5] == 0 for line in finals)
    windows = [line for line in lines.elements() if line[0] == "window"]
    assert sum(line[3] for line in windows) == sum(read.values())
    assert timers_in(open_checkpoint(path), "books") == 0


def test_a_stop_whose_savepoint_fails_leaves_the_job_going_on_from_its_last_checkpoint(
    bench: Any, faults: Any, start: Any
) -> None:
    faults.plan("savepoint_written=raise#1.1")
    ledger = Ledger(rate=3_000).holding_for(faults)
    sink = LedgerSink(bench.directory / "out")
    env = bench.env(interval=50, restarts=0)
    ledger_stream(env, ledger).sink_to(sink).uid("sink")
    job = start(env)
    job.wait_for("checkpoint", lambda checkpoint: checkpoint["checkpoint_id"] >= 2)
    answer = job.client.stop_with_savepoint(False, str(bench.directory / "saved"))
    with pytest.raises(SavepointError, match="The job goes on from its last checkpoint"):
        answer.result(180)
    job.wait_for("going-back")
    # No restart strategy was asked: it would have allowed none.
    result = job.finish()
    assert result.restarts == 0
    assert len(faults.happened) == 1
    assert ledger.problems(sink.lines()) == []
    assert not [file for file in (bench.directory / "saved").rglob("*") if file.is_file()]


class RefusingSink(LedgerSink):
    """A sink whose workers cannot commit what a savepoint holds, while the driver can."""

    def __init__(self, directory: Path, savepoints: Path) -> None:
        super().__init__(directory)
        self.savepoints = str(savepoints)
        self.driver = os.getpid()

    def commit(self, txn: Any) -> None:
        if os.getpid() != self.driver and any(Path(self.savepoints).glob("*/_metadata")):
            raise OSError("no commits today")
        super().commit(txn)


def test_a_stop_whose_sinks_fail_to_commit_still_stops_with_all_output_committed_once(bench: Any, start: Any) -> None:
    ledger, go = held(bench)
    sink = RefusingSink(bench.directory / "out", bench.directory / "saved")
    env = bench.env(interval=50)
    ledger_stream(env, ledger).sink_to(sink).uid("sink")
    job = start(env)
    job.wait_for("checkpoint", lambda checkpoint: checkpoint["checkpoint_id"] >= 2)
    path = job.client.stop_with_savepoint(False, str(bench.directory / "saved")).result(180)
    job.finish()
    assert job.wait_for("failure")["message"]

    release(go)
    env = bench.env(interval=50)
    whole = LedgerSink(bench.directory / "out")
    ledger_stream(env, ledger).sink_to(whole).uid("sink")
    with overriding(Overrides(restore_from=path)):
        start(env).finish()
    assert ledger.problems(whole.lines()) == []


def test_savepoints_carry_a_job_from_width_one_to_three_to_two_and_from_heap_to_rocksdb_and_back(
    bench: Any, start: Any
) -> None:
    ledger, go = held(bench, length=500)
    sink = LedgerSink(bench.directory / "out")
    path = ""
    for parallelism, backend in ((1, "heap"), (3, "rocksdb"), (2, "heap")):
        env = bench.env(interval=50, parallelism=parallelism, backend=backend)
        ledger_stream(env, ledger).sink_to(sink).uid("sink")
        with overriding(Overrides(restore_from=path or None)):
            job = start(env)
        running = job.wait_for("running")
        if path:
            metadata = open_checkpoint(path).metadata
            assert running["restored"] == metadata.checkpoint_id
            books = next(operator for operator in metadata.operators if operator.uid == "books")
            assert {s.keyed.format for s in books.subtasks if s.keyed is not None} == {"table"}
            assert timers_in(open_checkpoint(path), "books") >= ledger.keys
        if parallelism == 2:
            release(go)
            job.finish()
        else:
            job.wait_for("checkpoint")
            said: list[str] = []
            # By the channel that the command line uses.
            saved = find_job("ledger").take_savepoint(
                str(bench.directory / "saved"), stop=True, on_progress=said.append
            )
            path = saved.path
            assert said, "no progress was shown"
            job.finish()
    assert ledger.problems(sink.lines()) == []


def test_an_unaligned_rocksdb_checkpoint_of_another_directory_restores_on_the_heap_at_another_width(
    bench: Any, start: Any
) -> None:
    ledger, go = held(bench)
    sink = LedgerSink(bench.directory / "out")
    env = bench.env(interval=50, backend="rocksdb", mode="unaligned")
    ledger_stream(env, ledger).sink_to(sink).uid("sink")
    job = start(env)
    job.wait_for("checkpoint", lambda checkpoint: checkpoint["checkpoint_id"] >= 3)
    job.suspend()
    checkpoint = published(bench)[-1]
    before = tree(bench.directory / "checkpoints")

    release(go)
    env = bench.env(interval=50)
    ledger_stream(env, ledger).sink_to(sink).uid("sink")
    elsewhere = bench.directory / "elsewhere"
    with overriding(Overrides(restore_from=str(checkpoint), parallelism=3, checkpoint_dir=str(elsewhere))):
        start(env).finish()
    assert ledger.problems(sink.lines()) == []
    assert tree(bench.directory / "checkpoints") == before


def test_a_claimed_savepoint_is_deleted_once_the_job_has_a_checkpoint_of_its_own(bench: Any, start: Any) -> None:
    ledger, go = held(bench)
    sink = LedgerSink(bench.directory / "out")
    path: str | None = None
    for claim in (False, True):
        env = bench.env(interval=50)
        ledger_stream(env, ledger).sink_to(sink).uid("sink")
        with overriding(Overrides(restore_from=path, claim=claim)):
            job = start(env)
        if not claim:
            job.wait_for("checkpoint")
            path = job.client.stop_with_savepoint(False, str(bench.directory / "saved")).result(180)
            job.finish()
    own = job.wait_for("checkpoint")["checkpoint_id"]
    job.wait_for("checkpoint", lambda checkpoint: checkpoint["checkpoint_id"] > own)
    assert list((bench.directory / "saved").iterdir()) == []
    release(go)
    job.finish()
    assert ledger.problems(sink.lines()) == []


class Tally(KeyedProcessFunction):
    """Keeps a row for each key, of the type it is given, and shows its count at the end of time."""

    def __init__(self, row: Any) -> None:
        self._row = row

    def open(self, runtime_context: Any) -> None:
        self._state = runtime_context.get_state(ValueStateDescriptor("tally", self._row))

    def process_element(self, value: Any, ctx: Any) -> None:
        held = self._state.value()
        fields = dict.fromkeys(self._row.names)
        fields |= {"count": 1 if held is None else held["count"] + 1}
        self._state.update(Row(**fields))
        ctx.timer_service().register_event_time_timer(THE_END)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield ("tally", ctx.get_current_key(), self._state.value()["count"])


def test_a_changed_program_takes_over_what_fits_and_is_refused_by_name_before_the_first_record(
    bench: Any, start: Any
) -> None:
    ledger, go = held(bench)
    sink = LedgerSink(bench.directory / "out")
    narrow = Types.ROW_NAMED(["count", "unused"], [Types.INT(), Types.STRING()])
    wide = Types.ROW_NAMED(["note", "count"], [Types.STRING(), Types.LONG()])
    other = Types.ROW_NAMED(["count"], [Types.STRING()])

    def launch(row: Any, path: str | None = None, *, side: bool = False, allow: bool = False) -> Any:
        env = bench.env(interval=50)
        event_time = WatermarkStrategy.for_monotonous_timestamps()
        records = env.from_source(LedgerSource(ledger), event_time, "ledger").uid("src")
        keyed = records.key_by(lambda record: record[0])
        keyed.process(Tally(row)).uid("tally").sink_to(sink).uid("sink")
        if side:
            keyed.process(Tally(row)).uid("aside").sink_to(LedgerSink(bench.directory / "aside")).uid("aside sink")
        with overriding(Overrides(restore_from=path, allow_non_restored=allow)):
            return start(env, "tally")

    job = launch(narrow, side=True)
    job.wait_for("checkpoint", lambda checkpoint: checkpoint["checkpoint_id"] >= 2)
    path = job.client.stop_with_savepoint(False, str(bench.directory / "saved")).result(180)
    job.finish()

    with pytest.raises(RestoreError, match=r"uid aside\): keyed state .*tally.*--allow-non-restored"):
        launch(narrow, path).finish()
    refused = launch(other, path, allow=True)
    with pytest.raises(StateConflictError, match='State "tally" of operator "tally" was saved as'):
        refused.finish()
    assert refused.report.restarts == 0
    assert refused.report.records_read == 0

    release(go)
    job = launch(wide, path, allow=True)
    assert any("uid aside" in what for what in job.wait_for("left-behind")["what"])
    job.finish()
    assert Counter(sink.lines()) == Counter(("tally", key, ledger.length) for key in range(ledger.keys))


@pytest.mark.slow
def test_a_driver_that_dies_behind_the_savepoint_that_was_to_stop_it_goes_on_from_it(
    tmp_path: Path, faults: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults.plan("savepoint_published=kill")
    ledger = Ledger(rate=2_000).holding_for(faults)
    settings = {"directory": str(tmp_path), "ledger": asdict(ledger)}
    program = Program(settings, faults.environment())
    try:
        program.wait_until(lambda status: status["checkpoints_completed"] >= 2)
        monkeypatch.setenv("HEADRACE_STATE_DIR", str(program.status_file.parent))
        with pytest.raises(JobControlError, match="may or may not have happened"):
            find_job("ledger").take_savepoint(str(tmp_path / "saved"), stop=True)
        program.finish()
    finally:
        program.kill_tree()
    (saved,) = (tmp_path / "saved").glob("*/_metadata")

    second = Program(settings, faults.environment())
    try:
        assert second.finish() == 0, second.tail()
    finally:
        if second.process.poll() is None:
            second.kill_tree()
    assert ledger.problems(LedgerSink(tmp_path / "out").lines()) == []
    restored = json.loads((tmp_path / "checkpoints/ledger/run-000001/restored-000002").read_text())
    assert restored["source"] == saved.parent.as_uri()
