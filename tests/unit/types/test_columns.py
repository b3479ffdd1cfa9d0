"""Records to Arrow and back are the same records."""

from __future__ import annotations

import datetime as dt
import enum
import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import TypeMismatchError
from headrace.types.columns import batch_to_columns, batch_to_values, rows_to_batch, schema_of
from headrace.types.information import Types, type_of
from headrace.types.rows import Row

READING = Types.ROW_NAMED(["id", "temperature", "n"], [str, float, int])
ids = st.one_of(st.none(), st.text(st.characters(codec="utf-8")))
doubles = st.one_of(st.none(), st.floats(allow_nan=False))
longs = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1))


def through(t, records):
    batch = rows_to_batch(t, records, schema_of(t))
    assert batch.schema == schema_of(t)
    return batch_to_values(t, batch)


@given(st.lists(st.builds(lambda i, t, n: Row(id=i, temperature=t, n=n), ids, doubles, longs)))
def test_rows_come_back_from_arrow(rows):
    back = through(READING, rows)
    assert back == rows
    assert all(isinstance(r, Row) and type(r).__row_names__ == READING.names for r in back)


def test_nan_is_not_null_and_both_survive():
    back = through(READING, [Row(id="a", temperature=math.nan, n=1), Row(id=None, temperature=None, n=None)])
    assert math.isnan(back[0].temperature)
    assert back[1] == (None, None, None)


def test_whole_numbers_in_a_double_column_come_back_as_floats():
    back = through(READING, [("a", 3, 1)])
    assert back[0].temperature == 3.0
    assert type(back[0].temperature) is float


class Point(NamedTuple):
    x: int
    y: int


@dataclass
class Trip:
    name: str
    points: list[Point]
    seen: dict[str, int]


def test_nested_values_come_back_in_their_own_classes():
    when = dt.datetime(2024, 5, 1, 12, tzinfo=dt.UTC)
    t = Types.ROW_NAMED(
        ["point", "pair", "rows", "counts", "when", "local", "day", "clock", "raw", "letter", "flag", "deep"],
        [
            Point,
            tuple[int, str],
            Types.LIST(Types.ROW_NAMED(["a"], [int])),
            dict[str, list[int]],
            Types.INSTANT(),
            Types.SQL_TIMESTAMP(),
            dt.date,
            dt.time,
            bytes,
            Types.CHAR(),
            bool,
            list[list[float]],
        ],
    )
    row = Row(
        point=Point(1, 2),
        pair=(1, "a"),
        rows=[Row(a=1), None],
        counts={"a": [1], "b": None},
        when=when,
        local=dt.datetime(2024, 5, 1, 1, 2, 3, 456789),
        day=dt.date(2024, 5, 1),
        clock=dt.time(1, 2, 3, 4),
        raw=b"\x00",
        letter="é",
        flag=True,
        deep=[[1.0], []],
    )
    back, nothing = through(t, [row, Row(*[None] * 12)])
    assert back == row
    assert type(back.point) is Point
    assert type(back.pair) is tuple
    assert isinstance(back.rows[0], Row)
    assert back.when.tzinfo is dt.UTC
    assert nothing == (None,) * 12


def test_records_of_a_users_class_come_back_as_that_class():
    trips = [Trip("a", [Point(1, 2)], {"x": 1}), Trip("b", [], {})]
    assert through(type_of(Trip), trips) == trips
    assert through(type_of(Point), [Point(1, 2)]) == [Point(1, 2)]
    assert type(through(type_of(Point), [Point(1, 2)])[0]) is Point


@pytest.mark.parametrize(
    ("t", "values"),
    [
        (Types.STRING(), ["a", None]),
        (Types.LONG(), [1, 2]),
        (Types.LIST(int), [[1], []]),
        (Types.BOOLEAN(), [True]),
        (Types.TUPLE([int, str]), [(1, "a"), (2, None)]),
    ],
)
def test_bare_values_and_tuples_travel_too(t, values):
    assert through(t, values) == values
    assert type(through(t, values)[0]) is type(values[0])


def test_an_empty_batch_is_fine():
    assert through(READING, []) == []
    assert through(type_of(Trip), []) == []


