"""Codecs: what is stored comes back the same, what does not fit is refused, damage is named."""

from __future__ import annotations

import datetime as dt
import math
import pickle
import struct
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from enum import IntEnum
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import DamagedCheckpointError, TypeMismatchError
from headrace.state.codecs import codec_for
from headrace.types.information import Types, type_of
from headrace.types.rows import Row

text = st.text(st.characters(codec="utf-8"))
zones = st.one_of(
    st.none(),
    st.just(dt.UTC),
    st.sampled_from([ZoneInfo("Europe/Berlin"), ZoneInfo("UTC"), ZoneInfo("America/New_York")]),
    st.integers(-86399, 86399).map(lambda s: dt.timezone(dt.timedelta(seconds=s))),
)
inner = st.datetimes(dt.datetime(2, 1, 1), dt.datetime(9998, 1, 1), timezones=zones)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.binary(),
    inner,
    st.dates(),
    st.times(timezones=zones),
    st.timedeltas(),
    st.decimals(),
    st.uuids(),
    st.complex_numbers(),
    st.binary().map(bytearray),
)
keys = st.one_of(st.none(), st.booleans(), st.integers(), st.text(), st.binary(), st.dates(), st.uuids())
hashables = st.recursive(keys, lambda x: st.one_of(st.lists(x, max_size=3).map(tuple), st.frozensets(x, max_size=3)))
plain = st.recursive(
    scalars,
    lambda x: st.one_of(
        st.lists(x, max_size=4),
        st.lists(x, max_size=4).map(tuple),
        st.dictionaries(hashables, x, max_size=4),
        st.sets(hashables, max_size=4),
        st.frozensets(hashables, max_size=4),
        st.lists(x, min_size=1, max_size=3).map(lambda v: Row(**{f"c{i}": e for i, e in enumerate(v)})),
    ),
    max_leaves=12,
)


def same(a: Any, b: Any) -> bool:
    """Equal, of the same classes throughout, floats by their bits (any NaN for any NaN)."""
    if isinstance(a, Row) and isinstance(b, Row):
        return type(a).__row_names__ == type(b).__row_names__ and all(map(same, a, b))
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return struct.pack("d", a) == struct.pack("d", b) or (math.isnan(a) and math.isnan(b))
    if isinstance(a, complex):
        return same(a.real, b.real) and same(a.imag, b.imag)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a.items(), b.items(), strict=True))
    if isinstance(a, set | frozenset):
        return a == b and sorted(map(repr_key, a)) == sorted(map(repr_key, b))
    if isinstance(a, dt.datetime | dt.time):
        return repr(a) == repr(b) and a.fold == b.fold
    if isinstance(a, Decimal):
        return str(a) == str(b)
    return bool(a == b)


def repr_key(value: Any) -> str:
    if isinstance(value, frozenset):
        return f"frozenset({sorted(map(repr_key, value))})"
    if isinstance(value, tuple | Row):
        return f"({', '.join(map(repr_key, value))})"
    return repr(value)


def through(t, value):
    codec = codec_for(t)
    data = codec.encode(value)
    assert type(data) is bytes
    back = codec.decode(data)
    assert same(codec.decode(memoryview(data)), back)
    return back


@given(plain)
def test_any_plain_value_comes_back_with_all_its_types(value):
    assert same(through(Types.ANY(), value), value)


@given(plain)
def test_plain_values_inside_of_rows_and_lists_come_back_too(value):
    back = through(Types.ROW_NAMED(["a", "b"], [Types.ANY(), Types.LIST(Types.ANY())]), Row(a=value, b=[value, 1]))
    assert same(back, Row(a=value, b=[value, 1]))


@pytest.mark.parametrize(
    "value",
    [
        1,
        1.0,
        True,
        "1",
        b"1",
        (1,),
        [1],
        {1},
        frozenset({1}),
        {1: 1},
        2**64,
        -(2**63) - 1,
        "\ud800x",
        -0.0,
        math.nan,
        ((),),
        [()],
        ([],),
        {(1, (2,)): [3]},
        {2**70: 1},
        {"\ud800": 1},
        {1.5: 2, None: 3},
        list(range(70_000)),
        dt.datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")),
        UUID(int=5),
        Decimal("1.500"),
        {"a": {"b": {"c": (1, 2, {"d"})}}},
        Row(count=1, index=2),
    ],
    ids=lambda v: ascii(v)[:40],
)
def test_values_that_look_alike_stay_what_they_are(value):
    assert same(through(Types.ANY(), value), value)


