"""How the records of an edge become the payload of a cell and back.

    payload:  OBJECTS   body of (keys | None, values, timestamps | None)
              COLUMNS   key_size u32 | body of the keys | Arrow record batch (without schema)

`body` is marshal for plain Python values, which is exact about types and several times faster than anything
else, or pickle where only pickle can; the flag says which. Rows of a typed edge travel as plain tuples or as
columns, and are checked against the type either way. Timestamps of columns are one more column, `_ts`. Keys that
are fields are not sent twice: the receiver reads them from the columns.

Marshal and pickle never leave the job: what a checkpoint keeps of cells in flight is rewritten (`in_flight.py`).
"""

from __future__ import annotations

import marshal
import pickle
import struct
from collections.abc import Iterable
from typing import Any, Final

import pyarrow as pa

from headrace.operators.base import Block
from headrace.plan.graph import Edge, Hash, KeySpec
from headrace.state.keys import stored_form
from headrace.state.plain_values import decode_plain
from headrace.types.columns import batch_to_columns, rows_to_batch, schema_of
from headrace.types.information import TypeInformation
from headrace.types.kinds import BasicType, RowType

PICKLED: Final = 1
COLUMNS: Final = 2
ROWS: Final = 4
"""OBJECTS whose values are the field tuples of rows."""

COLUMNS_FROM: Final = 24
"""Below this many records, building Arrow arrays costs more than it saves."""

TIMED: Final = 8
"""COLUMNS with one more column, the timestamps."""
PLAIN: Final = 16
"""The body is in the safe plain encoding: a cell that comes from a checkpoint."""

_KEY_SIZE = struct.Struct("<I")
_TIMESTAMPS = "_ts"
_PLAIN_KEYS = ("STRING", "LONG", "INT")


class EdgeCodec:
    """Encodes and decodes the records of one edge; made once per task and edge."""

    def __init__(self, edge: Edge) -> None:
        self.edge = edge
        self._row_type = edge.type if isinstance(edge.type, RowType) else None
        self._type: TypeInformation | None = edge.type
        self._schema: pa.Schema | None = None if self._row_type is None else schema_of(self._row_type)
        self._timed_schema = None if self._schema is None else self._schema.append(pa.field(_TIMESTAMPS, pa.int64()))
        self._where = f"edge {edge.id}"
        self.key: KeySpec | None = edge.partitioning.key if isinstance(edge.partitioning, Hash) else None
        self._make = None if self._row_type is None else self._row_type.make()
        self._take_apart = None if self._row_type is None else self._row_type.take_apart()
        self._rows_are_tuples = self._row_type is not None and issubclass(self._row_type.value_class, tuple)

    @property
    def takes_columns(self) -> bool:
        """Whether Arrow columns may be sent as they are."""
        return self._schema is not None

    @property
    def key_fields(self) -> tuple[str, ...]:
        """Fields that the key is made of, where the receiver can read them from the columns."""
        return self.key.fields if self.key is not None and self._schema is not None else ()

    def encode(
        self, values: list[Any], keys: list[Any] | None, timestamps: list[int] | None
    ) -> tuple[int, Iterable[bytes]]:
        """(flags, payload parts) of records that are Python values."""
        if self._row_type is not None:
            if self._schema is not None and len(values) >= COLUMNS_FROM:
                batch = rows_to_batch(self._row_type, values, self._schema)
                return self.encode_columns(batch, keys, None if timestamps is None else pa.array(timestamps, pa.int64()))
            for value in values:
                self._row_type.check(value, self._where)
            assert self._take_apart is not None
            flags, body = _pack((keys, [tuple(self._take_apart(v)) for v in values], timestamps))
            return flags | ROWS, (body,)
        if self._type is not None:
            for value in values:
                self._type.check(value, self._where)
        flags, body = _pack((keys, values, timestamps))
        return flags, (body,)

    def encode_columns(
        self, batch: pa.RecordBatch, keys: list[Any] | None, timestamps: pa.Array | None
    ) -> tuple[int, Iterable[bytes]]:
        """(flags, payload parts) of records that are Arrow columns of the edge's row type."""
        flags, head = COLUMNS, b""
        if keys is not None and not self.key_fields:
            packed, head = _pack(keys)
            flags |= packed
        if timestamps is not None:
            flags |= TIMED
            batch = pa.RecordBatch.from_arrays([*batch.columns, timestamps], schema=self._timed_schema)
        return flags, (_KEY_SIZE.pack(len(head)), head, batch.serialize())

    def decode(self, flags: int, payload: memoryview) -> Block:
        """The records of a cell, ready to be processed."""
        if flags & COLUMNS:
            batch, keys, timestamps = self.decode_columns(flags, payload)
            columns = batch_to_columns(batch, self._row_type)
            if keys is None and self.key is not None:
                keys = self._keys_from(columns)
            return Block(self._rows(columns), keys, timestamps)
        keys, values, timestamps = unpack(flags, payload)
        if flags & ROWS:
            assert self._make is not None
            values = list(map(self._make, values))
        return Block(values, keys, timestamps)

    def decode_columns(self, flags: int, payload: memoryview) -> tuple[pa.RecordBatch, list[Any] | None, list[int] | None]:
        keys, body = split_columns(flags, payload)
        message = pa.ipc.read_message(pa.py_buffer(body))
        assert self._schema is not None
        if not flags & TIMED:
            return pa.ipc.read_record_batch(message, self._schema), keys, None
        timed = pa.ipc.read_record_batch(message, self._timed_schema)
        timestamps = timed.column(timed.num_columns - 1).to_numpy().tolist()
        return pa.RecordBatch.from_arrays(timed.columns[:-1], schema=self._schema), keys, timestamps

    def _rows(self, columns: list[list[Any]]) -> list[Any]:
        assert self._make is not None
        return list(map(self._make, zip(*columns, strict=True)))

    def _keys_from(self, columns: list[list[Any]]) -> list[Any]:
        assert self.key is not None and self._row_type is not None
        places = [self._row_type.names.index(name) for name in self.key.fields]
        if self.key.single:
            kind = self._row_type.types[places[0]]
            values = columns[places[0]]
            if isinstance(kind, BasicType) and str(kind) in _PLAIN_KEYS:
                return values
            return list(map(stored_form, values))
        return list(map(stored_form, zip(*(columns[p] for p in places), strict=True)))


def _pack(value: Any) -> tuple[int, bytes]:
    try:
        return 0, marshal.dumps(value)
    except ValueError:
        return PICKLED, pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)


def unpack(flags: int, data: memoryview) -> Any:
    """The values of a body."""
    if flags & PLAIN:
        return decode_plain(data)
    return pickle.loads(data) if flags & PICKLED else marshal.loads(data)


def split_columns(flags: int, payload: memoryview) -> tuple[list[Any] | None, memoryview]:
    """(keys, Arrow bytes) of a COLUMNS payload."""
    (key_size,) = _KEY_SIZE.unpack_from(payload)
    body_at = _KEY_SIZE.size + key_size
    return unpack(flags, payload[_KEY_SIZE.size : body_at]) if key_size else None, payload[body_at:]

