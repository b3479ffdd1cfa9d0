"""The contract of checkpoint storage as a suite of tests: run it on a storage of your own.

    class TestMyStorage(CheckpointStorageContract):
        @pytest.fixture
        def storage(self):
            return MyStorage("my://place")          # empty, and new for every test

Pytest collects the tests from the subclass. `keeps_files` says whether state lies in files of its own: a storage
that carries all state inside its handles sets it to False. `keeps_directories` is for what can be mounted.
"""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headrace.checkpoint.handles import StateFile
from headrace.checkpoint.storage.base import AlreadyExistsError, CheckpointStorage, MissingFileError
from headrace.errors import DamagedCheckpointError, StorageError

PREFIX = "job/run-000001/chk-000007/attempt-000003"
OUTSIDE = ("", "/etc/passwd", "../x", "a/../../x", "a/..", "a//b", "./a", "a\\b", "a\0b", "a/")
"""Paths that no storage may take."""


@contextmanager
def refused(error: type[BaseException], saying: str = "") -> Iterator[None]:
    """The block must raise `error` with that text in it."""
    caught: BaseException | None = None
    try:
        yield
    except error as raised:
        caught = raised
    assert caught is not None, f"{error.__name__} was expected"
    assert saying in str(caught), f"{saying!r} is not in: {caught}"


