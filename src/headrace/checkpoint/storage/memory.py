"""Checkpoints in the coordinator's memory: the default when nothing is set, and good for tests.

In tasks every file is inline: state comes to the driver with the acknowledgement and stays there. So
each state is limited in size, and what is kept dies with the driver's process.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any

from headrace.checkpoint.handles import StateFile
from headrace.checkpoint.storage.base import (
    AlreadyExistsError,
    CheckpointStorage,
    FileStore,
    MissingFileError,
    StateTooLargeError,
    inline_contents,
    inline_file,
)
from headrace.checkpoint.storage.filesystem import FileSystemCheckpointStorage
from headrace.checkpoint.storage.paths import WriterScope, check_path, check_prefix
from headrace.checkpoint.storage.posix import storage_errors
from headrace.errors import ConfigurationError, DamagedCheckpointError

DEFAULT_MAX_STATE_SIZE = 5 * 1024 * 1024


class JobManagerCheckpointStorage(CheckpointStorage):
    """State inside the coordinator; `max_state_size` bytes (default 5 MiB) for each state of each subtask.

    With `checkpoint_path` the coordinator keeps its part (metadata with all state inside) in that
    directory instead of its memory, so checkpoints outlive the process; the limit stays.
    """

    def __init__(self, checkpoint_path: str | None = None, max_state_size: int | None = None) -> None:
        limit = DEFAULT_MAX_STATE_SIZE if max_state_size is None else max_state_size
        if limit <= 0:
            raise ConfigurationError(f"max_state_size is {limit}; it must be a positive number of bytes.")
        self.max_state_size = limit
        self._directory = None if checkpoint_path is None else FileSystemCheckpointStorage(checkpoint_path)
        self._files: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        where = "" if self._directory is None else f"{str(self._directory.root)!r}, "
        return f"JobManagerCheckpointStorage({where}max_state_size={self.max_state_size})"

    def __getstate__(self) -> dict[str, Any]:
        # Tasks get the settings; what the coordinator holds stays with it.
        return {"max_state_size": self.max_state_size, "_directory": self._directory}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _files={}, _lock=threading.Lock())

    @property
    def location(self) -> str:
        return "memory:" if self._directory is None else self._directory.location

    @property
    def survives(self) -> str:
        return "the loss of a task, not of this process" if self._directory is None else self._directory.survives

    def check_writable(self) -> None:
        if self._directory is not None:
            self._directory.check_writable()

    def check_exclusive_create(self) -> None:
        if self._directory is not None:
            self._directory.check_exclusive_create()

    def create_exclusive(self, path: str, data: bytes) -> None:
        check_path(path)
        if self._directory is not None:
            self._directory.create_exclusive(path, data)
            return
        with self._lock:
            if path in self._files:
                raise AlreadyExistsError(f"{path} exists already in coordinator memory; it was left as it is.")
            self._files[path] = bytes(data)

    def create_inside(self, directory: str, path: str, data: bytes) -> None:
        if self._directory is not None:
            self._directory.create_inside(directory, path, data)
            return
        self.create_exclusive(path, data)

    def replace(self, path: str, data: bytes) -> None:
        check_path(path)
        if self._directory is not None:
            self._directory.replace(path, data)
            return
        with self._lock:
            self._files[path] = bytes(data)

    def read(self, path: str) -> bytes:
        check_path(path)
        if self._directory is not None:
            return self._directory.read(path)
        try:
            return self._files[path]
        except KeyError:
            raise MissingFileError(f"Cannot read {path}: coordinator memory has no such file.") from None

    def exists(self, path: str) -> bool:
        check_path(path)
        return path in self._files if self._directory is None else self._directory.exists(path)

    def list(self, prefix: str) -> list[str]:
        check_prefix(prefix)
        if self._directory is not None:
            return self._directory.list(prefix)
        with self._lock:
            return sorted(path for path in self._files if path.startswith(prefix))

    def list_names(self, directory: str, start: str = "") -> Sequence[str]:
        if self._directory is not None:
            return self._directory.list_names(directory, start)
        return super().list_names(directory, start)

    def delete(self, path: str) -> None:
        check_path(path)
        if self._directory is not None:
            self._directory.delete(path)
            return
        with self._lock:
            self._files.pop(path, None)

    def delete_tree(self, prefix: str) -> None:
        check_path(prefix)
        if self._directory is not None:
            self._directory.delete_tree(prefix)
            return
        with self._lock:
            for path in [path for path in self._files if path.startswith(f"{prefix}/")]:
                del self._files[path]

    def size(self, path: str) -> int:
        return len(self.read(path)) if self._directory is None else self._directory.size(path)

    def unfinished(self, prefix: str) -> Sequence[str]:
        return [] if self._directory is None else self._directory.unfinished(prefix)

    def file_store(self, prefix: str, known_shared: frozenset[str] = frozenset()) -> FileStore:
        return _InlineFileStore(check_path(prefix), self.max_state_size)


class _InlineFileStore:
    """Keeps every file inside its handle."""

    def __init__(self, prefix: str, limit: int) -> None:
        self._limit = limit
        self._checkpoint_id = WriterScope.of(prefix).checkpoint_id

    def write(self, name: str, chunks: Iterable[bytes | memoryview]) -> StateFile:
        data = bytearray()
        for chunk in chunks:
            data += chunk
            self._check_size(name, len(data))
        return inline_file(bytes(data))

    def write_shared(self, path: Path) -> StateFile:
        with storage_errors("read", path):
            self._check_size(path.name, path.stat().st_size)
            return inline_file(path.read_bytes())

    def open(self, file: StateFile) -> IO[bytes]:
        return io.BytesIO(self.read(file))

    def read(self, file: StateFile) -> bytes:
        if file.inline is None:
            raise DamagedCheckpointError(
                f"{file.path} was stored in a directory, but the job now keeps checkpoints in coordinator memory. "
                f"Set the checkpoint directory that the checkpoint was written to."
            )
        return inline_contents(file)

    def fetch(self, file: StateFile, to: Path) -> None:
        data = self.read(file)
        with storage_errors("write", to):
            to.write_bytes(data)

    def _check_size(self, name: str, size: int) -> None:
        if size > self._limit:
            raise StateTooLargeError(name, size, self._limit, self._checkpoint_id)
