"""What is handed over once, what again, and which starts lie behind it. Spark is left out: frames are Arrow tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from headrace import JobManagerCheckpointStorage, Row, StreamExecutionEnvironment, Types
from headrace.checkpoint.handles import HistoryPoint, PreparedItem, SubtaskSnapshot
from headrace.checkpoint.job_directory import JobDirectory
from headrace.checkpoint.location import OpenedCheckpoint
from headrace.checkpoint.metadata.model import CheckpointMetadata, OperatorRecord
from headrace.checkpoint.storage.filesystem import FileSystemCheckpointStorage
from headrace.connectors.dataframe.notes import NOTES_KEPT, DamagedNotesError, HandOverNotes
from headrace.connectors.dataframe.sink import OutputReader
from headrace.connectors.sink import WriterContext
from headrace.errors import CommitFailedError, CommittedOutputError, FencedError, StorageError, UserFunctionError
from headrace.operators.factories import SinkFactory
from headrace.runtime.job.hand_over import HandOver
from headrace.runtime.job.rewind_check import point_of, refuse_rewind

NUMBER = Types.ROW_NAMED(["n"], [Types.LONG()])


class HandOverWithoutSpark(HandOver):
    """Reads the sealed output here instead of in Spark's tasks."""

    def _frame(self, handle: Any, work: list[bytes], read: OutputReader, schema: pa.Schema) -> Any:
        return pa.Table.from_batches([batch for item in work for batch in read(item)], schema)


class Job:
    """A job seen from its driver. Every checkpoint seals one row, its own number, and may be handed over."""

    def __init__(self, home: Path, storage: str = "checkpoints") -> None:
        self.storage = FileSystemCheckpointStorage(str(home / storage))
        self.calls: list[tuple[int, str, list[int]]] = []
        self.fails = False

    def begin(self, source: CheckpointMetadata | None = None, *, of: Job | None = None, allowed: bool = False) -> int:
        """A new process and attempt, from the newest checkpoint or from `source`; refused if it goes back too far.

        `of`: the job in whose directory the source lies; else it is a savepoint.
        """
        env = StreamExecutionEnvironment.get_execution_environment()
        env.enable_checkpointing(1_000)
        env.from_collection([Row(n=1)], NUMBER).sink_to_dataframe(self._function).uid("out").name("table")
        self.plan, settings = env.build("job")
        self.directory = JobDirectory(self.storage, "job")
        self.hand_over = HandOverWithoutSpark(self.plan, settings, self.directory)
        self.run = self.directory.open_run()
        self.attempt = self.directory.claim_attempt()
        if source is not None:
            place = FileSystemCheckpointStorage("/saved") if of is None else of.storage
            inside = "" if of is None else f"job/run-000001/chk-{source.checkpoint_id:06d}"
            self.hand_over.restores(OpenedCheckpoint(source, place, "/saved", inside))
            if not allowed:
                refuse_rewind(self.plan, source, self.directory, "/saved")
        origin = None if source is None else point_of(source)
        self.directory.record_restored(self.attempt, None, "" if source is None else "/saved", origin)
        if source is not None:
            self.hand(source)
        return self.attempt

    def checkpoint(self, number: int, *, handed: bool = True, holds: tuple[int, ...] = ()) -> CheckpointMetadata:
        """One that seals its own number; it also holds what was sealed before and not handed over."""
        sink = self._sink()
        items = []
        for sealed_at in (*holds, number):
            context = WriterContext("job", "out", 0, 1, self.attempt, self.directory.history)
            writer = sink.create_writer(context)
            writer.write(Row(n=sealed_at), None)
            items += [PreparedItem(sealed_at, item) for item in writer.prepare_commit(sealed_at)]
        snapshot = SubtaskSnapshot("out", 0, 1, 128, prepared=tuple(items))
        made = CheckpointMetadata(
            job_id="job",
            job_name="job",
            run=self.run,
            attempt=self.attempt,
            checkpoint_id=number,
            kind="checkpoint",
            mode="aligned",
            created_ms=0,
            duration_ms=0,
            operators=(OperatorRecord("out", "table", 1, 128, (snapshot,)),),
            history=self.directory.history,
        )
        if handed:
            self.hand(made)
        return made

    def hand(self, metadata: CheckpointMetadata) -> None:
        handle: Any = None  # only what reads by Spark asks it
        self.hand_over.hand(handle, metadata, self.storage, self.attempt)

    def end(self) -> None:
        self.directory.end("FINISHED")

    def _sink(self) -> Any:
        return next(node.factory.sink for node in self.plan.graph.nodes if isinstance(node.factory, SinkFactory))

    @property
    def rows(self) -> list[int]:
        return [n for _, _, rows in self.calls for n in rows]

    @property
    def markers(self) -> list[str]:
        return [marker for _, marker, _ in self.calls]

    def _function(self, frame: Any, checkpoint: Any) -> None:
        if self.fails:
            raise OSError("the table is locked")
        self.calls.append((int(checkpoint), checkpoint.marker, frame["n"].to_pylist()))


