"""A host that still has the files of a checkpoint restores from them; where they are gone or damaged, from storage."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest
from backend_workshop import COUNT, NAME, Workshop, at, contents

from headrace.checkpoint.handles import KeyedSnapshot, RestoredBytes, StateFile
from headrace.checkpoint.local_copies import FORGOTTEN_AFTER_S, LocalCopies
from headrace.checkpoint.local_files import KeepingFileStore, LocalFirstFileStore
from headrace.checkpoint.storage.filesystem import FileSystemCheckpointStorage
from headrace.checkpoint.storage.paths import WriterScope

HOME = "job/run-000001"
KEYS = 3_000


class UnreachableStore:
    """Storage of which nothing can be read."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name}() of checkpoint storage was called")


class CountingStore:
    """Storage that counts the bytes of state that are read from it."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.bytes_read = 0

    def open(self, file: StateFile) -> IO[bytes]:
        self.bytes_read += file.size
        return self._store.open(file)  # type: ignore[no-any-return]

    def read(self, file: StateFile) -> bytes:
        self.bytes_read += file.size
        return self._store.read(file)  # type: ignore[no-any-return]

    def fetch(self, file: StateFile, to: Path) -> None:
        self.bytes_read += file.size if file.path else 0
        self._store.fetch(file, to)


class Host:
    """One machine with its own temporary directory and a storage that it shares with others."""

    def __init__(self, root: Path, storage: FileSystemCheckpointStorage, job: str = HOME) -> None:
        self.storage = storage
        self.copies = LocalCopies(storage.location, job, root / "copies")
        self.copies.begin(None)

    def take(self, backend: Any, checkpoint_id: int, known: frozenset[str] = frozenset()) -> KeyedSnapshot:
        """A checkpoint as a task takes it, up to its acknowledgement."""
        store = self.storage.file_store(WriterScope(HOME, checkpoint_id, 1).prefix, known)
        snapshot: KeyedSnapshot = backend.snapshot(checkpoint_id).write(
            KeepingFileStore(store, self.copies, checkpoint_id)
        )
        self.copies.carry_over(checkpoint_id, snapshot.files)
        return snapshot

    def complete(self, backend: Any, checkpoint_id: int) -> None:
        backend.checkpoint_complete(checkpoint_id)
        self.copies.completed(checkpoint_id)

    @property
    def files(self) -> list[Path]:
        return sorted(path for path in self.copies.directory.rglob("*") if path.is_file() and path.name != "in-use")

    @property
    def checkpoints(self) -> list[str]:
        return sorted(path.name for path in self.copies.directory.glob("chk-*"))


@pytest.fixture(params=["heap", "heap-forking", "rocksdb", "rocksdb-full"])
def shop(request: Any, tmp_path: Path) -> Iterator[Workshop]:
    shop = Workshop(request.param, tmp_path)
    yield shop
    shop.close()


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path, FileSystemCheckpointStorage(str(tmp_path / "checkpoints"), file_state_size_threshold=0))


def fill(backend: Any, keys: range, offset: int = 0) -> None:
    count, name = backend.state(COUNT), backend.state(NAME)
    for key in keys:
        at(backend, key)
        count.update(key + offset)
        name.update(f"name of {key}" * 3)


def counts(backend: Any) -> dict[Any, Any]:
    return contents(backend, backend.state(COUNT), "count")


def test_a_restart_on_the_same_host_reads_nothing_from_storage(shop: Workshop, host: Host) -> None:
    backend = shop.backend()
    fill(backend, range(KEYS))
    snapshot = host.take(backend, 1)
    host.complete(backend, 1)
    store = LocalFirstFileStore(UnreachableStore(), host.copies)  # type: ignore[arg-type]
    again = shop.backend()
    again.restore([snapshot], store)
    assert counts(again) == {key: key for key in range(KEYS)}
    assert store.restored == RestoredBytes(sum(file.size for file in snapshot.files if file.path))
    assert store.restored.local > 0


def test_another_host_reads_everything_from_storage(shop: Workshop, host: Host, tmp_path: Path) -> None:
    backend = shop.backend()
    fill(backend, range(KEYS))
    snapshot = host.take(backend, 1)
    other = Host(tmp_path / "elsewhere", host.storage)
    assert other.copies.usable is False, "the place for copies could not be made there"
    for copies in (other.copies, None):
        behind = CountingStore(host.storage.file_store("restore"))
        store = LocalFirstFileStore(behind, copies)  # type: ignore[arg-type]
        again = shop.backend()
        again.restore([snapshot], store)
        assert counts(again) == {key: key for key in range(KEYS)}
        assert store.restored == RestoredBytes(0, sum(file.size for file in snapshot.files if file.path))
        assert behind.bytes_read >= store.restored.from_store


@pytest.mark.parametrize("damage", ["changed", "cut off", "grown", "gone", "a link"])
def test_a_damaged_copy_is_not_used(shop: Workshop, host: Host, damage: str, tmp_path: Path) -> None:
    backend = shop.backend()
    fill(backend, range(KEYS))
    snapshot = host.take(backend, 1)
    backend.close()
    for path in host.files:
        data = path.read_bytes()
        path.unlink()
        match damage:
            case "changed":
                path.write_bytes(bytes(byte ^ 1 for byte in data))
            case "cut off":
                path.write_bytes(data[:-1])
            case "grown":
                path.write_bytes(data + b"\0")
            case "a link":
                (tmp_path / "elsewhere").write_bytes(data)
                path.symlink_to(tmp_path / "elsewhere")
    store = LocalFirstFileStore(host.storage.file_store("restore"), host.copies)
    again = shop.backend()
    again.restore([snapshot], store)
    assert counts(again) == {key: key for key in range(KEYS)}
    assert store.restored.local == 0
    assert store.restored.from_store == sum(file.size for file in snapshot.files if file.path)
    assert bool(store.restored.damaged) == (damage in ("changed", "cut off", "grown"))


def test_one_damaged_copy_of_several_is_read_from_storage_alone(host: Host, tmp_path: Path) -> None:
    shop = Workshop("rocksdb", tmp_path)
    backend = shop.backend()
    fill(backend, range(KEYS))
    snapshot = host.take(backend, 1)
    largest = max(snapshot.files, key=lambda file: file.size)
    copy = host.copies.find(largest)
    assert copy is not None
    os.truncate(copy, 10)
    store = LocalFirstFileStore(host.storage.file_store("restore"), host.copies)
    again = shop.backend()
    again.restore([snapshot], store)
    assert counts(again) == {key: key for key in range(KEYS)}
    assert store.restored.damaged
    assert store.restored.from_store == sum(file.size for file in snapshot.files if file.path == largest.path)
    assert store.restored.local > 0
    shop.close()


def test_increments_keep_all_files_of_the_newest_checkpoint_and_no_other(host: Host, tmp_path: Path) -> None:
    shop = Workshop("rocksdb", tmp_path)
    backend = shop.backend()
    known: frozenset[str] = frozenset()
    for checkpoint_id in range(1, 8):
        fill(backend, range(KEYS) if checkpoint_id == 1 else range(50), checkpoint_id)
        snapshot = host.take(backend, checkpoint_id, known)
        host.complete(backend, checkpoint_id)
        known = frozenset(file.path for file in snapshot.files if file.shared)
        assert host.checkpoints == [f"chk-{checkpoint_id:06d}"]
        assert len(host.files) == len({file.path for file in snapshot.files if file.path})
    store = LocalFirstFileStore(UnreachableStore(), host.copies)  # type: ignore[arg-type]
    again = shop.backend()
    again.restore([snapshot], store)
    assert counts(again) == {key: key + (7 if key < 50 else 1) for key in range(KEYS)}
    # The restored database has files in common with the copies, and changes none of them.
    fill(again, range(KEYS), 100)
    again.snapshot(8).write(shop.store)
    third = shop.backend()
    third.restore([snapshot], LocalFirstFileStore(UnreachableStore(), host.copies))  # type: ignore[arg-type]
    assert counts(third) == {key: key + (7 if key < 50 else 1) for key in range(KEYS)}
    shop.close()


def test_what_was_given_up_or_belongs_to_a_dead_attempt_is_removed(host: Host, tmp_path: Path) -> None:
    shop = Workshop("heap", tmp_path)
    backend = shop.backend()
    fill(backend, range(KEYS))
    for checkpoint_id in (1, 2, 3):
        host.take(backend, checkpoint_id)
    host.copies.aborted(2)
    assert host.checkpoints == ["chk-000001", "chk-000003"]
    again = LocalCopies(host.storage.location, HOME, tmp_path / "copies")
    again.begin(1)
    assert host.checkpoints == ["chk-000001"]
    again.remove()
    assert not host.copies.directory.exists()


def test_jobs_that_died_with_all_their_processes_are_forgotten_after_an_hour(tmp_path: Path) -> None:
    storage = FileSystemCheckpointStorage(str(tmp_path / "checkpoints"))
    dead, waiting, alive = (Host(tmp_path, storage, job) for job in ("dead", "waiting", "alive"))
    dead.copies.end()
    waiting.copies.end()
    long_ago = os.stat(tmp_path).st_mtime - 2 * FORGOTTEN_AFTER_S
    for host in (dead, alive):
        os.utime(host.copies.directory / "in-use", (long_ago, long_ago))
    Host(tmp_path, storage, "new")
    assert not dead.copies.directory.exists()
    assert waiting.copies.directory.exists(), "it may come back"
    assert alive.copies.directory.exists(), "a task of it holds the lock"


@pytest.mark.parametrize("whose", ["open to all", "a link", "a file"])
def test_a_place_that_is_not_ours_alone_is_not_used(whose: str, tmp_path: Path) -> None:
    base = tmp_path / "copies"
    match whose:
        case "open to all":
            base.mkdir()
            base.chmod(0o777)
        case "a link":
            (tmp_path / "target").mkdir(mode=0o700)
            base.symlink_to(tmp_path / "target")
        case "a file":
            base.write_text("")
    copies = LocalCopies("file:///x", HOME, base)
    copies.begin(None)
    assert not copies.usable
    assert not copies.directory.exists()


def test_copies_are_private_to_the_user(host: Host, tmp_path: Path) -> None:
    shop = Workshop("heap", tmp_path)
    backend = shop.backend()
    fill(backend, range(KEYS))
    before = os.umask(0)
    try:
        host.take(backend, 1)
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in host.files} == {0o600}
    assert {path.stat().st_mode & 0o777 for path in host.copies.directory.glob("chk-*")} == {0o700}


def test_a_local_disk_that_takes_nothing_does_not_disturb_the_checkpoint(shop: Workshop, host: Host) -> None:
    backend = shop.backend()
    fill(backend, range(KEYS))
    host.copies.remove()
    snapshot = host.take(backend, 1)
    store = LocalFirstFileStore(host.storage.file_store("restore"), host.copies)
    again = shop.backend()
    again.restore([snapshot], store)
    assert counts(again) == {key: key for key in range(KEYS)}
    assert store.restored.local == 0
