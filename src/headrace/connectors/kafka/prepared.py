"""What a checkpoint keeps of a Kafka transaction: who it is, and every record of it.

    header_len u32 | header (msgpack of `TransactionHeader`) | block | block | …      big-endian
    block:  length u32 | msgpack array of records
    record: array of topic, value, key, partition, timestamp, headers; what is None at its end may be left out

The records make it safe that no client can resume the transaction of a dead process: they are sent again, unless the
marker that is part of the transaction says that it was committed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import msgspec

from headrace.connectors.kafka.records import OutRecord
from headrace.errors import DamagedCheckpointError

_LENGTH = struct.Struct(">I")
RECORDS_PER_BLOCK = 256
_FIELDS = 6
_BLOCK = msgspec.msgpack.Decoder(list[list[Any]])


class CommitPoint(NamedTuple):
    """How far a shard's output goes. Attempts are numbered over the life of a job, checkpoints over that of a run."""

    attempt: int
    checkpoint_id: int


class TransactionHeader(msgspec.Struct, frozen=True, array_like=True):
    """Which transaction it is, and where its marker stands."""

    prefix: str
    job_id: str
    uid: str
    subtask: int
    shards: int
    """Subtasks of the sink when it was written: all of them may have left open transactions."""
    pool: int
    """Transactional ids of each."""
    attempt: int
    checkpoint_id: int
    markers: str
    """The topic of markers."""
    records: int
    owned: bool = False
    """The marker topic named an owner when it was written: if it names none any more, markers were lost."""
    history: str = ""
    """Whose numbers attempt and checkpoint are."""

    @property
    def point(self) -> CommitPoint:
        return CommitPoint(self.attempt, self.checkpoint_id)


class RecordLog:
    """The records of one transaction, encoded. Grows until it is sealed."""

    __slots__ = ("_blocks", "_encoder", "_fresh", "records", "size")

    def __init__(self) -> None:
        self._blocks: list[bytes] = []
        self._fresh: list[OutRecord] = []
        self._encoder = msgspec.msgpack.Encoder()
        self.records = 0
        self.size = 0

    def append(self, record: OutRecord) -> None:
        fresh = self._fresh
        fresh.append(record)
        if len(fresh) >= RECORDS_PER_BLOCK:
            self._encode()

    def seal(self, header: TransactionHeader) -> bytes:
        """The payload of the prepared item."""
        if self._fresh:
            self._encode()
        head = self._encoder.encode(header)
        return b"".join((_LENGTH.pack(len(head)), head, *self._blocks))

    def counted(self) -> int:
        return self.records + len(self._fresh)

    def decoded(self) -> Iterator[OutRecord]:
        """Every record so far, in order: what an error is looked for in."""
        for block in self._blocks[1::2]:
            yield from _records_in(block)
        yield from self._fresh

    def _encode(self) -> None:
        # As they are: a byte or three more for each that has no headers, and no second tuple of it.
        fresh = self._fresh
        block = self._encoder.encode(fresh)
        self._blocks += (_LENGTH.pack(len(block)), block)
        self.records += len(fresh)
        self.size += len(block)
        self._fresh = []


def header_of(payload: bytes) -> TransactionHeader:
    """Which transaction a prepared item is."""
    (length,) = _LENGTH.unpack_from(payload)
    return msgspec.msgpack.decode(memoryview(payload)[4 : 4 + length], type=TransactionHeader)


def records_of(payload: bytes) -> Iterator[OutRecord]:
    """Every record of a prepared item, in order."""
    view = memoryview(payload)
    (length,) = _LENGTH.unpack_from(view)
    at = 4 + length
    while at < len(view):
        (length,) = _LENGTH.unpack_from(view, at)
        at += 4
        if at + length > len(view):
            raise DamagedCheckpointError("A prepared Kafka transaction ends in the middle of a block of records.")
        yield from _records_in(view[at : at + length])
        at += length


def _records_in(block: bytes | memoryview) -> Iterator[OutRecord]:
    for record in _BLOCK.decode(block):
        fields = [*record, *[None] * (_FIELDS - len(record))]
        if fields[-1] is not None:
            fields[-1] = [tuple(header) for header in fields[-1]]  # the client takes no other pairs
        yield cast(OutRecord, tuple(fields))
