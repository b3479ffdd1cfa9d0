"""How the records of an edge become the payload of a cell and back.

    payload:  OBJECTS   body of (keys | None, values, timestamps | None)
              COLUMNS   key_size u32 | body of the keys | Arrow record batch (without schema)
              TYPED     OBJECTS of which each value is bytes in the codec of the edge's type; in checkpoints only

`body` is marshal for plain Python values, which is exact about their types and several times faster than anything
else, or pickle where only pickle can; the flag says which. Marshal turns whatever else offers its memory (a
numpy number, a bytearray) into bytes without a word, so it is asked only about what it holds exactly. Rows of a
typed edge travel as plain tuples or as columns, are checked against the type either way, and come out the same
either way. Timestamps of columns are one more column, `_ts`. Keys that are text or whole numbers in a field are
not sent twice: the receiver reads them from the columns.

Marshal and pickle never leave the job: what a checkpoint keeps of cells in flight is rewritten (`in_flight.py`).
"""

from __future__ import annotations

import marshal
import pickle
import struct
from collections.abc import Collection, Iterable
from itertools import chain, islice
from typing import Any, Final

import pyarrow as pa

from headrace.operators.base import Block, ColumnBlock
from headrace.plan.graph import Edge, Hash, KeySpec
from headrace.state.codecs import Codec, codec_for
from headrace.state.keys import stored_form
from headrace.state.plain_values import decode_plain
from headrace.types.columns import batch_to_columns, batch_to_values, rows_to_batch, schema_of
from headrace.types.information import TypeInformation
from headrace.types.kinds import BasicType, RowType, TupleType

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
TYPED: Final = 32
"""PLAIN, and each value is bytes in the codec of the edge's type: objects that the plain encoding does not know."""

_KEY_SIZE = struct.Struct("<I")
_TIMESTAMPS = "_ts"
_PLAIN_KEYS = frozenset({"STRING", "LONG", "INT", "SHORT", "BYTE"})
"""Types whose values are the same before and after a column, and are their own stored form."""
_EXACT: Final = {"STRING": str, "LONG": int, "INT": int, "SHORT": int, "BYTE": int, "DOUBLE": float, "BOOLEAN": bool}
"""Types of which a value of exactly this class comes out of a column as it went in."""

_SCALARS: Final = frozenset({type(None), bool, int, float, complex, str, bytes})
_CONTAINERS: Final = frozenset({tuple, list, dict, set, frozenset})
_TUPLES: Final = frozenset({tuple})
_DEEPEST: Final = 64
_MOST_PARTS: Final = 1 << 22