def test_types_that_travel_as_objects_have_no_schema():
    assert schema_of(Types.ROW([int, Types.ANY()])) is None
    assert schema_of(Types.PICKLED_BYTE_ARRAY()) is None
    assert schema_of(Types.ROW([])) is None


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (("a", "hot", 1), "field \"temperature\": 'hot' \\(str\\) is no DOUBLE"),
        (("a", True, 1), 'field "temperature": True'),
        (("a", 1.0, 2**63), 'field "n": 9223372036854775808'),
        (("a", 1.0, 1.0), 'field "n": 1.0'),
        ((b"a", 1.0, 1), "field \"id\": b'a'"),
        (("\ud800", 1.0, 1), 'field "id"'),
        (("a", 2**53 + 1, 1), 'field "temperature": 9007199254740993'),
        (("a", 1.0), "has 2 fields instead of 3"),
        (("a", 1.0, 1, 2), "has 4 fields instead of 3"),
        (Row(temperature=1.0, id="a", n=1), "has the fields temperature, id, n"),
        (None, "None is no record"),
        (5, "5 \\(int\\)"),
    ],
)
def test_a_record_that_does_not_fit_is_named_with_field_and_value(row, message):
    for rows in ([row], [("a", 1.0, 1), row, ("b", 2.0, 2)]):
        with pytest.raises(TypeMismatchError, match=message):
            rows_to_batch(READING, rows, schema_of(READING))


@pytest.mark.parametrize(
    ("t", "value"),
    [
        (Types.BYTE(), 128),
        (Types.FLOAT(), 1e300),
        (Types.CHAR(), "ab"),
        (Types.SQL_DATE(), dt.datetime(2024, 1, 1)),
        (Types.SQL_TIMESTAMP(), dt.datetime(2024, 1, 1, tzinfo=dt.UTC)),
        (Types.INSTANT(), dt.datetime(2024, 1, 1)),
        (Types.LIST(int), ["a"]),
        (Types.MAP(str, int), {1: 1}),
        (type_of(Point), Trip("", [], {})),
    ],
)
def test_what_arrow_would_bend_silently_is_refused(t, value):
    with pytest.raises(TypeMismatchError):
        rows_to_batch(t, [value], schema_of(t))


def test_infinity_is_a_legal_float():
    assert through(Types.FLOAT(), [math.inf, 1.5, -math.inf]) == [math.inf, 1.5, -math.inf]


def test_columns_of_foreign_batches_become_plain_python():
    batch = pa.RecordBatch.from_pydict(
        {
            "word": pa.array(["a", "b", "a"]).dictionary_encode(),
            "when": pa.array([1, None, 3_000], pa.timestamp("ns")),
            "place": pa.array([{"x": 1}, None, {"x": 2}], pa.struct([("x", pa.int8())])),
            "tags": pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int64())),
            "n": pa.array([1, None, 3], pa.int16()),
        }
    )
    word, when, place, tags, n = batch_to_columns(batch)
    assert word == ["a", "b", "a"]
    assert when == [dt.datetime(1970, 1, 1), None, dt.datetime(1970, 1, 1, 0, 0, 0, 3)]
    assert place == [Row(x=1), None, Row(x=2)]
    assert place[0].x == 1
    assert tags == [{"k": 1}, {}, None]
    assert n == [1, None, 3]


def test_a_slice_of_a_batch_gives_its_own_rows_only():
    batch = rows_to_batch(READING, [("a", 1.0, 1), ("b", None, 2), ("c", 3.0, 3)], schema_of(READING))
    assert batch_to_values(READING, batch.slice(1, 2)) == [("b", None, 2), ("c", 3.0, 3)]


def nullable(values):
    return st.lists(st.one_of(st.none(), values), max_size=8)


