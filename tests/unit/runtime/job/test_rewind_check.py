"""A start from a checkpoint that lies behind committed output is refused, and no other start is."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from headrace import FileSink, StreamExecutionEnvironment
from headrace.checkpoint.handles import HistoryPoint
from headrace.checkpoint.job_directory import JobDirectory
from headrace.checkpoint.metadata.model import CheckpointMetadata
from headrace.checkpoint.storage.filesystem import FileSystemCheckpointStorage
from headrace.connectors.sink import WriterContext
from headrace.errors import CommittedOutputError, RestoreError
from headrace.plan.graph import JobPlan
from headrace.runtime.job.rewind_check import point_of, refuse_rewind


class Job:
    """A job that writes files, seen from its driver. Every checkpoint commits one record."""

    def __init__(self, home: Path, storage: str = "checkpoints") -> None:
        self.home = home
        self.storage = FileSystemCheckpointStorage(str(home / storage))
        self.sink = FileSink.text(home / "out")
        self.started = 0

    @property
    def plan(self) -> JobPlan:
        env = StreamExecutionEnvironment.get_execution_environment()
        env.from_collection(["a"]).sink_to(self.sink).uid("files").name("alerts")
        return env.build("job")[0]

    def begin(self, source: CheckpointMetadata | None = None) -> int:
        """A new attempt, from the newest checkpoint or from `source`; refused if it goes back too far."""
        self.directory = JobDirectory(self.storage, "job")
        self.directory.open_run()
        attempt = self.directory.claim_attempt()
        if source is not None:
            refuse_rewind(self.plan, source, self.directory, "/saved")
        origin = None if source is None else point_of(source)
        self.directory.record_restored(attempt, None, "" if source is None else "/saved", origin)
        committer = self.sink.create_committer()
        committer.abort_leftovers("job", "files", attempt, [])
        self.attempt = attempt
        return attempt

    def checkpoint(self, checkpoint_id: int, *, committed: bool = True) -> CheckpointMetadata:
        context = WriterContext("job", "files", 0, 1, self.attempt, self.directory.history)
        writer = self.sink.create_writer(context)
        writer.open()
        writer.write(checkpoint_id, None)
        items = writer.prepare_commit(checkpoint_id)
        if committed:
            self.sink.create_committer().commit(items)
        return CheckpointMetadata(
            job_id="job",
            job_name="job",
            run=1,
            attempt=self.attempt,
            checkpoint_id=checkpoint_id,
            kind="savepoint",
            mode="aligned",
            created_ms=0,
            duration_ms=0,
            operators=(),
            history=self.directory.history,
        )

    def end(self) -> None:
        self.directory.end("FINISHED")


def test_an_older_checkpoint_is_refused_with_both_numbers_the_files_and_the_ways_out(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.begin()
    old, _, _ = (job.checkpoint(n) for n in (3, 4, 5))

    with pytest.raises(CommittedOutputError) as refused:
        job.begin(old)

    message = str(refused.value)
    assert isinstance(refused.value, RestoreError), "nothing is tried again"
    for part in ('"alerts" (uid files)', "checkpoint 5 (attempt 1)", "checkpoint 3 (attempt 1)", "/saved"):
        assert part in message
    assert message.count(f"{tmp_path}/out/part-0-1-0-") == 2
    assert "without --from" in message and "--allow-duplicates" in message  # noqa: PT018 - one list of ways out


def test_the_newest_checkpoint_and_a_savepoint_behind_which_nothing_was_committed_are_taken(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.begin()
    job.checkpoint(3)
    newest = job.checkpoint(4)
    savepoint = job.checkpoint(5, committed=False)

    assert job.begin(newest) == 2
    assert job.begin(savepoint) == 3
    assert job.begin() == 4


def test_a_job_that_failed_and_went_on_refuses_what_lies_before_the_failure(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.begin()
    old = job.checkpoint(3)
    job.begin()
    newest = job.checkpoint(4)

    with pytest.raises(CommittedOutputError, match=r"checkpoint 4 \(attempt 2\)"):
        job.begin(old)
    job.begin(newest)


def test_a_job_that_began_anew_is_not_held_by_the_larger_numbers_of_its_former_run(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.begin()
    before = [job.checkpoint(n) for n in range(50, 53)]
    job.end()
    job.begin()
    now = [job.checkpoint(n) for n in (1, 2)]

    assert job.begin(now[-1])
    with pytest.raises(CommittedOutputError, match=r"checkpoint 2 \(attempt 2\)"):
        job.begin(now[0])
    with pytest.raises(CommittedOutputError, match=r"checkpoint 2 \(attempt 2\)"):
        job.begin(before[-1])


def test_a_job_that_moved_to_another_checkpoint_directory_knows_its_own_output_from_that_of_the_old_one(
    tmp_path: Path,
) -> None:
    old = Job(tmp_path)
    for _ in range(7):
        old.begin()
    older, saved = old.checkpoint(60), old.checkpoint(61)
    moved = Job(tmp_path, "elsewhere")
    with pytest.raises(CommittedOutputError, match=r"checkpoint 61 \(attempt 7\)"):
        moved.begin(older)
    # Its attempts and checkpoints count from 1, below those of the old directory.
    moved.begin(saved)
    newest = [moved.checkpoint(n) for n in (1, 2)][-1]

    assert moved.begin(newest)
    with pytest.raises(CommittedOutputError, match=r"checkpoint 2 \(attempt 2\), but checkpoint 61 \(attempt 7\)"):
        moved.begin(saved)


def test_what_was_begun_from_elsewhere_and_has_committed_nothing_may_begin_again(tmp_path: Path) -> None:
    old = Job(tmp_path)
    old.begin()
    saved = old.checkpoint(5)
    moved = Job(tmp_path, "elsewhere")
    for _ in range(3):
        moved.begin(saved)


def test_checkpoints_that_do_not_say_where_they_were_counted_and_those_of_other_jobs_are_taken(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.begin()
    old = job.checkpoint(3)
    job.checkpoint(4)

    job.begin(msgspec.structs.replace(old, history=""))
    job.begin(msgspec.structs.replace(old, job_id="other", history="of the other"))


def test_a_directory_has_one_history_over_all_attempts_and_runs_and_another_one_has_another(tmp_path: Path) -> None:
    job, other = Job(tmp_path), Job(tmp_path, "elsewhere")
    histories = []
    for _ in range(2):
        for _ in range(2):
            job.begin()
            histories.append(job.directory.history)
        job.end()
    other.begin()

    assert len(set(histories)) == 1
    assert other.directory.history not in ("", histories[0])
    assert other.directory.first_attempt_from(HistoryPoint(histories[0], 1, 1)) is None


def test_an_automatic_start_from_an_older_state_of_storage_is_refused_like_one_by_hand(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.begin()
    old, _ = job.checkpoint(3), job.checkpoint(4)
    job.begin()

    with pytest.raises(CommittedOutputError, match=r"checkpoint 3 .*older than what this job left.*--allow-duplicates"):
        refuse_rewind(job.plan, old, job.directory, "")
    with pytest.raises(CommittedOutputError, match=r"checkpoint 4 \(attempt 1\), but nothing from file:"):
        refuse_rewind(job.plan, None, job.directory, "")


def test_what_somebody_has_accepted_is_not_refused_again_and_what_came_later_is(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.begin()
    old, _ = job.checkpoint(3), job.checkpoint(4)
    job.begin()
    refuse_rewind(job.plan, old, job.directory, "", accepted_before=2)
    job.checkpoint(5)
    with pytest.raises(CommittedOutputError, match=r"checkpoint 5 \(attempt 2\)"):
        refuse_rewind(job.plan, old, job.directory, "", accepted_before=2)


def test_a_new_run_restores_nothing_and_is_not_held_by_the_output_of_the_run_before(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.begin()
    job.checkpoint(3)
    job.end()
    job.begin()
    refuse_rewind(job.plan, None, job.directory, "")
