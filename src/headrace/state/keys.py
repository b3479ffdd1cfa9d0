"""Keys: which values may be keys, how they are held in dictionaries and how they are written.

A key is a str, int, bytes, float, bool, date, datetime, Decimal, UUID, or a tuple of keys. In
dictionaries it is in *stored form*: a plain str, int or bytes as it is, anything else a one-tuple of its encoding.
So 1, 1.0, True, "1" and b"1" are five keys, and the three usual kinds cost nothing.

Encoding (self-delimiting, one encoding per key): msgpack, a tuple as an array, extensions as in
`state.plain_values`. What counts as one key:

    float        by its bits: 0.0 and -0.0 are two keys; every NaN is one key
    str          by code points: é as one or as two code points are two keys
    Decimal      by its text: 1.0 and 1.00 are two keys, as in Java
    datetime     without zone by its fields; with a zone by its instant, which comes back in UTC
    NamedTuple, Row, subclasses of str, int, float, bytes, numpy scalars: as the plain value
"""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any, Final, TypeAlias
from uuid import UUID

import numpy as np

from headrace.errors import InvalidKeyError
from headrace.state.plain_values import DECODE_FAILURES, damaged, pack, tagged, unpack
from headrace.types.kinds import short
from headrace.types.rows import Row, values_of

StoredKey: TypeAlias = str | int | bytes | tuple[bytes]

_NAN: Final = math.nan
_SIMPLE: Final = frozenset({str, int, bytes, bool})
"""Parts of a tuple that are packed as they stand; a float might be a NaN with other bits."""
_MAX_DEPTH: Final = 32


def stored_form(key: Any) -> StoredKey:
    """The form under which state keeps the key. Called once per record; InvalidKeyError if it cannot be a key."""
    kind = type(key)
    if kind is str or kind is int or kind is bytes:
        return key  # type: ignore[no-any-return]
    if kind is tuple and _SIMPLE.issuperset(map(type, key)):
        try:
            return (pack(key),)
        except (OverflowError, UnicodeEncodeError):
            pass  # a part that needs an extension
    plain = _plain(key, key, 0)
    if type(plain) in (str, int, bytes):
        return plain  # type: ignore[no-any-return]
    return (pack(plain),)


def raw_key(stored: StoredKey) -> Any:
    """The key as user code sees it."""
    return _raw(stored[0]) if type(stored) is tuple else stored


def encode_key(stored: StoredKey) -> bytes:
    """The bytes of a key in stored form."""
    if type(stored) is tuple:
        return stored[0]
    try:
        return pack(stored)
    except (OverflowError, UnicodeEncodeError):
        return pack(tagged(stored))


def decode_key(data: bytes | memoryview) -> StoredKey:
    """The stored form of an encoded key; DamagedCheckpointError if no key has these bytes."""
    key = _raw(data)
    return key if type(key) in (str, int, bytes) else (bytes(data),)


def _raw(data: bytes | memoryview) -> Any:
    try:
        return _tuples(unpack(data))
    except DECODE_FAILURES as error:
        raise damaged(data, "a key", error) from None


def _tuples(value: Any) -> Any:
    if type(value) is list:
        return tuple([_tuples(x) for x in value])
    if type(value) in _DECODED:
        return value
    raise ValueError(f"a {type(value).__name__} is no key")


_DECODED: Final = frozenset({str, int, bytes, float, bool, dt.date, dt.datetime, Decimal, UUID})


def _plain(key: Any, whole: Any, depth: int) -> Any:
    """The key, or a part of it, in terms of what `pack` takes; a str, int or bytes at the top stays itself."""
    match key:
        case None:
            what = "None" if key is whole else f"{short(whole)}, which holds None,"
            raise InvalidKeyError(
                f"The key selector returned {what} and None is no key. Return a value for every record, or filter "
                "records without a key out before key_by."
            )
        case bool():
            return key
        case float():
            return _NAN if key != key else float(key)
        case tuple() | Row():
            if depth >= _MAX_DEPTH:
                raise InvalidKeyError(f"The key {short(whole)} is nested deeper than {_MAX_DEPTH} tuples. Flatten it.")
            return [_packable(_plain(x, whole, depth + 1)) for x in values_of(key)]
        case str():
            return str.__str__(key)
        case int():
            return int(key)
        case bytes():
            return bytes(key)
        case dt.datetime():
            return tagged(_instant(key, whole))
        case dt.date():
            return tagged(dt.date(key.year, key.month, key.day))
        case Decimal():
            return tagged(Decimal(key))
        case UUID():
            return tagged(UUID(int=key.int))
        case np.generic() if type(item := key.item()) in (bool, int, float, str, bytes):
            return _plain(item, whole, depth)
    raise InvalidKeyError(_refusal(key, whole))


def _packable(part: Any) -> Any:
    """Msgpack has neither integers beyond 64 bits nor text with lone surrogates."""
    return tagged(part) if type(part) is int or type(part) is str else part


def _instant(key: dt.datetime, whole: Any) -> dt.datetime:
    if key.utcoffset() is not None:
        try:
            key = key.astimezone(dt.UTC)
        except (OverflowError, ValueError):
            raise InvalidKeyError(f"The key {short(whole)} has no instant in UTC within the calendar.") from None
    # A copy of exactly this class; fold does not make another key of a time without zone.
    return dt.datetime(key.year, key.month, key.day, key.hour, key.minute, key.second, key.microsecond, key.tzinfo)


def _refusal(key: Any, whole: Any) -> str:
    kind = type(key)
    inside = "" if key is whole else f" inside of {short(whole)}"
    if isinstance(key, list):
        return f"The key selector returned the list {short(key)}{inside}, which has no hash. Return a tuple of it."
    if isinstance(key, dict | set | bytearray):
        return (
            f"The key selector returned {short(key)} ({kind.__name__}){inside}, which has no hash. "
            "Return a str, an int or a tuple of its parts."
        )
    return (
        f"The key selector returned {short(key)} of class {kind.__module__}.{kind.__qualname__}{inside}, which has no "
        "encoding as a key. Return a str, int, bytes, float, bool, date, datetime, Decimal, UUID or a tuple of such."
    )