@given(
    nullable(st.datetimes(timezones=st.timezones())),
    nullable(st.datetimes()),
    nullable(st.dates()),
    nullable(st.times()),
)
def test_dates_and_times_of_the_whole_calendar_come_back(instants, local, days, clocks):
    instants = [None if i is None or not 1 < i.year < 9999 else i for i in instants]
    back = through(Types.INSTANT(), instants)
    # In UTC: a time that the clocks skip equals none in another zone.
    assert back == [None if i is None else i.astimezone(dt.UTC) for i in instants]
    assert all(i is None or i.tzinfo is dt.UTC for i in back)
    assert through(Types.SQL_TIMESTAMP(), local) == local
    back = through(Types.SQL_DATE(), days)
    assert back == days
    assert all(d is None or type(d) is dt.date for d in back)
    assert through(Types.SQL_TIME(), clocks) == clocks


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_timestamps_of_any_unit_and_zone_are_datetimes(unit):
    second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    numbers = [-second, None, 0, 86_400 * second]
    moments = [dt.datetime(1969, 12, 31, 23, 59, 59), None, dt.datetime(1970, 1, 1), dt.datetime(1970, 1, 2)]
    in_utc = [None if m is None else m.replace(tzinfo=dt.UTC) for m in moments]
    batch = pa.record_batch(
        {"local": pa.array(numbers, pa.timestamp(unit)), "zoned": pa.array(numbers, pa.timestamp(unit, "Asia/Tokyo"))}
    )
    local, zoned = batch_to_columns(batch)
    assert local == moments
    assert zoned == in_utc
    assert batch_to_columns(batch.slice(2)) == [moments[2:], in_utc[2:]]


def test_rows_of_the_stream_rows_of_the_program_and_tuples_mix_in_a_batch():
    made = READING.make()(("a", 1.0, 1))
    records = [made, Row(id="b", temperature=2.0, n=2), Row("c", 3.0, 3), ("d", 4.0, 4)]
    expected = [("a", 1.0, 1), ("b", 2.0, 2), ("c", 3.0, 3), ("d", 4.0, 4)]
    assert through(READING, records) == expected
    assert through(READING, records[:2]) == expected[:2]
    assert through(Types.TUPLE([str, float, int]), records) == expected


def test_fields_whose_names_are_no_attributes_travel_too():
    t = Types.ROW_NAMED(["a.b", "two words", "__class__", "count"], [int, int, int, int])
    (back,) = through(t, through(t, [(1, 2, 3, 4)]))
    assert [back[name] for name in t.names] == [1, 2, 3, 4]


def test_records_of_a_class_with_keyword_fields_are_made_from_columns():
    @dataclass(kw_only=True)
    class Pair:
        a: int
        b: str

    records = [Pair(a=1, b="x"), Pair(a=2, b="y")]
    assert through(type_of(Pair), records) == records


class Word(str):
    """A str to isinstance."""


class Flag(enum.IntEnum):
    UP = 1


strays = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.sampled_from([2**53 + 1, -(2**63), 2**63, Flag.UP, Word("w"), "\ud800", math.nan, math.inf]),
    st.floats(),
    st.text(max_size=3),
    st.binary(max_size=3),
    st.decimals(allow_nan=False, places=2),
    st.dates(),
    st.integers(-(2**31), 2**31 - 1).map(np.int32),
    st.integers(-(2**63), 2**63 - 1).map(np.int64),
    st.floats(width=32).map(np.float32),
    st.floats().map(np.float64),
    st.booleans().map(np.bool_),
    st.tuples(st.integers()),
    st.lists(st.integers(), max_size=2),
)
like = {
    "STRING": st.text(st.characters(codec="utf-8"), max_size=3),
    "LONG": st.integers(-(2**63), 2**63 - 1),
    "INT": st.integers(-(2**31), 2**31 - 1),
    "DOUBLE": st.floats(),
    "BOOLEAN": st.booleans(),
}


@pytest.mark.parametrize("name", like)
@given(st.data())
def test_a_column_takes_exactly_the_values_that_fit_in_whatever_company(name, data):
    t = getattr(Types, name)()
    values = data.draw(st.lists(st.one_of(like[name], st.none(), strays), max_size=6))
    # Arrow refuses every integer beyond 53 bits as a double, also those that would be exact.
    too_long = name == "DOUBLE" and any(isinstance(v, int | np.integer) and abs(int(v)) > 2**53 for v in values)
    if too_long or any(t.misfit(v) is not None for v in values):
        with pytest.raises(TypeMismatchError):
            rows_to_batch(t, values, schema_of(t))
        return
    for back, value in zip(through(t, values), values, strict=True):
        assert back == value or (value != value and back != back)
        assert value is None or type(back) in (str, int, float, bool)
