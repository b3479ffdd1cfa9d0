"""How tasks write and read state files in any store that `pyarrow.fs` knows.

As in a directory, each file is created under its final name, which nobody else uses and which counts only once
`_metadata` names it with size and hash; so there is no rename. A store may show half a file after a failed write (a
broken stream to S3 is published all the same), therefore presence means nothing: size and hash do.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

from headrace.checkpoint.handles import StateFile
from headrace.checkpoint.storage.base import (
    DAMAGED_WAY_OUT,
    MissingFileError,
    check_contents,
    inline_contents,
)
from headrace.checkpoint.storage.inlining import BLOCK, InliningFileStore, blocks
from headrace.checkpoint.storage.operations import Operations
from headrace.checkpoint.storage.paths import UnsafePathError, check_path
from headrace.checkpoint.storage.posix import storage_errors
from headrace.errors import DamagedCheckpointError, StorageError

_WITHOUT_DIRECTORIES = ("s3", "gcs")


class ArrowFileStore(InliningFileStore):
    """Writes below `root/prefix` and the `shared/` beside it; holds no open file between calls."""

    def __init__(
        self,
        filesystem: Any,
        root: str,
        location: str,
        prefix: str,
        known_shared: frozenset[str],
        inline_threshold: int,
        operations: Operations,
    ) -> None:
        """`root`: a path within the `pyarrow.fs.FileSystem`. `location`: the same for people."""
        super().__init__(prefix, known_shared, inline_threshold)
        self._fs = filesystem
        self._root = root
        self._location = location.rstrip("/")
        self._operations = operations

    def open(self, file: StateFile) -> IO[bytes]:
        if file.inline is not None:
            return io.BytesIO(inline_contents(file))
        return io.BufferedReader(_RangeReader(self._operations, self._parts(file), file.size, self._where(file)), BLOCK)

    def read(self, file: StateFile) -> bytes:
        if file.inline is not None:
            return inline_contents(file)
        data = b"".join(self._in_parallel(file))
        check_contents(file, len(data), hashlib.sha256(data).hexdigest(), self._where(file))
        return data

    def fetch(self, file: StateFile, to: Path) -> None:
        with contextlib.ExitStack() as undo:
            undo.callback(lambda: to.unlink(missing_ok=True))
            if file.inline is not None:
                with storage_errors("write", to):
                    to.write_bytes(inline_contents(file))
            else:
                digest = hashlib.sha256()
                size = 0
                with storage_errors("write", to), open(to, "wb") as local:
                    for part in self._in_parallel(file):
                        digest.update(part)
                        size += len(part)
                        local.write(part)
                check_contents(file, size, digest.hexdigest(), self._where(file))
            undo.pop_all()

    def _where(self, file: StateFile) -> str:
        return f"{self._location}/{file.path}"

    # Reading

    def _parts(self, file: StateFile) -> Callable[[int, int], bytes]:
        """`part(offset, size)` of a file that is there and has the recorded size."""
        where = self._where(file)
        try:
            full = f"{self._root}/{check_path(file.path)}"
        except UnsafePathError as error:
            raise DamagedCheckpointError(f"The checkpoint names a file outside its storage. {error}") from error
        try:
            source = self._operations.run("open", where, lambda: self._fs.open_input_file(full))
            size = self._operations.run("open", where, source.size)
        except MissingFileError as error:
            raise DamagedCheckpointError(f"{where} is missing from the checkpoint. {DAMAGED_WAY_OUT}") from error
        if size != file.size:
            check_contents(file, size, file.sha256, where)

        def part(offset: int, length: int) -> bytes:
            data = source.read_at(length, offset)
            if len(data) != length:
                raise OSError(f"{len(data)} bytes came where {length} were asked for")
            return data  # type: ignore[no-any-return]

        return part

    def _in_parallel(self, file: StateFile) -> Iterator[bytes]:
        """All bytes in order, several parts under way at once, and no more than that in memory."""
        part, where = self._parts(file), self._where(file)
        options = self._operations.options
        offsets = range(0, file.size, options.part_bytes)

        def one(offset: int) -> bytes:
            length = min(options.part_bytes, file.size - offset)
            return self._operations.run("read", where, lambda: part(offset, length))

        if len(offsets) <= 1:
            yield from map(one, offsets)
            return
        with ThreadPoolExecutor(min(options.threads, len(offsets)), thread_name_prefix="fetch") as pool:
            ahead: deque[Future[bytes]] = deque()
            try:
                for offset in offsets:
                    ahead.append(pool.submit(one, offset))
                    if len(ahead) > options.threads:
                        yield ahead.popleft().result()
                while ahead:
                    yield ahead.popleft().result()
            finally:
                for waiting in ahead:
                    waiting.cancel()

    # Writing

    def _store(self, path: str, chunks: Iterable[bytes | bytearray | memoryview]) -> tuple[int, str]:
        where, full = f"{self._location}/{path}", f"{self._root}/{path}"
        digest = hashlib.sha256()
        size = 0
        buffer = bytearray()
        stream: Any = None
        largest = self._operations.options.part_bytes
        try:
            for chunk in chunks:
                digest.update(chunk)
                size += memoryview(chunk).nbytes
                buffer += chunk
                if len(buffer) >= largest:
                    if stream is None:
                        stream = self._operations.run("create", where, lambda: self._open_output(full))
                    self._append(stream, where, bytes(buffer))
                    buffer.clear()
            if stream is None:
                data = bytes(buffer)
                self._operations.run("write", where, lambda: self._put(full, data))
            else:
                self._append(stream, where, bytes(buffer))
                # The client repeats single parts by itself; the whole cannot be, for the chunks are gone.
                self._operations.run("finish", where, stream.close, again=False)
            self._check_size(full, where, size)
        except BaseException:
            self._give_up(stream, full)
            raise
        return size, digest.hexdigest()

    def _store_shared(self, source: Path, path: str, sha256: str) -> None:
        # If another subtask of this checkpoint has stored the same content, it is stored over with the same bytes:
        # that a file is there does not say that it is whole.
        _, copied = self._store(path, blocks(source))
        if copied != sha256:
            raise StorageError(f"{source} changed while it was stored as {path}; the checkpoint cannot use it.")

    def _open_output(self, full: str) -> Any:
        # Stores with real directories want them made; in the others the call would leave an empty object behind.
        if self._fs.type_name not in _WITHOUT_DIRECTORIES:
            self._fs.create_dir(full.rpartition("/")[0], recursive=True)
        return self._fs.open_output_stream(full)

    def _put(self, full: str, data: bytes) -> None:
        with self._open_output(full) as stream:
            stream.write(data)

    def _append(self, stream: Any, where: str, data: bytes) -> None:
        self._operations.run("write", where, lambda: stream.write(data), again=False)

    def _check_size(self, full: str, where: str, size: int) -> None:
        found = self._operations.run("look at", where, lambda: self._fs.get_file_info(full)).size
        if found != size:
            raise StorageError(f"{where} was written with {size} bytes, but the store has {found}.")

    def _give_up(self, stream: Any, full: str) -> None:
        """Nothing names the file, so a failure here costs space only."""
        with contextlib.suppress(Exception):
            if stream is not None:
                self._operations.run("close", full, stream.close, again=False)
        with contextlib.suppress(Exception):
            self._operations.run("delete", full, lambda: self._fs.delete_file(full), again=False)


class _RangeReader(io.RawIOBase):
    """A seekable reader over parts, each asked for again if it fails."""

    def __init__(self, operations: Operations, part: Callable[[int, int], bytes], size: int, where: str) -> None:
        super().__init__()
        self._operations = operations
        self._part = part
        self._size = size
        self._where = where
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        if start + offset < 0:
            raise ValueError(f"cannot seek to {start + offset}")
        self._at = start + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        length = min(len(buffer), self._size - self._at)
        if length <= 0:
            return 0
        at = self._at
        data = self._operations.run("read", self._where, lambda: self._part(at, length))
        buffer[:length] = data
        self._at = at + length
        return length
