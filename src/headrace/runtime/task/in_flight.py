"""Cells in flight as a checkpoint keeps them, and how they come back at the same or another parallelism.

    file:  (channel i32 | size u32 | cell)*          little-endian

Inside a job, plain Python values travel as marshal. That must not lie in a checkpoint: it may crash the reader
and is bound to a Python version. So records are rewritten in the safe plain encoding (flag PLAIN), which also holds
dates, decimals and the like. What only pickle can hold stays pickled, and is taken back only on an edge that the
program left untyped or typed as pickled.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence

from headrace.errors import DamagedCheckpointError, RestoreError, TypeMismatchError
from headrace.plan.graph import Edge
from headrace.runtime.task.cells import (
    RECORDS,
    RECORDS_HEADER,
    Address,
    address_of,
    read_records_header,
    records_header,
)
from headrace.runtime.task.records import COLUMNS, PICKLED, PLAIN, EdgeCodec, split_columns, unpack
from headrace.runtime.task.routing import FIXED_ROUTES
from headrace.runtime.task.spill import Queued
from headrace.state.key_groups import key_group
from headrace.state.plain_values import encode_plain

_FRAME = struct.Struct("<iI")


def frames(cells: Iterable[Queued]) -> Iterator[bytes]:
    """The bytes of a channel state file."""
    for channel, data in cells:
        kept = _sealed(data)
        yield _FRAME.pack(channel, len(kept))
        yield kept


def edges_with_records(cells: Iterable[Queued]) -> tuple[int, ...]:
    """Edges that have records among these cells."""
    return tuple(sorted({address_of(data).edge for _, data in cells if data[0] == RECORDS}))


def read_frames(data: bytes, where: str) -> Iterator[Queued]:
    """The cells of a channel state file; lengths are never trusted."""
    at, end = 0, len(data)
    while at < end:
        if end - at < _FRAME.size:
            raise DamagedCheckpointError(f"{where} ends in the middle of a cell. Restore from another checkpoint.")
        channel, size = _FRAME.unpack_from(data, at)
        at += _FRAME.size
        if size == 0 or size > end - at:
            raise DamagedCheckpointError(f"{where} announces a cell of {size} bytes, {end - at} are left.")
        yield channel, data[at : at + size]
        at += size


def _sealed(data: bytes) -> bytes:
    if data[0] != RECORDS:
        return data
    address, flags, born_us, count = read_records_header(data)
    if flags & PLAIN:
        return data
    payload = memoryview(data)[RECORDS_HEADER:]
    if flags & COLUMNS:
        keys, body = split_columns(flags, payload)
        if keys is None:
            return data
        head = encode_plain(keys)
        parts: tuple[bytes | memoryview, ...] = (struct.pack("<I", len(head)), head, body)
    else:
        records = unpack(flags, payload)
        try:
            parts = (encode_plain(records),)
        except (TypeMismatchError, RecursionError):
            if flags & PICKLED:
                return data
            parts = (pickle.dumps(records, protocol=pickle.HIGHEST_PROTOCOL),)
            return b"".join((records_header(address, flags | PICKLED, born_us, count), *parts))
    return b"".join((records_header(address, flags & ~PICKLED | PLAIN, born_us, count), *parts))


def admit(data: bytes, edges: dict[int, Edge]) -> None:
    """Refuse a cell that this program would not have written."""
    if data[0] != RECORDS:
        return
    address, flags, _, _ = read_records_header(data)
    edge = edges.get(address.edge)
    if edge is None:
        raise RestoreError(
            f"The checkpoint holds records in flight on edge {address.edge}, which this program does not have. "
            "Restore an aligned checkpoint or a savepoint after changing the graph."
        )
    if not flags & PLAIN and not flags & COLUMNS and not flags & PICKLED:
        raise DamagedCheckpointError(f"Records in flight on edge {address.edge} are in no encoding a checkpoint holds.")
    if flags & PICKLED and edge.type is not None and edge.type.codec_name != "pickle":
        raise RestoreError(
            f"The checkpoint holds pickled records on edge {address.edge}, but the program types it as {edge.type}. "
            "They are not loaded."
        )


def reroute(
    cells: Iterable[Queued], edges: dict[int, Edge], targets: Mapping[int, Sequence[int]], owner: Owner
) -> Iterator[Queued]:
    """Records of `cells` that belong to this task at the new parallelism, addressed to its subtasks.

    `targets[edge]` are this task's subtasks of the edge's target. Watermarks and ends are left out: producers
    send them anew.
    """
    codecs = {edge_id: EdgeCodec(edge) for edge_id, edge in edges.items()}
    for channel, data in cells:
        if data[0] != RECORDS:
            continue
        address, flags, born_us, _ = read_records_header(data)
        block = codecs[address.edge].decode(flags, memoryview(data)[RECORDS_HEADER:])
        for subtask in targets.get(address.edge, ()):
            places = [i for i in range(len(block.values)) if owner(address, subtask, i, block.keys)]
            if not places:
                continue
            out_flags, parts = codecs[address.edge].encode(
                [block.values[i] for i in places],
                None if block.keys is None else [block.keys[i] for i in places],
                None if block.timestamps is None else [block.timestamps[i] for i in places],
            )
            to = Address(address.edge, 0, subtask)
            yield channel, b"".join((records_header(to, out_flags, born_us, len(places)), *parts))


class Owner:
    """Decides which subtask of an edge's target a record in flight goes to at the new parallelism."""

    def __init__(self, edges: dict[int, Edge], parallelism: dict[int, int], max_parallelism: dict[int, int]) -> None:
        self._edges = edges
        self._parallelism = parallelism
        self._max = max_parallelism

    def __call__(self, address: Address, subtask: int, place: int, keys: list[object] | None) -> bool:
        n = self._parallelism[address.edge]
        if keys is not None:
            m = self._max[address.edge]
            return key_group(keys[place], m) * n // m == subtask  # type: ignore[arg-type]
        if isinstance(self._edges[address.edge].partitioning, FIXED_ROUTES):
            if address.target >= n:
                raise RestoreError(
                    f"The checkpoint holds a record in flight to subtask {address.target} on edge {address.edge}, "
                    f"which now leads to {n} subtasks. Restore it at the parallelism it was taken at."
                )
            return address.target == subtask
        return (address.producer + address.target + place) % n == subtask
