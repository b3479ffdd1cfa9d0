"""The canonical snapshot of keyed state: one stream that both backends write and read.

    table   = group*                        groups in ascending order, empty ones left out
    group   = block*                        blocks in order of state, timers last and sorted by time
    block   = length u32 | crc32 u32 | body (big-endian; length and crc32 are of the body)
    body    = msgpack [group, state, keys, namespaces, entries, values]

A block holds rows of one state and one key group as columns, because a column is encoded and decoded
by one call where rows would need one each. `state` is the index into `KeyedSnapshot.shapes`.

    keys        stored forms: int, str, bin; or [bin] with the encoding of any key that msgpack has no form for
    namespaces  bin each, or nil when all are void (empty)
    entries     bin each, or nil for states with one entry per key
                    list: position u64; map: the encoded map key; timers: time + 2**63 as u64
    values      bin each, in the codec of the state; nil for timers

A compressed table (version 2) has blocks of another kind, each compressed by itself, so that a reader can still seek:

    block   = length u32 | crc32 u32 | raw length u32 | zstd frame, or the plain body where raw length is 0
              (length and crc32 are of what follows the header)

Bodies that are large or shrink beyond belief are stored plain. So a raw length above `LARGEST_RAW`, or more than
`MOST_SHRUNK` times what is there, was not written by us: it is refused before memory is taken for it.

Where each group lies is kept in `KeyedSnapshot.details` (`TableIndex`), so that a subtask of another
parallelism reads its own groups and nothing else. Each block has a checksum of its own because such a
reader never sees the whole file, and with it the file's hash.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from typing import IO, Any, cast
from zlib import crc32

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.checkpoint.handles import KeyedSnapshot, StateFile, StateShape
from headrace.errors import DamagedCheckpointError, UnsupportedFormatError
from headrace.state.backend import FileStore
from headrace.state.key_groups import key_group, key_groups_of_ints, key_groups_of_strings
from headrace.state.keys import StoredKey, decode_key, encode_key
from headrace.state.timers import Timer

FORMAT = "table"
VERSION = 1
COMPRESSED = 2
LARGEST_RAW = 32 << 20
MOST_SHRUNK = 1000

_HEADER = Struct(">II")
_RAW = Struct(">I")
BLOCK_ROWS = 4096
_BLOCK_BYTES = 4 << 20
_TIME_BIAS = 1 << 63
_KEY_KINDS = {int, str, bytes, list}
_TIME = Struct(">Q")


class TableIndex(msgspec.Struct, frozen=True, array_like=True):
    """What `details` of a table snapshot holds: (key group, offset, length) of each group with entries."""

    version: int
    """1: plain blocks; 2: compressed ones."""
    groups: tuple[tuple[int, int, int], ...]


class Rows:
    """Columns of one state within one key group. `namespaces`, `entries`, `values` may be None: see above."""

    __slots__ = ("column", "entries", "keys", "namespaces", "values")

    def __init__(
        self,
        keys: list[Any],
        namespaces: list[bytes] | None,
        entries: list[bytes] | None,
        values: list[bytes] | None,
    ) -> None:
        self.keys = keys
        self.namespaces = namespaces
        self.entries = entries
        self.values = values
        self.column: msgspec.Raw | None = None
        """The values as one msgpack array, where they were encoded as a whole; never of more rows than a block has."""

    def cut(self, start: int, stop: int) -> Rows:
        """The rows from `start` up to `stop`."""
        return Rows(
            self.keys[start:stop],
            None if self.namespaces is None else self.namespaces[start:stop],
            None if self.entries is None else self.entries[start:stop],
            None if self.values is None else self.values[start:stop],
        )

    def weight(self) -> int:
        """Bytes of the columns that can be large."""
        return sum(map(len, self.values or ())) + sum(map(len, self.entries or ()))


class _Block(msgspec.Struct, frozen=True, array_like=True):
    group: int
    state: int
    keys: list[Any]
    namespaces: list[bytes] | None
    entries: list[bytes] | None
    values: list[bytes] | None


_encode = msgspec.msgpack.Encoder().encode
_decode_block = msgspec.msgpack.Decoder(_Block).decode
_decode_index = msgspec.msgpack.Decoder(TableIndex).decode


class TableWriter:
    """Turns rows into the bytes of a table and remembers where each group lies.

    Groups must come in ascending order. Uses nothing but msgspec, zlib and, if it compresses, a codec that is made here
    and takes no memory of pyarrow's pools: so a forked child may use it.
    """

    def __init__(self, *, compression: bool = False) -> None:
        self._codec = pa.Codec("zstd") if compression else None
        self._offset = 0
        self._groups: list[tuple[int, int, int]] = []

    def group(self, group: int, states: Iterable[tuple[int, Rows]]) -> Iterator[bytes]:
        """The bytes of one key group, block by block; `states` gives (state index, rows) in order of index."""
        start = self._offset
        for state, rows in states:
            for body in _bodies(group, state, rows):
                block = _plain_block(body) if self._codec is None else _compressed_block(body, self._codec)
                self._offset += len(block)
                yield block
        if self._offset > start:
            self._groups.append((group, start, self._offset - start))

    @property
    def is_empty(self) -> bool:
        return not self._groups

    def index(self) -> bytes:
        """The encoded `TableIndex`, once all groups were taken."""
        return _encode(TableIndex(VERSION if self._codec is None else COMPRESSED, tuple(self._groups)))


def _plain_block(body: bytes) -> bytes:
    return _HEADER.pack(len(body), crc32(body)) + body


def _compressed_block(body: bytes, codec: pa.Codec) -> bytes:
    raw_size = len(body)
    # As bytes, because a buffer would come from a pool, which may be locked in a forked child.
    packed = codec.compress(body, asbytes=True) if raw_size <= LARGEST_RAW else body
    if len(packed) >= raw_size or len(packed) * MOST_SHRUNK < raw_size:
        packed, raw_size = body, 0
    data = _RAW.pack(raw_size) + packed
    return _HEADER.pack(len(data), crc32(data)) + data


def _bodies(group: int, state: int, rows: Rows) -> Iterator[bytes]:
    count = len(rows.keys)
    if count > BLOCK_ROWS:
        for start in range(0, count, BLOCK_ROWS):
            yield from _bodies(group, state, rows.cut(start, start + BLOCK_ROWS))
    elif count > 1 and rows.weight() > _BLOCK_BYTES:
        yield from _bodies(group, state, rows.cut(0, count // 2))
        yield from _bodies(group, state, rows.cut(count // 2, count))
    elif count:
        columns = rows.namespaces, rows.entries, rows.values if rows.column is None else rows.column
        try:
            body = _encode((group, state, rows.keys, *columns))
        except (OverflowError, UnicodeEncodeError):
            # An int beyond 64 bits or a str that is no UTF-8 among the keys: rare, so looked for only now.
            body = _encode((group, state, [(encode_key(key),) for key in rows.keys], *columns))
        yield body


def table_snapshot(
    groups: range, shapes: Sequence[StateShape], files: tuple[StateFile, ...], index: bytes
) -> KeyedSnapshot:
    """The handle of a table that was written with `index`."""
    return KeyedSnapshot(FORMAT, groups.start, groups.stop - 1, tuple(shapes), files, index)


def read_table(
    file: StateFile | None, index: bytes, shape_count: int, store: FileStore, groups: range
) -> Iterator[tuple[int, int, Rows]]:
    """Rows of the wanted key groups as (group, state index, rows), in the order of the file.

    Only the wanted ranges are read. Whatever does not add up is refused as damaged before memory is
    taken for it: a length is believed only as far as the index and the file's size allow.
    """
    table = _index(index)
    wanted = [place for place in _places(table, file) if place[0] in groups]
    if not wanted or file is None:
        return
    codec = pa.Codec("zstd") if table.version == COMPRESSED else None
    name = file.path or "an inline table"
    with store.open(file) as source:
        for group, offset, length in wanted:
            source.seek(offset)
            left = length
            while left:
                if left < _HEADER.size:
                    raise _damaged(name, f"key group {group} ends inside a block")
                size, checksum = _HEADER.unpack(_exactly(source, _HEADER.size, name))
                left -= _HEADER.size
                if size > left:
                    raise _damaged(name, f"a block of key group {group} claims {size} bytes where {left} are left")
                body = _exactly(source, size, name)
                left -= size
                if crc32(body) != checksum:
                    raise _damaged(name, f"a block of key group {group} has another checksum than was recorded")
                yield _rows(body if codec is None else _unpacked(body, codec, name), group, shape_count, name)


def _rows(body: bytes | memoryview, group: int, shape_count: int, name: str) -> tuple[int, int, Rows]:
    try:
        block = _decode_block(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise _damaged(name, f"a block of key group {group} cannot be decoded ({error})") from error
    if block.group != group or not 0 <= block.state < shape_count:
        raise _damaged(name, f"a block of key group {group} belongs to group {block.group}, state {block.state}")
    count = len(block.keys)
    for column in (block.namespaces, block.entries, block.values):
        if column is not None and len(column) != count:
            raise _damaged(name, f"columns of a block of key group {group} differ in length")
    keys = block.keys
    kinds = set(map(type, keys))
    if not kinds <= _KEY_KINDS:
        raise _damaged(name, f"a block of key group {group} holds something else than keys")
    if list in kinds:
        if any(len(key) != 1 or type(key[0]) is not bytes for key in keys if type(key) is list):
            raise _damaged(name, f"a block of key group {group} holds a key of several parts")
        keys = [decode_key(key[0]) if type(key) is list else key for key in keys]
    return group, block.state, Rows(keys, block.namespaces, block.entries, block.values)


def _unpacked(data: bytes, codec: pa.Codec, name: str) -> bytes | memoryview:
    """The body of a compressed block; a size that no writer would declare is refused before memory is taken for it."""
    if len(data) < _RAW.size:
        raise _damaged(name, "a compressed block is too short for its header")
    (size,) = _RAW.unpack_from(data)
    packed = memoryview(data)[_RAW.size :]
    if not size:
        return packed
    if size > min(LARGEST_RAW, len(packed) * MOST_SHRUNK):
        raise _damaged(name, f"a block of {len(packed)} bytes claims to hold {size}")
    try:
        body: bytes = codec.decompress(packed, size, asbytes=True)
    except (OSError, ValueError) as error:
        raise _damaged(name, f"a block cannot be decompressed ({error})") from error
    return body


def _index(index: bytes) -> TableIndex:
    try:
        table = _decode_index(index)
    except msgspec.MsgspecError as error:
        raise DamagedCheckpointError(f"The index of a table snapshot cannot be decoded: {error}.") from error
    if table.version not in (VERSION, COMPRESSED):
        raise UnsupportedFormatError(
            f"A table snapshot has format version {table.version}; this release of Headrace reads up to {COMPRESSED}. "
            "Restore it with the release that wrote it, or a newer one."
        )
    return table


def _places(table: TableIndex, file: StateFile | None) -> Iterator[tuple[int, int, int]]:
    size = 0 if file is None else file.size
    end = 0
    for group, offset, length in table.groups:
        # Groups follow each other without gap or overlap; anything else is not what a writer wrote.
        if offset != end or length <= 0 or offset + length > size:
            raise DamagedCheckpointError(
                f"The index of a table snapshot places key group {group} at {offset}+{length} of {size} bytes, "
                f"where {end} was expected. Restore from another checkpoint."
            )
        end = offset + length
        yield group, offset, length


def _exactly(source: IO[bytes], size: int, name: str) -> bytes:
    data = source.read(size)
    if len(data) != size:
        raise _damaged(name, f"it ends {size - len(data)} bytes early")
    return data


def _damaged(name: str, what: str) -> DamagedCheckpointError:
    return DamagedCheckpointError(f"Table snapshot {name}: {what}. Restore from another checkpoint.")


def pack_time(time_ms: int) -> bytes:
    """The entry column of a timer; byte order is time order, before 1970 too."""
    return _TIME.pack(time_ms + _TIME_BIAS)


def unpack_time(entry: bytes) -> int:
    """The time of a timer's entry."""
    if len(entry) != _TIME.size:
        raise DamagedCheckpointError(f"A timer's entry has {len(entry)} bytes instead of {_TIME.size}.")
    return int(_TIME.unpack(entry)[0]) - _TIME_BIAS