@pytest.fixture
def job(tmp_path: Path) -> Job:
    made = Job(tmp_path)
    made.begin()
    return made


# Once, or again


def test_what_was_handed_over_is_not_handed_over_again_by_whoever_restores_it(job: Job) -> None:
    newest = [job.checkpoint(n) for n in (1, 2)][-1]
    job.hand(newest)
    job.begin()
    job.hand(newest)
    assert job.rows == [1, 2]
    assert job.markers == [f"job/out/{job.directory.history}/1/{n}" for n in (1, 2)]


def test_what_was_left_to_do_is_done_by_the_next_attempt_under_the_same_number_and_marker(job: Job) -> None:
    job.fails = True
    with pytest.raises(UserFunctionError, match="the table is locked"):
        job.checkpoint(1)
    newest = job.checkpoint(2, holds=(1,), handed=False)
    job.fails = False
    job.begin()
    job.hand(newest)
    assert [(number, rows) for number, _, rows in job.calls] == [(1, [1]), (2, [2])]
    assert {marker.split("/")[3] for marker in job.markers} == {"1"}, "of the attempt that sealed it"


def test_a_driver_that_was_replaced_hands_nothing_over(job: Job) -> None:
    waiting = job.checkpoint(1, handed=False)
    later = JobDirectory(job.storage, "job")
    later.open_run()
    later.claim_attempt()
    with pytest.raises(FencedError):
        job.hand(waiting)
    assert job.calls == []


def test_a_job_that_goes_on_in_another_directory_loses_nothing_although_its_numbers_begin_anew(tmp_path: Path) -> None:
    old, moved = Job(tmp_path), Job(tmp_path, "elsewhere")
    old.begin()
    saved = old.checkpoint(61)
    moved.begin(saved)
    for n in (1, 2, 61):
        moved.checkpoint(n)
    # A savepoint does not know what became of its output: it comes again, and its marker tells.
    assert moved.rows == [61, 1, 2, 61]
    assert moved.markers[0] == old.markers[0]
    assert len(set(moved.markers)) == 4


def test_a_job_that_counts_the_number_of_the_savepoint_it_began_from_again_loses_nothing(job: Job) -> None:
    job.checkpoint(6)
    savepoint = job.checkpoint(7, handed=False)
    job.begin(savepoint)
    job.checkpoint(7)
    assert [number for number, _, _ in job.calls] == [6, 7, 7]
    assert len(set(job.markers)) == 3


def test_what_the_other_directory_says_of_a_checkpoint_in_it_is_heeded(tmp_path: Path) -> None:
    old, moved = Job(tmp_path), Job(tmp_path, "elsewhere")
    old.begin()
    newest = old.checkpoint(5)
    moved.begin(newest, of=old)
    moved.checkpoint(1)
    assert moved.rows == [1]


def test_a_note_of_the_first_version_still_counts(job: Job, tmp_path: Path) -> None:
    newest = [job.checkpoint(n) for n in (1, 2)][-1]
    (note,) = (tmp_path / "checkpoints/job/run-000001/handed-over").iterdir()
    note.write_text("2")
    job.begin()
    job.hand(newest)
    assert job.rows == [1, 2]
    job.checkpoint(3)
    assert job.rows == [1, 2, 3]


# Behind it


