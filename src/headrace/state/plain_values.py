"""Plain Python values as msgpack, faithfully: what goes in comes out with the same types, at any depth.

Msgpack itself keeps None, bool, int, float, str, bytes, list and dict apart. All else is an extension:

    code  value                              payload
     1    int beyond 64 bits                 two's complement, big-endian
     2    tuple                              msgpack array of its elements
     3    set                                msgpack array, elements ordered by their encoding
     4    frozenset                          the same
     5    dict whose keys are not all plain  msgpack array: key, value, key, value, …
     6    row                                msgpack array: names, then values
     7    datetime                           msgpack [ISO text without zone, fold, zone], the zone being nil,
                                             [IANA name] or an offset as [days, seconds, microseconds]
     8    date                               ISO text
     9    time                               as a datetime
    10    timedelta                          msgpack [days, seconds, microseconds]
    11    Decimal                            its text
    12    UUID                               16 bytes
    13    complex                            msgpack [real, imaginary]
    14    bytearray                          its bytes
    15    str with lone surrogates           UTF-8 that lets them pass

The same codes serve keys (`state.keys`). Nothing in the bytes names code to import, and no length in them
is believed before the bytes are there: msgspec grows containers as it reads, which a test makes sure of.
A set is written in order of its elements' encodings, so that equal values have equal bytes.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any, Final
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec

from headrace.errors import DamagedCheckpointError, TypeMismatchError
from headrace.types.kinds import short
from headrace.types.rows import Row, RowKind, row_class, values_of

Ext = msgspec.msgpack.Ext

BIG_INT, TUPLE, SET, FROZENSET, DICT, ROW, DATETIME, DATE, TIME, TIMEDELTA = range(1, 11)
DECIMAL, UUID_, COMPLEX, BYTEARRAY, LOOSE_TEXT = range(11, 16)

pack: Final = msgspec.msgpack.Encoder().encode
"""Msgpack of what msgpack holds natively."""

DECODE_FAILURES: Final = (
    msgspec.MsgspecError,
    RecursionError,
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    OSError,
    MemoryError,
)
"""What decoding bytes that no encoder wrote may raise; all of it becomes DamagedCheckpointError."""


def damaged(data: bytes | memoryview, wanted: str, error: BaseException) -> DamagedCheckpointError:
    """The error for bytes that do not decode."""
    return DamagedCheckpointError(
        f"{len(data)} bytes that should hold {wanted} do not: {error or type(error).__name__} "
        f"(they begin with {bytes(data[:16]).hex(' ')}). Restore from another checkpoint."
    )


def _unzoned(value: Any) -> list[Any]:
    zone = value.tzinfo
    kept: list[Any] | None = None
    if isinstance(zone, ZoneInfo) and zone.key is not None:
        kept = [zone.key]
    elif zone is not None:
        offset = value.utcoffset()
        if offset is None:
            raise TypeMismatchError(
                f"{short(value)} has a time zone that gives it no offset. Use zoneinfo.ZoneInfo or a fixed offset."
            )
        kept = [offset.days, offset.seconds, offset.microseconds]
    return [value.replace(tzinfo=None).isoformat(), value.fold, kept]


def _zoned(parts: Any) -> tuple[str, int, dt.tzinfo | None]:
    text, fold, kept = parts
    if kept is None:
        return text, fold, None
    if len(kept) == 1:
        return text, fold, ZoneInfo(kept[0])
    days, seconds, microseconds = kept
    return text, fold, dt.timezone(dt.timedelta(days, seconds, microseconds))


def big_int(value: int) -> bytes:
    """Two's complement of any integer, as short as it can be."""
    return value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)


def _int(value: int) -> Any:
    return value if -(1 << 63) <= value < (1 << 64) else Ext(BIG_INT, big_int(value))


def _text(value: str) -> Any:
    # isascii is a flag of the string; only other texts are looked at in full.
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        return Ext(LOOSE_TEXT, value.encode("utf-8", "surrogatepass"))
    return value


def _dict(value: dict[Any, Any]) -> Any:
    keys = [tagged(k) for k in value]
    if all(type(k) in _MAP_KEYS for k in keys):
        return dict(zip(keys, map(tagged, value.values()), strict=True))
    entries = zip(keys, map(tagged, value.values()), strict=True)
    return Ext(DICT, pack([part for entry in entries for part in entry]))


def _set(code: int) -> Callable[[Any], Any]:
    return lambda value: Ext(code, pack([msgspec.Raw(x) for x in sorted(pack(tagged(x)) for x in value)]))


_AS_IT_IS: Final = frozenset({type(None), bool, float, bytes})
_FLAT: Final = frozenset({type(None), bool, float, bytes, str, int})
_MAP_KEYS: Final = frozenset({type(None), bool, float, bytes, str, int})

