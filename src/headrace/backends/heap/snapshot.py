"""Snapshots of heap state: from a copy of the tables where that is quick, from a forked child when they are large.

Copying a table costs some 20 ns an entry and shares all keys and values; encoding and writing the copy is left to
the background. For a large one a copy would hold the stream up for longer than a fork does. Where the program may
still change values that are in the state (`object_reuse`), a copy freezes nothing: there a small state is encoded
at the barrier.

A fork is a copy-on-write view of the whole process for a few milliseconds of pause. The child writes
the table into a pipe, the parent's background thread streams the pipe into checkpoint storage:

    frame = kind u8 | length u32 (big-endian) | payload
    kind  = 0 bytes of the table, 1 the table's index (the last frame), 2 an error as text (the last frame)

The child lives in a process whose other threads have vanished, perhaps while they held a lock. So it
imports, logs and prints nothing and starts no thread: it reads dicts, sorts, encodes, writes its pipe and ends
by `os._exit`. It closes every descriptor it inherited, or the peers of this worker's sockets would not
notice the worker's death while the child lives.
"""

from __future__ import annotations

import fcntl
import gc
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from struct import Struct
from typing import TypeAlias

from headrace.backends.heap.layout import HeapTable
from headrace.backends.snapshots import SnapshotLabel, cancelled
from headrace.backends.table import Rows, TableWriter, rows_of_timers, table_snapshot
from headrace.checkpoint.handles import KeyedSnapshot
from headrace.errors import CheckpointError, CheckpointFailure
from headrace.state.backend import FileStore
from headrace.state.timers import FrozenTimers, HeapTimerQueue

_FRAME = Struct(">BI")
_DATA, _INDEX, _ERROR = 0, 1, 2
_FRAME_BYTES = 256 << 10
_READ_BYTES = 1 << 20
_HIGHEST_FD = os.sysconf("SC_OPEN_MAX")


@dataclass(frozen=True, slots=True)
class HeapView:
    """All that a snapshot holds. Only good while nobody changes the state: at once, in a forked child, or frozen."""

    tables: Sequence[HeapTable]
    timers: Sequence[HeapTimerQueue | FrozenTimers]
    groups: range
    max_parallelism: int
    compression: bool = False

    def writer(self) -> TableWriter:
        """For one call of `chunks`. Not to be made in a forked child: a codec is loaded for it."""
        return TableWriter(compression=self.compression)

    def chunks(self, writer: TableWriter) -> Iterator[bytes]:
        """The bytes of the table, in order of key group."""
        columns: list[dict[int, Rows]] = [table.rows_by_group(self.max_parallelism) for table in self.tables]
        columns += [rows_of_timers(queue, self.max_parallelism) for queue in self.timers]
        encoders: list[Callable[[Rows], Rows]] = [table.encode_rows for table in self.tables]
        encoders += [_as_they_are] * len(self.timers)
        for group in self.groups:
            states = (
                (state, encoders[state](rows))
                for state, found in enumerate(columns)
                if (rows := found.pop(group, None)) is not None
            )
            yield from writer.group(group, states)


def _as_they_are(rows: Rows) -> Rows:
    return rows


