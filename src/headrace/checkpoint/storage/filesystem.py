"""Checkpoints in a directory: of one machine, or of a file system that all machines mount.

Driver side by temporary file and link (see `posix.py`), task side by `FileSystemFileStore`. Every
file is 0600 and every directory 0700, whatever the umask: state is the users' data.
"""

from __future__ import annotations

import copy
import errno
import os
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Self
from urllib.parse import unquote, urlsplit

from headrace.checkpoint.storage import posix
from headrace.checkpoint.storage.base import INLINE_THRESHOLD, CheckpointStorage, FileStore
from headrace.checkpoint.storage.filestore import FileSystemFileStore
from headrace.checkpoint.storage.mounts import refuse_cached_lookups
from headrace.checkpoint.storage.paths import check_path, check_prefix
from headrace.errors import ConfigurationError

MAX_INLINE_THRESHOLD = 1024 * 1024


class FileSystemCheckpointStorage(CheckpointStorage):
    """Checkpoints below `checkpoint_path`, a `file:` URI or a path (relative: to where the job was started).

    `file_state_size_threshold`: files up to this size travel inside `_metadata` (default 20 KiB, at most 1 MiB).
    `write_buffer_size`: bytes buffered before each write to a file; -1 for the default of 256 KiB.
    """

    def __init__(
        self, checkpoint_path: str, file_state_size_threshold: int | None = None, write_buffer_size: int = -1
    ) -> None:
        threshold = INLINE_THRESHOLD if file_state_size_threshold is None else file_state_size_threshold
        if not 0 <= threshold <= MAX_INLINE_THRESHOLD:
            raise ConfigurationError(
                f"file_state_size_threshold is {threshold}; it must lie between 0 and {MAX_INLINE_THRESHOLD} bytes."
            )
        if write_buffer_size < -1:
            raise ConfigurationError(
                f"write_buffer_size is {write_buffer_size}; give a number of bytes, or -1 for the default."
            )
        # Absolute from here on: tasks start in another working directory.
        self.root = Path(os.path.abspath(_local_path(checkpoint_path)))
        self.inline_threshold = threshold
        self.write_buffer_size = write_buffer_size

    def __repr__(self) -> str:
        return f"FileSystemCheckpointStorage({str(self.root)!r})"

    @property
    def location(self) -> str:
        return self.root.as_uri()

    @property
    def survives(self) -> str:
        return (
            "the loss of a task and of this process; of this machine only if "
            f"{self.root} is on a file system that outlives it"
        )

    def _target(self, path: str) -> Path:
        check_path(path)
        with posix.storage_errors("look at", self.root / path):
            return posix.inside(self.root, path)

    def create_exclusive(self, path: str, data: bytes) -> None:
        target = self._target(path)
        with posix.storage_errors("create", target):
            posix.create_exclusive(target, data)

    def create_inside(self, directory: str, path: str, data: bytes) -> None:
        above, target = self._target(directory), self._target(path)
        with posix.storage_errors("create", target):
            posix.make_directory(target.parent, inside=above)
        self.create_exclusive(path, data)

    def replace(self, path: str, data: bytes) -> None:
        target = self._target(path)
        with posix.storage_errors("replace", target):
            posix.replace(target, data)

    def read(self, path: str) -> bytes:
        target = self._target(path)
        with posix.storage_errors("read", target):
            return posix.read_whole(target)

    def exists(self, path: str) -> bool:
        target = self._target(path)
        # `Path.is_file` answers False to some errors too; absence must be known, not guessed.
        with posix.storage_errors("look for", target):
            try:
                found = os.stat(target)
            except (FileNotFoundError, NotADirectoryError):
                return False
            return not stat.S_ISDIR(found.st_mode)

    def list(self, prefix: str) -> list[str]:
        directory, _, start = check_prefix(prefix).rpartition("/")
        with posix.storage_errors("list", self.root / directory):
            names = sorted(posix.list_files(self.root / directory, start))
        return [f"{directory}/{name}" for name in names] if directory else names

    def list_names(self, directory: str, start: str = "") -> Sequence[str]:
        target = self._target(directory)
        with posix.storage_errors("list", target):
            return sorted(posix.names_in(target, start))

    def delete(self, path: str) -> None:
        target = self._target(path)
        with posix.storage_errors("delete", target):
            target.unlink(missing_ok=True)

    def delete_tree(self, prefix: str) -> None:
        target = self._target(prefix)
        with posix.storage_errors("delete", target):
            # A task of a dead attempt may still write into it, so one more round may be needed; what comes
            # later than that is an orphan and goes with the next drop.
            for _ in range(3):
                try:
                    shutil.rmtree(target)
                except FileNotFoundError:
                    if not target.exists():
                        return
                except OSError:
                    if not target.is_dir():
                        raise
            if target.exists():
                shutil.rmtree(target)

    def check_writable(self) -> None:
        with posix.storage_errors("create files in", self.root):
            nearest = next(path for path in (self.root, *self.root.parents) if os.path.lexists(path))
            if not stat.S_ISDIR(os.stat(nearest).st_mode):
                raise NotADirectoryError(errno.ENOTDIR, f"{nearest} is no directory")
            if not os.access(nearest, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, f"{nearest} cannot be written")

    def check_exclusive_create(self) -> None:
        # A link is exclusive by POSIX, on NFS too; what may deceive is the look for somebody else's file.
        refuse_cached_lookups(self.root)

    def below(self, path: str) -> Self:
        other = copy.copy(self)
        other.root = self.root / check_path(path)
        return other

    def size(self, path: str) -> int:
        target = self._target(path)
        with posix.storage_errors("look at", target):
            return target.stat().st_size

    def unfinished(self, prefix: str) -> Sequence[str]:
        directory = self._target(prefix)
        with posix.storage_errors("list", directory):
            return sorted(f"{prefix}/{name}" for name in posix.unfinished_files(directory))

    def file_store(self, prefix: str, known_shared: frozenset[str] = frozenset()) -> FileStore:
        buffer_size = posix.DEFAULT_BUFFER if self.write_buffer_size == -1 else max(4096, self.write_buffer_size)
        return FileSystemFileStore(self.root, check_path(prefix), known_shared, self.inline_threshold, buffer_size)


def _local_path(uri: str) -> str:
    parts = urlsplit(uri)
    if parts.scheme == "":
        return os.path.expanduser(uri)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        raise ConfigurationError(
            f"{uri!r} names no directory of this machine. Write file:///path/to/checkpoints, or a plain path."
        )
    return unquote(parts.path)
