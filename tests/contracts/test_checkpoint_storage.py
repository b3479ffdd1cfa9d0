"""The contract of checkpoint storage, on every storage. A storage of your own should pass it too."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import pickle
import stat
from pathlib import Path
from typing import Any

import pytest

from headrace.checkpoint.handles import StateFile
from headrace.checkpoint.storage.base import (
    AlreadyExistsError,
    CheckpointStorage,
    DurabilityUnknownError,
    StateTooLargeError,
    register_storage,
    storage_for,
)
from headrace.checkpoint.storage.filesystem import FileSystemCheckpointStorage
from headrace.checkpoint.storage.memory import JobManagerCheckpointStorage
from headrace.errors import CheckpointFailure, ConfigurationError, DamagedCheckpointError, StorageError

PREFIX = "job/run-000001/chk-000007/attempt-000003"


@pytest.fixture(params=["file", "memory", "memory-with-path"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> CheckpointStorage:
    if request.param == "file":
        return FileSystemCheckpointStorage(str(tmp_path / "store"))
    return JobManagerCheckpointStorage(str(tmp_path / "store") if request.param == "memory-with-path" else None)


@pytest.fixture
def directory(tmp_path: Path) -> FileSystemCheckpointStorage:
    return FileSystemCheckpointStorage(str(tmp_path / "store"))


# The driver's side


def test_what_was_created_can_be_read_listed_and_deleted(storage: CheckpointStorage) -> None:
    storage.create_exclusive("job/a/one", b"1")
    storage.create_exclusive("job/a/two", b"")
    storage.create_exclusive("job/ab", b"3")
    assert storage.read("job/a/one") == b"1"
    assert storage.read("job/a/two") == b""
    assert storage.list("job/a") == ["job/a/one", "job/a/two", "job/ab"]
    assert storage.list("job/a/") == ["job/a/one", "job/a/two"]
    assert storage.list("job/a/t") == ["job/a/two"]
    assert storage.list("") == ["job/a/one", "job/a/two", "job/ab"]
    storage.delete("job/a/one")
    storage.delete("job/a/one")
    assert not storage.exists("job/a/one")
    assert storage.exists("job/a/two")
    assert not storage.exists("job/a")


def test_a_second_exclusive_create_is_refused_and_leaves_the_first_alone(storage: CheckpointStorage) -> None:
    storage.create_exclusive("x", b"first")
    with pytest.raises(AlreadyExistsError):
        storage.create_exclusive("x", b"second")
    assert storage.read("x") == b"first"


def test_replace_writes_whether_the_file_exists_or_not(storage: CheckpointStorage) -> None:
    storage.replace("a/status", b"1")
    storage.replace("a/status", b"22")
    assert storage.read("a/status") == b"22"
    assert storage.list("a/") == ["a/status"]


def test_reading_what_is_not_there_is_a_storage_error_and_a_file_not_found(storage: CheckpointStorage) -> None:
    with pytest.raises(StorageError, match="nowhere/x") as caught:
        storage.read("nowhere/x")
    assert isinstance(caught.value, FileNotFoundError)
    assert storage.list("nowhere") == []


def test_deleting_a_tree_spares_the_neighbour_whose_name_begins_alike(storage: CheckpointStorage) -> None:
    for path in ("chk-1/a", "chk-1/b/c", "chk-10/a"):
        storage.create_exclusive(path, b"x")
    storage.delete_tree("chk-1")
    storage.delete_tree("chk-1")
    assert storage.list("") == ["chk-10/a"]


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../x", "a/../../x", "a/..", "a//b", "./a", "a\\b", "a\0b", "a/"])
def test_paths_that_leave_the_root_are_refused(storage: CheckpointStorage, path: str) -> None:
    for operation in (storage.read, storage.exists, storage.delete, storage.delete_tree, storage.file_store):
        with pytest.raises(StorageError, match="no path inside"):
            operation(path)
    for write in (storage.create_exclusive, storage.replace):
        with pytest.raises(StorageError, match="no path inside"):
            write(path, b"")
    if path not in ("", "a/"):
        with pytest.raises(StorageError, match="no path inside"):
            storage.list(path)


def test_a_storage_travels_to_tasks_as_settings(storage: CheckpointStorage) -> None:
    storage.create_exclusive("job/big", bytes(100_000))
    travelled = pickle.dumps(storage)
    assert len(travelled) < 2_000
    file = pickle.loads(travelled).file_store(PREFIX).write("state", [b"abc"])
    assert storage.file_store(PREFIX).read(file) == b"abc"


def test_each_storage_says_what_it_survives(tmp_path: Path) -> None:
    assert JobManagerCheckpointStorage().survives == "the loss of a task, not of this process"
    assert "this process" in FileSystemCheckpointStorage(str(tmp_path)).survives
    assert str(tmp_path) in JobManagerCheckpointStorage(str(tmp_path)).survives


# The tasks' side


def test_files_come_back_as_they_were_written(storage: CheckpointStorage, tmp_path: Path) -> None:
    store = storage.file_store(PREFIX)
    for size in (0, 1, 20 * 1024, 20 * 1024 + 1, 300_000):
        data = os.urandom(size)
        file = store.write("state", [data[: size // 3], memoryview(data)[size // 3 :]])
        assert (file.size, file.sha256) == (size, hashlib.sha256(data).hexdigest())
        assert store.read(file) == data
        with store.open(file) as reader:
            reader.seek(size // 2)
            assert reader.read() == data[size // 2 :]
        store.fetch(file, tmp_path / "fetched")
        assert (tmp_path / "fetched").read_bytes() == data
        local = tmp_path / "local.sst"
        local.write_bytes(data)
        shared = store.write_shared(local)
        assert store.read(shared) == data


def test_two_files_of_one_name_do_not_meet(storage: CheckpointStorage) -> None:
    store = storage.file_store(PREFIX)
    first, second = store.write("state", [bytes(50_000)]), store.write("state", [b"x" * 50_000])
    assert store.read(first) == bytes(50_000)
    assert store.read(second) == b"x" * 50_000


def test_a_damaged_inline_file_is_noticed(storage: CheckpointStorage, tmp_path: Path) -> None:
    store = storage.file_store(PREFIX)
    good = store.write("state", [b"abc"])
    for bad in (
        StateFile(size=3, sha256=good.sha256, inline=b"abd"),
        StateFile(size=4, sha256=good.sha256, inline=b"abc"),
    ):
        for read in (store.read, store.open, lambda file: store.fetch(file, tmp_path / "to")):
            with pytest.raises(DamagedCheckpointError):
                read(bad)
    assert not (tmp_path / "to").exists()


# Directories


def test_small_files_are_inline_and_large_ones_lie_below_the_prefix(directory: FileSystemCheckpointStorage) -> None:
    store = directory.file_store(PREFIX)
    assert store.write("state", [bytes(20 * 1024)]).inline is not None
    large = store.write("state", [bytes(20 * 1024 + 1)])
    assert large.inline is None
    assert large.path.startswith(f"{PREFIX}/state-")
    everything = FileSystemCheckpointStorage(str(directory.root), file_state_size_threshold=0).file_store(PREFIX)
    assert everything.write("one", [b"x"]).path


def test_shared_files_are_named_by_content_and_stored_once_known(
    directory: FileSystemCheckpointStorage, tmp_path: Path
) -> None:
    local = tmp_path / "000012.sst"
    local.write_bytes(b"s" * 30_000)
    digest = hashlib.sha256(b"s" * 30_000).hexdigest()
    first = directory.file_store(PREFIX).write_shared(local)
    assert first.shared
    assert first.path == f"job/run-000001/shared/{digest[:2]}/{digest}-000003-000007.sst"
    later = "job/run-000001/chk-000008/attempt-000003"
    again = directory.file_store(later, frozenset({first.path})).write_shared(local)
    assert again == first
    # Not known to be retained: it is stored under a name of its own, which no collector has seen yet.
    unknown = directory.file_store(later).write_shared(local)
    assert unknown.path.endswith("-000003-000008.sst")
    assert directory.list("job/run-000001/shared/") == sorted([first.path, unknown.path])
    assert directory.file_store("plain").write_shared(local).path == f"shared/{digest[:2]}/{digest}.sst"


def test_files_of_the_same_name_and_size_but_other_content_stay_apart(
    directory: FileSystemCheckpointStorage, tmp_path: Path
) -> None:
    local = tmp_path / "000012.sst"
    local.write_bytes(b"a" * 30_000)
    old = directory.file_store(PREFIX).write_shared(local)
    local.write_bytes(b"b" * 30_000)
    new = directory.file_store(PREFIX, frozenset({old.path})).write_shared(local)
    assert directory.file_store(PREFIX).read(old) == b"a" * 30_000
    assert directory.file_store(PREFIX).read(new) == b"b" * 30_000


@pytest.mark.parametrize("damage", ["flip", "cut", "grow", "remove"])
def test_a_damaged_file_is_named_in_the_error(
    directory: FileSystemCheckpointStorage, tmp_path: Path, damage: str
) -> None:
    store = directory.file_store(PREFIX)
    file = store.write("state", [bytes(50_000)])
    path = directory.root / file.path
    match damage:
        case "flip":
            path.write_bytes(bytes(25_000) + b"\1" + bytes(24_999))
        case "cut":
            path.write_bytes(bytes(49_999))
        case "grow":
            path.write_bytes(bytes(50_001))
        case "remove":
            path.unlink()
    for read in (store.read, lambda file: store.fetch(file, tmp_path / "to")):
        with pytest.raises(DamagedCheckpointError, match=file.path):
            read(file)
    assert not (tmp_path / "to").exists()


def test_a_handle_that_points_outside_is_damage(directory: FileSystemCheckpointStorage, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"x")
    file = StateFile(size=1, sha256=hashlib.sha256(b"x").hexdigest(), path="../secret")
    for read in (directory.file_store(PREFIX).read, directory.file_store(PREFIX).open):
        with pytest.raises(DamagedCheckpointError, match="outside"):
            read(file)


def test_files_are_private_whatever_the_umask(directory: FileSystemCheckpointStorage, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        directory.create_exclusive("job/run/attempt", b"x")
        directory.replace("job/status", b"x")
        store = directory.file_store(PREFIX)
        store.write("state", [bytes(50_000)])
        (tmp_path / "local").write_bytes(bytes(50_000))
        store.write_shared(tmp_path / "local")
    finally:
        os.umask(before)
    entries = [directory.root, *directory.root.rglob("*")]
    assert len(entries) > 8
    for entry in entries:
        assert stat.S_IMODE(entry.stat().st_mode) == (0o700 if entry.is_dir() else 0o600), entry


def _race(root: str, me: int, barrier: Any, results: Any, rounds: int) -> None:
    storage = FileSystemCheckpointStorage(root)
    for n in range(rounds):
        barrier.wait()
        try:
            storage.create_exclusive(f"round/{n}", bytes([me]) * 10_000)
        except AlreadyExistsError:
            # The winner's file is whole from the first moment it can be seen.
            assert len(storage.read(f"round/{n}")) == 10_000
        else:
            results.put((n, me))


def test_of_two_processes_racing_to_create_exactly_one_wins_each_round(directory: FileSystemCheckpointStorage) -> None:
    rounds = 100
    fork = multiprocessing.get_context("fork")
    barrier, results = fork.Barrier(2), fork.Queue()
    racers = [fork.Process(target=_race, args=(str(directory.root), me, barrier, results, rounds)) for me in (1, 2)]
    for racer in racers:
        racer.start()
    winners = dict(results.get(timeout=60) for _ in range(rounds))
    for racer in racers:
        racer.join(60)
        assert racer.exitcode == 0
    assert results.empty()
    assert sorted(winners) == list(range(rounds))
    for n, winner in winners.items():
        assert directory.read(f"round/{n}") == bytes([winner]) * 10_000
    assert len(directory.list("")) == rounds


class FailingSync:
    """Stands in for fsync and fails from the n-th call on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, nth: int) -> None:
        self.calls = 0
        self.nth = nth
        self.real = os.fsync
        monkeypatch.setattr(os, "fsync", self)

    def __call__(self, fd: int) -> None:
        self.calls += 1
        if self.calls >= self.nth:
            raise OSError(5, "Input/output error")
        self.real(fd)


