"""Cells in flight as a checkpoint keeps them, and how they come back at the same or another parallelism.

    file:  (channel i32 | size u32 | cell)*          little-endian

Inside a job, plain Python values travel as marshal. That must not lie in a checkpoint: it may crash the reader
and is bound to a Python version. So records are rewritten in the safe plain encoding (flag PLAIN), which also holds
dates, decimals and the like. Objects on a typed edge are kept in the codec of that type (flag TYPED). What only pickle
can hold stays pickled, and is written and restored only on an edge that the program left untyped or typed as pickled.
"""

from __future__ import annotations

import pickle
import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from headrace.checkpoint.handles import RestoredEdge
from headrace.errors import DamagedCheckpointError, RestoreError, TypeMismatchError
from headrace.plan.graph import Edge, JobPlan
from headrace.runtime.task.cells import (
    RECORDS,
    RECORDS_HEADER,
    Address,
    address_of,
    read_records_header,
    readdressed,
    records_header,
)
from headrace.runtime.task.records import COLUMNS, PICKLED, PLAIN, ROWS, TYPED, EdgeCodec, split_columns, unpack
from headrace.runtime.task.spill import Queued
from headrace.state.key_groups import key_group
from headrace.state.object_batches import UNTYPED_PICKLES, RecordPickles, pickle_refusal
from headrace.state.plain_values import encode_plain

_FRAME = struct.Struct("<iI")


def frames(
    cells: Iterable[Queued], edges: Mapping[int, Edge], pickles: RecordPickles = UNTYPED_PICKLES
) -> Iterator[bytes]:
    """The bytes of a channel state file. `TypeMismatchError` for records that only pickle could keep, where the program
    does not allow it. `edges`: those of the program, by number."""
    codecs: dict[int, EdgeCodec] = {}
    for channel, data in cells:
        kept = _sealed(data, edges, codecs, pickles)
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


def _sealed(data: bytes, edges: Mapping[int, Edge], codecs: dict[int, EdgeCodec], pickles: RecordPickles) -> bytes:
    if data[0] != RECORDS:
        return data
    address, flags, born_us, count = read_records_header(data)
    if flags & PLAIN:
        return data
    payload = memoryview(data)[RECORDS_HEADER:]
    parts: tuple[bytes | memoryview, ...]
    if flags & COLUMNS:
        keys, body = split_columns(flags, payload)
        if keys is None:
            return data
        head = encode_plain(keys)
        parts = (struct.pack("<I", len(head)), head, body)
    else:
        keys, values, timestamps = unpack(flags, payload)
        edge = edges[address.edge]
        try:
            parts = (encode_plain((keys, values, timestamps)),)
        except (TypeMismatchError, RecursionError) as error:
            if edge.type is not None and edge.type.codec_name != "pickle":
                codec = codecs.setdefault(edge.id, EdgeCodec(edge))
                parts = (encode_plain((keys, codec.stored(flags, values), timestamps)),)
                flags = flags & ~ROWS | TYPED
            elif pickles.writes(edge.type):
                if flags & PICKLED:
                    return data
                pickled = pickle.dumps((keys, values, timestamps), protocol=pickle.HIGHEST_PROTOCOL)
                return records_header(address, flags | PICKLED, born_us, count) + pickled
            else:
                raise TypeMismatchError(
                    f"Records in flight on edge {address.edge} can be kept in a checkpoint by pickle only, which the "
                    "program does not allow there. Give the stream a type that holds them, or use aligned checkpoints."
                ) from error
    return b"".join((records_header(address, flags & ~PICKLED | PLAIN, born_us, count), *parts))