class _OwnSnapshot:
    """A snapshot that this process encodes itself, at the barrier or later; gives its bytes to the store."""

    def __init__(self, label: SnapshotLabel, writer: TableWriter, chunks: Iterable[bytes]) -> None:
        self._label = label
        self._writer = writer
        self._chunks = chunks
        self._cancelled = False

    @property
    def finished(self) -> bool:
        return True

    def write(self, store: FileStore) -> KeyedSnapshot:
        label = self._label
        chunks = self._until_cancelled(self._chunks)
        self._chunks = ()
        if self._cancelled:
            raise cancelled(label)
        first = next(chunks, None)
        files = () if first is None else (store.write(f"{label.file_name}.table", chain((first,), chunks)),)
        return table_snapshot(label.groups, label.shapes, files, self._writer.index())

    def _until_cancelled(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            if self._cancelled:
                raise cancelled(self._label)
            yield chunk

    def cancel(self) -> None:
        self._cancelled = True
        self._chunks = ()


class SerialisedSnapshot(_OwnSnapshot):
    """A snapshot whose bytes were made at the barrier; only the upload is left."""

    def __init__(self, label: SnapshotLabel, view: HeapView) -> None:
        writer = view.writer()
        super().__init__(label, writer, list(view.chunks(writer)))


class CopiedSnapshot(_OwnSnapshot):
    """A snapshot whose view is a copy of the tables; it is encoded and written in the background."""

    def __init__(self, label: SnapshotLabel, view: HeapView) -> None:
        copy = HeapView(
            [table.frozen() for table in view.tables],
            [queue.freeze() for queue in view.timers if isinstance(queue, HeapTimerQueue)],
            view.groups,
            view.max_parallelism,
            view.compression,
        )
        writer = copy.writer()
        super().__init__(label, writer, copy.chunks(writer))


class ForkedSnapshot:
    """A snapshot whose view lives in a forked child; made by `fork_snapshot`."""

    def __init__(self, label: SnapshotLabel, pid: int, pipe: int) -> None:
        self._label = label
        self._pid = pid
        self._pipe = pipe
        self._lock = threading.Lock()
        self._writing = False
        self._cancelled = False
        self._reaped = False

    @property
    def finished(self) -> bool:
        """Whether child and pipe are gone."""
        return self._reaped

    def write(self, store: FileStore) -> KeyedSnapshot:
        label = self._label
        with self._lock:
            if self._cancelled:
                raise cancelled(label)
            self._writing = True
        try:
            frames = _Frames(self._pipe, label.checkpoint_id)
            first = frames.next_data()
            files = () if first is None else (store.write(f"{label.file_name}.table", self._stream(first, frames)),)
            return table_snapshot(label.groups, label.shapes, files, frames.index)
        except CheckpointError as error:
            # A child that was killed by `cancel` looks like one that died; say what it was.
            raise (cancelled(label) if self._cancelled else error) from None
        finally:
            with self._lock:
                self._reap()

    def _stream(self, first: bytes, frames: _Frames) -> Iterator[bytes]:
        chunk: bytes | None = first
        while chunk is not None:
            if self._cancelled:
                raise cancelled(self._label)
            yield chunk
            chunk = frames.next_data()

    def cancel(self) -> None:
        with self._lock:
            self._cancelled = True
            if self._reaped:
                return
            os.kill(self._pid, signal.SIGKILL)
            if not self._writing:
                self._reap()

    def _reap(self) -> None:
        """Take the child's exit and close the pipe; the child ends at once when nobody reads it any more."""
        if not self._reaped:
            self._reaped = True
            os.close(self._pipe)
            os.waitpid(self._pid, 0)


HeapSnapshot: TypeAlias = SerialisedSnapshot | CopiedSnapshot | ForkedSnapshot


def fork_snapshot(label: SnapshotLabel, view: HeapView) -> ForkedSnapshot | None:
    """Freeze the view in a child process; None where the system refuses a pipe or a process."""
    table = view.writer()
    try:
        reader, writer = os.pipe()
    except OSError:
        return None
    # The child must free nothing that it did not make: the destructor of a client (Kafka's, say) waits for threads that
    # only the parent has. It would run there for what a forgotten cycle holds, if the collector came by.
    collecting = gc.isenabled()
    gc.disable()
    try:
        pid = os.fork()
        if pid == 0:
            _write_in_child(writer, view, table)
    except OSError:
        os.close(reader)
        os.close(writer)
        return None
    finally:
        if collecting:
            gc.enable()
    os.close(writer)
    widen_pipe(reader)
    return ForkedSnapshot(label, pid, reader)


def _write_in_child(pipe: int, view: HeapView, writer: TableWriter) -> None:
    """The whole life of the child, in which the collector is off. Never returns."""
    status = 1
    try:
        os.closerange(0, pipe)
        os.closerange(pipe + 1, _HIGHEST_FD)
        try:
            pending: list[bytes] = []
            size = 0
            for chunk in view.chunks(writer):
                pending.append(chunk)
                size += len(chunk)
                if size >= _FRAME_BYTES:
                    _send(pipe, _DATA, b"".join(pending))
                    pending.clear()
                    size = 0
            if pending:
                _send(pipe, _DATA, b"".join(pending))
            _send(pipe, _INDEX, writer.index())
            status = 0
        except OSError:
            pass  # nobody reads any more: cancelled, or the parent is gone
        except Exception as error:
            _send(pipe, _ERROR, f"{type(error).__name__}: {error}".encode("utf-8", "replace"))
    finally:
        os._exit(status)


def _send(pipe: int, kind: int, payload: bytes) -> None:
    data = memoryview(_FRAME.pack(kind, len(payload)) + payload)
    while data:
        data = data[os.write(pipe, data) :]


class _Frames:
    """Reads the child's frames in the parent."""

    def __init__(self, pipe: int, checkpoint_id: int) -> None:
        self._pipe = pipe
        self._checkpoint_id = checkpoint_id
        self.index = b""

    def next_data(self) -> bytes | None:
        """The next bytes of the table; None at its end, when `index` is set."""
        kind, length = _FRAME.unpack(self._exactly(_FRAME.size))
        payload = self._exactly(length)
        if kind == _DATA:
            return payload
        if kind == _ERROR:
            raise CheckpointError(
                CheckpointFailure.DECLINED,
                self._checkpoint_id,
                f"heap state could not be written ({payload.decode('utf-8', 'replace')})",
            )
        self.index = payload
        return None

    def _exactly(self, size: int) -> bytes:
        parts: list[bytes] = []
        while size:
            part = os.read(self._pipe, min(size, _READ_BYTES))
            if not part:
                raise CheckpointError(
                    CheckpointFailure.DECLINED,
                    self._checkpoint_id,
                    "the process that wrote the heap snapshot ended early (killed, or out of memory)",
                )
            parts.append(part)
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


def widen_pipe(pipe: int) -> None:
    """Ask for a pipe of a megabyte: fewer switches between child and reader. A refusal does not matter."""
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        try:
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _READ_BYTES)
        except OSError:
            return
