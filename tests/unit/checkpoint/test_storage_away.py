"""A volume is unmounted under a running job: what it left is an empty directory, which is not this job's storage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoint_examples import metadata

from headrace.checkpoint.job_directory import JobDirectory, PublishOutcomeUnknownError
from headrace.checkpoint.lease import EXPIRE_MS, Lease
from headrace.checkpoint.storage.filesystem import FileSystemCheckpointStorage
from headrace.clocks import Clocks
from headrace.errors import FencedError, StorageError
from headrace.testing import ManualClock


class Volume(FileSystemCheckpointStorage):
    """A directory that can be taken away, and leaves an empty one of the same name as a mount point does."""

    def __init__(self, root: Path) -> None:
        root.mkdir()
        super().__init__(str(root))
        self._aside = root.with_name("unmounted")
        self.before_create: Callable[[str], None] = lambda path: None

    def unmount(self) -> None:
        self.root.rename(self._aside)
        self.root.mkdir()

    def mount(self) -> None:
        self.root.rmdir()  # fails if anything was written below the mount point
        self._aside.rename(self.root)

    def create_exclusive(self, path: str, data: bytes) -> None:
        self.before_create(path)
        super().create_exclusive(path, data)


@pytest.fixture
def volume(tmp_path: Path) -> Volume:
    return Volume(tmp_path / "volume")


@pytest.fixture
def job(volume: Volume) -> JobDirectory:
    directory = JobDirectory(volume, "job")
    directory.open_run()
    directory.record_restored(directory.claim_attempt(), None)
    directory.publish(metadata(1, 1))
    return directory


def test_nothing_is_published_below_an_empty_mount_point_and_the_job_goes_on_when_it_is_back(
    volume: Volume, job: JobDirectory
) -> None:
    volume.unmount()
    with pytest.raises(StorageError, match=r"attempt-000001 is missing\. Is the volume mounted") as caught:
        job.publish(metadata(2, 1))
    assert not isinstance(caught.value, PublishOutcomeUnknownError), "nothing happened"
    volume.mount()
    job.publish(metadata(3, 1))
    assert [ref.checkpoint_id for ref in job.completed()] == [1, 3]


@pytest.mark.parametrize("name", ["_metadata", "published-"])
def test_a_volume_that_goes_away_while_a_checkpoint_is_published_leaves_its_outcome_open_at_most(
    volume: Volume, job: JobDirectory, name: str
) -> None:
    def away(path: str) -> None:
        if name in path:
            volume.before_create = lambda path: None
            volume.unmount()

    volume.before_create = away
    with pytest.raises(StorageError) as caught:
        job.publish(metadata(2, 1))
    # Files may have been made below the mount point in that moment, but what is not known is never committed.
    assert isinstance(caught.value, PublishOutcomeUnknownError) or not list(volume.root.rglob("_metadata"))


def test_missing_directories_above_the_run_are_not_made(volume: Volume, job: JobDirectory) -> None:
    volume.unmount()
    for create in (
        lambda: job.record_restored(2, None),
        lambda: volume.create_inside("job/run-000001", "job/run-000001/chk-000002/_metadata", b"x"),
    ):
        with pytest.raises(StorageError, match="is the volume mounted"):
            create()
    volume.mount()


def test_a_process_that_has_claimed_an_attempt_claims_no_other_in_an_empty_directory(
    volume: Volume, job: JobDirectory
) -> None:
    volume.unmount()
    with pytest.raises(StorageError, match="Is the volume mounted"):
        job.claim_attempt()
    volume.mount()
    assert job.claim_attempt() == 2


def test_a_driver_that_deletes_is_stopped_too(volume: Volume, job: JobDirectory) -> None:
    volume.unmount()
    for act in (lambda: job.drop([1]), lambda: job.end("FINISHED"), job.delete_checkpoints, job.tidy):
        with pytest.raises(StorageError, match="Is the volume mounted"):
            act()
    volume.mount()


def test_a_lease_that_cannot_be_found_is_storage_that_is_away_and_not_a_new_owner(
    volume: Volume, job: JobDirectory
) -> None:
    clock = ManualClock(1_000_000)
    lease = Lease(volume, "job", clocks=Clocks(clock, clock))
    lease.acquire()
    volume.unmount()
    for _ in range(3):
        clock.now_ms += EXPIRE_MS
        with pytest.raises(StorageError, match="Is the volume mounted"):
            lease.renew()
    volume.mount()
    clock.now_ms += EXPIRE_MS
    lease.renew()


def test_a_lease_file_that_somebody_removed_is_written_again(volume: Volume, job: JobDirectory) -> None:
    clock = ManualClock(1_000_000)
    lease = Lease(volume, "job", clocks=Clocks(clock, clock))
    lease.acquire()
    for damage in (volume.delete, lambda path: volume.replace(path, b"")):
        damage("job/lease-000001")
        clock.now_ms += EXPIRE_MS
        lease.renew()
        assert Lease(volume, "job", clocks=Clocks(clock, clock))._current()[1] is not None


def test_one_who_took_over_while_the_lease_was_gone_is_an_owner(volume: Volume, job: JobDirectory) -> None:
    clock = ManualClock(1_000_000)
    clocks = Clocks(clock, clock)
    Lease(volume, "job", clocks=clocks).acquire()
    lease = Lease(volume, "job", clocks=clocks)
    lease.acquire(take_over=True)
    volume.delete("job/lease-000002")
    Lease(volume, "job", clocks=clocks).acquire()
    clock.now_ms += EXPIRE_MS // 2
    with pytest.raises(FencedError, match="taken over by process"):
        lease.renew()


def test_a_number_that_another_process_claimed_again_fences_the_first(volume: Volume, job: JobDirectory) -> None:
    volume.delete("job/run-000001/attempt-000001")
    other = JobDirectory(volume, "other")
    other.open_run()
    other.claim_attempt()
    volume.create_exclusive("job/run-000001/attempt-000001", volume.read("other/run-000001/attempt-000001"))
    with pytest.raises(FencedError, match="another process claimed the same number"):
        job.publish(metadata(2, 1))
