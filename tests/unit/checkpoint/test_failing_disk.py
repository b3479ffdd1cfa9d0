"""The n-th thing that checkpoint storage asks of the disk fails, for every n until nothing is left to fail."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import pytest
from golden_jobs import JOB, Job, Publisher, Shape, job

from headrace.checkpoint.collection import audit, collect
from headrace.checkpoint.job_directory import PublishOutcomeUnknownError
from headrace.checkpoint.places import JobPlace
from headrace.checkpoint.storage.filesystem import FileSystemCheckpointStorage
from headrace.checkpoint.verification import verify
from headrace.errors import StorageError

CHECKPOINTS = (1, 2)


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
    """A file whose writes may fail after half of the bytes went through."""

    def __init__(self, disk: FailingDisk, file: IO[bytes]) -> None:
        self._disk = disk
        self._file = file

    def write(self, data: Any) -> int:
        try:
            self._disk.ask()
        except OSError:
            self._file.write(memoryview(data)[: len(data) // 2])
            raise
        return self._file.write(data)

    def __enter__(self) -> _WatchedFile:
        return self

    def __exit__(self, *_: Any) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def live(storage: FileSystemCheckpointStorage, made: Job) -> list[int]:
    """Take two checkpoints and keep the newest; gives those that were seen to complete."""
    seen: list[int] = []
    driver = Publisher(storage)
    for checkpoint_id in CHECKPOINTS:
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
    return seen


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
        try:
            with job(Shape(backend=backend, parallelism=1, extra_keys=20)) as made:
                seen = live(storage, made)
        except StorageError:
            # The driver could not even begin: no attempt of its own, so there is nothing that could be lost.
            seen = []
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
