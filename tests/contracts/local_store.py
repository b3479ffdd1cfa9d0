"""A file store on a local directory, for tests: real files, real hashes, and a record of what was written."""

from __future__ import annotations

import hashlib
import io
import shutil
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from headrace.checkpoint.handles import StateFile
from headrace.errors import DamagedCheckpointError


class LocalStore:
    """Keeps the `FileStore` contract under one directory; shared files are named by their hash."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.uploaded: list[str] = []
        """Paths in the order they were written; a shared file that was known already is not in it."""
        self._lock = threading.Lock()
        self._serial = 0
        (root / "shared").mkdir(parents=True, exist_ok=True)

    def write(self, name: str, chunks: Iterable[bytes | memoryview]) -> StateFile:
        with self._lock:
            self._serial += 1
            path = f"{self._serial:04d}-{name}"
        digest = hashlib.sha256()
        size = 0
        target = self.root / path
        try:
            with target.open("wb") as out:
                for chunk in chunks:
                    digest.update(chunk)
                    size += len(chunk)
                    out.write(chunk)
        except BaseException:
            target.unlink(missing_ok=True)
            raise
        with self._lock:
            self.uploaded.append(path)
        return StateFile(size, digest.hexdigest(), path)

    def write_shared(self, path: Path) -> StateFile:
        data = path.read_bytes()
        name = hashlib.sha256(data).hexdigest()
        target = self.root / "shared" / name
        if not target.exists():
            target.write_bytes(data)
            with self._lock:
                self.uploaded.append(f"shared/{name}")
        return StateFile(len(data), name, f"shared/{name}", shared=True)

    def open(self, file: StateFile) -> IO[bytes]:
        if file.inline is not None:
            return io.BytesIO(file.inline)
        return (self.root / file.path).open("rb")

    def read(self, file: StateFile) -> bytes:
        with self.open(file) as source:
            data = source.read()
        if len(data) != file.size or hashlib.sha256(data).hexdigest() != file.sha256:
            raise DamagedCheckpointError(f"{file.path} has another size or hash than was recorded.")
        return data

    def fetch(self, file: StateFile, to: Path) -> None:
        if file.inline is None:
            shutil.copyfile(self.root / file.path, to)
        else:
            to.write_bytes(file.inline)
        data = to.read_bytes()
        if len(data) != file.size or hashlib.sha256(data).hexdigest() != file.sha256:
            raise DamagedCheckpointError(f"{file.path} has another size or hash than was recorded.")

    def bytes_of(self, paths: Iterable[str]) -> int:
        return sum((self.root / path).stat().st_size for path in paths)
