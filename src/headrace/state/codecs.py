"""Codecs: values of a declared type to bytes and back, for state, snapshots and untyped edges.

The program's types choose the codec; bytes never do. Msgpack throughout, except for what the program
declared as pickled:

    numbers, text, bytes    as msgpack has them            BIG_INT         two's complement bytes
    INSTANT                 msgpack timestamp              SQL_*, BIG_DEC  their text
    ROW, TUPLE              array of the fields in order   LIST, MAP       array, map
    ANY                     see `state.plain_values`       PICKLED         pickle (as bytes inside of others)

None is nil everywhere. Encoding checks that the value fits; the usual case is decided by a line of
code that is made for the type (`type(a) is str and type(b) is float`), all others by `TypeInformation.misfit`.
"""

from __future__ import annotations

import datetime as dt
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Protocol

import msgspec

from headrace.errors import TypeMismatchError
from headrace.state.plain_values import (
    DECODE_FAILURES,
    big_int,
    damaged,
    decode_plain,
    encode_plain,
    pack,
    restored_decimal,
    tagged,
    untag,
)
from headrace.types.kinds import BasicType, ListType, MapType, RowType, TupleType, TypeInformation, mismatch, short
from headrace.types.rows import Row, row_class, values_of

PICKLE_PROTOCOL: Final = 5


class Codec(Protocol):
    """Values of one type to bytes and back. Stateless, so one serves all threads."""

    @property
    def name(self) -> str:
        """`"msgpack"` or `"pickle"`."""

    @property
    def immutable(self) -> bool:
        """Whether decoded values may be handed out without a copy."""

    @property
    def encode(self) -> Callable[[Any], bytes]:
        """To bytes; TypeMismatchError if the value does not fit the type."""

    @property
    def decode(self) -> Callable[[bytes | memoryview], Any]:
        """From bytes; DamagedCheckpointError if no value of the type has them."""


@dataclass(frozen=True, slots=True)
class _Codec:
    """Functions in slots: a call costs one attribute read and no bound method."""

    name: str
    immutable: bool
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes | memoryview], Any]


@lru_cache(maxsize=4096)
def codec_for(type_info: TypeInformation) -> Codec:
    """The codec of a type; the same object for equal types."""
    if type_info == BasicType("ANY"):
        return _Codec("msgpack", False, encode_plain, decode_plain)
    if type_info == BasicType("PICKLED"):
        return _Codec("pickle", False, _to_pickle, _from_pickle)
    wire = _wire(type_info)
    return _Codec(type_info.codec_name, type_info.immutable, _encoder(type_info, wire), _decoder(type_info, wire))


@dataclass(frozen=True, slots=True)
class _Wire:
    """How a type looks in msgpack."""

    shape: Any
    """The msgspec type that decodes it."""
    to_wire: Callable[[Any], Any]
    """From a value that fits and is not None."""
    from_wire: Callable[[Any], Any] | None = None
    """From what `shape` decodes to, if that is not the value already."""
    test: str = "False"
    """An expression over `{v}` and `{fits}` that is true only if the value can be packed as it is."""
    fits: Callable[[Any], bool] | None = None
    """What `{fits}` stands for, where one expression does not say it all."""
    element_kinds: frozenset[type] = frozenset()
    """Classes whose values, as elements of a list, are packed as they are, if within `element_range`."""
    element_range: tuple[int, int] | None = None

    def pack_part(self, value: Any) -> Any:
        return None if value is None else self.to_wire(value)

    def unpack_part(self, value: Any) -> Any:
        return value if value is None or self.from_wire is None else self.from_wire(value)


def _whole(bits: int) -> _Wire:
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    test = f"type({{v}}) is int and {low} <= {{v}} <= {high}"
    return _Wire(int, int, test=test, element_kinds=frozenset({int}), element_range=(low, high))


def _plain_instant(value: dt.datetime) -> dt.datetime:
    """The same moment as a datetime of Python's own class: msgspec writes no other, such as PyFlink's Instant."""
    moment = value.astimezone(dt.UTC)
    return moment if type(moment) is dt.datetime else dt.datetime.combine(moment.date(), moment.timetz())