def test_an_older_checkpoint_is_refused_with_both_numbers_the_output_and_the_ways_out(job: Job) -> None:
    old, _, _ = (job.checkpoint(n) for n in (3, 4, 5))
    with pytest.raises(CommittedOutputError) as refused:
        job.begin(old)
    message = str(refused.value)
    for part in ('"table" (uid out)', "checkpoint 5 (attempt 1)", "checkpoint 3 (attempt 1)", "/saved"):
        assert part in message
    assert "handed over as job/out/" in message
    assert [f"/1/{n}" in message for n in (3, 4, 5)] == [False, True, True]
    assert "without --from" in message and "--allow-duplicates" in message  # noqa: PT018 - one list of ways out
    assert job.rows == [3, 4, 5]


def test_what_is_allowed_is_handed_over_again_under_numbers_and_markers_of_its_own(job: Job) -> None:
    old, _, _ = (job.checkpoint(n) for n in (3, 4, 5))
    job.begin(old, allowed=True)
    job.checkpoint(6)
    assert job.rows == [3, 4, 5, 6]
    assert len(set(job.markers)) == 4
    with pytest.raises(CommittedOutputError, match=r"checkpoint 6 \(attempt 2\)"):
        job.begin(old)


def test_the_newest_checkpoint_and_a_savepoint_behind_which_nothing_was_handed_over_are_taken(job: Job) -> None:
    job.checkpoint(3)
    newest = job.checkpoint(4)
    savepoint = job.checkpoint(5, handed=False)
    assert job.begin(newest) == 2
    assert job.begin(savepoint) == 3
    assert job.rows == [3, 4, 5]


def test_output_that_a_later_attempt_handed_over_does_not_lie_behind_its_own_checkpoint(job: Job) -> None:
    older = job.checkpoint(4)
    newest = job.checkpoint(5, handed=False)
    job.begin()
    job.hand(newest)
    job.begin(newest)
    with pytest.raises(CommittedOutputError, match=r"checkpoint 5 \(attempt 1\)"):
        job.begin(older)


def test_earlier_runs_are_remembered_and_their_larger_numbers_hold_nobody(job: Job) -> None:
    before = [job.checkpoint(n) for n in range(50, 53)]
    job.end()
    job.begin()
    now = [job.checkpoint(n) for n in (1, 2)]
    assert job.begin(now[-1])
    for refused in (now[0], *before):
        with pytest.raises(CommittedOutputError, match=r"checkpoint 2 \(attempt 2\)"):
            job.begin(refused)


def test_a_checkpoint_in_the_directory_that_a_job_left_is_refused_by_what_was_handed_over_there(tmp_path: Path) -> None:
    old, moved = Job(tmp_path), Job(tmp_path, "elsewhere")
    old.begin()
    older, newest = old.checkpoint(60), old.checkpoint(61)
    with pytest.raises(CommittedOutputError, match=r"checkpoint 61 \(attempt 1\), but checkpoint 60"):
        moved.begin(older, of=old)
    moved.begin(newest, of=old)
    moved.checkpoint(1)
    with pytest.raises(CommittedOutputError, match=r"checkpoint 1 \(attempt 2\), but checkpoint 61 \(attempt 1\)"):
        moved.begin(newest, of=old)


def test_another_sink_and_another_job_stand_in_nobody_s_way(job: Job) -> None:
    old, _ = job.checkpoint(3), job.checkpoint(4)
    committer = next(n.factory.sink for n in job.plan.graph.nodes if isinstance(n.factory, SinkFactory))
    found = committer.create_committer()
    assert found is not None
    assert len(found.committed_since("job", "out", point_of(old))) == 1
    assert found.committed_since("job", "other", point_of(old)) == []
    assert found.committed_since("other", "out", point_of(old)) == []
    job.begin(msgspec.structs.replace(old, job_id="other"))


def test_notes_that_cannot_be_read_are_named_and_nothing_is_guessed(job: Job, tmp_path: Path) -> None:
    old = job.checkpoint(3)
    (note,) = (tmp_path / "checkpoints/job/run-000001/handed-over").iterdir()
    note.write_bytes(b"[[half")
    with pytest.raises(CommitFailedError, match=rf"{note.name} does not say what was handed over"):
        job.begin(old)
    job.begin()
    with pytest.raises(StorageError, match="remove it, and the output of the checkpoint that is restored"):
        job.checkpoint(4)
    assert job.rows == [3]


