"""Savepoints as they lie in storage: their place and name, whose they are, and how they are disposed of."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest
from checkpoint_examples import metadata

from headrace.checkpoint.claims import claim, claimant, dispose_savepoint, remove_claimed
from headrace.checkpoint.job_directory import JobDirectory
from headrace.checkpoint.lease import Lease
from headrace.checkpoint.location import MissingCheckpointError, open_checkpoint
from headrace.checkpoint.savepoint import SavepointDirectory, savepoint_location, savepoint_name
from headrace.checkpoint.storage.base import storage_for
from headrace.checkpoint.storage.filesystem import FileSystemCheckpointStorage
from headrace.checkpoint.storage.memory import JobManagerCheckpointStorage
from headrace.errors import CheckpointLostError, ConfigurationError, RestoreError, StorageError


@pytest.fixture
def savepoint(tmp_path: Path) -> Path:
    """A complete savepoint with a state file."""
    place = tmp_path / "kept" / "savepoint-tides"
    directory = SavepointDirectory(FileSystemCheckpointStorage(str(place)))
    directory.storage.create_exclusive(f"{directory.prefix_for(7, 2)}/state-1", b"x" * 100)
    directory.publish(msgspec.structs.replace(metadata(7, 2), kind="savepoint"))
    return place


def files(path: Path) -> list[str]:
    return sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())


def test_the_automatic_name_tells_job_and_moment_and_is_nobody_elses() -> None:
    names = {savepoint_name("tides", clock_s=lambda: 1_700_000_000.0) for _ in range(50)}
    assert len(names) == 50
    assert all(name.startswith("savepoint-tides-20231114-221320-") for name in names)


def test_without_a_place_a_savepoint_goes_beside_the_jobs_runs(tmp_path: Path) -> None:
    storage = FileSystemCheckpointStorage(str(tmp_path))
    location = savepoint_location(None, storage, "tides")
    assert location.startswith(f"{storage.location}/tides/savepoints/savepoint-tides-")
    assert JobDirectory(storage, "tides").runs() == []


def test_coordinator_memory_is_no_place_for_a_savepoint(tmp_path: Path) -> None:
    memory = JobManagerCheckpointStorage()
    with pytest.raises(ConfigurationError, match=r"checkpoints are in coordinator memory\. Name a directory"):
        savepoint_location(None, memory, "tides")
    with pytest.raises(ConfigurationError, match="it would be gone with the job"):
        savepoint_location("memory:", memory, "tides")
    assert savepoint_location(str(tmp_path / "kept"), memory, "tides").startswith("file://")


def test_a_place_that_cannot_be_written_is_refused_before_anything_stops(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(StorageError, match=r"cannot be written below .*Make it writable, or name another place"):
        savepoint_location(str(tmp_path / "file"), JobManagerCheckpointStorage(), "tides")


def test_it_is_opened_by_relative_path_by_uri_and_by_its_metadata(
    savepoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(savepoint.parent)
    for path in (savepoint.name, str(savepoint), savepoint.as_uri(), f"{savepoint}/_metadata", f"./{savepoint.name}/"):
        opened = open_checkpoint(path)
        assert opened.metadata.kind == "savepoint"
        assert opened.path in (str(savepoint), savepoint.as_uri())


def test_disposing_removes_it_and_leaves_what_a_person_put_beside_it(savepoint: Path) -> None:
    (savepoint / "notes.txt").write_text("before the upgrade")
    dispose_savepoint(str(savepoint))
    assert files(savepoint) == ["notes.txt"]
    with pytest.raises(MissingCheckpointError):
        dispose_savepoint(str(savepoint))


def test_disposing_of_one_with_nothing_beside_it_leaves_no_directory(savepoint: Path) -> None:
    dispose_savepoint(savepoint.as_uri())
    assert list(savepoint.parent.iterdir()) == []


def test_a_checkpoint_of_a_job_is_not_disposed_of_as_a_savepoint(tmp_path: Path) -> None:
    storage = FileSystemCheckpointStorage(str(tmp_path))
    job = JobDirectory(storage, "tides")
    job.open_run()
    attempt = job.claim_attempt()
    job.publish(metadata(1, attempt, "tides"))
    with pytest.raises(ConfigurationError, match="is checkpoint 1 of job tides, no savepoint"):
        dispose_savepoint(str(tmp_path / "tides" / "run-000001" / "chk-000001"))
    assert job.newest() is not None


def test_a_claimed_savepoint_is_refused_to_everybody_else_and_goes_with_its_owner(
    savepoint: Path, tmp_path: Path
) -> None:
    mine = FileSystemCheckpointStorage(str(tmp_path / "mine"))
    opened = open_checkpoint(str(savepoint))
    claim(opened, "tides", mine)
    claim(opened, "tides", mine)
    owner = claimant(opened)
    assert owner is not None
    assert (owner.job_id, owner.storage) == ("tides", mine.location)
    with pytest.raises(RestoreError, match=r"cannot be claimed by job ebb: job tides .* claimed it"):
        claim(opened, "ebb", mine)
    with pytest.raises(RestoreError, match=r"still in use: job tides .*--force"):
        dispose_savepoint(str(savepoint))
    assert open_checkpoint(str(savepoint)).metadata.checkpoint_id == 7

    remove_claimed(opened)
    remove_claimed(opened)
    assert not savepoint.exists()


def test_force_disposes_of_what_a_job_claimed_that_never_came_back(savepoint: Path, tmp_path: Path) -> None:
    claim(open_checkpoint(str(savepoint)), "tides", FileSystemCheckpointStorage(str(tmp_path)))
    dispose_savepoint(str(savepoint), force=True)
    assert not savepoint.exists()


def test_claiming_a_checkpoint_of_a_job_that_runs_is_refused(tmp_path: Path) -> None:
    storage = FileSystemCheckpointStorage(str(tmp_path))
    job = JobDirectory(storage, "tides")
    job.open_run()
    attempt = job.claim_attempt()
    job.publish(metadata(1, attempt, "tides"))
    opened = open_checkpoint(str(tmp_path / "tides" / "run-000001" / "chk-000001"))
    lease = Lease(storage, "tides")
    lease.acquire()
    with pytest.raises(RestoreError, match="belongs to job tides, which process"):
        claim(opened, "ebb", storage)
    lease.release()
    claim(opened, "ebb", storage)
    remove_claimed(opened)
    with pytest.raises(CheckpointLostError, match=r"Checkpoint 1 .* is gone"):
        job.newest()


def test_a_read_only_savepoint_is_opened_without_writing_a_byte(savepoint: Path) -> None:
    before = {name: (savepoint / name).read_bytes() for name in files(savepoint)}
    moved = savepoint.with_name("moved")
    shutil.copytree(savepoint, moved)
    for path in (moved, *moved.rglob("*")):
        path.chmod(0o500 if path.is_dir() else 0o400)
    assert claimant(open_checkpoint(str(moved))) is None
    assert {name: (moved / name).read_bytes() for name in files(moved)} == before


def test_a_savepoint_that_was_to_stop_the_job_is_known_to_the_next_start_only(tmp_path: Path) -> None:
    job = JobDirectory(storage_for(str(tmp_path)), "tides")
    job.open_run()
    first = job.claim_attempt()
    job.record_restored(first, None)
    assert job.stopping_savepoint() is None
    job.record_stopping(first, 5, "file:///kept/one")
    job.record_stopping(first, 8, "file:///kept/two")

    again = JobDirectory(storage_for(str(tmp_path)), "tides")
    again.open_run()
    second = again.claim_attempt()
    assert again.stopping_savepoint() == "file:///kept/two"
    again.record_restored(second, None, "file:///kept/two")
    # From now on the second attempt speaks for the job.
    assert again.stopping_savepoint() is None
    assert again.restored_source() == "file:///kept/two"


def test_a_checkpoint_that_a_person_restored_from_by_name_is_no_orphan_of_its_own_run(tmp_path: Path) -> None:
    job = JobDirectory(storage_for(str(tmp_path)), "tides")
    job.open_run()
    first = job.claim_attempt()
    job.record_restored(first, None)
    for checkpoint_id in (1, 2):
        job.publish(metadata(checkpoint_id, first, "tides"))
    second = job.claim_attempt()
    job.record_restored(second, None, f"{tmp_path}/tides/run-000001/chk-000001")
    job.publish(metadata(3, second, "tides"))
    assert [ref.checkpoint_id for ref in job.completed()] == [3]
    assert job.orphans() == [2]