_BASIC: Final[dict[str, _Wire]] = {
    # str.__str__ and its like give the plain value of a subclass, which msgspec may write in its own way.
    "STRING": _Wire(str, str.__str__, test="type({v}) is str", element_kinds=frozenset({str, type(None)})),
    "BYTE": _whole(8),
    "SHORT": _whole(16),
    "INT": _whole(32),
    "LONG": _whole(64),
    "FLOAT": _Wire(float, float, test="type({v}) is float and -3.4e38 < {v} < 3.4e38"),
    "DOUBLE": _Wire(float, float, test="type({v}) is float", element_kinds=frozenset({float, type(None)})),
    "BOOLEAN": _Wire(bool, bool, test="type({v}) is bool", element_kinds=frozenset({bool, type(None)})),
    "CHAR": _Wire(str, str.__str__, test="type({v}) is str and len({v}) == 1"),
    "BIG_INT": _Wire(bytes, big_int, lambda b: int.from_bytes(b, "big", signed=True)),
    "BIG_DEC": _Wire(str, str, restored_decimal),
    "INSTANT": _Wire(dt.datetime, _plain_instant),
    "SQL_DATE": _Wire(str, dt.date.isoformat, dt.date.fromisoformat),
    "SQL_TIME": _Wire(str, dt.time.isoformat, dt.time.fromisoformat),
    "SQL_TIMESTAMP": _Wire(str, dt.datetime.isoformat, dt.datetime.fromisoformat),
    "ANY": _Wire(Any, tagged),
    "PICKLED": _Wire(bytes, lambda v: _to_pickle(v), lambda b: _from_pickle(b)),
}

_MAP_KEYS: Final = frozenset({"STRING", "BYTE", "SHORT", "INT", "LONG", "FLOAT", "DOUBLE", "BOOLEAN", "CHAR"})
"""Types that msgpack takes as keys of a map and that come back the same."""


def _wire(type_info: TypeInformation) -> _Wire:
    match type_info:
        case BasicType(name=name):
            return _BASIC[name]
        case ListType() if type_info.is_bytes:
            return _Wire(bytes, bytes, test="type({v}) is bytes")
        case ListType(element=element):
            return _list_wire(_wire(element))
        case MapType(key=key, value=value):
            return _map_wire(_wire(key), _wire(value), plain_keys=isinstance(key, BasicType) and key.name in _MAP_KEYS)
        case TupleType() | RowType():
            return _fields_wire(type_info)
    raise TypeMismatchError(f"There is no codec for {type_info}. Declare one of Types.")


def _list_wire(element: _Wire) -> _Wire:
    to_part, from_part = element.pack_part, element.unpack_part
    kinds, bounds = element.element_kinds, element.element_range

    def fits(value: Any) -> bool:
        if type(value) is not list or not kinds.issuperset(map(type, value)):
            return False
        return bounds is None or not value or (bounds[0] <= min(value) and max(value) <= bounds[1])

    return _Wire(
        list[element.shape | None],  # type: ignore[name-defined]
        lambda v: [to_part(x) for x in v],
        None if element.from_wire is None else lambda v: [from_part(x) for x in v],
        "{fits}({v})" if kinds else "False",
        fits,
    )


def _map_wire(key: _Wire, value: _Wire, *, plain_keys: bool) -> _Wire:
    def from_wire(entries: Any) -> Any:
        pairs = entries.items() if plain_keys else entries
        return {key.unpack_part(k): value.unpack_part(v) for k, v in pairs}

    if plain_keys:
        same = key.from_wire is None and value.from_wire is None
        return _Wire(
            dict[key.shape, value.shape | None],  # type: ignore[name-defined]
            lambda v: {key.to_wire(k): value.pack_part(x) for k, x in v.items()},
            None if same else from_wire,
        )
    # Keys that msgpack cannot have as keys, or cannot hash: a list of pairs.
    return _Wire(
        list[tuple[key.shape, value.shape | None]],  # type: ignore[name-defined]
        lambda v: [(key.to_wire(k), value.pack_part(x)) for k, x in v.items()],
        from_wire,
    )


def _fields_wire(type_info: TupleType | RowType) -> _Wire:
    fields = tuple(_wire(t) for t in type_info.types)
    apart = type_info.take_apart() if isinstance(type_info, RowType) else values_of
    make = type_info.make() if isinstance(type_info, RowType) else None

    def to_wire(value: Any) -> Any:
        return tuple([f.pack_part(x) for f, x in zip(fields, apart(value), strict=True)])

    def part_by_part(value: Any) -> Any:
        parts = tuple([f.unpack_part(x) for f, x in zip(fields, value, strict=True)])
        return parts if make is None else make(parts)

    shape: Any = tuple[tuple(f.shape | None for f in fields)]  # type: ignore[misc]
    return _Wire(shape, to_wire, make if all(f.from_wire is None for f in fields) else part_by_part)