def test_output_of_a_savepoint_that_was_never_handed_over_is_when_the_job_goes_back_to_it(job: Job) -> None:
    """What a later attempt made in its place may have been removed: that is what --allow-duplicates asks for."""
    job.checkpoint(4)
    savepoint = job.checkpoint(5, handed=False)
    job.begin()
    job.checkpoint(6)
    with pytest.raises(CommittedOutputError, match=r"checkpoint 6 \(attempt 2\), but checkpoint 5 \(attempt 1\)"):
        job.begin(savepoint)
    job.begin(savepoint, allowed=True)
    assert job.rows == [4, 6, 5]


def test_notes_stay_small_and_keep_the_last_of_every_attempt() -> None:
    storage = JobManagerCheckpointStorage()
    notes = HandOverNotes(storage)
    left = HistoryPoint("left", 9, 61)
    notes.add("job", "out", 1, left)
    for n in range(1, NOTES_KEPT + 50):
        notes.add("job", "out", 1, HistoryPoint("own", 10, n))
    again = HandOverNotes(storage)
    assert again.knows("job", "out", 1, left)
    assert again.knows("job", "out", 1, HistoryPoint("own", 10, 1))
    assert not again.knows("job", "out", 1, HistoryPoint("own", 10, NOTES_KEPT + 50))
    assert not again.knows("job", "out", 1, HistoryPoint("own", 9, 1))
    assert not again.knows("job", "out", 2, left)
    assert len(again.since("job", "out", HistoryPoint("own", 1, 1))) == NOTES_KEPT
    for attempt in range(11, 11 + 3 * NOTES_KEPT):
        notes.add("job", "out", 1, HistoryPoint("own", attempt, attempt))
    assert len(HandOverNotes(storage).since("job", "out", HistoryPoint("own", 1, 1))) == 2 * NOTES_KEPT


@pytest.mark.parametrize("how", ["emptied", "halved", "one bit flipped"])
def test_damaged_notes_are_refused_and_no_attempt_is_made_again(how: str) -> None:
    storage = JobManagerCheckpointStorage()
    HandOverNotes(storage).add("job", "out", 1, HistoryPoint("own", 1, 5))
    (path,) = storage.list("job/run-000001/handed-over/")
    data = bytearray(storage.read(path))
    data[len(data) // 2] ^= 1
    cut = {"emptied": 0, "halved": len(data) // 2}
    storage.replace(path, bytes(storage.read(path)[: cut[how]]) if how in cut else bytes(data))

    with pytest.raises(DamagedNotesError, match="does not say what was handed over") as refused:
        HandOverNotes(storage).knows("job", "out", 1, HistoryPoint("own", 1, 5))
    assert not refused.value.retryable


@pytest.mark.parametrize("old", [b'[["own", 1, 5]]', b"5"], ids=["a list", "a number"])
def test_notes_without_a_checksum_are_read(old: bytes) -> None:
    storage = JobManagerCheckpointStorage()
    notes = HandOverNotes(storage)
    notes.add("job", "out", 1, HistoryPoint("own", 1, 5))
    (path,) = storage.list("job/run-000001/handed-over/")
    storage.replace(path, old)
    assert HandOverNotes(storage).knows("job", "out", 1, HistoryPoint("own", 1, 5))
    assert not HandOverNotes(storage).knows("job", "out", 1, HistoryPoint("own", 1, 6))


def test_a_driver_paused_in_the_function_does_not_replace_the_notes_of_its_successor(job: Job, tmp_path: Path) -> None:
    first = job.checkpoint(1)
    successor = Job(tmp_path)

    def pause(frame: Any, checkpoint: Any) -> None:
        # While this driver is inside the function, another one takes over and hands two checkpoints over.
        successor.begin(first, of=job)
        successor.checkpoint(3)
        successor.checkpoint(4)

    job._sink().function = pause
    with pytest.raises(FencedError):
        job.checkpoint(2)
    assert successor.rows == [3, 4]
    noted = HandOverNotes(successor.storage).since("job", "out", point_of(first))
    assert [point.checkpoint_id for point in noted] == [3, 4], "a third driver must not hand them over again"