def groups_of(keys: list[StoredKey], max_parallelism: int) -> npt.NDArray[np.int64]:
    """Key groups of a column of stored keys; columns of one kind are reckoned as a whole."""
    # Looked at, not tried: a column form that took a key of another kind would put its state where nobody finds it.
    kinds = set(map(type, keys))
    if kinds == {str}:
        return key_groups_of_strings(cast("list[str]", keys), max_parallelism)
    if kinds == {int}:
        try:
            column = np.frombuffer(array("q", cast("list[int]", keys)), np.int64)
        except OverflowError:
            pass  # an int beyond 64 bits: one by one
        else:
            return key_groups_of_ints(column, max_parallelism)
    return np.fromiter((key_group(key, max_parallelism) for key in keys), np.int64, len(keys))


def rows_by_group(rows: Rows, groups: npt.NDArray[np.int64]) -> dict[int, Rows]:
    """Cut rows up by the key group of each; within a group they keep their order."""
    if not rows.keys:
        return {}
    order, runs = runs_of_groups(groups)
    in_order = Rows(
        _taken(rows.keys, order),
        _taken(rows.namespaces, order),
        _taken(rows.entries, order),
        _taken(rows.values, order),
    )
    return {group: in_order.cut(start, stop) for group, start, stop in runs}


