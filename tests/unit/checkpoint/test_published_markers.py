"""Which checkpoint was published last is known without its `_metadata`: a start never goes back silently."""

from __future__ import annotations

from pathlib import Path

import pytest
from checkpoint_examples import metadata

from headrace.checkpoint.job_directory import JobDirectory
from headrace.checkpoint.metadata.codec import encode_metadata
from headrace.checkpoint.storage.base import CheckpointStorage
from headrace.checkpoint.storage.filesystem import FileSystemCheckpointStorage
from headrace.errors import CheckpointLostError, DamagedCheckpointError, RestoreError

RUN = "job/run-000001"


@pytest.fixture
def storage(tmp_path: Path) -> CheckpointStorage:
    return FileSystemCheckpointStorage(str(tmp_path))


def start(storage: CheckpointStorage) -> tuple[JobDirectory, int]:
    directory = JobDirectory(storage, "job")
    directory.open_run()
    return directory, directory.claim_attempt()


def recover(storage: CheckpointStorage) -> tuple[JobDirectory, int]:
    directory, attempt = start(storage)
    newest = directory.newest()
    directory.record_restored(attempt, newest.checkpoint_id if newest else None)
    return directory, attempt


@pytest.mark.parametrize("retained", [(1, 2), (2,)], ids=["an older one is left", "none is left"])
def test_a_start_refuses_to_go_back_when_the_newest_metadata_is_gone(
    storage: CheckpointStorage, retained: tuple[int, ...]
) -> None:
    directory, attempt = recover(storage)
    for checkpoint_id in (1, 2):
        directory.publish(metadata(checkpoint_id, attempt))
    directory.drop({1, 2} - set(retained))
    storage.delete(f"{RUN}/chk-000002/_metadata")
    for _ in range(2):
        again, _ = start(storage)
        with pytest.raises(CheckpointLostError, match=r"Checkpoint 2 \(attempt 1\).*--from.*--fresh") as caught:
            again.newest()
        assert isinstance(caught.value, RestoreError), "exit code 3, and no restart"
    # A person chose: from now on that is what counts.
    again, second = start(storage)
    again.record_restored(second, None, source="file:///savepoints/s1")
    assert again.newest() is None
    again.publish(metadata(again.next_checkpoint_id(), second))
    assert [ref.checkpoint_id for ref in again.completed()] == [3]


def test_other_metadata_in_its_place_is_damage(storage: CheckpointStorage) -> None:
    directory, attempt = recover(storage)
    directory.publish(metadata(1, attempt))
    storage.replace(f"{RUN}/chk-000001/_metadata", encode_metadata(metadata(1, attempt, "job", run=2)))
    with pytest.raises(DamagedCheckpointError, match=r"chk-000001/_metadata is not what was published"):
        directory.newest()


def test_a_checkpoint_without_a_marker_counts_and_a_marker_without_contents_still_tells(
    storage: CheckpointStorage,
) -> None:
    directory, attempt = recover(storage)
    directory.publish(metadata(1, attempt))
    storage.delete(f"{RUN}/published-000001-000001")
    assert [ref.checkpoint_id for ref in directory.completed()] == [1]
    directory.publish(metadata(2, attempt))
    storage.replace(f"{RUN}/published-000001-000002", b"")
    assert [ref.checkpoint_id for ref in directory.completed()] == [1, 2]
    storage.delete(f"{RUN}/chk-000002/_metadata")
    with pytest.raises(CheckpointLostError):
        directory.newest()


def test_markers_go_with_their_checkpoints_and_the_newest_outlives_them_all(storage: CheckpointStorage) -> None:
    directory, attempt = recover(storage)
    for checkpoint_id in range(1, 6):
        directory.publish(metadata(checkpoint_id, attempt))
        directory.drop([checkpoint_id - 1])
    assert storage.list_names("job/run-000001", "published-") == ["published-000001-000005"]
    directory.end("FINISHED")
    directory.delete_checkpoints()
    assert storage.list_names("job/run-000001", "published-") == ["published-000001-000005"]
    # Should `_ended` be lost, the next start does not begin the finished run again.
    storage.delete(f"{RUN}/_ended")
    with pytest.raises(CheckpointLostError):
        recover(storage)


def test_what_a_fenced_driver_marks_does_not_bind_its_successor(storage: CheckpointStorage) -> None:
    zombie, old = recover(storage)
    zombie.publish(metadata(1, old))
    recover(storage)
    storage.create_exclusive(f"{RUN}/published-{old:06d}-000002", b"")
    successor, _ = recover(storage)
    assert [ref.checkpoint_id for ref in successor.completed()] == [1]


def test_damaged_metadata_does_not_block_a_start_from_a_checkpoint_of_ones_choice(storage: CheckpointStorage) -> None:
    directory, attempt = recover(storage)
    directory.publish(metadata(1, attempt))
    storage.replace(f"{RUN}/chk-000001/_metadata", b"damaged")
    again, second = start(storage)
    with pytest.raises(DamagedCheckpointError):
        again.newest()
    again.record_restored(second, None, source="file:///savepoints/s1")
    assert again.newest() is None
    assert again.restored_source() == "file:///savepoints/s1"
