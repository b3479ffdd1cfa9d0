"""Cells: what travels in a channel, one Spark row `(slot, channel, data)` each.

    data:  kind u8 | body                                               (little-endian)
    NUDGE      –                                                         pushes the cell before it through the JVM
    RECORDS    edge u16 | producer u16 | target u16 | flags u8 | born u64 | count u32 | payload
    WATERMARK  edge u16 | producer u16 | target u16 | time i64
    IDLE       edge u16 | producer u16 | target u16 | idle u8
    END        edge u16 | producer u16 | target u16
    BARRIER    checkpoint u64 | flags u8

`edge`, `producer` and `target` name the edge of the plan and the subtasks at its ends, so that a task between
them can relay a cell without decoding it. `born` is when the oldest record's source batch was polled, in
microseconds of the epoch: the sink's task takes the latency from it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

NUDGE: Final = 0
RECORDS: Final = 1
WATERMARK: Final = 2
IDLE: Final = 3
END: Final = 4
BARRIER: Final = 5

NUDGE_CELL: Final = b"\x00"

_ADDRESS = struct.Struct("<BHHH")
_RECORDS = struct.Struct("<BHHHBQI")
_WATERMARK = struct.Struct("<BHHHq")
_IDLE = struct.Struct("<BHHHB")
_BARRIER = struct.Struct("<BQB")

RECORDS_HEADER: Final = _RECORDS.size

_UNALIGNED = 1
_CANONICAL = 2
_STOPPING = 4
_DRAIN = 8


@dataclass(frozen=True, slots=True)
class Barrier:
    """The line between what belongs to a checkpoint and what comes after."""

    checkpoint_id: int
    unaligned: bool = False
    """May overtake: a task takes its snapshot as soon as it sees the barrier."""
    canonical: bool = False
    """A savepoint: state is written in the format that every backend reads, and alignment is never given up."""
    stopping: bool = False
    """After it sources emit nothing and no timer fires."""
    drain: bool = False
    """Before it sources say that event time has ended, so that windows and event-time timers fire."""

    def encode(self) -> bytes:
        flags = self.unaligned * _UNALIGNED | self.canonical * _CANONICAL | self.stopping * _STOPPING
        flags |= self.drain * _DRAIN
        return _BARRIER.pack(BARRIER, self.checkpoint_id, flags)

    @classmethod
    def decode(cls, data: bytes) -> Barrier:
        _, checkpoint_id, flags = _BARRIER.unpack(data)
        return cls(
            checkpoint_id,
            bool(flags & _UNALIGNED),
            bool(flags & _CANONICAL),
            bool(flags & _STOPPING),
            bool(flags & _DRAIN),
        )


@dataclass(frozen=True, slots=True)
class Address:
    """Which edge a cell belongs to and which subtasks it goes between."""

    edge: int
    producer: int
    target: int


def address_of(data: bytes) -> Address:
    """The address of any cell but a nudge or a barrier."""
    _, edge, producer, target = _ADDRESS.unpack_from(data)
    return Address(edge, producer, target)


def readdressed(data: bytes, address: Address) -> bytes:
    """The same cell with another address."""
    return _ADDRESS.pack(data[0], address.edge, address.producer, address.target) + data[_ADDRESS.size :]


def records_header(address: Address, flags: int, born_us: int, count: int) -> bytes:
    return _RECORDS.pack(RECORDS, address.edge, address.producer, address.target, flags, born_us, count)


def read_records_header(data: bytes) -> tuple[Address, int, int, int]:
    """(address, flags, born, count); the payload begins at `RECORDS_HEADER`."""
    _, edge, producer, target, flags, born_us, count = _RECORDS.unpack_from(data)
    return Address(edge, producer, target), flags, born_us, count


def watermark_cell(address: Address, time_ms: int) -> bytes:
    return _WATERMARK.pack(WATERMARK, address.edge, address.producer, address.target, time_ms)


def read_watermark(data: bytes) -> int:
    return int(_WATERMARK.unpack(data)[4])


def idle_cell(address: Address, is_idle: bool) -> bytes:
    return _IDLE.pack(IDLE, address.edge, address.producer, address.target, is_idle)


def read_idle(data: bytes) -> bool:
    return bool(_IDLE.unpack(data)[4])


def end_cell(address: Address) -> bytes:
    return _ADDRESS.pack(END, address.edge, address.producer, address.target)
