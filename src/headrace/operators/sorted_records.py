"""Records brought together by key, in memory and, beyond a bound, in sorted runs on the local disk.

Within a key records are in order of time, those of one time in order of input, and then as they came. Keys are in order
of their encoding. A run is a part of one temporary file without a name, which is gone with the process:

    run     = chunk*                                    in order of key; a key may have several chunks
    chunk   = key_len u32 | body_len u32 | key | body   (big-endian); key by `state.keys`
    body    = [times, inputs, values] by `state.object_batches`; a time may be None
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from heapq import merge
from itertools import groupby
from operator import itemgetter
from struct import Struct
from typing import IO, Any, NamedTuple

from headrace.operators.watermarks import MIN_WATERMARK
from headrace.state.keys import decode_key, encode_key
from headrace.state.object_batches import BatchCodec

_HEADER = Struct(">II")
CHUNK = 256
_BATCHES = BatchCodec()
"""With pickle: what it reads is a file without a name that this process has written."""
"""Records handed out, and written, at a time."""
_SAMPLE_EVERY = 1024
_OBJECTS_TO_BYTES = 4
"""What a record takes in memory as objects, in encodings of it, about."""
_LEAST = 256
"""Bytes that a record takes at least: its tuple, its place in a list, small objects."""


class Record(NamedTuple):
    """A record without its key."""

    time: int | None
    input: int
    value: Any


Chunk = tuple[Any, list[Record]]
"""A stored key and records of it, in order; a key's chunks follow each other."""


def _order(record: Record) -> tuple[int, int]:
    return (MIN_WATERMARK if record.time is None else record.time, record.input)


class SortedRecords:
    """Takes records in, then gives them out sorted, once. `in_order`: by arrival alone, for records without a key."""

    def __init__(self, memory_bytes: int, *, in_order: bool = False) -> None:
        self._memory = memory_bytes
        self._in_order = in_order
        self._held: dict[Any, list[Record]] = {}
        self._count = 0
        self._weight = float(_LEAST)
        """Bytes that a record takes in memory, about."""
        self._room = _SAMPLE_EVERY
        """Records until the next look at the memory."""
        self._file: IO[bytes] | None = None
        self._end = 0
        self._runs: list[tuple[int, int]] = []
        """Where each run begins and ends in the file."""

    @property
    def runs(self) -> int:
        """How many runs are on disk."""
        return len(self._runs)

    def add(self, key: Any, record: Record) -> None:
        """`key` in stored form; None for records without one."""
        held = self._held.get(key)
        if held is None:
            self._held[key] = [record]
        else:
            held.append(record)
        self._count += 1
        self._room -= 1
        if not self._room:
            self._look(record)

    def _look(self, record: Record) -> None:
        size = len(_BATCHES.encode([record.value])) * _OBJECTS_TO_BYTES + _LEAST
        self._weight = 0.8 * self._weight + 0.2 * size
        left = int((self._memory - self._count * self._weight) / self._weight)
        if left <= 0:
            self._spill()
            left = _SAMPLE_EVERY
        self._room = min(left, _SAMPLE_EVERY)

    def _spill(self) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="headrace-sort-")  # noqa: SIM115 - closed by `close`
        start = self._end
        for key, records in self._sorted():
            encoded = encode_key(key) if key is not None else b""
            body = _BATCHES.encode([[r.time for r in records], [r.input for r in records], [r.value for r in records]])
            self._end += self._file.write(_HEADER.pack(len(encoded), len(body)) + encoded + body)
        self._file.flush()
        self._runs.append((start, self._end))
        self._held, self._count = {}, 0

    def _sorted(self) -> Iterator[Chunk]:
        """What is in memory."""
        held = self._held
        keys = held if self._in_order else sorted(held, key=encode_key)
        for key in keys:
            records = held[key]
            if not self._in_order:
                records.sort(key=_order)
            for start in range(0, len(records), CHUNK):
                yield key, records[start : start + CHUNK]

    def __iter__(self) -> Iterator[Chunk]:
        """All records. Called once, after the last `add`."""
        if not self._runs:
            yield from self._sorted()
            self._held = {}
            return
        parts = [self._read(start, end) for start, end in self._runs]
        parts.append((encode_key(key) if key is not None else b"", records) for key, records in self._sorted())
        if self._in_order:
            for part in parts:
                for _, records in part:
                    yield None, records
            return
        # Runs are in order of time, and `merge` takes equal ones in the order of the runs.
        merged = merge(*(_each(part) for part in parts), key=itemgetter(0))
        for raw, of_key in groupby(merged, key=lambda item: item[0][0]):
            key = decode_key(raw)
            chunk: list[Record] = []
            for _, record in of_key:
                chunk.append(record)
                if len(chunk) == CHUNK:
                    yield key, chunk
                    chunk = []
            if chunk:
                yield key, chunk

    def _read(self, start: int, end: int) -> Iterator[tuple[bytes, list[Record]]]:
        assert self._file is not None
        descriptor = self._file.fileno()
        while start < end:
            # By position: several runs of one file are read at once.
            key_length, length = _HEADER.unpack(os.pread(descriptor, _HEADER.size, start))
            start += _HEADER.size
            data = os.pread(descriptor, key_length + length, start)
            start += key_length + length
            times, inputs, values = _BATCHES.decode(data[key_length:], "a run of sorted records")
            yield data[:key_length], list(map(Record, times, inputs, values))

    def close(self) -> None:
        """Let go of everything; may be called more than once."""
        file, self._file = self._file, None
        self._held, self._runs = {}, []
        if file is not None:
            file.close()


def _each(part: Iterator[tuple[bytes, list[Record]]]) -> Iterator[tuple[tuple[bytes, int, int], Record]]:
    for raw, records in part:
        for record in records:
            yield (raw, *_order(record)), record