class EdgeCodec:
    """Encodes and decodes the records of one edge; made once per task and edge."""

    def __init__(self, edge: Edge) -> None:
        self.edge = edge
        self._row_type = edge.type if isinstance(edge.type, RowType) else None
        self._type: TypeInformation | None = edge.type
        self._schema: pa.Schema | None = None if self._row_type is None else schema_of(self._row_type)
        self._value_schema = None if edge.type is None or self._row_type is not None else schema_of(edge.type)
        self._exact = _exact_classes(self._row_type)
        self._timed_schema = None if self._schema is None else self._schema.append(pa.field(_TIMESTAMPS, pa.int64()))
        self._where = f"edge {edge.id}"
        self.key: KeySpec | None = edge.partitioning.key if isinstance(edge.partitioning, Hash) else None
        self._key_fields = self._readable_key()
        self._make = None if self._row_type is None else self._row_type.make()
        self._make_all = None if self._row_type is None else self._row_type.make_all()
        self._take_apart = None if self._row_type is None else self._row_type.take_apart()

    @property
    def takes_columns(self) -> bool:
        """Whether Arrow columns may be sent as they are."""
        return self._schema is not None

    @property
    def key_fields(self) -> tuple[str, ...]:
        """Fields that the key is made of, where the receiver can read them from the columns."""
        return self._key_fields

    def _readable_key(self) -> tuple[str, ...]:
        if self.key is None or self._row_type is None or self._schema is None:
            return ()
        types = dict(zip(self._row_type.names, self._row_type.types, strict=True))
        # A FLOAT is rounded by its column and a DOUBLE turns 3 into 3.0: such a key would leave its key group.
        return self.key.fields if all(str(types.get(name)) in _PLAIN_KEYS for name in self.key.fields) else ()

    def encode(
        self, values: list[Any], keys: list[Any] | None, timestamps: list[int] | None
    ) -> tuple[int, Iterable[bytes]]:
        """(flags, payload parts) of records that are Python values."""
        if self._row_type is not None:
            if self._schema is not None and len(values) >= COLUMNS_FROM:
                return self._encode_as_columns(values, keys, timestamps)
            for value in values:
                self._row_type.check(value, self._where)
            assert self._take_apart is not None
            rows = [tuple(self._take_apart(v)) for v in values]
            if self._schema is not None and not self._comes_back(rows):
                return self._encode_as_columns(values, keys, timestamps)
            flags, body = _pack(keys, rows, timestamps)
            return flags | ROWS, (body,)
        if self._type is not None:
            for value in values:
                self._type.check(value, self._where)
            if self._value_schema is not None and not _is_plain(values) and not _is_exact(self._type, values):
                # What a typed edge carries does not depend on who made it: numpy numbers become Python's.
                values = batch_to_values(self._type, rows_to_batch(self._type, values, self._value_schema))
        flags, body = _pack(keys, values, timestamps)
        return flags, (body,)

    def _encode_as_columns(
        self, values: list[Any], keys: list[Any] | None, timestamps: list[int] | None
    ) -> tuple[int, Iterable[bytes]]:
        assert self._row_type is not None
        assert self._schema is not None
        batch = rows_to_batch(self._row_type, values, self._schema)
        return self.encode_columns(batch, keys, None if timestamps is None else pa.array(timestamps, pa.int64()))

    def _comes_back(self, rows: list[tuple[Any, ...]]) -> bool:
        """Whether these rows would come out of columns just as they are, so that few of them may do without."""
        exact = self._exact
        if exact is None:
            return False
        shapes = {tuple(map(type, row)) for row in rows}
        return all(
            shape == exact or all(found in (c, type(None)) for found, c in zip(shape, exact, strict=True))
            for shape in shapes
        )

    def encode_columns(
        self, batch: pa.RecordBatch, keys: list[Any] | None, timestamps: pa.Array | None
    ) -> tuple[int, Iterable[bytes]]:
        """(flags, payload parts) of records that are Arrow columns of the edge's row type."""
        flags, head = COLUMNS, b""
        if keys is not None and not self.key_fields:
            # Keys are in stored form: str, int, bytes or a tuple of bytes.
            head = marshal.dumps(keys)
        if timestamps is not None:
            flags |= TIMED
            batch = pa.RecordBatch.from_arrays([*batch.columns, timestamps], schema=self._timed_schema)
        return flags, (_KEY_SIZE.pack(len(head)), head, batch.serialize())

    def decode(self, flags: int, payload: memoryview) -> Block:
        """The records of a cell, ready to be processed."""
        if flags & COLUMNS:
            batch, keys, times = self.decode_columns(flags, payload)
            columns = batch_to_columns(batch, self._row_type)
            if keys is None and self.key is not None:
                keys = self._keys_from(columns)
            return Block(self._rows(columns), keys, None if times is None else times.to_numpy().tolist())
        keys, values, timestamps = unpack(flags, payload)
        if flags & TYPED:
            values = list(map(self._stored().decode, values))
        elif flags & ROWS:
            assert self._make is not None
            values = list(map(self._make, values))
        return Block(values, keys, timestamps)

    def stored(self, flags: int, values: list[Any]) -> list[bytes]:
        """Values of an OBJECTS payload for a checkpoint (TYPED). `TypeMismatchError` if one does not fit the type."""
        rows = map(self._make, values) if flags & ROWS and self._make is not None else values
        return list(map(self._stored().encode, rows))

    def _stored(self) -> Codec:
        assert self._type is not None
        return codec_for(self._type)

    def decode_undivided(self, flags: int, payload: memoryview) -> Block:
        """The same for an operator that takes columns: those of a cell that has them are left as they are."""
        if not flags & COLUMNS:
            return self.decode(flags, payload)
        batch, _, times = self.decode_columns(flags, payload)
        return ColumnBlock(batch, times)

    def decode_columns(
        self, flags: int, payload: memoryview
    ) -> tuple[pa.RecordBatch, list[Any] | None, pa.Array | None]:
        """(columns, keys if they were sent beside them, timestamps)."""
        keys, body = split_columns(flags, payload)
        # Keys before them may have moved the columns off the 8 bytes that Arrow's own kernels ask for.
        message = pa.ipc.read_message(pa.py_buffer(body if keys is None else bytes(body)))
        assert self._schema is not None
        if not flags & TIMED:
            return pa.ipc.read_record_batch(message, self._schema), keys, None
        timed = pa.ipc.read_record_batch(message, self._timed_schema)
        times = timed.column(timed.num_columns - 1)
        return pa.RecordBatch.from_arrays(timed.columns[:-1], schema=self._schema), keys, times

    def _rows(self, columns: list[list[Any]]) -> list[Any]:
        assert self._make_all is not None
        return self._make_all(columns)

    def _keys_from(self, columns: list[list[Any]]) -> list[Any]:
        assert self.key is not None
        assert self._row_type is not None
        places = [self._row_type.names.index(name) for name in self.key.fields]
        if self.key.single:
            kind = self._row_type.types[places[0]]
            values = columns[places[0]]
            if isinstance(kind, BasicType) and str(kind) in _PLAIN_KEYS:
                return values
            return list(map(stored_form, values))
        return list(map(stored_form, zip(*(columns[p] for p in places), strict=True)))


