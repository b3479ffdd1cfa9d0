"""Files that lie in a pack: read by range, with the stores as they are.

A part is asked for by its own handle. `PartReader` opens the pack by the handle of the whole, of which a store checks
presence and size, and checks the hash of the part itself. So no store needs to know of packs.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from headrace.checkpoint.handles import StateFile
from headrace.checkpoint.storage.base import FileStore, check_contents
from headrace.checkpoint.storage.posix import storage_errors

BLOCK = 1 << 20


class ReadsParts:
    """Marks a file store that takes handles of parts."""


class PartReader(ReadsParts):
    """A file store above another one, for handles of whole files and of parts. Thread-safe if the other is."""

    def __init__(self, store: FileStore) -> None:
        self._store = store

    def write(self, name: str, chunks: Iterable[bytes | memoryview]) -> StateFile:
        return self._store.write(name, chunks)

    def write_shared(self, path: Path) -> StateFile:
        return self._store.write_shared(path)

    def open(self, file: StateFile) -> IO[bytes]:
        # A part is small, and the reader may seek in it.
        return io.BytesIO(self.read(file)) if file.pack_size else self._store.open(file)

    def read(self, file: StateFile) -> bytes:
        return b"".join(self._blocks(file)) if file.pack_size else self._store.read(file)

    def fetch(self, file: StateFile, to: Path) -> None:
        if not file.pack_size:
            self._store.fetch(file, to)
            return
        with contextlib.ExitStack() as undo:
            undo.callback(lambda: to.unlink(missing_ok=True))
            with storage_errors("write", to), open(to, "wb") as local:
                for block in self._blocks(file):
                    local.write(block)
            undo.pop_all()

    def _blocks(self, file: StateFile) -> Iterator[bytes]:
        """The bytes of a part, which are good only if this comes to its end without an error."""
        digest, size = hashlib.sha256(), 0
        with open_part(self._store, file) as source:
            while size < file.size and (block := source.read(min(BLOCK, file.size - size))):
                digest.update(block)
                size += len(block)
                yield block
        check_contents(file, size, digest.hexdigest(), f"The part at {file.offset} of {file.path}")


def reading_parts(store: FileStore) -> Any:
    """The store itself if it reads parts, else one above it that does."""
    return store if isinstance(store, ReadsParts) else PartReader(store)


def open_part(store: FileStore, file: StateFile) -> IO[bytes]:
    """The stored object of which `file` is a part, at the place where the part begins; it goes on to the pack's end."""
    # Of a file that is opened the hash is not looked at, so the pack's own, which no handle has, is not needed.
    stream = store.open(StateFile(file.pack_size, file.sha256, file.path, shared=file.shared))
    try:
        stream.seek(file.offset)
    except BaseException:
        stream.close()
        raise
    return stream
