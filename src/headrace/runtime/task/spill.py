"""A queue of cells that keeps its first megabytes in memory and the rest, in order, in a local file."""

from __future__ import annotations

import struct
import tempfile
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import IO

Queued = tuple[int, bytes]
"""(channel, data)"""

_FRAME = struct.Struct("<iI")


class SpillQueue:
    """First in, first out. Once something was spilled, everything after it is spilled too until it is drained."""

    def __init__(self, directory: Path | None, memory_limit: int) -> None:
        self._directory = directory
        self._limit = memory_limit
        self._memory: deque[Queued] = deque()
        self._memory_bytes = 0
        self._file: IO[bytes] | None = None
        self._read_at = 0
        self._write_at = 0
        self._spilled = 0
        self.total_bytes = 0

    def __len__(self) -> int:
        return len(self._memory) + self._spilled

    @property
    def spilled(self) -> int:
        """How many cells lie on disk."""
        return self._spilled

    def append(self, channel: int, data: bytes) -> None:
        self.total_bytes += len(data)
        if self._spilled == 0 and (self._memory_bytes + len(data) <= self._limit or self._directory is None):
            self._memory.append((channel, data))
            self._memory_bytes += len(data)
            return
        if self._file is None:
            self._file = tempfile.TemporaryFile(dir=self._directory, prefix="aside-")  # noqa: SIM115 - lives as long as the queue
        self._file.seek(self._write_at)
        self._file.write(_FRAME.pack(channel, len(data)))
        self._file.write(data)
        self._write_at += _FRAME.size + len(data)
        self._spilled += 1

    def popleft(self) -> Queued:
        if self._memory:
            item = self._memory.popleft()
            self._memory_bytes -= len(item[1])
        elif self._spilled:
            item, self._read_at = self._read(self._read_at)
            self._spilled -= 1
            if self._spilled == 0:
                self._forget_file()
        else:
            raise IndexError("pop from an empty SpillQueue")
        self.total_bytes -= len(item[1])
        return item

    def __iter__(self) -> Iterator[Queued]:
        yield from self._memory
        at = self._read_at
        for _ in range(self._spilled):
            item, at = self._read(at)
            yield item

    def close(self) -> None:
        self._memory.clear()
        self._spilled = 0
        self._forget_file()

    def _read(self, at: int) -> tuple[Queued, int]:
        assert self._file is not None
        self._file.seek(at)
        channel, size = _FRAME.unpack(self._file.read(_FRAME.size))
        return (channel, self._file.read(size)), at + _FRAME.size + size

    def _forget_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        self._read_at = self._write_at = 0