class CheckpointStorageContract:
    """What every `CheckpointStorage` promises. The fixtures `storage` and `tmp_path` are pytest's to give."""

    keeps_files = True
    keeps_directories = False
    """Whether files lie in real directories, which can be missing: a mounted file system, not an object store."""
    largest = 300_000
    """Bytes of the largest file that is written; above the size of a part if a storage cuts files into parts."""

    # The driver's side

    def test_what_was_created_can_be_read_listed_and_deleted(self, storage: CheckpointStorage) -> None:
        storage.create_exclusive("job/a/one", b"1")
        storage.create_exclusive("job/a/two", b"")
        storage.create_exclusive("job/ab", b"3")
        assert storage.read("job/a/one") == b"1"
        assert storage.read("job/a/two") == b""
        assert storage.size("job/a/one") == 1
        assert storage.list("job/a") == ["job/a/one", "job/a/two", "job/ab"]
        assert storage.list("job/a/") == ["job/a/one", "job/a/two"]
        assert storage.list("job/a/t") == ["job/a/two"]
        assert storage.list("") == ["job/a/one", "job/a/two", "job/ab"]
        storage.delete("job/a/one")
        storage.delete("job/a/one")
        assert not storage.exists("job/a/one")
        assert storage.exists("job/a/two")
        assert not storage.exists("job/a")
        assert list(storage.unfinished("job")) == []

    def test_a_second_exclusive_create_is_refused_and_leaves_the_first_alone(self, storage: CheckpointStorage) -> None:
        storage.create_exclusive("x", b"first")
        with refused(AlreadyExistsError, "x"):
            storage.create_exclusive("x", b"second")
        with refused(AlreadyExistsError, "x"):
            storage.create_exclusive("x", b"first")
        assert storage.read("x") == b"first"

    def test_of_many_that_race_to_create_one_wins_and_all_others_are_told(self, storage: CheckpointStorage) -> None:
        def race(me: int) -> bool:
            try:
                storage.create_exclusive(f"round/{n}", bytes([me]) * 5_000)
            except AlreadyExistsError:
                # The winner's file is whole from the first moment it can be seen.
                assert len(storage.read(f"round/{n}")) == 5_000
                return False
            return True

        with ThreadPoolExecutor(4) as pool:
            for n in range(5):
                won = list(pool.map(race, range(4)))
                assert won.count(True) == 1
                assert storage.read(f"round/{n}") == bytes([won.index(True)]) * 5_000

    def test_replace_writes_whether_the_file_exists_or_not(self, storage: CheckpointStorage) -> None:
        storage.replace("a/status", b"1")
        storage.replace("a/status", b"22")
        assert storage.read("a/status") == b"22"
        assert storage.list("a/") == ["a/status"]

    def test_reading_what_is_not_there_is_a_storage_error_that_names_it(self, storage: CheckpointStorage) -> None:
        for look in (storage.read, storage.size):
            with refused(MissingFileError, "nowhere/x"):
                look("nowhere/x")
        assert issubclass(MissingFileError, FileNotFoundError)
        assert storage.list("nowhere") == []

    def test_deleting_a_tree_spares_the_neighbour_whose_name_begins_alike(self, storage: CheckpointStorage) -> None:
        for path in ("chk-1/a", "chk-1/b/c", "chk-10/a"):
            storage.create_exclusive(path, b"x")
        storage.delete_tree("chk-1")
        storage.delete_tree("chk-1")
        assert storage.list("") == ["chk-10/a"]

    def test_names_are_listed_one_level_deep(self, storage: CheckpointStorage) -> None:
        for path in ("job/run-1/attempt-1", "job/run-1/chk-1/a", "job/run-1/chk-10/b/c", "job/lease-4", "jobs/x"):
            storage.create_exclusive(path, b"x")
        assert list(storage.list_names("job")) == ["lease-4", "run-1/"]
        assert list(storage.list_names("job", "lease-")) == ["lease-4"]
        assert list(storage.list_names("job/run-1", "chk-1")) == ["chk-1/", "chk-10/"]
        assert list(storage.list_names("job/run-1")) == ["attempt-1", "chk-1/", "chk-10/"]
        assert list(storage.list_names("nowhere")) == []

    def test_what_is_created_inside_a_directory_is_created_exclusively(self, storage: CheckpointStorage) -> None:
        storage.create_exclusive("job/run-1/attempt-1", b"x")
        storage.create_inside("job/run-1", "job/run-1/chk-1/_metadata", b"first")
        with refused(AlreadyExistsError, "_metadata"):
            storage.create_inside("job/run-1", "job/run-1/chk-1/_metadata", b"second")
        assert storage.read("job/run-1/chk-1/_metadata") == b"first"
        if not self.keeps_directories:
            return
        with refused(StorageError, "job/run-2"):
            storage.create_inside("job/run-2", "job/run-2/chk-1/_metadata", b"x")
        assert storage.list("") == ["job/run-1/attempt-1", "job/run-1/chk-1/_metadata"]

    def test_paths_that_leave_the_root_are_refused(self, storage: CheckpointStorage) -> None:
        for path in OUTSIDE:
            operations: tuple[Callable[[str], Any], ...] = (
                *(storage.read, storage.exists, storage.delete, storage.delete_tree, storage.file_store, storage.size),
                *(lambda path: storage.create_exclusive(path, b""), lambda path: storage.replace(path, b"")),
            )
            for operation in operations:
                with refused(StorageError, "no path inside"):
                    operation(path)
            if path not in ("", "a/"):
                with refused(StorageError, "no path inside"):
                    storage.list(path)

    def test_it_travels_to_tasks_as_settings(self, storage: CheckpointStorage) -> None:
        storage.create_exclusive("job/big", bytes(100_000))
        travelled = pickle.dumps(storage)
        assert len(travelled) < 2_000
        file = pickle.loads(travelled).file_store(PREFIX).write("state", [b"abc"])
        assert storage.file_store(PREFIX).read(file) == b"abc"

    def test_it_says_where_it_is_and_what_it_survives(self, storage: CheckpointStorage) -> None:
        assert storage.location
        assert storage.survives
        assert repr(storage)

    # The tasks' side

    def test_files_come_back_as_they_were_written(self, storage: CheckpointStorage, tmp_path: Path) -> None:
        store = storage.file_store(PREFIX)
        for size in (0, 1, 20 * 1024, 20 * 1024 + 1, self.largest):
            data = os.urandom(size)
            file = store.write("state", [data[: size // 3], memoryview(data)[size // 3 :]])
            assert (file.size, file.sha256) == (size, hashlib.sha256(data).hexdigest())
            assert store.read(file) == data
            with store.open(file) as reader:
                assert reader.seekable()
                reader.seek(size // 2)
                assert reader.read(10) == data[size // 2 : size // 2 + 10]
                assert reader.read() == data[size // 2 + 10 :]
                reader.seek(0)
                assert reader.read() == data
            store.fetch(file, tmp_path / "fetched")
            assert (tmp_path / "fetched").read_bytes() == data
            local = tmp_path / "local.sst"
            local.write_bytes(data)
            assert store.read(store.write_shared(local)) == data

    def test_two_files_of_one_name_do_not_meet(self, storage: CheckpointStorage) -> None:
        store = storage.file_store(PREFIX)
        first, second = store.write("state", [bytes(50_000)]), store.write("state", [b"x" * 50_000])
        assert store.read(first) == bytes(50_000)
        assert store.read(second) == b"x" * 50_000

    def test_a_damaged_inline_file_is_noticed(self, storage: CheckpointStorage, tmp_path: Path) -> None:
        store = storage.file_store(PREFIX)
        good = store.write("state", [b"abc"])
        for bad in (
            StateFile(size=3, sha256=good.sha256, inline=b"abd"),
            StateFile(size=4, sha256=good.sha256, inline=b"abc"),
        ):
            for read in (store.read, store.open, lambda file: store.fetch(file, tmp_path / "to")):
                with refused(DamagedCheckpointError):
                    read(bad)
        assert not (tmp_path / "to").exists()

    def test_a_handle_that_points_outside_is_damage(self, storage: CheckpointStorage) -> None:
        store = storage.file_store(PREFIX)
        for path in ("../secret", "/etc/passwd", "a/../../x"):
            file = StateFile(size=1, sha256=hashlib.sha256(b"x").hexdigest(), path=path)
            for read in (store.read, store.open):
                with refused(DamagedCheckpointError):
                    read(file)

    def test_shared_files_are_named_by_content_and_stored_once_known(
        self, storage: CheckpointStorage, tmp_path: Path
    ) -> None:
        if not self.keeps_files:
            return
        local = tmp_path / "000012.sst"
        local.write_bytes(b"s" * 30_000)
        digest = hashlib.sha256(b"s" * 30_000).hexdigest()
        first = storage.file_store(PREFIX).write_shared(local)
        assert first.shared
        assert first.path == f"job/run-000001/shared/{digest[:2]}/{digest}-000003-000007.sst"
        # Another subtask of the same checkpoint with the same content.
        assert storage.file_store(PREFIX).write_shared(local) == first
        later = "job/run-000001/chk-000008/attempt-000003"
        assert storage.file_store(later, frozenset({first.path})).write_shared(local) == first
        # Not known to be retained: stored under a name of its own, which no collector has seen yet.
        unknown = storage.file_store(later).write_shared(local)
        assert unknown.path.endswith("-000003-000008.sst")
        assert storage.list("job/run-000001/shared/") == sorted([first.path, unknown.path])

    def test_files_of_one_size_but_other_content_stay_apart(self, storage: CheckpointStorage, tmp_path: Path) -> None:
        local = tmp_path / "000012.sst"
        local.write_bytes(b"a" * 30_000)
        old = storage.file_store(PREFIX).write_shared(local)
        local.write_bytes(b"b" * 30_000)
        new = storage.file_store(PREFIX, frozenset({old.path} - {""})).write_shared(local)
        assert storage.file_store(PREFIX).read(old) == b"a" * 30_000
        assert storage.file_store(PREFIX).read(new) == b"b" * 30_000

    def test_a_damaged_file_is_named_in_the_error(self, storage: CheckpointStorage, tmp_path: Path) -> None:
        if not self.keeps_files:
            return
        store = storage.file_store(PREFIX)
        for damaged in (bytes(25_000) + b"\1" + bytes(24_999), bytes(49_999), bytes(50_001), None):
            file = store.write("state", [bytes(50_000)])
            if damaged is None:
                storage.delete(file.path)
            else:
                storage.replace(file.path, damaged)
            for read in (store.read, lambda file: store.fetch(file, tmp_path / "to")):
                with refused(DamagedCheckpointError, file.path):
                    read(file)
            assert not (tmp_path / "to").exists()

    def test_chunks_that_raise_half_way_leave_no_file(self, storage: CheckpointStorage) -> None:
        def chunks() -> Iterator[bytes]:
            yield bytes(self.largest)
            raise RuntimeError("the backend was closed")

        with refused(RuntimeError, "closed"):
            storage.file_store(PREFIX).write("state", chunks())
        assert storage.list("") == []