_TAGGERS: Final[dict[type, Callable[[Any], Any]]] = {
    int: _int,
    str: _text,
    tuple: lambda v: Ext(TUPLE, pack([tagged(x) for x in v])),
    list: lambda v: [tagged(x) for x in v],
    dict: _dict,
    set: _set(SET),
    frozenset: _set(FROZENSET),
    dt.datetime: lambda v: Ext(DATETIME, pack(_unzoned(v))),
    dt.date: lambda v: Ext(DATE, v.isoformat().encode()),
    dt.time: lambda v: Ext(TIME, pack(_unzoned(v))),
    dt.timedelta: lambda v: Ext(TIMEDELTA, pack([v.days, v.seconds, v.microseconds])),
    Decimal: lambda v: Ext(DECIMAL, str(v).encode()),
    UUID: lambda v: Ext(UUID_, v.bytes),
    complex: lambda v: Ext(COMPLEX, pack([v.real, v.imag])),
    bytearray: lambda v: Ext(BYTEARRAY, bytes(v)),
}


def tagged(value: Any) -> Any:
    """The value in terms of what `pack` takes. Goes by exact type: a subclass would not come back as itself."""
    kind = type(value)
    if kind in _AS_IT_IS:
        return value
    tagger = _TAGGERS.get(kind)
    if tagger is not None:
        return tagger(value)
    if isinstance(value, Row):
        if kind.__row_kind__ is not RowKind.INSERT:
            raise TypeMismatchError(
                f"{short(value)} is of kind {kind.__row_kind__}, which state does not keep. Keep the kind in a field."
            )
        return Ext(ROW, pack([kind.__row_names__, *map(tagged, values_of(value))]))
    raise TypeMismatchError(
        f"{short(value)} is of class {kind.__module__}.{kind.__qualname__}, which is no plain Python value. "
        "Declare the type of this state or stream (a dataclass or NamedTuple does), or keep any object by "
        "Types.PICKLED_BYTE_ARRAY()."
    )


def encode_plain(value: Any) -> bytes:
    """Msgpack of any plain value; TypeMismatchError for anything else."""
    kind = type(value)
    try:
        # Most states are a scalar or a small tuple of scalars, which need no walk.
        if kind in _FLAT:
            return pack(value)
        if kind is tuple and _FLAT.issuperset(map(type, value)):
            return pack(Ext(TUPLE, pack(value)))
    except (OverflowError, UnicodeEncodeError):
        pass
    try:
        return pack(tagged(value))
    except RecursionError:
        raise TypeMismatchError(
            f"{short(value)} is nested too deeply to be kept, or holds itself. Flatten it."
        ) from None


def untag(code: int, data: memoryview) -> Any:
    """The `ext_hook` of every decoder that meets plain values."""
    if code == TUPLE:
        return _as_tuple(data)
    restore = _RESTORERS.get(code)
    if restore is None:
        raise ValueError(f"there is no extension {code}")
    return restore(bytes(data))


unpack: Final[Callable[[bytes | memoryview], Any]] = msgspec.msgpack.Decoder(ext_hook=untag).decode
"""Msgpack back to plain values; raises any of DECODE_FAILURES."""

_as_tuple: Final[Callable[[bytes | memoryview], Any]] = msgspec.msgpack.Decoder(tuple, ext_hook=untag).decode


def _restored_dict(data: bytes) -> dict[Any, Any]:
    flat = unpack(data)
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _restored_row(data: bytes) -> Row:
    names, *values = unpack(data)
    if len(names) != len(values) or not all(type(n) is str for n in names):
        raise ValueError("a row whose names do not match its values")
    return row_class(tuple(names))(*values)


def _restored_datetime(data: bytes) -> dt.datetime:
    text, fold, zone = _zoned(unpack(data))
    return dt.datetime.fromisoformat(text).replace(tzinfo=zone, fold=fold)


def _restored_time(data: bytes) -> dt.time:
    text, fold, zone = _zoned(unpack(data))
    return dt.time.fromisoformat(text).replace(tzinfo=zone, fold=fold)


def restored_decimal(text: str) -> Decimal:
    """Decimal of its text; ValueError for any other text."""
    try:
        return Decimal(text)
    except InvalidOperation:
        raise ValueError(f"{short(text)} is no decimal number") from None


_RESTORERS: Final[dict[int, Callable[[bytes], Any]]] = {
    BIG_INT: lambda b: int.from_bytes(b, "big", signed=True),
    SET: lambda b: set(unpack(b)),
    FROZENSET: lambda b: frozenset(unpack(b)),
    DICT: _restored_dict,
    ROW: _restored_row,
    DATETIME: _restored_datetime,
    DATE: lambda b: dt.date.fromisoformat(b.decode()),
    TIME: _restored_time,
    TIMEDELTA: lambda b: dt.timedelta(*unpack(b)),
    DECIMAL: lambda b: restored_decimal(b.decode()),
    UUID_: lambda b: UUID(bytes=b),
    COMPLEX: lambda b: complex(*unpack(b)),
    BYTEARRAY: bytearray,
    LOOSE_TEXT: lambda b: b.decode("utf-8", "surrogatepass"),
}


def decode_plain(data: bytes | memoryview) -> Any:
    """The value `encode_plain` was given; DamagedCheckpointError for bytes it cannot have written."""
    try:
        return unpack(data)
    except DECODE_FAILURES as error:
        raise damaged(data, "a plain value", error) from None
