"""A savepoint that is restored under another job name: output of the job that took it counts in the same place."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace import FileSink, StreamExecutionEnvironment
from headrace.checkpoint.job_directory import JobDirectory
from headrace.checkpoint.metadata.model import CheckpointMetadata
from headrace.checkpoint.storage.filesystem import FileSystemCheckpointStorage
from headrace.connectors.files.sink import _FileCommitter
from headrace.connectors.sink import WriterContext
from headrace.errors import CommittedOutputError
from headrace.runtime.job.rewind_check import point_of, refuse_rewind


class Job:
    """A job of any name that writes files, seen from its driver. Every checkpoint commits one record."""

    def __init__(self, name: str, home: Path, out: str = "out") -> None:
        self.name = name
        self.directory = JobDirectory(FileSystemCheckpointStorage(str(home / "checkpoints")), name)
        self.sink = FileSink.text(home / out)

    def begin(self, source: CheckpointMetadata | None = None, *, asked: bool = True) -> None:
        self.directory.open_run()
        self.attempt = self.directory.claim_attempt()
        env = StreamExecutionEnvironment.get_execution_environment()
        env.from_collection(["a"]).sink_to(self.sink).uid("files").name("alerts")
        if source is not None:
            refuse_rewind(env.build(self.name)[0], source, self.directory, "/saved" if asked else "")
        origin = None if source is None else point_of(source)
        self.directory.record_restored(self.attempt, None, "" if source is None else "/saved", origin)

    def checkpoint(self, checkpoint_id: int) -> CheckpointMetadata:
        context = WriterContext(self.name, "files", 0, 1, self.attempt, self.directory.history)
        writer = self.sink.create_writer(context)
        writer.open()
        writer.write(checkpoint_id, None)
        self.sink.create_committer().commit(writer.prepare_commit(checkpoint_id))
        return CheckpointMetadata(
            job_id=self.name,
            job_name=self.name,
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


@pytest.fixture
def savepoint(tmp_path: Path) -> CheckpointMetadata:
    """Of job "first", which has committed more since."""
    first = Job("first", tmp_path)
    first.begin()
    taken = first.checkpoint(3)
    first.checkpoint(4)
    return taken


def test_it_is_refused_in_the_same_place_if_that_job_has_committed_more_since(
    tmp_path: Path, savepoint: CheckpointMetadata
) -> None:
    with pytest.raises(CommittedOutputError, match=r"checkpoint 4 \(attempt 1\).*out/part-"):
        Job("second", tmp_path).begin(savepoint)


def test_it_is_taken_in_another_place(tmp_path: Path, savepoint: CheckpointMetadata) -> None:
    Job("second", tmp_path, "other").begin(savepoint)


def test_the_newest_savepoint_is_taken(tmp_path: Path) -> None:
    first = Job("first", tmp_path)
    first.begin()
    first.checkpoint(3)
    Job("second", tmp_path).begin(first.checkpoint(4))


def test_to_begin_from_it_a_second_time_is_refused_if_the_new_job_has_committed_itself(
    tmp_path: Path, savepoint: CheckpointMetadata
) -> None:
    second = Job("second", tmp_path, "other")
    second.begin(savepoint)
    second.checkpoint(4)
    with pytest.raises(CommittedOutputError, match="other/part-"):
        second.begin(savepoint)


def test_a_restart_from_it_is_not_held_up_by_what_the_other_job_commits_meanwhile(
    tmp_path: Path, savepoint: CheckpointMetadata
) -> None:
    second = Job("second", tmp_path)
    second.begin(savepoint, asked=False)


def test_a_sink_that_cannot_look_without_disturbing_the_other_job_is_not_asked(
    tmp_path: Path, savepoint: CheckpointMetadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_FileCommitter, "knows_other_jobs", False)
    Job("second", tmp_path).begin(savepoint)