def test_equal_sets_have_equal_bytes():
    encode = codec_for(Types.ANY()).encode
    # 0 and 8 fall into one place of a small hash table, so the two sets iterate in different order.
    one, other = {0, 8}, {8, 0}
    assert list(one) != list(other)
    assert encode(one) == encode(other)


class Colour(IntEnum):
    RED = 1


class Point(NamedTuple):
    x: int
    y: int


@dataclass
class Trip:
    name: str
    points: list[Point]
    best: float | None = None


@dataclass(frozen=True, kw_only=True)
class Setting:
    a: int
    b: str = field(default="x")


@dataclass
class One:
    only: int


@pytest.mark.parametrize(
    "value",
    [object(), Colour.RED, Point(1, 2), [Point(1, 2)], {"a": object()}, np.float64(1.0), Trip("a", []), range(3)],
)
def test_a_value_that_is_not_plain_is_refused_with_the_way_out(value):
    with pytest.raises(TypeMismatchError, match="PICKLED_BYTE_ARRAY"):
        codec_for(Types.ANY()).encode(value)


def test_a_value_that_holds_itself_is_refused():
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(TypeMismatchError, match="holds itself"):
        codec_for(Types.ANY()).encode(loop)


def nullable(values):
    return st.one_of(st.none(), values)


def unfolded(values):
    """SQL's times have no second reading of an hour, and an instant needs none."""
    return values.map(lambda v: v.replace(fold=0))


TYPED = [
    (Types.STRING(), text),
    (Types.BYTE(), st.integers(-128, 127)),
    (Types.SHORT(), st.integers(-(2**15), 2**15 - 1)),
    (Types.INT(), st.integers(-(2**31), 2**31 - 1)),
    (Types.LONG(), st.integers(-(2**63), 2**63 - 1)),
    (Types.FLOAT(), st.floats(width=32)),
    (Types.DOUBLE(), st.floats()),
    (Types.BOOLEAN(), st.booleans()),
    (Types.CHAR(), st.characters(codec="utf-8")),
    (Types.BIG_INT(), st.integers()),
    (Types.BIG_DEC(), st.decimals()),
    (Types.INSTANT(), unfolded(st.datetimes(timezones=st.just(dt.UTC)))),
    (Types.SQL_DATE(), st.dates()),
    (Types.SQL_TIME(), unfolded(st.times())),
    (Types.SQL_TIMESTAMP(), unfolded(st.datetimes())),
    (type_of(bytes), st.binary()),
    (Types.LIST(float), st.lists(nullable(st.floats()))),
    (Types.LIST(int), st.lists(nullable(st.integers(-(2**63), 2**63 - 1)))),
    (Types.LIST(str), st.lists(text)),
    (
        Types.TUPLE([list[int], Types.LIST(Types.INT())]),
        st.tuples(st.lists(st.integers(0, 9)), st.lists(st.just(2**31 - 1))),
    ),
    (Types.LIST(Types.BIG_INT()), st.lists(nullable(st.integers()))),
    (Types.MAP(str, int), st.dictionaries(text, nullable(st.integers(-9, 9)))),
    (Types.MAP(tuple[int, str], list[int]), st.dictionaries(st.tuples(st.integers(0, 9), text), st.lists(st.just(1)))),
    (Types.MAP(Types.SQL_DATE(), Types.BIG_DEC()), st.dictionaries(st.dates(), st.decimals())),
    (Types.TUPLE([int, str]), st.tuples(nullable(st.integers(0, 9)), nullable(text))),
    (Types.TUPLE([]), st.just(())),
    (Types.ROW_NAMED(["id", "t"], [str, float]), st.builds(lambda i, t: Row(id=i, t=t), nullable(text), st.floats())),
    (Types.ROW_NAMED(["p", "d"], [Point, dt.date]), st.builds(lambda d: Row(p=Point(1, 2), d=d), nullable(st.dates()))),
    (type_of(Point), st.builds(Point, st.integers(0, 9), st.integers(0, 9))),
    (type_of(Trip), st.builds(Trip, text, st.lists(st.just(Point(3, 4))), nullable(st.floats(allow_nan=False)))),
    (type_of(Setting), st.builds(Setting, a=st.integers(0, 9), b=text)),
    (type_of(One), st.builds(One, st.integers(0, 9))),
    (Types.PICKLED_BYTE_ARRAY(), st.sampled_from([Colour.RED, Point(1, 2), {1}, int])),
    (Types.ROW([Types.PICKLED_BYTE_ARRAY(), int]), st.just(Row(Colour.RED, 1))),
]