def _exact_classes(row_type: RowType | None) -> tuple[type, ...] | None:
    """The class of each field of a row whose fields marshal holds exactly; None if it has others."""
    if row_type is None:
        return None
    classes = [_EXACT.get(str(kind)) if isinstance(kind, BasicType) else None for kind in row_type.types]
    return tuple(c for c in classes if c is not None) if None not in classes else None


def _is_exact(t: TypeInformation, values: Collection[Any]) -> bool:
    """Whether values that fit the type would come out of a column of it as they are; looks at columns, not at values.

    Of the user's own classes nothing is said: a column would leave behind what their objects hold beside the fields.
    """
    if not values:
        return True
    found = set(map(type, values))
    rows: Iterable[tuple[Any, ...]]
    match t:
        case BasicType():
            return found <= {_EXACT.get(str(t))}
        case TupleType(types=types) if found <= _TUPLES:
            rows = values
        case RowType(types=types, constructor=None) if found <= {t.value_class}:
            rows = map(t.take_apart(), values)
        case _:
            return False
    columns = zip(types, zip(*rows, strict=True), strict=True)
    return all(_is_exact(kind, [value for value in column if value is not None]) for kind, column in columns)


def _pack(keys: list[Any] | None, values: list[Any], timestamps: list[int] | None) -> tuple[int, bytes]:
    if timestamps is not None and not _WHOLE.issuperset(map(type, timestamps)):
        timestamps = [int(t) for t in timestamps]
    body = (keys, values, timestamps)
    if _is_plain(values):
        try:
            return 0, marshal.dumps(body)
        except ValueError:
            pass
    return PICKLED, pickle.dumps(body, protocol=pickle.HIGHEST_PROTOCOL)


_WHOLE: Final = frozenset({int})


def _is_plain(values: Collection[Any], depth: int = 0) -> bool:
    """Whether marshal gives all of this back with the same classes. Looks at all values of a depth in one go."""
    found = set(map(type, values))
    kinds = found - _SCALARS
    if not kinds:
        return True
    if found == _TUPLES and _SCALARS.issuperset(set(map(type, chain.from_iterable(values)))):
        return True
    if depth > _DEEPEST or not kinds <= _CONTAINERS:
        return False
    for kind in kinds:
        some: Collection[Any] = values if len(found) == 1 else [v for v in values if type(v) is kind]
        parts = chain.from_iterable(some)
        if kind is dict:
            parts = chain(parts, chain.from_iterable(map(dict.values, some)))
        inside = list(islice(parts, _MOST_PARTS + 1))
        # Lists that hold one another many times over unfold without end; pickle knows how to write them.
        if len(inside) > _MOST_PARTS or not _is_plain(inside, depth + 1):
            return False
    return True


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