def runs_of_groups(groups: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], list[tuple[int, int, int]]]:
    """The order that brings a column of key groups together, and each group with where it starts and stops in it."""
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    starts = np.flatnonzero(np.diff(ordered, prepend=-1))
    stops = [*starts[1:].tolist(), len(groups)]
    return order, list(zip(ordered[starts].tolist(), starts.tolist(), stops, strict=True))


def _taken(column: list[Any] | None, order: npt.NDArray[np.int64]) -> Any:
    if column is None:
        return None
    # fromiter, because assigning a list of tuples to an array would take them for its second dimension.
    return np.fromiter(column, object, len(column))[order].tolist()


def rows_of_timers(timers: Iterable[Timer], max_parallelism: int) -> dict[int, Rows]:
    """Timers by key group, in the order given (by time)."""
    found = list(timers)
    keys = [key for _, key, _ in found]
    rows = Rows(keys, [space for _, _, space in found], [pack_time(time_ms) for time_ms, _, _ in found], None)
    return rows_by_group(rows, groups_of(keys, max_parallelism))


def timers_of_rows(rows: Rows) -> Iterator[Timer]:
    """The timers in rows of a timer state."""
    namespaces = rows.namespaces or [b""] * len(rows.keys)
    if rows.entries is None:
        raise DamagedCheckpointError("Rows of timers lack their times. Restore from another checkpoint.")
    for key, namespace, entry in zip(rows.keys, namespaces, rows.entries, strict=True):
        yield unpack_time(entry), key, namespace