@pytest.mark.parametrize(("t", "values"), TYPED, ids=lambda x: str(x)[:50])
def test_every_typed_value_and_none_comes_back(t, values):
    @given(nullable(values))
    def round_trip(value):
        assert same(through(t, value), value)

    round_trip()


def test_a_tuple_stored_as_a_row_comes_back_as_a_row():
    back = through(Types.ROW_NAMED(["id", "t"], [str, float]), ("a", 1.0))
    assert (back.id, back.t) == ("a", 1.0)


def test_numbers_of_other_classes_are_stored_as_the_declared_type():
    assert same(through(Types.DOUBLE(), 3), 3.0)
    assert same(through(Types.DOUBLE(), np.float32(1.5)), 1.5)
    assert same(through(Types.LONG(), np.int64(3)), 3)
    assert same(through(Types.LONG(), Colour.RED), 1)


def test_a_moment_of_a_class_of_its_own_is_stored_as_a_datetime():
    class Moment(dt.datetime):
        def astimezone(self, tz=None):
            return self

    moment = Moment(2024, 1, 2, 3, 4, 5, 678, tzinfo=dt.UTC)
    assert same(through(Types.INSTANT(), moment), dt.datetime(2024, 1, 2, 3, 4, 5, 678, tzinfo=dt.UTC))


@pytest.mark.parametrize(
    ("t", "value"),
    [
        (Types.DOUBLE(), "1"),
        (Types.DOUBLE(), True),
        (Types.LONG(), 2**63),
        (Types.LONG(), 1.0),
        (Types.INT(), 2**31),
        (Types.STRING(), b"a"),
        (Types.STRING(), "\ud800"),
        (Types.BOOLEAN(), 1),
        (Types.CHAR(), "ab"),
        (Types.FLOAT(), 1e39),
        (Types.ROW([str, float]), Row(1, 1.0)),
        (Types.ROW([str, float]), ("a",)),
        (Types.ROW([str]), ("\ud800",)),
        (Types.ROW_NAMED(["a", "b"], [int, int]), Row(b=1, a=2)),
        (Types.ROW([int]), (2**63,)),
        (Types.TUPLE([int]), [1]),
        (Types.TUPLE([int, int]), (1, 2, 3)),
        (Types.LIST(int), (1,)),
        (Types.LIST(int), [1, 2**63]),
        (Types.LIST(Types.BYTE()), [0, 128]),
        (Types.LIST(str), ["\ud800"]),
        (Types.LIST(int), ["a"]),
        (type_of(Trip), ("a", [], 1.0)),
        (Types.MAP(str, int), {1: 1}),
        (Types.INSTANT(), dt.datetime(2024, 1, 1)),
        (type_of(Point), (1, "a")),
    ],
    ids=lambda x: ascii(x)[:40],
)
def test_a_value_that_does_not_fit_is_refused_and_never_written(t, value):
    with pytest.raises(TypeMismatchError):
        codec_for(t).encode(value)


def test_an_object_that_cannot_be_pickled_is_refused():
    with pytest.raises(TypeMismatchError, match="cannot be pickled"):
        codec_for(Types.PICKLED_BYTE_ARRAY()).encode(lambda: 1)


def test_codecs_are_shared_and_know_their_name_and_mutability():
    assert codec_for(Types.LIST(int)) is codec_for(Types.LIST(Types.LONG()))
    assert codec_for(type_of(Point)) is not codec_for(Types.ROW_NAMED(["x", "y"], [int, int]))
    assert (codec_for(Types.DOUBLE()).name, codec_for(Types.ROW([Types.PICKLED_BYTE_ARRAY()])).name) == (
        "msgpack",
        "pickle",
    )
    assert codec_for(Types.DOUBLE()).immutable
    assert not codec_for(Types.ANY()).immutable


HOSTILE_TYPES = [t for t, _ in TYPED if t.codec_name != "pickle"] + [Types.ANY(), Types.LIST(Types.ANY())]


@pytest.mark.parametrize("t", HOSTILE_TYPES, ids=lambda t: str(t)[:50])
def test_bytes_that_nobody_wrote_decode_to_something_or_are_named_as_damage(t):
    decode = codec_for(t).decode

    @given(st.binary(max_size=64))
    def attempt(data):
        with suppress(DamagedCheckpointError):
            decode(data)

    attempt()


@given(plain, st.data())
def test_a_value_with_a_flipped_byte_or_a_cut_end_never_raises_anything_else(value, data):
    good = codec_for(Types.ANY()).encode(value)
    at = data.draw(st.integers(0, len(good) - 1))
    bad = bytearray(good)
    bad[at] ^= data.draw(st.integers(1, 255))
    for damaged in (bytes(bad), good[:at]):
        with suppress(DamagedCheckpointError):
            codec_for(Types.ANY()).decode(damaged)


