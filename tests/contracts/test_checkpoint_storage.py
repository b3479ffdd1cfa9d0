"""What directories and coordinator memory promise beyond the contract of every storage, and how one is found."""

from __future__ import annotations

import errno
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
    DurabilityUnknownError,
    StateTooLargeError,
    register_storage,
    storage_for,
)
from headrace.checkpoint.storage.filesystem import FileSystemCheckpointStorage
from headrace.checkpoint.storage.memory import JobManagerCheckpointStorage
from headrace.errors import CheckpointFailure, ConfigurationError, DamagedCheckpointError, StorageError

PREFIX = "job/run-000001/chk-000007/attempt-000003"


@pytest.fixture
def directory(tmp_path: Path) -> FileSystemCheckpointStorage:
    return FileSystemCheckpointStorage(str(tmp_path / "store"))


def test_each_storage_says_what_it_survives(tmp_path: Path) -> None:
    assert JobManagerCheckpointStorage().survives == "the loss of a task, not of this process"
    assert "this process" in FileSystemCheckpointStorage(str(tmp_path)).survives
    assert str(tmp_path) in JobManagerCheckpointStorage(str(tmp_path)).survives


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


# Bringing files to a task


@pytest.fixture
def shared(directory: FileSystemCheckpointStorage, tmp_path: Path) -> StateFile:
    (tmp_path / "000012.sst").write_bytes(b"s" * 30_000)
    return directory.file_store(PREFIX).write_shared(tmp_path / "000012.sst")


def test_a_shared_file_is_brought_by_a_second_name(
    directory: FileSystemCheckpointStorage, shared: StateFile, tmp_path: Path
) -> None:
    directory.file_store(PREFIX).fetch(shared, tmp_path / "to")
    assert (tmp_path / "to").samefile(directory.root / shared.path)
    (tmp_path / "to").unlink()
    assert directory.file_store(PREFIX).read(shared) == b"s" * 30_000


def test_a_file_of_one_checkpoint_is_copied_for_its_reader_may_change_it(
    directory: FileSystemCheckpointStorage, tmp_path: Path
) -> None:
    own = directory.file_store(PREFIX).write("MANIFEST", [b"m" * 30_000])
    directory.file_store(PREFIX).fetch(own, tmp_path / "to")
    (tmp_path / "to").write_bytes(b"changed")
    assert directory.file_store(PREFIX).read(own) == b"m" * 30_000


def test_where_no_second_name_can_be_given_the_file_is_copied(
    directory: FileSystemCheckpointStorage, shared: StateFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other_file_system(*_: Any, **__: Any) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(os, "link", other_file_system)
    directory.file_store(PREFIX).fetch(shared, tmp_path / "to")
    assert (tmp_path / "to").read_bytes() == b"s" * 30_000
    assert not (tmp_path / "to").samefile(directory.root / shared.path)


def test_a_damaged_shared_file_leaves_no_second_name(
    directory: FileSystemCheckpointStorage, shared: StateFile, tmp_path: Path
) -> None:
    (directory.root / shared.path).write_bytes(b"s" * 29_999 + b"x")
    with pytest.raises(DamagedCheckpointError, match="sst"):
        directory.file_store(PREFIX).fetch(shared, tmp_path / "to")
    assert not (tmp_path / "to").exists()


# What was put there by somebody else


def test_a_symbolic_link_below_the_root_is_never_followed(
    directory: FileSystemCheckpointStorage, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(bytes(50_000))
    (outside / "_metadata").write_bytes(b"x")
    store = directory.file_store(PREFIX)
    file = store.write("state", [bytes(50_000)])
    (directory.root / file.path).unlink()
    (directory.root / file.path).symlink_to(outside / "secret")
    for read in (store.read, store.open, lambda file: store.fetch(file, tmp_path / "to")):
        with pytest.raises(DamagedCheckpointError, match="symbolic link"):
            read(file)
    (directory.root / "chk-000001").symlink_to(outside)
    for use in (
        lambda: directory.read("chk-000001/_metadata"),
        lambda: directory.exists("chk-000001/_metadata"),
        lambda: directory.delete("chk-000001/secret"),
        lambda: directory.delete_tree("chk-000001"),
        lambda: directory.create_exclusive("chk-000001/new", b""),
        lambda: directory.replace("chk-000001/_metadata", b""),
    ):
        with pytest.raises(StorageError, match="symbolic link"):
            use()
    assert sorted(path.name for path in outside.iterdir()) == ["_metadata", "secret"]


def test_a_root_that_is_reached_by_a_link_is_fine(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    storage = FileSystemCheckpointStorage(str(tmp_path / "link"))
    storage.create_exclusive("a", b"x")
    assert storage.read("a") == b"x"


def test_a_pipe_in_place_of_a_file_is_refused_and_does_not_block(
    directory: FileSystemCheckpointStorage, tmp_path: Path
) -> None:
    store = directory.file_store(PREFIX)
    file = store.write("state", [bytes(50_000)])
    (directory.root / file.path).unlink()
    os.mkfifo(directory.root / file.path)
    with pytest.raises(DamagedCheckpointError, match="no regular file"):
        store.open(file)
    os.mkfifo(directory.root / "_metadata")
    with pytest.raises(StorageError, match="no regular file"):
        directory.read("_metadata")


def test_a_driver_file_of_absurd_size_is_refused_before_it_is_read(directory: FileSystemCheckpointStorage) -> None:
    directory.create_exclusive("_metadata", b"")
    os.truncate(directory.root / "_metadata", 1 << 40)
    with pytest.raises(StorageError, match=str(1 << 40)):
        directory.read("_metadata")


def test_half_written_files_are_listed_apart(directory: FileSystemCheckpointStorage) -> None:
    directory.create_exclusive("job/run/chk/_metadata", b"x")
    (directory.root / "job/run/chk/.tmp-abc").write_bytes(b"half")
    assert directory.list("") == ["job/run/chk/_metadata"]
    assert directory.unfinished("job") == ["job/run/chk/.tmp-abc"]
    assert directory.size("job/run/chk/.tmp-abc") == 4