def admit(data: bytes, edge: Edge, pickles: RecordPickles = UNTYPED_PICKLES) -> None:
    """Refuse records that this program would not have written on the edge."""
    flags = read_records_header(data)[1]
    keyed_columns = flags & COLUMNS and any(data[RECORDS_HEADER : RECORDS_HEADER + 4])  # has a key size above 0
    if not flags & (PLAIN | PICKLED) and (keyed_columns or not flags & COLUMNS):
        # Marshal, which is for the wire inside a job: it may crash whoever reads damaged bytes.
        raise DamagedCheckpointError(f"Records in flight on edge {edge.id} are in no encoding a checkpoint holds.")
    if flags & TYPED and edge.type is None:
        raise DamagedCheckpointError(
            f"Records in flight on edge {edge.id} are encoded by a type, but the program leaves it untyped."
        )
    if flags & PICKLED and not pickles.reads(edge.type):
        typed = "leaves it untyped" if edge.type is None else f"types it as {edge.type}"
        raise RestoreError(
            f"The checkpoint holds pickled records on edge {edge.id}, and the program {typed}. They are not loaded. "
            f"{pickle_refusal(edge.type)}"
        )


@dataclass(frozen=True, slots=True)
class Inlet:
    """An edge into this task: which of its target's subtasks run here, and how many there are in all."""

    edge: Edge
    subtasks: tuple[int, ...]
    parallelism: int
    max_parallelism: int

    def owner(self, address: Address, place: int, keys: list[Any] | None) -> int:
        """The subtask that gets a record which is dealt out again: by its key, else in turn."""
        if keys is not None:
            return key_group(keys[place], self.max_parallelism) * self.parallelism // self.max_parallelism
        return (address.producer + address.target + place) % self.parallelism


def inlets_of(plan: JobPlan, subtasks: Iterable[tuple[int, int]]) -> dict[int, Inlet]:
    """All edges of the plan by number; `subtasks` are the (node, subtask) that run in this task."""
    here: dict[int, list[int]] = defaultdict(list)
    for node_id, subtask in subtasks:
        here[node_id].append(subtask)
    inlets = {}
    for edge in plan.graph.edges:
        node = plan.graph.node(edge.target)
        inlets[edge.id] = Inlet(edge, tuple(here[edge.target]), node.parallelism, node.max_parallelism)
    return inlets


def restored_cells(
    cells: Iterable[Queued],
    restored: Iterable[RestoredEdge],
    inlets: Mapping[int, Inlet],
    pickles: RecordPickles = UNTYPED_PICKLES,
) -> Iterator[Queued]:
    """The records of `cells` that belong to this task, on the edges of the program that now runs."""
    ways = {way.saved: way for way in restored}
    codecs: dict[int, EdgeCodec] = {}
    for channel, data in cells:
        if data[0] != RECORDS:
            # Watermarks and ends are not restored: producers send them again.
            continue
        address, flags, born_us, _ = read_records_header(data)
        way = ways.get(address.edge)
        if way is None:
            raise DamagedCheckpointError(
                f"The checkpoint holds records in flight on edge {address.edge}, which its metadata does not name. "
                "Restore from another checkpoint."
            )
        if way.edge is None:
            continue
        inlet = inlets[way.edge]
        admit(data, inlet.edge, pickles)
        if not way.dealt:
            if address.target >= inlet.parallelism:
                raise DamagedCheckpointError(
                    f"The checkpoint holds a record in flight to subtask {address.target} on edge {address.edge}, "
                    f"which leads to {inlet.parallelism} subtasks. Restore from another checkpoint."
                )
            if address.target in inlet.subtasks:
                yield channel, readdressed(data, replace(address, edge=way.edge))
            continue
        if not inlet.subtasks:
            continue
        codec = codecs.setdefault(way.edge, EdgeCodec(inlet.edge))
        block = codec.decode(flags, memoryview(data)[RECORDS_HEADER:])
        owners = [inlet.owner(address, place, block.keys) for place in range(len(block.values))]
        for subtask in inlet.subtasks:
            places = [place for place, owner in enumerate(owners) if owner == subtask]
            if not places:
                continue
            out_flags, parts = codec.encode(
                [block.values[i] for i in places],
                None if block.keys is None else [block.keys[i] for i in places],
                None if block.timestamps is None else [block.timestamps[i] for i in places],
            )
            header = records_header(Address(way.edge, 0, subtask), out_flags, born_us, len(places))
            yield channel, b"".join((header, *parts))