ext = msgspec.msgpack.Ext
pack = msgspec.msgpack.encode


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xc9\xff\xff\xff\xff\x02",
        b"\x91" * 100_000,
        b"\x01\x01",
        pack(ext(99, b"")),
        pack(ext(2, b"\xdd\xff\xff\xff\xff")),
        pack(ext(2, b"\x01")),
        pack(ext(3, b"\x91\x91\x01")),
        pack(ext(5, b"\x93\x01\x02\x03")),
        pack(ext(6, b"\x91\x91\x01")),
        pack(ext(6, pack([["a", "a"], 1, 2]))),
        pack(ext(7, b"\x01")),
        pack(ext(7, pack(["2024-01-01", 0, [""]]))),
        pack(ext(7, pack(["2024-01-01", 0, ["../../etc/passwd"]]))),
        pack(ext(7, pack(["2024-01-01", 7, None]))),
        pack(ext(7, pack(["2024-01-01", 0, ["Europe"]]))),
        pack(ext(8, b"x")),
        pack(ext(11, b"x")),
        pack(ext(12, b"x")),
        pack(ext(10, pack([10**18, 0, 0]))),
        pack(ext(15, b"\xff")),
    ],
    ids=lambda d: d[:12].hex(),
)
def test_crafted_damage_is_a_typed_error(data):
    with pytest.raises(DamagedCheckpointError, match="Restore from another checkpoint"):
        codec_for(Types.ANY()).decode(data)


def test_a_claimed_length_is_not_believed_before_the_bytes_are_there():
    program = """
import resource
from headrace.errors import DamagedCheckpointError
from headrace.state.codecs import codec_for
from headrace.types.information import Types
codecs = [codec_for(t) for t in (Types.ANY(), Types.LIST(int), Types.TUPLE([int, int]), Types.MAP(str, list[int]))]
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 64 * 2**20, used + 64 * 2**20))
for codec in codecs:
    for head in (b"\\xdd", b"\\x92\\x01\\xdd", b"\\x81\\xa1a\\xdd", b"\\xdf", b"\\xdb", b"\\xc6", b"\\xc9"):
        try:
            codec.decode(head + b"\\x7f\\xff\\xff\\xff" + b"\\x01" * 100)
        except DamagedCheckpointError as error:
            assert "truncated" in str(error) or "Expected" in str(error), error
        else:
            raise SystemExit("decoded")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_damaged_pickle_is_a_typed_error():
    good = pickle.dumps(Colour.RED)
    for bad in (b"", good[:-3], b"\x80\x05garbage"):
        with pytest.raises(DamagedCheckpointError):
            codec_for(Types.PICKLED_BYTE_ARRAY()).decode(bad)


def test_state_bytes_keep_their_written_form():
    """Golden bytes: a checkpoint of today must be read by every later version."""
    golden = {
        (Types.DOUBLE(), 1.5): "cb3ff8000000000000",
        (Types.LONG(), 300): "cd012c",
        (Types.STRING(), "é"): "a2c3a9",
        (Types.BIG_INT(), 2**64): "c409010000000000000000",
        (Types.ROW([str, int]), Row("a", 1)): "92a16101",
        (Types.ANY(), (1, "a")): "d60292" + "01a161",
        (Types.ANY(), 2**64): "c70901010000000000000000",
        (Types.ANY(), dt.date(2024, 1, 2)): "c70a08323032342d30312d3032",
        (Types.ANY(), UUID(int=1)): "d80c00000000000000000000000000000001",
        (Types.ANY(), Decimal("1.50")): "d60b312e3530",
    }
    for (t, value), text in golden.items():
        assert codec_for(t).encode(value).hex() == text, (str(t), value)
        assert same(codec_for(t).decode(bytes.fromhex(text)), value)


def test_a_row_is_written_alike_whoever_made_it():
    """Rows from a typed stream, rows of the program and tuples are one value, and come back as rows of the stream."""
    for t in (Types.ROW_NAMED(["id", "n"], [str, int]), Types.ROW_NAMED(["id", "n"], [str, Types.ANY()])):
        codec = codec_for(t)
        written = {codec.encode(v) for v in (t.make()(("a", 1)), Row(id="a", n=1), Row("a", 1), ("a", 1))}
        assert len(written) == 1
        back = codec.decode(written.pop())
        assert back == Row(id="a", n=1)
        assert type(back) is t.value_class
