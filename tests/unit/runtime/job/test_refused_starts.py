"""A start that is refused has changed nothing: its checkpoint directory is as it was, or not there at all.

Spark is not started: what refuses the job here is that only Spark Connect is to be had.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from checkpoint_examples import metadata

from headrace import StreamExecutionEnvironment
from headrace.checkpoint.handles import StateFile
from headrace.checkpoint.job_directory import JobDirectory
from headrace.checkpoint.lease import Lease
from headrace.checkpoint.savepoint import SavepointDirectory
from headrace.checkpoint.storage.filesystem import FileSystemCheckpointStorage
from headrace.errors import DamagedCheckpointError, JobOwnedError, RestoreError, StorageError
from headrace.runtime.job.runner import start_job
from headrace.runtime.spark.errors import UnsupportedSparkError

PATIENCE_S = 60.0


@pytest.fixture(autouse=True)
def _only_spark_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_REMOTE", "sc://localhost")


def refusal(place: Path, **settings: Any) -> BaseException:
    """Start a job that keeps its checkpoints there; what it was refused with."""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.enable_checkpointing(1_000)
    env.get_checkpoint_config().set_checkpoint_storage(str(place))
    env.from_collection([1]).print()
    plan, made = env.build("job")
    result = start_job(plan, replace(made, **settings), None).get_job_execution_result()
    error = result.exception(PATIENCE_S)
    assert error is not None
    return error


def contents(place: Path) -> dict[str, bytes]:
    return {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}


def test_a_refused_first_start_does_not_even_make_the_directory(tmp_path: Path) -> None:
    assert isinstance(refusal(tmp_path / "checkpoints"), UnsupportedSparkError)
    assert list(tmp_path.iterdir()) == []


def test_a_refused_start_of_a_job_that_ran_before_leaves_its_directory_as_it_was(tmp_path: Path) -> None:
    storage = FileSystemCheckpointStorage(str(tmp_path))
    before = Lease(storage, "job")
    before.acquire()
    directory = JobDirectory(storage, "job")
    directory.open_run()
    directory.record_restored(directory.claim_attempt(), None)
    before.release()
    found = contents(tmp_path)
    assert isinstance(refusal(tmp_path), UnsupportedSparkError)
    assert contents(tmp_path) == found


def test_a_start_from_what_is_not_there_leaves_nothing(tmp_path: Path) -> None:
    error = refusal(tmp_path / "checkpoints", restore_from=str(tmp_path / "savepoint"))
    assert isinstance(error, RestoreError)
    assert list(tmp_path.iterdir()) == []


def test_a_start_from_state_that_the_program_has_no_place_for_leaves_nothing(tmp_path: Path) -> None:
    SavepointDirectory(FileSystemCheckpointStorage(str(tmp_path / "savepoint"))).publish(metadata())
    found = contents(tmp_path)
    error = refusal(tmp_path / "checkpoints", restore_from=str(tmp_path / "savepoint"))
    assert isinstance(error, RestoreError)
    assert contents(tmp_path) == found
    assert not (tmp_path / "checkpoints").exists()


def test_a_place_that_cannot_be_written_is_named_before_spark_is_asked_for_anything(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    error = refusal(tmp_path / "file" / "checkpoints")
    assert isinstance(error, StorageError)
    assert f"create files in {tmp_path / 'file' / 'checkpoints'}: {tmp_path / 'file'} is no directory" in str(error)


def test_the_owner_of_a_running_job_is_named_before_spark_is_asked_for_anything(tmp_path: Path) -> None:
    Lease(FileSystemCheckpointStorage(str(tmp_path)), "job").acquire()
    found = contents(tmp_path)
    assert isinstance(refusal(tmp_path), JobOwnedError)
    assert contents(tmp_path) == found


def test_a_damaged_checkpoint_is_named_before_spark_is_asked_for_anything_and_no_attempt_is_claimed(
    tmp_path: Path,
) -> None:
    storage = FileSystemCheckpointStorage(str(tmp_path))
    directory = JobDirectory(storage, "job")
    directory.open_run()
    attempt = directory.claim_attempt()
    directory.record_restored(attempt, None)
    file = StateFile(size=30_000, sha256="ab" * 32, path="job/shared/gone")
    directory.publish(msgspec.structs.replace(metadata(1, attempt, "job", file), history=directory.history))
    found = contents(tmp_path)
    error = refusal(tmp_path, allow_non_restored=True)
    assert isinstance(error, DamagedCheckpointError)
    assert "job/shared/gone is missing" in str(error)
    assert contents(tmp_path) == found


def test_a_whole_checkpoint_is_read_and_the_start_goes_on_to_spark(tmp_path: Path) -> None:
    storage = FileSystemCheckpointStorage(str(tmp_path))
    directory = JobDirectory(storage, "job")
    directory.open_run()
    attempt = directory.claim_attempt()
    directory.record_restored(attempt, None)
    data = bytes(range(256)) * 100
    file = StateFile(len(data), hashlib.sha256(data).hexdigest(), "job/shared/whole")
    (tmp_path / "job" / "shared").mkdir()
    (tmp_path / "job" / "shared" / "whole").write_bytes(data)
    made = msgspec.structs.replace(metadata(1, attempt, "job", file), history=directory.history, channels=())
    directory.publish(made)
    found = contents(tmp_path)
    assert isinstance(refusal(tmp_path, allow_non_restored=True), UnsupportedSparkError)
    assert contents(tmp_path) == found


def test_storage_that_does_not_answer_is_not_taken_for_a_damaged_checkpoint(tmp_path: Path) -> None:
    place = tmp_path / "saved"
    file = StateFile(size=30_000, sha256="ab" * 32, path="state/part/one")
    SavepointDirectory(FileSystemCheckpointStorage(str(place))).publish(metadata(1, 1, "job", file))
    (place / "state").mkdir()
    (place / "state" / "part").write_text("a file where a directory was")
    error = refusal(tmp_path / "checkpoints", restore_from=str(place), allow_non_restored=True)
    assert isinstance(error, StorageError)
    assert not isinstance(error, RestoreError)