def _encoder(type_info: TypeInformation, wire: _Wire) -> Callable[[Any], bytes]:
    where = f"Encoding a value of type {type_info}"

    def encode_with_care(value: Any) -> bytes:
        reason = type_info.misfit(value)
        if reason is not None:
            raise mismatch(type_info, reason, "A value does not fit its type")
        try:
            return pack(wire.pack_part(value))
        except (OverflowError, UnicodeEncodeError, RecursionError) as error:
            raise mismatch(type_info, f"{short(value)} cannot be written: {error}", where) from None

    names: dict[str, Any] = {"pack": pack, "encode_with_care": encode_with_care, "fits": wire.fits}
    if isinstance(type_info, RowType | TupleType) and type_info.types:
        kind, other_kind, apart = _record_classes(type_info)
        names |= {"kind": kind, "other_kind": other_kind, "apart": apart}
        variables = [f"v{i}" for i in range(len(type_info.types))]
        wires = [_wire(t) for t in type_info.types]
        names |= {f"fits_{v}": w.fits for v, w in zip(variables, wires, strict=True)}
        tests = [w.test.format(v=v, fits=f"fits_{v}") for v, w in zip(variables, wires, strict=True)]
        listed = ", ".join(variables) + ","
        # A tuple or row is packed as it stands; an object of the user's class must be taken apart first.
        packed = "v" if issubclass(kind, tuple | Row) else f"({listed})"
        source = "v" if apart is None else "apart(v)"
        guard = "(type(v) is kind or type(v) is other_kind)" if other_kind is not None else "type(v) is kind"
        if kind is tuple:
            guard += f" and len(v) == {len(variables)}"
        body = (
            f"if {guard}:\n            {listed} = {source}\n"
            f"            if {' and '.join(tests)}:\n                return pack({packed})"
        )
    else:
        body = f"if {wire.test.format(v='v', fits='fits')}:\n            return pack(v)"
    # Source made per type, as dataclasses make their __init__: a loop over fields would cost more than the encoding.
    exec(
        "def encode(v):\n"
        "    try:\n"
        f"        {body}\n"
        "    except ValueError:\n"
        "        pass\n"
        "    return encode_with_care(v)\n",
        names,
    )
    encode: Callable[[Any], bytes] = names["encode"]
    return encode


def _record_classes(
    type_info: RowType | TupleType,
) -> tuple[type, type | None, Callable[[Any], tuple[Any, ...]] | None]:
    """(class, another class, how a value is taken apart) of values that are encoded without a second look."""
    if isinstance(type_info, TupleType):
        return tuple, None, None
    if type_info.constructor is None:
        # Rows from a typed stream, and rows that a program made.
        return row_class(type_info.names, True), row_class(type_info.names, False), msgspec.structs.astuple
    is_tuple = issubclass(type_info.constructor, tuple)
    return type_info.constructor, None, None if is_tuple else type_info.take_apart()


def _decoder(type_info: TypeInformation, wire: _Wire) -> Callable[[bytes | memoryview], Any]:
    shape = wire.shape if wire.shape is Any else wire.shape | None
    read = msgspec.msgpack.Decoder(shape, ext_hook=untag).decode
    from_wire = wire.from_wire

    if from_wire is None:

        def decode(data: bytes | memoryview) -> Any:
            try:
                return read(data)
            except DECODE_FAILURES as error:
                raise damaged(data, str(type_info), error) from None

    else:

        def decode(data: bytes | memoryview) -> Any:
            try:
                found = read(data)
                return None if found is None else from_wire(found)
            except DECODE_FAILURES as error:
                raise damaged(data, str(type_info), error) from None

    return decode


def _to_pickle(value: Any) -> bytes:
    try:
        return pickle.dumps(value, PICKLE_PROTOCOL)
    except Exception as error:
        raise TypeMismatchError(
            f"{short(value)} ({type(value).__qualname__}) cannot be pickled: {error}. Keep plain values in state, "
            "or give the class a __reduce__."
        ) from error


def _from_pickle(data: bytes | memoryview) -> Any:
    try:
        return pickle.loads(data)
    except Exception as error:  # unpickling runs the classes' own code, which may raise anything
        raise damaged(data, "a pickled object", error) from error
