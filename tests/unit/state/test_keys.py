"""Keys: what may be one, what stays distinct, and that every key comes back."""

from __future__ import annotations

import datetime as dt
import math
import unicodedata
from decimal import Decimal
from enum import Enum, StrEnum
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import DamagedCheckpointError, InvalidKeyError
from headrace.state.keys import decode_key, encode_key, raw_key, stored_form
from headrace.types.rows import Row

scalars = st.one_of(
    st.text(),
    st.integers(),
    st.binary(),
    st.floats(),
    st.booleans(),
    st.dates(),
    st.datetimes(),
    st.uuids(),
    st.decimals(allow_nan=False),
    st.datetimes(dt.datetime(2, 1, 1), dt.datetime(9998, 1, 1), timezones=st.just(dt.UTC)),
)
keys = st.recursive(scalars, lambda k: st.lists(k, max_size=4).map(tuple), max_leaves=8)


def identity(key: Any) -> Any:
    """What tells keys apart, written without the encoding: classes, and floats by bits."""
    if isinstance(key, tuple):
        return ("tuple", *map(identity, key))
    if isinstance(key, float):
        return ("float", "nan" if math.isnan(key) else key.hex())
    return (type(key).__name__, str(key) if isinstance(key, Decimal) else key)


@given(keys)
def test_a_key_comes_back_from_stored_form_and_from_bytes(key):
    stored = stored_form(key)
    assert identity(raw_key(stored)) == identity(key)
    again = decode_key(encode_key(stored))
    assert again == stored
    assert type(again) is type(stored)
    assert decode_key(memoryview(encode_key(stored))) == stored
    hash(stored)


@given(keys, keys)
def test_two_keys_share_bytes_and_stored_form_only_if_they_are_one_key(a, b):
    one = identity(a) == identity(b)
    assert (encode_key(stored_form(a)) == encode_key(stored_form(b))) == one
    assert (stored_form(a) == stored_form(b)) == one


@given(keys, keys)
def test_no_encoding_is_the_beginning_of_another(a, b):
    x, y = encode_key(stored_form(a)), encode_key(stored_form(b))
    assert x == y or not y.startswith(x)


def test_keys_that_look_alike_are_different_keys_in_one_dictionary():
    alike = [
        1,
        "1",
        1.0,
        True,
        b"1",
        (1,),
        ("1",),
        (1.0,),
        (True,),
        Decimal(1),
        Decimal("1.0"),
        0,
        0.0,
        -0.0,
        False,
        "",
        b"",
        (),
        ((),),
        unicodedata.normalize("NFC", "é"),
        unicodedata.normalize("NFD", "é"),
        math.nan,
        dt.date(2024, 1, 1),
        dt.datetime(2024, 1, 1),
        dt.datetime(2024, 1, 1, tzinfo=dt.UTC),
        "2024-01-01",
        UUID(int=0),
        UUID(int=0).bytes,
        2**64,
        float(2**64),
        2**63,
        -(2**63),
        ("a", ("b",)),
        (("a",), "b"),
    ]
    table = {stored_form(k): k for k in alike}
    assert len(table) == len(alike)
    assert len({encode_key(k) for k in table}) == len(alike)
    assert all(identity(raw_key(s)) == identity(k) for s, k in table.items())


def test_every_nan_is_one_key():
    negative = -math.nan
    assert stored_form(math.nan) == stored_form(negative) == stored_form(np.float64("nan"))
    assert stored_form((1, math.nan)) == stored_form((1, float("nan")))


def test_plain_text_numbers_and_bytes_are_kept_as_they_are():
    for key in ("a", 7, b"x", 2**100):
        assert stored_form(key) is key


class Suit(StrEnum):
    HEARTS = "hearts"


class Point(NamedTuple):
    x: int
    y: str


@pytest.mark.parametrize(
    ("key", "plain"),
    [
        (Point(1, "a"), (1, "a")),
        (Row(id="a", n=2), ("a", 2)),
        (Row("a", Row(1)), ("a", (1,))),
        (Suit.HEARTS, "hearts"),
        (np.int64(5), 5),
        (np.float64(1.5), 1.5),
        (np.str_("a"), "a"),
        (np.bool_(True), True),
        ((Suit.HEARTS, np.int32(1)), ("hearts", 1)),
        (dt.datetime(2024, 7, 1, 14, tzinfo=ZoneInfo("Europe/Berlin")), dt.datetime(2024, 7, 1, 12, tzinfo=dt.UTC)),
        (dt.datetime(2024, 7, 1, fold=1), dt.datetime(2024, 7, 1)),
    ],
)
def test_richer_objects_are_the_key_of_their_plain_value(key, plain):
    assert stored_form(key) == stored_form(plain)
    assert identity(raw_key(stored_form(key))) == identity(plain)


class Colour(Enum):
    RED = 1


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (None, "None is no key"),
        (("a", None), "holds None"),
        ([1], "Return a tuple"),
        ({"a": 1}, "has no hash"),
        ({1}, "has no hash"),
        (("a", [1]), r"inside of \('a', \[1\]\)"),
        (bytearray(b"a"), "has no hash"),
        (Colour.RED, "Colour"),
        (..., "no encoding"),
        (frozenset({1}), "no encoding"),
        (complex(1), "no encoding"),
        (np.array([1]), "no encoding"),
        (np.datetime64("2024-01-01"), "no encoding"),
        (dt.datetime.max.replace(tzinfo=dt.timezone(-dt.timedelta(1) / 2)), "UTC"),
    ],
    ids=lambda v: ascii(v)[:30],
)
def test_what_cannot_be_a_key_is_refused_with_what_to_return_instead(key, message):
    with pytest.raises(InvalidKeyError, match=message):
        stored_form(key)


def test_a_key_nested_without_end_is_refused():
    key: Any = ()
    for _ in range(100_000):
        key = (key,)
    with pytest.raises(InvalidKeyError, match="Flatten"):
        stored_form(key)


@pytest.mark.parametrize(
    "key",
    ["x" * 65_536, b"x" * 65_536, "é" * 65_536, 1 << 524_288, ("x" * 65_536, 1), (1,) * 65_536],
    ids=["str", "bytes", "two-byte str", "int", "tuple", "wide tuple"],
)
def test_a_key_of_64_kib_works(key):
    stored = stored_form(key)
    assert raw_key(stored) == key
    assert decode_key(encode_key(stored)) == stored


@given(st.binary(max_size=48))
def test_bytes_that_are_no_key_are_named_as_damage(data):
    try:
        stored = decode_key(data)
    except DamagedCheckpointError:
        return
    raw_key(stored)


@pytest.mark.parametrize(
    "data", [b"", b"\xc0", b"\x91\xc0", b"\x80", b"\xdd\xff\xff\xff\xff", b"\xd5\x02\x91\x01", b"\x91" * 99_999]
)
def test_crafted_key_damage_is_a_typed_error(data):
    with pytest.raises(DamagedCheckpointError, match="a key"):
        decode_key(data)
