"""What every file store of tasks does alike: small files go into `_metadata`, shared ones are named by content."""

from __future__ import annotations

import hashlib
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from headrace.checkpoint.handles import StateFile
from headrace.checkpoint.storage.base import inline_file
from headrace.checkpoint.storage.paths import SharedName, WriterScope, check_path
from headrace.checkpoint.storage.posix import storage_errors

BLOCK = 1024 * 1024


class InliningFileStore(ABC):
    """The writing side of a `FileStore`; where bytes go is left to `_store` and `_store_shared`."""

    def __init__(self, prefix: str, known_shared: frozenset[str], inline_threshold: int) -> None:
        self._prefix = prefix
        self._scope = WriterScope.of(prefix)
        self._inline_threshold = inline_threshold
        self._known = {name.sha256: path for path in known_shared if (name := SharedName.of(path)) is not None}

    def write(self, name: str, chunks: Iterable[bytes | memoryview]) -> StateFile:
        pieces = iter(chunks)
        head = bytearray()
        for piece in pieces:
            head += piece
            if len(head) > self._inline_threshold:
                break
        else:
            return inline_file(bytes(head))
        path = check_path(f"{self._prefix}/{name}-{uuid.uuid4().hex[:12]}")
        size, sha256 = self._store(path, chain((head,), pieces))
        return StateFile(size=size, sha256=sha256, path=path)

    def write_shared(self, path: Path) -> StateFile:
        with storage_errors("read", path):
            size = path.stat().st_size
            if size <= self._inline_threshold:
                return inline_file(path.read_bytes())
            if not self._known:
                sha256 = self._store_unknown(path)
                return StateFile(size, sha256, self._scope.shared_path(sha256, path.suffix), shared=True)
            with open(path, "rb") as local:
                sha256 = hashlib.file_digest(local, "sha256").hexdigest()
        known = self._known.get(sha256)
        if known is not None:
            return StateFile(size=size, sha256=sha256, path=known, shared=True)
        target = self._scope.shared_path(sha256, path.suffix)
        self._store_shared(path, target, sha256)
        return StateFile(size=size, sha256=sha256, path=target, shared=True)

    def _store_unknown(self, source: Path) -> str:
        """Store a local file of which no other checkpoint has the contents, under the name of its content: its hash."""
        with open(source, "rb") as local:
            sha256 = hashlib.file_digest(local, "sha256").hexdigest()
        self._store_shared(source, self._scope.shared_path(sha256, source.suffix), sha256)
        return sha256

    @abstractmethod
    def _store(self, path: str, chunks: Iterable[bytes | bytearray | memoryview]) -> tuple[int, str]:
        """Store a file under a name that nobody else uses; gives its size and hash."""

    @abstractmethod
    def _store_shared(self, source: Path, path: str, sha256: str) -> None:
        """Store a local file under the name of its content, unless what is there is known to be whole."""


def views(source: Path) -> Iterator[memoryview]:
    """Like `blocks`, but all in one buffer: each is good until the next is asked for.

    A new megabyte for every block costs more in page faults than the reading itself.
    """
    buffer = memoryview(bytearray(BLOCK))
    with open(source, "rb", buffering=0) as file:
        while size := file.readinto(buffer):
            yield buffer[:size]


def blocks(source: Path) -> Iterator[bytes]:
    """The bytes of a local file, a megabyte at a time."""
    with open(source, "rb", buffering=0) as file:
        while block := file.read(BLOCK):
            yield block
