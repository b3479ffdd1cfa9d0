"""Keyed state as columns.

key             the type of the keys, told or seen; text if they are of several kinds
key_group       int
namespace       bytes; empty outside of windows
window_start    long, milliseconds; null outside of time windows
window_end      long, milliseconds
position        long: only of a list state, the place in the list
map_key         only of a map state
value           the type of the state: a ROW is a struct, a LIST an array. Text where Arrow has no type for it
last_used_ms    long: only of a state with a time-to-live
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from headrace.errors import TypeMismatchError
from headrace.state.key_groups import key_group
from headrace.state.keys import stored_form
from headrace.state_reader.entries import EntryDecoder, KeyedEntry, window_of
from headrace.state_reader.pieces import Piece, pieces_of
from headrace.types.columns import rows_to_batch
from headrace.types.information import TypeInformation, TypeLike, Types, type_of
from headrace.types.text import parse

if TYPE_CHECKING:
    from headrace.state_reader.reader import StateReader

_PIECES_A_CORE = 4
_KEY_TYPES: dict[type, Callable[[], TypeInformation]] = {
    str: Types.STRING,
    int: Types.LONG,
    bytes: lambda: Types.PRIMITIVE_ARRAY(Types.BYTE()),
    float: Types.DOUBLE,
    bool: Types.BOOLEAN,
}
_LOOKED_AT = 1_000
"""Keys from which the type of all is told, if nobody says it."""


class _Work(msgspec.Struct, frozen=True, array_like=True):
    """What travels to a Spark task: where to read what. No state and no credentials."""

    path: str
    uid: str
    state: str
    key_type: str
    allow_pickle: bool
    piece: Piece


@dataclass(frozen=True)
class FrameShape:
    """The columns of one state."""

    uid: str
    state: str
    kind: str
    key_type: TypeInformation | None
    """None: as text."""
    map_key_type: TypeInformation | None
    value_type: TypeInformation
    has_ttl: bool

    @classmethod
    def of(cls, reader: StateReader, uid: str, state: str, key_type: TypeLike | None) -> FrameShape:
        """As the checkpoint says; `key_type` is seen from the first keys if it is not given."""
        chosen = type_of(key_type) if key_type is not None else _seen(islice(reader.keyed(uid, state), _LOOKED_AT))
        return cls.made(reader.decoder(uid, state), uid, chosen)

    @classmethod
    def made(cls, decoder: EntryDecoder, uid: str, key_type: TypeInformation | None) -> FrameShape:
        shape = decoder.shape
        return cls(uid, shape.name, shape.kind, key_type, decoder.map_key_type, decoder.value_type, decoder.has_ttl)

    @property
    def schema(self) -> pa.Schema:
        fields = [
            ("key", _arrow(self.key_type)),
            ("key_group", pa.int32()),
            ("namespace", pa.binary()),
            ("window_start", pa.int64()),
            ("window_end", pa.int64()),
        ]
        if self.kind == "list":
            fields.append(("position", pa.int64()))
        if self.kind == "map":
            fields.append(("map_key", _arrow(self.map_key_type)))
        fields.append(("value", _arrow(self.value_type)))
        if self.has_ttl:
            fields.append(("last_used_ms", pa.int64()))
        return pa.schema(fields)

    def batch(self, entries: list[KeyedEntry], max_parallelism: int) -> pa.RecordBatch:
        windows = [window_of(entry.namespace) for entry in entries]
        columns = [
            _column([entry.key for entry in entries], self.key_type, "key"),
            pa.array([key_group(stored_form(entry.key), max_parallelism) for entry in entries], pa.int32()),
            pa.array([entry.namespace for entry in entries], pa.binary()),
            pa.array([None if window is None else window[0] for window in windows], pa.int64()),
            pa.array([None if window is None else window[1] for window in windows], pa.int64()),
        ]
        if self.kind == "list":
            columns.append(pa.array([entry.entry for entry in entries], pa.int64()))
        if self.kind == "map":
            columns.append(_column([entry.entry for entry in entries], self.map_key_type, "map_key"))
        columns.append(_column([entry.value for entry in entries], self.value_type, "value"))
        if self.has_ttl:
            columns.append(pa.array([entry.last_used_ms for entry in entries], pa.int64()))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def read_dataframe(spark: Any, reader: StateReader, uid: str, state: str, key_type: TypeLike | None) -> Any:
    """See `StateReader.dataframe`."""
    from headrace.runtime.spark.pieces import dataframe_of_pieces

    shape = FrameShape.of(reader, uid, state, key_type)
    record = reader.operator(uid)
    wanted = max(1, _PIECES_A_CORE * int(spark.sparkContext.defaultParallelism))
    text = "" if shape.key_type is None else str(shape.key_type)
    work = [
        msgspec.msgpack.encode(_Work(reader.path, uid, state, text, reader.allow_pickle, piece))
        for piece in pieces_of(record, wanted)
    ]
    return dataframe_of_pieces(spark, work, read_work, shape.schema)


def read_work(data: bytes) -> Iterator[pa.RecordBatch]:
    """Runs in Spark's workers: the batches of one piece."""
    from headrace.state_reader.reader import StateReader

    work = msgspec.msgpack.decode(data, type=_Work)
    reader = StateReader(work.path, allow_pickle=work.allow_pickle)
    key_type = parse(work.key_type) if work.key_type else None
    shape = FrameShape.made(reader.decoder(work.uid, work.state), work.uid, key_type)
    return reader.piece_batches(shape, work.piece)


def _seen(entries: Iterable[KeyedEntry]) -> TypeInformation | None:
    kinds = {type(entry.key) for entry in entries}
    if len(kinds) != 1:
        return None
    make = _KEY_TYPES.get(kinds.pop())
    return None if make is None else make()


def _arrow(type_info: TypeInformation | None) -> pa.DataType:
    return pa.string() if type_info is None or type_info.arrow_type is None else type_info.arrow_type


def _column(values: list[Any], type_info: TypeInformation | None, name: str) -> pa.Array:
    if type_info is None or type_info.arrow_type is None:
        return pa.array([None if value is None else _text(value) for value in values], pa.string())
    wrapped = Types.ROW_NAMED([name], [type_info])
    try:
        return rows_to_batch(wrapped, [(value,) for value in values], pa.schema([(name, type_info.arrow_type)]))[0]
    except TypeMismatchError as error:
        if name != "key":
            raise
        raise TypeMismatchError(
            f"A key does not fit the type {type_info}, which was given or seen from the first keys: {error} Give "
            "key_type=, the type of all keys, or Types.ANY() to see them as text."
        ) from error


def _text(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)