def test_a_failed_sync_fails_the_write_and_leaves_no_file(
    directory: FileSystemCheckpointStorage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "local").write_bytes(bytes(50_000))
    directory.create_exclusive(f"{PREFIX}/x", b"")
    FailingSync(monkeypatch, 1)
    store = directory.file_store(PREFIX)
    for write in (
        lambda: store.write("state", [bytes(50_000)]),
        lambda: store.write_shared(tmp_path / "local"),
        lambda: directory.create_exclusive(f"{PREFIX}/y", b"1"),
        lambda: directory.replace(f"{PREFIX}/y", b"1"),
    ):
        with pytest.raises(StorageError, match="Input/output error"):
            write()
    assert directory.list("") == [f"{PREFIX}/x"]


def test_a_directory_that_cannot_be_synced_leaves_the_outcome_open(
    directory: FileSystemCheckpointStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory.create_exclusive("a/x", b"")
    FailingSync(monkeypatch, 2)
    with pytest.raises(DurabilityUnknownError, match="a/y"):
        directory.create_exclusive("a/y", b"1")


def test_chunks_that_raise_half_way_leave_no_file(directory: FileSystemCheckpointStorage) -> None:
    def chunks() -> Any:
        yield bytes(50_000)
        raise RuntimeError("the backend was closed")

    with pytest.raises(RuntimeError, match="closed"):
        directory.file_store(PREFIX).write("state", chunks())
    assert directory.list("") == []


def test_a_root_that_cannot_be_written_is_a_storage_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    storage = FileSystemCheckpointStorage(str(tmp_path / "file"))
    with pytest.raises(StorageError, match=str(tmp_path / "file")):
        storage.create_exclusive("a", b"")
    with pytest.raises(StorageError, match=str(tmp_path / "file")):
        storage.file_store("a").write("state", [bytes(50_000)])


# Coordinator memory


def test_coordinator_memory_keeps_every_file_inline(tmp_path: Path) -> None:
    store = JobManagerCheckpointStorage().file_store(PREFIX)
    (tmp_path / "local").write_bytes(bytes(100_000))
    for file in (store.write("state", [bytes(1_000_000)]), store.write_shared(tmp_path / "local")):
        assert file.inline is not None
        assert not file.shared


def test_a_state_above_the_limit_is_refused_with_size_limit_and_remedy(tmp_path: Path) -> None:
    store = JobManagerCheckpointStorage().file_store(PREFIX)
    limit = 5 * 1024 * 1024
    assert store.write("fits", [bytes(limit)]).size == limit
    (tmp_path / "local").write_bytes(bytes(limit + 1))
    for write in (lambda: store.write("clicks", [bytes(limit), b"x"]), lambda: store.write_shared(tmp_path / "local")):
        with pytest.raises(StateTooLargeError, match=rf"{limit + 1} bytes.* {limit} bytes.*max_state_size") as caught:
            write()
        assert caught.value.failure is CheckpointFailure.STATE_TOO_LARGE
        assert caught.value.checkpoint_id == 7
        copy = pickle.loads(pickle.dumps(caught.value))
        assert (str(copy), copy.limit) == (str(caught.value), limit)
    assert JobManagerCheckpointStorage(max_state_size=10).file_store("p").write("s", [bytes(10)]).size == 10


def test_a_file_of_a_directory_cannot_be_read_from_coordinator_memory() -> None:
    file = StateFile(size=1, sha256="00", path="chk-1/x")
    with pytest.raises(DamagedCheckpointError, match="Set the checkpoint directory"):
        JobManagerCheckpointStorage().file_store("p").read(file)


# The registry


def test_storage_is_found_by_uri_scheme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spaced = tmp_path / "with space"
    for uri in (f"file://{tmp_path}/with%20space", f"file:{tmp_path}/with%20space", str(spaced)):
        found = storage_for(uri)
        assert isinstance(found, FileSystemCheckpointStorage)
        assert found.root == spaced
    monkeypatch.chdir(tmp_path)
    relative = storage_for("checkpoints")
    assert isinstance(relative, FileSystemCheckpointStorage)
    assert relative.root == tmp_path / "checkpoints"
    assert isinstance(storage_for("memory:"), JobManagerCheckpointStorage)
    with pytest.raises(ConfigurationError, match=r"nosuch:.*file:"):
        storage_for("nosuch://bucket/x")
    with pytest.raises(ConfigurationError, match="no directory of this machine"):
        storage_for("file://other-host/x")
    monkeypatch.setattr("headrace.checkpoint.storage.base._FACTORIES", {})
    register_storage("Mine", lambda uri: JobManagerCheckpointStorage(max_state_size=len(uri)))
    assert storage_for("mine://abc").max_state_size == 10  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "make",
    [
        lambda: FileSystemCheckpointStorage("/x", -1),
        lambda: FileSystemCheckpointStorage("/x", 2**20 + 1),
        lambda: FileSystemCheckpointStorage("/x", None, -2),
        lambda: JobManagerCheckpointStorage(None, 0),
    ],
)
def test_settings_that_cannot_work_are_refused_by_name(make: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"threshold|buffer_size|max_state_size"):
        make()
