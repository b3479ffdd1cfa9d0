"""How tasks write and read state files in a directory.

Each file is created under its final name, which no one else uses (checkpoint, attempt and a random token
are part of it) and which counts only once `_metadata` names it; so it needs no rename. The hash is
taken while the bytes pass. Errors leave nothing behind.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from headrace.checkpoint.handles import StateFile
from headrace.checkpoint.storage import posix
from headrace.checkpoint.storage.base import (
    DAMAGED_WAY_OUT,
    MissingFileError,
    check_contents,
    inline_contents,
)
from headrace.checkpoint.storage.inlining import BLOCK, InliningFileStore, views
from headrace.checkpoint.storage.paths import UnsafePathError, check_path
from headrace.errors import DamagedCheckpointError, StorageError


class FileSystemFileStore(InliningFileStore):
    """Writes below `root/prefix` and the `shared/` beside it; holds no open file between calls."""

    def __init__(
        self, root: Path, prefix: str, known_shared: frozenset[str], inline_threshold: int, buffer_size: int
    ) -> None:
        super().__init__(prefix, known_shared, inline_threshold)
        self._root = root
        self._buffer_size = buffer_size

    def open(self, file: StateFile) -> IO[bytes]:
        if file.inline is not None:
            return io.BytesIO(inline_contents(file))
        stream = self._open(file)
        size = os.fstat(stream.fileno()).st_size
        if size != file.size:
            stream.close()
            check_contents(file, size, file.sha256, str(self._root / file.path))
        return stream

    def read(self, file: StateFile) -> bytes:
        if file.inline is not None:
            return inline_contents(file)
        where = self._root / file.path
        # The size is looked at first, so that a file grown to nonsense does not fill the memory.
        with self.open(file) as stream, posix.storage_errors("read", where):
            data = stream.read()
        check_contents(file, len(data), hashlib.sha256(data).hexdigest(), str(where))
        return data

    def fetch(self, file: StateFile, to: Path) -> None:
        with contextlib.ExitStack() as undo:
            undo.callback(lambda: to.unlink(missing_ok=True))
            if file.inline is not None:
                with posix.storage_errors("write", to):
                    to.write_bytes(inline_contents(file))
            else:
                with self.open(file) as stream, posix.storage_errors("fetch", self._root / file.path):
                    size, sha256 = self._bring(file, stream, to)
                check_contents(file, size, sha256, str(self._root / file.path))
            undo.pop_all()

    def _bring(self, file: StateFile, stream: IO[bytes], to: Path) -> tuple[int, str]:
        """The opened file at `to`; size and hash of what is there."""
        # Nobody changes a shared file: the state backend that gets it may have the file itself.
        if file.shared and posix.second_name(self._root / file.path, to):
            with open(to, "rb") as linked:
                return os.fstat(linked.fileno()).st_size, hashlib.file_digest(linked, "sha256").hexdigest()
        digest = hashlib.sha256()
        size = 0
        with open(to, "wb", buffering=0) as local:
            buffer = memoryview(bytearray(BLOCK))
            while count := stream.readinto(buffer):  # type: ignore[attr-defined]  # a plain file
                digest.update(buffer[:count])
                size += count
                _write_all(local, buffer[:count])
        return size, digest.hexdigest()

    def _open(self, file: StateFile) -> IO[bytes]:
        where = self._root / file.path
        try:
            check_path(file.path)
            with posix.storage_errors("open", where):
                return posix.open_regular(posix.inside(self._root, file.path))
        except MissingFileError as error:
            raise DamagedCheckpointError(f"{where} is missing from the checkpoint. {DAMAGED_WAY_OUT}") from error
        except UnsafePathError as error:
            raise DamagedCheckpointError(f"The checkpoint names a file outside its storage. {error}") from error

    def _store(self, path: str, chunks: Iterable[bytes | bytearray | memoryview]) -> tuple[int, str]:
        target = self._root / path
        digest = hashlib.sha256()
        size = 0
        with posix.storage_errors("write", target):
            posix.make_directory(target.parent)
            with posix.new_file(target, self._buffer_size) as file:
                for chunk in chunks:
                    digest.update(chunk)
                    size += memoryview(chunk).nbytes
                    file.write(chunk)
            posix.sync_directory(target.parent)
        return size, digest.hexdigest()

    def _store_shared(self, source: Path, path: str, sha256: str) -> None:
        target = self._root / path
        # Another subtask of this checkpoint may hold the same content; what is there under this name is whole,
        # because it got the name by a link.
        if target.exists():
            return
        temporary = f"{path.rpartition('/')[0]}/{posix.TEMPORARY}{uuid.uuid4().hex}"
        _, copied = self._store(temporary, views(source))
        if copied != sha256:
            self._forget(temporary)
            raise StorageError(f"{source} changed while it was stored as {target}; the checkpoint cannot use it.")
        self._name_by_content(temporary, path)

    def _store_unknown(self, source: Path) -> str:
        # The hash, and with it the name, is known when the bytes have passed: they need not pass twice.
        temporary = f"{self._scope.shared_directory}/{posix.TEMPORARY}{uuid.uuid4().hex}"
        _, sha256 = self._store(temporary, views(source))
        self._name_by_content(temporary, self._scope.shared_path(sha256, source.suffix))
        return sha256

    def _name_by_content(self, temporary: str, path: str) -> None:
        target = self._root / path
        try:
            with posix.storage_errors("write", target):
                posix.make_directory(target.parent)
                with contextlib.suppress(FileExistsError):
                    os.link(self._root / temporary, target)
                posix.sync_directory(target.parent)
        finally:
            self._forget(temporary)

    def _forget(self, temporary: str) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self._root / temporary)


def _write_all(file: io.FileIO, view: memoryview) -> None:
    while view:
        view = view[file.write(view) :]
