"""File stores that keep copies on this host while they write, and look for them before they read.

`KeepingFileStore` stands before the store of a checkpoint that is written, `LocalFirstFileStore` before that of the one
that is restored. Both are as good as the store behind them when there is no copy at all.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from headrace.checkpoint.handles import CheckpointId, RestoredBytes, StateFile
from headrace.checkpoint.local_copies import LocalCopies
from headrace.checkpoint.storage import posix
from headrace.checkpoint.storage.base import FileStore
from headrace.checkpoint.storage.parts import PartReader, ReadsParts

_BLOCK = 1 << 20

PREPARED = "prepared"
"""Files of prepared output are read by the driver alone, so no host keeps a copy."""


class KeepingFileStore:
    """Writes to storage, and keeps what it wrote on this host too."""

    def __init__(self, store: FileStore, copies: LocalCopies, checkpoint_id: CheckpointId) -> None:
        self._store = store
        self._copies = copies
        self._checkpoint_id = checkpoint_id

    def write(self, name: str, chunks: Iterable[bytes | memoryview]) -> StateFile:
        if name == PREPARED:
            return self._store.write(name, chunks)
        copier = self._copies.copier(self._checkpoint_id)
        try:
            file = self._store.write(name, copier.passing(chunks))
        except BaseException:
            copier.discard()
            raise
        copier.keep(file)
        return file

    def write_shared(self, path: Path) -> StateFile:
        file = self._store.write_shared(path)
        if path.name != PREPARED:
            self._copies.link(self._checkpoint_id, file, path)
        return file

    def open(self, file: StateFile) -> IO[bytes]:
        return self._store.open(file)

    def read(self, file: StateFile) -> bytes:
        return self._store.read(file)

    def fetch(self, file: StateFile, to: Path) -> None:
        self._store.fetch(file, to)


class LocalFirstFileStore(ReadsParts):
    """Reads a copy on this host where there is a good one, storage otherwise, and counts both. Thread-safe."""

    def __init__(self, store: FileStore, copies: LocalCopies | None) -> None:
        self._store = PartReader(store)
        self._copies = copies
        self._lock = threading.Lock()
        self._checked: set[Path] = set()
        self.restored = RestoredBytes()

    def write(self, name: str, chunks: Iterable[bytes | memoryview]) -> StateFile:
        return self._store.write(name, chunks)

    def write_shared(self, path: Path) -> StateFile:
        return self._store.write_shared(path)

    def open(self, file: StateFile) -> IO[bytes]:
        copy = self._find(file)
        if copy is not None:
            try:
                if file.pack_size:
                    return io.BytesIO(self._local_bytes(file, copy))
                stream = self._checked_stream(file, copy)
            except OSError:
                self._refuse(copy)
            else:
                self._count(local=file.size)
                return stream
        self._count_from_store(file)
        return self._store.open(file)

    def read(self, file: StateFile) -> bytes:
        copy = self._find(file)
        if copy is not None:
            try:
                return self._local_bytes(file, copy)
            except OSError:
                self._refuse(copy)
        self._count_from_store(file)
        return self._store.read(file)

    def fetch(self, file: StateFile, to: Path) -> None:
        copy = self._find(file)
        if copy is not None:
            try:
                self._bring(file, copy, to)
            except OSError:
                to.unlink(missing_ok=True)
                self._refuse(copy)
            else:
                self._count(local=file.size)
                return
        self._count_from_store(file)
        self._store.fetch(file, to)

    def _find(self, file: StateFile) -> Path | None:
        return None if self._copies is None or not file.path else self._copies.find(file)

    def _checked_stream(self, file: StateFile, copy: Path) -> IO[bytes]:
        """The copy, opened at its beginning; `OSError` if it is not what was stored."""
        with contextlib.ExitStack() as undo:
            stream = undo.enter_context(copy.open("rb"))
            if copy not in self._checked and not _is(file, stream):
                raise OSError("damaged")
            self._checked.add(copy)
            stream.seek(0)
            undo.pop_all()
            return stream

    def _bring(self, file: StateFile, copy: Path, to: Path) -> None:
        """The checked copy at `to`; `OSError` if it is not what was stored."""
        if file.shared and not file.pack_size and posix.second_name(copy, to):
            with to.open("rb") as linked:
                if not _is(file, linked):
                    raise OSError("damaged")
            return
        digest, size = hashlib.sha256(), 0
        with copy.open("rb") as source, to.open("wb") as local:
            _check_size(file, source)
            source.seek(file.offset)
            while size < file.size and (block := source.read(min(_BLOCK, file.size - size))):
                digest.update(block)
                size += len(block)
                local.write(block)
        if digest.hexdigest() != file.sha256:
            raise OSError("damaged")

    def _local_bytes(self, file: StateFile, copy: Path) -> bytes:
        with copy.open("rb") as source:
            _check_size(file, source)
            source.seek(file.offset)
            data = source.read(file.size)
        if hashlib.sha256(data).hexdigest() != file.sha256:
            raise OSError("damaged")
        self._count(local=file.size)
        return data

    def _refuse(self, copy: Path) -> None:
        assert self._copies is not None
        self._copies.discard(copy)
        self._count(damaged=1)

    def _count_from_store(self, file: StateFile) -> None:
        if file.path:
            self._count(from_store=file.size)

    def _count(self, local: int = 0, from_store: int = 0, damaged: int = 0) -> None:
        with self._lock:
            self.restored += RestoredBytes(local, from_store, damaged)


def _check_size(file: StateFile, stream: IO[bytes]) -> None:
    """Before memory is taken for it, or a hash: `OSError` if the object has another size than the stored one."""
    if os.fstat(stream.fileno()).st_size != (file.pack_size or file.size):
        raise OSError("damaged")


def _is(file: StateFile, stream: io.BufferedReader) -> bool:
    """Whether the whole stream is what was stored."""
    if os.fstat(stream.fileno()).st_size != file.size:
        return False
    return hashlib.file_digest(stream, "sha256").hexdigest() == file.sha256
