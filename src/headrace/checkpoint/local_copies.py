"""Copies of state files on the host that made them, so that a restart there downloads nothing.

    <temporary directory>/headrace-copies-<user id>/          0700, ours; whatever else is found there is left unused
        <job and run>-<hash of storage and run>/              all tasks of the job on this host share it
            in-use                                            locked (shared) by every live task
            chk-000007/<hash of the path in storage>          a file of checkpoint 7: hard link or copy

Copies are a cache: storage has everything, and a copy that is missing, damaged or somebody else's is not used. A path
in storage names one content for ever, so it is the key; a copy is used only if size and sha256 are those of the handle.

What is kept: files of the newest completed checkpoint and of those under way. A completed checkpoint takes all older
ones away, the end of the job everything. What a job leaves that died with all its processes is removed by the
next task of any job on the host, once nobody has used it for an hour: until then the same job may come back for it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import stat
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from headrace.checkpoint.handles import CheckpointId, StateFile

FORGOTTEN_AFTER_S = 3_600.0
"""How long the copies of a job that has no process any more wait for it to come back."""

_FOLDER = re.compile(r"chk-(\d{1,18})")
_LOCK = "in-use"
_DEAD = ".dead-"
_TEMPORARY = ".tmp-"


class LocalCopies:
    """The copies of one run of a job on this host. Used by many threads and processes at once.

    No method raises for trouble with the local disk: a copy that cannot be made is not there.
    """

    def __init__(self, location: str, home: str, base: Path | None = None) -> None:
        """`location`: of the job's storage. `home`: the run's directory in it. Nothing is touched before `begin`."""
        self._base = copies_directory() if base is None else base
        digest = hashlib.sha256(f"{location}\0{home}".encode()).hexdigest()[:16]
        self.directory = self._base / f"{re.sub(r'[^A-Za-z0-9.]+', '-', home)[-60:]}-{digest}"
        self._lock: IO[bytes] | None = None

    @property
    def usable(self) -> bool:
        """Whether `begin` found or made the directory."""
        return self._lock is not None

    def begin(self, restored: CheckpointId | None) -> None:
        """A task starts, from that checkpoint: what the job kept of others goes, and what dead jobs left."""
        with contextlib.suppress(OSError):
            if _private_directory(self._base):
                self._forget_the_dead()
                self._lock = self._locked()
        for checkpoint_id in self._kept():
            if checkpoint_id != restored:
                self._drop(checkpoint_id)
        if self.usable:
            # Whoever was deleting these was killed.
            for dead in self.directory.glob(f"{_DEAD}*"):
                shutil.rmtree(dead, ignore_errors=True)

    def end(self) -> None:
        """The task ends; what is kept stays for the next attempt."""
        if self._lock is not None:
            self._touch()
            self._lock.close()
            self._lock = None

    def remove(self) -> None:
        """The run is over: everything goes. Also for one that never began."""
        self.end()
        _remove(self.directory)

    # Keeping

    def completed(self, checkpoint_id: CheckpointId) -> None:
        """Whatever is older than the completed checkpoint is needed no more."""
        self._touch()
        for older in self._kept():
            if older < checkpoint_id:
                self._drop(older)

    def aborted(self, checkpoint_id: CheckpointId) -> None:
        """The checkpoint will never be restored. A task that is late leaves files of it for the next completed one."""
        self._drop(checkpoint_id)

    def link(self, checkpoint_id: CheckpointId, file: StateFile, source: Path) -> None:
        """Keep a local file that never changes; a copy of it where it lies on another file system."""
        if not file.path:
            return
        with contextlib.suppress(OSError):
            target = self._folder(checkpoint_id) / key_of(file)
            try:
                os.link(source, target)
            except FileExistsError:
                return
            except OSError:
                temporary = target.with_name(f"{_TEMPORARY}{uuid.uuid4().hex}")
                shutil.copyfile(source, temporary)
                os.replace(temporary, target)

    def copier(self, checkpoint_id: CheckpointId) -> Copier:
        """For a file whose bytes come one by one."""
        return Copier(self, checkpoint_id)

    def carry_over(self, checkpoint_id: CheckpointId, files: Iterable[StateFile]) -> None:
        """Keep for this checkpoint too what it has in common with the ones that are kept."""
        kept = sorted((other for other in self._kept() if other != checkpoint_id), reverse=True)
        for file in files:
            if file.path and not (self._path(checkpoint_id) / key_of(file)).exists():
                for other in kept:
                    source = self._path(other) / key_of(file)
                    if source.exists():
                        self.link(checkpoint_id, file, source)
                        break

    # Finding

    def find(self, file: StateFile) -> Path | None:
        """Where a copy of the stored object lies, unchecked; None if there is none."""
        name = key_of(file)
        for checkpoint_id in sorted(self._kept(), reverse=True):
            path = self._path(checkpoint_id) / name
            with contextlib.suppress(OSError):
                if stat.S_ISREG(os.lstat(path).st_mode):
                    return path
        return None

    def discard(self, path: Path) -> None:
        """That copy is damaged."""
        with contextlib.suppress(OSError):
            path.unlink()

    # Directories

    def _path(self, checkpoint_id: CheckpointId) -> Path:
        return self.directory / f"chk-{checkpoint_id:06d}"

    def _folder(self, checkpoint_id: CheckpointId) -> Path:
        path = self._path(checkpoint_id)
        path.mkdir(mode=0o700, exist_ok=True)
        return path

    def _kept(self) -> list[CheckpointId]:
        if not self.usable:
            return []
        try:
            names = os.listdir(self.directory)
        except OSError:
            return []
        return [int(match[1]) for name in names if (match := _FOLDER.fullmatch(name)) is not None]

    def _drop(self, checkpoint_id: CheckpointId) -> None:
        if self.usable:
            _remove(self._path(checkpoint_id))

    def _touch(self) -> None:
        with contextlib.suppress(OSError):
            os.utime(self.directory / _LOCK)

    def _locked(self) -> IO[bytes] | None:
        """The lock of a directory that is still there when it is locked."""
        for _ in range(3):
            if not _private_directory(self.directory):
                return None
            path = self.directory / _LOCK
            lock = open(path, "ab", opener=lambda name, flags: os.open(name, flags, 0o600))  # noqa: SIM115 - kept
            try:
                fcntl.flock(lock, fcntl.LOCK_SH)
                if os.path.samestat(os.fstat(lock.fileno()), os.stat(path)):
                    os.utime(path)
                    return lock
            except OSError:
                pass  # removed in between, as a dead job's
            lock.close()
        return None

    def _forget_the_dead(self) -> None:
        now = time.time()
        for folder in list(self._base.iterdir()):
            if folder == self.directory:
                continue
            with contextlib.suppress(OSError):
                if folder.name.startswith(_DEAD):
                    shutil.rmtree(folder, ignore_errors=True)
                elif now - _last_used(folder) > FORGOTTEN_AFTER_S and not _in_use(folder):
                    _remove(folder)


class Copier:
    """Writes the copy of one file while its bytes go to storage."""

    def __init__(self, copies: LocalCopies, checkpoint_id: CheckpointId) -> None:
        self._copies = copies
        self._checkpoint_id = checkpoint_id
        self._temporary: Path | None = None
        self._whole = False

    def passing(self, chunks: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
        """The chunks as they came; each is written to the copy too, as long as the local disk takes it."""
        out: IO[bytes] | None = None
        try:
            with contextlib.suppress(OSError):
                self._temporary = self._copies._folder(self._checkpoint_id) / f"{_TEMPORARY}{uuid.uuid4().hex}"
                out = open(self._temporary, "xb", opener=_private, buffering=0)  # noqa: SIM115 - closed below
            for chunk in chunks:
                if out is not None:
                    out = _append(out, chunk)
                yield chunk
            self._whole = out is not None
        finally:
            if out is not None:
                out.close()

    def keep(self, file: StateFile) -> None:
        """The file is stored: its copy counts from now on. What travels inside `_metadata` needs none."""
        if self._temporary is None:
            return
        try:
            if self._whole and file.path:
                os.replace(self._temporary, self._temporary.with_name(key_of(file)))
                return
        except OSError:
            pass
        self.discard()

    def discard(self) -> None:
        if self._temporary is not None:
            self._copies.discard(self._temporary)


def copies_directory() -> Path:
    """Where the copies of all jobs of this user lie, on this host."""
    return Path(tempfile.gettempdir()) / f"headrace-copies-{os.geteuid()}"


def key_of(file: StateFile) -> str:
    """The name of the copy of the stored object that a handle refers to; parts of a pack share one."""
    return hashlib.sha256(file.path.encode()).hexdigest()


def _append(out: IO[bytes], chunk: bytes | memoryview) -> IO[bytes] | None:
    """None once the local disk refuses: the file in storage goes on without its copy."""
    try:
        view = memoryview(chunk)
        while view:
            view = view[out.write(view) :]
    except OSError:
        out.close()
        return None
    return out


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _private_directory(path: Path) -> bool:
    """Make the directory if it is not there; whether it is ours alone. In a place that all may write to, it may not."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    found = os.lstat(path)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077


def _last_used(folder: Path) -> float:
    try:
        return (folder / _LOCK).stat().st_mtime
    except FileNotFoundError:
        return folder.stat().st_mtime


def _in_use(folder: Path) -> bool:
    try:
        with open(folder / _LOCK, "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False


def _remove(folder: Path) -> None:
    """Take a directory away at once, then delete it: whoever looks sees all of it or nothing."""
    dead = folder.parent / f"{_DEAD}{uuid.uuid4().hex}"
    try:
        os.rename(folder, dead)
    except OSError:
        return
    shutil.rmtree(dead, ignore_errors=True)
