"""The n-th thing that checkpoint storage asks of the disk fails or hangs, for every n until nothing is left to ask."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import pytest
from golden_jobs import JOB, Job, Publisher, Shape, job

from headrace.checkpoint.collection import audit, collect
from headrace.checkpoint.job_directory import JobDirectory, PublishOutcomeUnknownError
from headrace.checkpoint.places import JobPlace
from headrace.checkpoint.storage.filesystem import FileSystemCheckpointStorage
from headrace.checkpoint.verification import verify
from headrace.errors import FencedError, HeadraceError, StorageError

CHECKPOINTS = (1, 2)
PATIENCE_S = 120.0


class FailingDisk:
    """Counts what is asked of the disk below `root`, and fails one of them as a full or broken disk does."""

    CALLS = ("open", "mkdir", "link", "replace", "unlink", "fsync")

    ERRORS = (errno.EIO, errno.ENOSPC)

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self._root = str(root)
        self._fails_at = 0
        self.asked = 0
        self.failed = False
        for name in self.CALLS:
            patch.setattr(os, name, self._watched(name, getattr(os, name)))
        opened: Callable[..., IO[bytes]] = os.fdopen
        patch.setattr(os, "fdopen", lambda *a, **k: _WatchedFile(self, opened(*a, **k)))

    def arm(self, fails_at: int) -> None:
        self.asked, self._fails_at, self.failed = 0, fails_at, False

    def disarm(self) -> None:
        self._fails_at = 0

    def ask(self) -> None:
        """Raises if this is the one."""
        if self._fails_at:
            self.asked += 1
            if self.asked == self._fails_at:
                self.failed = True
                error = self.ERRORS[self.asked % 2]
                raise OSError(error, os.strerror(error))

    def _watched(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(first: Any, *arguments: Any, **named: Any) -> Any:
            # RocksDB's own files lie elsewhere; a descriptor belongs to whatever was opened below the root.
            if isinstance(first, int) or str(os.fspath(first)).startswith(self._root):
                self.ask()
            return call(first, *arguments, **named)

        return watched


class _WatchedFile:
    """A file whose writes may fail, or hang, after half of the bytes went through."""

    def __init__(self, disk: FailingDisk, file: IO[bytes]) -> None:
        self._disk = disk
        self._file = file

    def write(self, data: Any) -> int:
        half = len(data) // 2
        self._file.write(memoryview(data)[:half])
        self._disk.ask()
        self._file.write(memoryview(data)[half:])
        return len(data)

    def __enter__(self) -> _WatchedFile:
        return self

    def __exit__(self, *_: Any) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class HangingDisk(FailingDisk):
    """Holds the one that would fail until it is let go, and then does it."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        super().__init__(root, patch)
        self.stopped = threading.Event()
        """Either the one is held, or whoever was asking is done."""
        self._go = threading.Event()

    def arm(self, fails_at: int) -> None:
        super().arm(fails_at)
        self.stopped.clear()
        self._go.clear()

    def ask(self) -> None:
        try:
            super().ask()
        except OSError:
            self.stopped.set()
            assert self._go.wait(PATIENCE_S), "nobody let it go"

    def let_go(self) -> None:
        self._go.set()


class Driver:
    """Lives on a thread of its own; what it comes to is for others to see."""

    def __init__(self, storage: FileSystemCheckpointStorage, backend: str, disk: HangingDisk) -> None:
        self._storage = storage
        self._backend = backend
        self._disk = disk
        self.seen: list[int] = []
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with job(Shape(backend=self._backend, parallelism=1, extra_keys=20)) as made:
                live(self._storage, made, self.seen)
        except BaseException as error:
            self.error = error
        finally:
            self._disk.stopped.set()

    def join(self) -> None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()


def live(storage: FileSystemCheckpointStorage, made: Job, seen: list[int]) -> None:
    """Take two checkpoints and keep the newest; `seen` gets those that were seen to complete."""
    driver = Publisher(storage)
    for _ in CHECKPOINTS:
        checkpoint_id = driver.directory.next_checkpoint_id()
        for key in range(10_000, 10_015):
            made.set_count(key, checkpoint_id)
        try:
            driver.publish(made, checkpoint_id)
        except PublishOutcomeUnknownError:
            # A driver reads again to find out; nothing may be deleted on a guess.
            continue
        except StorageError:
            continue
        seen.append(checkpoint_id)
        try:
            driver.directory.drop(older for older in seen[:-1])
        except StorageError:
            continue


