"""A job's directory: attempts fence off the dead, the commit point is one file, nothing needed is ever removed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoint_examples import metadata, state_file

from headrace.checkpoint.handles import StateFile
from headrace.checkpoint.job_directory import JobDirectory, PublishOutcomeUnknownError
from headrace.checkpoint.metadata.codec import encode_metadata
from headrace.checkpoint.metadata.model import CheckpointMetadata, files_of, shared_files_of
from headrace.checkpoint.savepoint import SavepointDirectory
from headrace.checkpoint.storage.base import AlreadyExistsError, CheckpointStorage, DurabilityUnknownError
from headrace.checkpoint.storage.filesystem import FileSystemCheckpointStorage
from headrace.checkpoint.storage.memory import JobManagerCheckpointStorage
from headrace.clocks import Clocks
from headrace.errors import ConfigurationError, DamagedCheckpointError, FencedError, RestoreError, StorageError

RUN = "job/run-000001"


@pytest.fixture(params=["file", "memory"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> CheckpointStorage:
    return FileSystemCheckpointStorage(str(tmp_path)) if request.param == "file" else JobManagerCheckpointStorage()


class ManualClock:
    def __init__(self) -> None:
        self.now_ms = 1_000

    def __call__(self) -> int:
        return self.now_ms


def start(storage: CheckpointStorage, clock: Callable[[], int] | None = None) -> tuple[JobDirectory, int]:
    """What a driver does at the beginning of an attempt, before it looks for a checkpoint."""
    directory = JobDirectory(storage, "job", clocks=Clocks(steady_ms=clock)) if clock else JobDirectory(storage, "job")
    directory.open_run()
    return directory, directory.claim_attempt()


def recover(storage: CheckpointStorage) -> tuple[JobDirectory, int, int | None]:
    """The same with the restore: the directory, the attempt and the checkpoint id it starts from."""
    directory, attempt = start(storage)
    newest = directory.newest()
    directory.record_restored(attempt, newest.checkpoint_id if newest else None)
    return directory, attempt, newest.checkpoint_id if newest else None


def ids(directory: JobDirectory) -> list[int]:
    return [ref.checkpoint_id for ref in directory.completed()]


# Attempts and checkpoints


def test_attempts_are_numbered_without_gaps_and_a_published_checkpoint_is_found(storage: CheckpointStorage) -> None:
    directory, attempt, restored = recover(storage)
    assert (attempt, restored, directory.next_checkpoint_id()) == (1, None, 1)
    published = directory.publish(metadata(1, attempt))
    assert directory.newest() == published
    assert directory.load(published) == metadata(1, attempt)
    assert recover(storage)[1:] == (2, 1)
    assert recover(storage)[1:] == (3, 1)


def test_an_ended_run_is_followed_by_a_new_one_that_sees_none_of_its_checkpoints(storage: CheckpointStorage) -> None:
    directory, attempt, _ = recover(storage)
    directory.publish(metadata(1, attempt))
    directory.end("FINISHED")
    directory.end("FINISHED")
    again = JobDirectory(storage, "job")
    assert again.open_run() == 2
    assert again.claim_attempt() == 2
    assert again.newest() is None
    assert again.prefix_for(4, 1) == "job/run-000002/chk-000004/attempt-000001"


def test_the_next_id_is_above_every_id_ever_seen(storage: CheckpointStorage) -> None:
    directory, attempt, _ = recover(storage)
    directory.publish(metadata(3, attempt))
    assert directory.next_checkpoint_id() == 4
    storage.create_exclusive(f"{directory.prefix_for(9, attempt)}/state-of-an-aborted-one", b"x")
    assert directory.next_checkpoint_id() == 10
    storage.create_exclusive(f"{RUN}/restored-000077", b'{"checkpoint_id": 41}')
    assert directory.next_checkpoint_id() == 42


def test_two_drivers_that_start_at_once_get_different_attempts(storage: CheckpointStorage) -> None:
    first, one = start(storage)
    second, two = start(storage)
    assert (one, two) == (1, 2)
    second.assert_current(two)
    with pytest.raises(FencedError, match="attempt 2"):
        first.assert_current(one)


# The zombie


def test_a_zombie_that_publishes_after_its_successor_recorded_is_fenced_and_not_counted(
    storage: CheckpointStorage,
) -> None:
    zombie, old, _ = recover(storage)
    zombie.publish(metadata(1, old))
    successor, new, restored = recover(storage)
    assert restored == 1
    with pytest.raises(FencedError):
        zombie.publish(metadata(2, old))
    # It was paused between its look at the attempts and the publish: the file appears all the same.
    storage.create_exclusive(f"{RUN}/chk-000002/_metadata", _bytes(metadata(2, old)))
    assert ids(successor) == [1]
    assert recover(storage)[2] == 1
    with pytest.raises(FencedError):
        successor.publish(metadata(3, new))


def test_a_zombie_that_publishes_between_listing_and_recording_is_not_counted(storage: CheckpointStorage) -> None:
    zombie, old, _ = recover(storage)
    zombie.publish(metadata(1, old))
    successor, new = start(storage)
    listed = successor.newest()
    assert listed is not None
    with pytest.raises(FencedError):
        zombie.publish(metadata(2, old))
    storage.create_exclusive(f"{RUN}/chk-000002/_metadata", _bytes(metadata(2, old)))
    successor.record_restored(new, listed.checkpoint_id)
    assert ids(successor) == [1]


def test_a_checkpoint_published_before_the_successor_claimed_is_restored(storage: CheckpointStorage) -> None:
    old, attempt, _ = recover(storage)
    old.publish(metadata(1, attempt))
    old.publish(metadata(2, attempt))
    assert recover(storage)[2] == 2


def test_an_id_taken_by_a_zombie_is_an_error_for_the_living_and_the_next_id_goes_on(storage: CheckpointStorage) -> None:
    _, old, _ = recover(storage)
    directory, attempt, _ = recover(storage)
    storage.create_exclusive(f"{RUN}/chk-000001/_metadata", _bytes(metadata(1, old)))
    with pytest.raises(AlreadyExistsError, match="somebody else"):
        directory.publish(metadata(1, attempt))
    assert ids(directory) == []
    directory.publish(metadata(2, attempt))
    assert ids(directory) == [2]
    assert directory.orphans() == [1]


def test_an_attempt_that_died_before_it_recorded_does_not_hide_checkpoints(storage: CheckpointStorage) -> None:
    directory, attempt, _ = recover(storage)
    directory.publish(metadata(1, attempt))
    start(storage)
    assert recover(storage)[1:] == (3, 1)


def test_an_attempt_that_records_late_is_fenced_and_widens_nothing(storage: CheckpointStorage) -> None:
    directory, first, _ = recover(storage)
    directory.publish(metadata(1, first))
    slow, second = start(storage)
    assert recover(storage)[1:] == (3, 1)
    storage.create_exclusive(f"{RUN}/chk-000002/_metadata", _bytes(metadata(2, first)))
    with pytest.raises(FencedError):
        slow.record_restored(second, 2)
    assert recover(storage)[2] == 1


def test_going_back_by_hand_leaves_the_newer_checkpoints_behind_for_good(storage: CheckpointStorage) -> None:
    directory, first, _ = recover(storage)
    for checkpoint_id in (1, 2, 3):
        directory.publish(metadata(checkpoint_id, first))
    directory, second = start(storage)
    directory.record_restored(second, 2)
    assert ids(directory) == [1, 2]
    assert recover(storage)[2] == 2


def test_a_start_from_outside_hides_all_older_checkpoints_and_is_remembered(storage: CheckpointStorage) -> None:
    directory, first, _ = recover(storage)
    directory.publish(metadata(1, first))
    directory, second = start(storage)
    directory.record_restored(second, None, source="file:///savepoints/s1")
    assert ids(directory) == []
    assert directory.restored_source() == "file:///savepoints/s1"
    assert directory.next_checkpoint_id() == 2


def test_a_fenced_driver_deletes_nothing(storage: CheckpointStorage) -> None:
    old, attempt, _ = recover(storage)
    old.publish(metadata(1, attempt))
    recover(storage)
    for delete in (
        lambda: old.drop([1]),
        lambda: old.discard([f"{RUN}/chk-000001/attempt-000001/x"]),
        lambda: old.delete_checkpoints(),
        lambda: old.end("CANCELED"),
    ):
        with pytest.raises(FencedError):
            delete()
    assert recover(storage)[2] == 1


# The commit point


class MoodyStorage(FileSystemCheckpointStorage):
    """Answers an exclusive create of metadata, and reads after it, as it is told to."""

    writes = True
    answer: StorageError | None = None
    read_answer: StorageError | None = None
    exists_answer: StorageError | None = None
    published = False

    def create_exclusive(self, path: str, data: bytes) -> None:
        if not path.endswith("_metadata"):
            return super().create_exclusive(path, data)
        if self.writes:
            super().create_exclusive(path, data)
        self.published = True
        if self.answer is not None:
            raise self.answer
        return None

    def read(self, path: str) -> bytes:
        if self.published and self.read_answer is not None:
            raise self.read_answer
        return super().read(path)

    def exists(self, path: str) -> bool:
        if self.published and self.exists_answer is not None:
            raise self.exists_answer
        return super().exists(path)


@pytest.fixture
def moody(tmp_path: Path) -> MoodyStorage:
    return MoodyStorage(str(tmp_path))


def test_an_error_although_the_write_happened_is_resolved_by_reading_back(moody: MoodyStorage) -> None:
    directory, attempt, _ = recover(moody)
    moody.answer = StorageError("the answer was lost")
    directory.publish(metadata(1, attempt))
    assert ids(directory) == [1]


def test_an_error_and_no_file_means_that_nothing_was_published(moody: MoodyStorage) -> None:
    directory, attempt, _ = recover(moody)
    moody.writes, moody.answer = False, StorageError("disk full")
    with pytest.raises(StorageError, match="disk full") as caught:
        directory.publish(metadata(1, attempt))
    assert not isinstance(caught.value, PublishOutcomeUnknownError)


@pytest.mark.parametrize("trouble", ["read", "sync", "ownership"])
def test_what_cannot_be_known_stays_unknown(moody: MoodyStorage, trouble: str) -> None:
    directory, attempt, _ = recover(moody)
    match trouble:
        case "read":
            moody.answer = moody.read_answer = StorageError("unreachable")
        case "sync":
            moody.answer = DurabilityUnknownError("not synced")
        case "ownership":
            moody.exists_answer = StorageError("unreachable")
    with pytest.raises(PublishOutcomeUnknownError, match="chk-000001"):
        directory.publish(metadata(1, attempt))


# Damage


def test_a_damaged_newest_checkpoint_is_an_error_never_silently_an_older_one(storage: CheckpointStorage) -> None:
    directory, attempt, _ = recover(storage)
    for checkpoint_id in (1, 2, 3):
        directory.publish(metadata(checkpoint_id, attempt))
    storage.replace(f"{RUN}/chk-000002/_metadata", b"damaged")
    assert ids(directory) == [1, 3]
    storage.replace(f"{RUN}/chk-000003/_metadata", storage.read(f"{RUN}/chk-000003/_metadata")[:-1])
    with pytest.raises(DamagedCheckpointError, match="chk-000003/_metadata"):
        directory.newest()


def test_metadata_in_the_wrong_place_is_damage(storage: CheckpointStorage) -> None:
    directory, attempt, _ = recover(storage)
    directory.publish(metadata(1, attempt))
    storage.create_exclusive(f"{RUN}/chk-000002/_metadata", storage.read(f"{RUN}/chk-000001/_metadata"))
    with pytest.raises(DamagedCheckpointError, match="belongs to checkpoint 1"):
        directory.newest()


@pytest.mark.parametrize("record", [b"", b"[]", b'{"checkpoint_id": "x"}', b"\xff"])
def test_a_damaged_record_of_an_attempt_is_a_typed_error(storage: CheckpointStorage, record: bytes) -> None:
    directory, attempt, _ = recover(storage)
    directory.publish(metadata(1, attempt))
    storage.replace(f"{RUN}/restored-000001", record)
    with pytest.raises(DamagedCheckpointError, match=r"restored-000001 is damaged.*--from"):
        directory.newest()
    # The way out is not blocked by it.
    again, second = start(storage)
    again.record_restored(second, None, source="file:///savepoints/s1")
    assert again.newest() is None
    assert again.next_checkpoint_id() == 2


@pytest.mark.parametrize("job_id", ["", "..", "a/b", ".hidden", "a b", "x" * 201])
def test_a_job_id_that_cannot_name_a_directory_is_refused(storage: CheckpointStorage, job_id: str) -> None:
    with pytest.raises(ConfigurationError, match="Job id"):
        JobDirectory(storage, job_id)


# Removal


def stored(storage: CheckpointStorage, path: str, *, shared: bool = False) -> StateFile:
    storage.create_exclusive(path, b"state")
    return state_file(path, shared=shared)


def shared_path(content: str, attempt: int, checkpoint_id: int) -> str:
    return f"{RUN}/shared/{content}{content}/{content * 64}-{attempt:06d}-{checkpoint_id:06d}.sst"


def test_dropping_a_checkpoint_removes_its_own_files_and_no_others(storage: CheckpointStorage) -> None:
    directory, attempt, _ = recover(storage)
    own = stored(storage, f"{directory.prefix_for(1, attempt)}/state")
    shared = stored(storage, shared_path("a", attempt, 1), shared=True)
    directory.publish(metadata(1, attempt, "job", own, shared))
    directory.publish(metadata(2, attempt, "job", shared))
    directory.drop([1])
    directory.drop([1])
    assert ids(directory) == [2]
    assert not storage.exists(own.path)
    assert storage.exists(shared.path)


def test_discarding_spares_shared_files_and_what_a_published_checkpoint_names(storage: CheckpointStorage) -> None:
    directory, attempt, _ = recover(storage)
    live = stored(storage, f"{directory.prefix_for(1, attempt)}/live")
    late = stored(storage, f"{directory.prefix_for(1, attempt)}/late")
    aborted = stored(storage, f"{directory.prefix_for(2, attempt)}/aborted")
    shared = stored(storage, shared_path("a", attempt, 2), shared=True)
    foreign = stored(storage, "other-job/run-000001/chk-000002/attempt-000001/x")
    directory.publish(metadata(1, attempt, "job", live))
    directory.discard([live.path, late.path, aborted.path, shared.path, foreign.path, f"{RUN}/chk-000001/_metadata"])
    assert [f.path for f in (live, late, aborted, shared, foreign) if storage.exists(f.path)] == [
        live.path,
        shared.path,
        foreign.path,
    ]
    assert ids(directory) == [1]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def collect(directory: JobDirectory, clock: ManualClock, attempt: int, *retained: CheckpointMetadata) -> list[str]:
    """Mark, wait and sweep."""
    assert directory.collect_shared(retained, attempt) == []
    clock.now_ms += 30_000
    return directory.collect_shared(retained, attempt)


def test_an_aborted_increment_loses_its_new_files_and_keeps_those_it_reused(
    storage: CheckpointStorage, clock: ManualClock
) -> None:
    directory, attempt = start(storage, clock)
    f1 = stored(storage, shared_path("a", attempt, 1), shared=True)
    first = metadata(1, attempt, "job", f1)
    directory.publish(first)
    assert shared_files_of(first) == {f1.path}
    f2 = stored(storage, shared_path("b", attempt, 2), shared=True)
    assert collect(directory, clock, attempt, first) == [f2.path]
    assert storage.exists(f1.path)
    assert files_of(directory.load(directory.completed()[0])) == {f1.path}


def test_a_shared_file_is_removed_only_after_the_grace_time_and_a_new_need_resets_it(
    storage: CheckpointStorage, clock: ManualClock
) -> None:
    directory, attempt = start(storage, clock)
    file = stored(storage, shared_path("a", attempt, 1), shared=True)
    assert directory.collect_shared((), attempt) == []
    clock.now_ms += 29_999
    assert directory.collect_shared((), attempt) == []
    assert directory.collect_shared([metadata(2, attempt, "job", file)], attempt) == []
    clock.now_ms += 1
    assert directory.collect_shared((), attempt) == []
    clock.now_ms += 30_000
    assert directory.collect_shared((), attempt) == [file.path]
    assert directory.collect_shared((), attempt) == []


def test_files_that_an_open_checkpoint_may_use_are_never_collected(
    storage: CheckpointStorage, clock: ManualClock
) -> None:
    directory, attempt = start(storage, clock)
    uploading = stored(storage, shared_path("a", attempt, 8), shared=True)
    known = stored(storage, shared_path("b", attempt, 6), shared=True)
    for _ in range(3):
        clock.now_ms += 100_000
        assert directory.collect_shared((), attempt, pending=[8], known_shared=[known.path]) == []
    assert directory.collect_shared((), attempt) == []
    clock.now_ms += 100_000
    assert directory.collect_shared((), attempt) == sorted([uploading.path, known.path])


@pytest.mark.parametrize("hours", [-1, 1], ids=["back", "forward"])
def test_a_clock_that_is_set_neither_shortens_nor_stretches_the_time_of_grace(
    storage: CheckpointStorage, clock: ManualClock, hours: int
) -> None:
    wall = ManualClock()
    directory = JobDirectory(storage, "job", clocks=Clocks(wall, clock))
    directory.open_run()
    attempt = directory.claim_attempt()
    file = stored(storage, shared_path("a", attempt, 1), shared=True)
    assert directory.collect_shared((), attempt) == []
    wall.now_ms += hours * 3_600_000
    clock.now_ms += 29_999
    assert directory.collect_shared((), attempt) == []
    clock.now_ms += 1
    assert directory.collect_shared((), attempt) == [file.path]


def test_an_old_attempt_collects_nothing_of_a_newer_one(storage: CheckpointStorage, clock: ManualClock) -> None:
    old, attempt = start(storage, clock)
    mine = stored(storage, shared_path("a", attempt, 1), shared=True)
    stored(storage, shared_path("b", attempt + 1, 2), shared=True)
    assert old.collect_shared((), attempt) == []
    clock.now_ms += 30_000
    start(storage, clock)
    with pytest.raises(FencedError):
        old.collect_shared((), attempt)
    assert storage.exists(mine.path)


def test_a_collector_that_died_half_way_is_finished_by_the_next(storage: CheckpointStorage, clock: ManualClock) -> None:
    directory, attempt = start(storage, clock)
    kept = stored(storage, shared_path("a", attempt, 1), shared=True)
    garbage = [stored(storage, shared_path(content, attempt, 1), shared=True).path for content in "bcd"]
    retained = metadata(1, attempt, "job", kept)
    directory.publish(retained)
    storage.delete(garbage[0])
    again, newer = start(storage, clock)
    assert collect(again, clock, newer, retained) == garbage[1:]
    assert storage.list(f"{RUN}/shared/") == [kept.path]


def test_cancelling_without_retention_removes_every_checkpoint_but_not_the_history(storage: CheckpointStorage) -> None:
    directory, attempt, _ = recover(storage)
    own = stored(storage, f"{directory.prefix_for(1, attempt)}/state")
    shared = stored(storage, shared_path("a", attempt, 1), shared=True)
    directory.publish(metadata(1, attempt, "job", own, shared))
    stored(storage, f"{directory.prefix_for(2, attempt)}/aborted")
    directory.delete_checkpoints()
    directory.end("CANCELED")
    assert storage.list("job/") == [
        f"{RUN}/_ended",
        f"{RUN}/attempt-000001",
        f"{RUN}/published-000001-000001",
        f"{RUN}/restored-000001",
    ]


# Savepoints


def test_a_savepoint_can_be_moved_and_still_reads_its_files(tmp_path: Path) -> None:
    storage = FileSystemCheckpointStorage(str(tmp_path / "here"))
    savepoint = SavepointDirectory(storage)
    file = storage.file_store(savepoint.prefix_for(7, 1)).write("state", [bytes(50_000)])
    savepoint.publish(metadata(7, 1, "job", file))
    (tmp_path / "here").rename(tmp_path / "there")
    moved = SavepointDirectory(FileSystemCheckpointStorage(str(tmp_path / "there")))
    loaded = moved.load()
    assert files_of(loaded) == {file.path}
    assert moved.storage.file_store("any").read(file) == bytes(50_000)
    moved.dispose()
    with pytest.raises(RestoreError, match="holds no savepoint"):
        moved.load()
    assert moved.storage.list("") == []


def _bytes(published: CheckpointMetadata) -> bytes:
    return encode_metadata(published)
