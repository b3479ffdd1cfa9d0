"""Records to Arrow and back are the same records."""

from __future__ import annotations

import datetime as dt
import math
from dataclasses import dataclass
from typing import NamedTuple

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
    assert all(type(r) is type(Row(id="", temperature=0.0, n=0)) for r in back)


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