@pytest.mark.parametrize(
    "backend", [pytest.param("heap", marks=pytest.mark.thorough), pytest.param("rocksdb", marks=pytest.mark.slow)]
)
def test_whichever_call_fails_complete_checkpoints_stay_whole_and_nothing_untyped_escapes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    disk = FailingDisk(tmp_path, monkeypatch)
    faults = 0
    for n in range(1, 1_000):
        storage = FileSystemCheckpointStorage(str(tmp_path / f"run-{n}"), file_state_size_threshold=0)
        disk.arm(n)
        seen: list[int] = []
        # It may not even begin: no attempt of its own, so there is nothing that could be lost.
        with contextlib.suppress(StorageError), job(Shape(backend=backend, parallelism=1, extra_keys=20)) as made:
            live(storage, made, seen)
        disk.disarm()
        faults += disk.failed
        place = JobPlace(storage, JOB)
        found = verify(place.checkpoints())
        assert found.whole, found.findings
        # The next start finds the newest, whatever the fault left behind, and its ids go on from there.
        directory = Publisher(storage).directory
        complete = [ref.checkpoint_id for ref in directory.completed()]
        assert set(seen[-1:]) <= set(complete), "what was seen to complete is there"
        assert directory.next_checkpoint_id() > max(seen, default=0)
        collect(place)
        assert audit(place).garbage == ()
        assert [ref.checkpoint_id for ref in directory.completed()] == complete
        if not disk.failed:
            break
    else:
        pytest.fail("there was always one more call to fail")
    assert faults == n - 1 > 30
    assert complete == [CHECKPOINTS[-1]], "and without a fault there is the last one alone"


@pytest.mark.parametrize(
    ("backend", "taken_over", "step"),
    [
        pytest.param("heap", True, 7, marks=pytest.mark.thorough, id="heap, some, taken over"),
        pytest.param("heap", True, 1, marks=pytest.mark.slow, id="heap, all, taken over"),
        pytest.param("heap", False, 1, marks=pytest.mark.slow, id="heap, all, waited for"),
        pytest.param("rocksdb", True, 1, marks=pytest.mark.slow, id="rocksdb, all, taken over"),
        pytest.param("rocksdb", False, 1, marks=pytest.mark.slow, id="rocksdb, all, waited for"),
    ],
)
def test_whichever_call_hangs_others_see_whole_checkpoints_and_when_it_comes_late_it_harms_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str, taken_over: bool, step: int
) -> None:
    """Taken over: while one driver hangs another one starts and completes a checkpoint. Then the first goes on."""
    disk = HangingDisk(tmp_path, monkeypatch)
    fenced = held = 0
    for n in range(1, 1_000, step):
        storage = FileSystemCheckpointStorage(str(tmp_path / f"run-{n}"), file_state_size_threshold=0)
        place = JobPlace(storage, JOB)
        disk.arm(n)
        first = Driver(storage, backend, disk)
        assert disk.stopped.wait(PATIENCE_S)
        if disk.failed:
            held += 1
            found = verify(place.checkpoints())
            assert found.whole, found.findings
        second = None
        if disk.failed and taken_over:
            second = Publisher(storage)
            own = second.directory.next_checkpoint_id()
            with job(Shape(backend=backend, parallelism=1, extra_keys=20)) as made:
                second.publish(made, own)
        disk.let_go()
        first.join()
        disk.disarm()

        found = verify(place.checkpoints())
        assert found.whole, found.findings
        assert first.error is None or isinstance(first.error, HeadraceError), repr(first.error)
        directory = JobDirectory(storage, JOB)
        directory.open_run()
        newest = directory.newest()
        assert newest is not None
        if second is None:
            assert (first.error, first.seen, newest.checkpoint_id) == (None, list(CHECKPOINTS), CHECKPOINTS[-1])
        elif isinstance(first.error, FencedError):
            fenced += 1
            assert (newest.checkpoint_id, newest.attempt) == (own, second.attempt), "what came late does not count"
        else:
            # It hung before it had an attempt of its own, and so came second; or after all that it had to do.
            later = newest.attempt > second.attempt
            assert newest.checkpoint_id == (first.seen[-1] if later else own)
        collect(place)
        assert audit(place).garbage == ()
        again = verify(place.checkpoints())
        assert again.whole, again.findings
        if not disk.failed:
            break
    else:
        pytest.fail("there was always one more call to hold")
    assert held == (n - 1) // step > 30 // step
    assert bool(fenced) == taken_over
