"""Keyed state out of Spark DataFrames, written by Spark's tasks: no row comes to the driver.

    DataFrames ─ each row to the share that has its key group ─▶ one task a share ─▶ a file in the new savepoint
                                                                  └─ begins with what was saved before, if anything

A share is a range of key groups, as a subtask of the operator would have it. The driver gets the handles.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from headrace.checkpoint.handles import KeyedSnapshot
from headrace.checkpoint.storage.base import CheckpointStorage
from headrace.state.descriptors import ListStateDescriptor, MapStateDescriptor, StateDescriptor
from headrace.state.key_groups import group_range, key_group
from headrace.state.keys import stored_form
from headrace.state_reader.keyed_part import KeyedPart
from headrace.types.kinds import ListType, MapType, RowType, TupleType, TypeInformation
from headrace.types.rows import row_class


@dataclass(frozen=True)
class Frame:
    """Two columns of a DataFrame, key and value, that are to become a state."""

    descriptor: StateDescriptor
    dataframe: Any

    def rows(self) -> Iterator[tuple[Any, Any]]:
        """All of it in the driver, partition by partition."""
        convert = from_spark(self.descriptor)
        return ((key_from_spark(row[0]), convert(row[1])) for row in self.dataframe.toLocalIterator())


@dataclass(frozen=True)
class Earlier:
    """Keyed state that the new one begins with."""

    snapshots: tuple[KeyedSnapshot, ...] = ()
    storage: CheckpointStorage | None = None


@dataclass(frozen=True)
class SharedWork:
    """What travels to Spark's tasks. No rows, no credentials."""

    uid: str
    max_parallelism: int
    shares: int
    checkpoint_id: int
    target: CheckpointStorage
    prefix: str
    descriptors: tuple[StateDescriptor, ...]
    earlier: tuple[Earlier, ...] = field(default=())

    def deal(self, frame: int, rows: Iterable[Any]) -> Iterator[tuple[int, tuple[int, Any, Any]]]:
        """Runs in the tasks that read a DataFrame: each row with the share it belongs to."""
        convert = from_spark(self.descriptors[frame])
        for row in rows:
            key = key_from_spark(row[0])
            group = key_group(stored_form(key), self.max_parallelism)
            yield group * self.shares // self.max_parallelism, (frame, key, convert(row[1]))

    def write(self, share: int, rows: Iterable[tuple[int, Any, Any]]) -> bytes:
        """Runs once for each share, also for one without rows; the handle of what it wrote, encoded."""
        groups = group_range(share, self.shares, self.max_parallelism)
        folder = Path(tempfile.mkdtemp(prefix="headrace-savepoint-"))
        part = KeyedPart(self.uid, share, groups, self.max_parallelism, folder)
        try:
            self._load(part, groups)
            puts = [part.putter(descriptor) for descriptor in self.descriptors]
            for frame, key, value in rows:
                puts[frame](key, value)
            return msgspec.msgpack.encode(part.save(self.checkpoint_id, self.target.file_store(self.prefix)))
        finally:
            part.close()

    def _load(self, part: KeyedPart, groups: range) -> None:
        for earlier in self.earlier:
            mine = [s for s in earlier.snapshots if s.first_group < groups.stop and groups.start <= s.last_group]
            assert earlier.storage is not None
            part.load(mine, earlier.storage.file_store("copy"))


def write_shares(work: SharedWork, frames: Sequence[Frame]) -> tuple[KeyedSnapshot, ...]:
    """One Spark job that writes every share; gives their handles in order."""
    from headrace.runtime.spark.pieces import gathered_by_piece

    encoded = gathered_by_piece([frame.dataframe for frame in frames], work.shares, work.deal, work.write)
    return tuple(msgspec.msgpack.decode(one, type=KeyedSnapshot) for one in encoded)


def from_spark(descriptor: StateDescriptor) -> Callable[[Any], Any]:
    """From what Spark gives for a column to what the state holds under one key."""
    if isinstance(descriptor, MapStateDescriptor):
        return _converted(MapType(descriptor.key_type, descriptor.element_type))
    if isinstance(descriptor, ListStateDescriptor):
        return _converted(ListType(descriptor.element_type))
    return _converted(descriptor.element_type)


def key_from_spark(key: Any) -> Any:
    """A struct as a tuple of its fields, as `key_by` sees a tuple."""
    if isinstance(key, bytearray):
        return bytes(key)
    return tuple(map(key_from_spark, key)) if isinstance(key, tuple) else key


def _converted(type_info: TypeInformation) -> Callable[[Any], Any]:
    """Structs to rows and tuples, at any depth."""
    match type_info:
        case RowType(names=names, types=types):
            parts = [_converted(t) for t in types]
            make = row_class(tuple(names))
            return lambda v: None if v is None else make(*[p(x) for p, x in zip(parts, v, strict=True)])
        case TupleType(types=types):
            tuple_parts = [_converted(t) for t in types]
            return lambda v: None if v is None else tuple(p(x) for p, x in zip(tuple_parts, v, strict=True))
        case ListType(element=element) if not type_info.is_bytes:
            one = _converted(element)
            return lambda v: None if v is None else [one(x) for x in v]
        case MapType(key=key, value=value):
            key_part, value_part = _converted(key), _converted(value)
            return lambda v: None if v is None else {key_part(k): value_part(x) for k, x in v.items()}
    return lambda v: bytes(v) if isinstance(v, bytearray) else v
