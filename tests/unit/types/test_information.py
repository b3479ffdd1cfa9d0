"""Types: their text, what fits them, and what programs may write in their place."""

from __future__ import annotations

import datetime as dt
import pickle
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple, Optional

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark import cloudpickle

from headrace.errors import JobDefinitionError, TypeMismatchError, UnsupportedFormatError
from headrace.types.information import RowType, TypeInformation, Types, parse, type_of
from headrace.types.rows import Row

BASIC = [
    Types.STRING(),
    Types.BYTE(),
    Types.BOOLEAN(),
    Types.SHORT(),
    Types.INT(),
    Types.LONG(),
    Types.FLOAT(),
    Types.DOUBLE(),
    Types.CHAR(),
    Types.BIG_INT(),
    Types.BIG_DEC(),
    Types.INSTANT(),
    Types.SQL_DATE(),
    Types.SQL_TIME(),
    Types.SQL_TIMESTAMP(),
    Types.PICKLED_BYTE_ARRAY(),
    Types.ANY(),
]
names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)


def composed(parts: st.SearchStrategy[TypeInformation]) -> st.SearchStrategy[TypeInformation]:
    lists = st.lists(parts, max_size=4)
    return st.one_of(
        parts.map(Types.LIST),
        parts.map(Types.PRIMITIVE_ARRAY),
        parts.map(Types.BASIC_ARRAY),
        parts.map(Types.OBJECT_ARRAY),
        st.builds(Types.MAP, parts, parts),
        lists.map(Types.TUPLE),
        lists.map(Types.ROW),
        st.dictionaries(names, parts, max_size=4).map(lambda d: Types.ROW_NAMED(list(d), list(d.values()))),
    )


any_type = st.recursive(st.sampled_from(BASIC), composed, max_leaves=12)


@dataclass(frozen=True)
class Reading:
    id: str
    temperature: float | None
    tags: list[str]


class Point(NamedTuple):
    x: int
    y: int


def test_the_text_of_a_type_is_canonical():
    row = Types.ROW_NAMED(["id", "temperature"], [Types.STRING(), Types.DOUBLE()])
    assert str(row) == "ROW<id STRING, temperature DOUBLE>"
    assert str(Types.TUPLE([Types.LONG(), Types.STRING()])) == "TUPLE<LONG, STRING>"
    assert str(Types.MAP(str, list[int])) == "MAP<STRING, LIST<LONG>>"
    assert str(Types.PICKLED_BYTE_ARRAY()) == "PICKLED"
    assert str(Types.PRIMITIVE_ARRAY(Types.BYTE())) == "PRIMITIVE_ARRAY<BYTE>"
    assert str(Types.ROW_NAMED(["two words", "a`b"], [int, int])) == "ROW<`two words` LONG, `a``b` LONG>"


@given(any_type)
def test_every_type_is_read_back_from_its_text_and_from_a_pickle(t):
    assert parse(str(t)) == t
    assert hash(parse(str(t))) == hash(t)
    assert pickle.loads(pickle.dumps(t)) == t
    assert pickle.loads(cloudpickle.dumps(t)) == t
    assert t.codec_name == ("pickle" if "PICKLED" in [x.name for x in leaves(t)] else "msgpack")


def leaves(t: Any) -> list[Any]:
    if hasattr(t, "name"):
        return [t]
    parts = getattr(t, "types", None) or [getattr(t, a) for a in ("element", "key", "value") if hasattr(t, a)]
    return [leaf for part in parts for leaf in leaves(part)]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "DOUBLES",
        "LIST",
        "LIST<",
        "LIST<LONG",
        "LIST<LONG>>",
        "MAP<LONG>",
        "ROW<id>",
        "ROW<a LONG, a LONG>",
        "a.b.C",
        "LONG LONG",
        "ROW<`a LONG>",
        "<",
        "LIST<>",
        "TUPLE<LONG,>",
        "LIST<" * 500 + "LONG" + ">" * 500,
        "é",
        "ROW<`` LONG>",
    ],
)
def test_unknown_text_in_metadata_is_refused(text):
    with pytest.raises(UnsupportedFormatError):
        parse(text)


@given(st.text(max_size=40))
def test_arbitrary_text_is_a_type_or_refused(text):
    with suppress(UnsupportedFormatError):
        assert isinstance(parse(text), TypeInformation)


FITTING = [
    (Types.STRING(), ["", "é", None]),
    (Types.BYTE(), [-128, 127, 0, np.int8(3)]),
    (Types.SHORT(), [-(2**15), 2**15 - 1]),
    (Types.INT(), [-(2**31), 2**31 - 1]),
    (Types.LONG(), [-(2**63), 2**63 - 1, np.int64(7)]),
    (Types.FLOAT(), [1.5, 3, float("nan"), float("inf"), np.float32(2.5)]),
    (Types.DOUBLE(), [1.5, 3, float("nan"), -0.0, 2**60, np.float64(2.5), np.float32("nan"), None]),
    (Types.BOOLEAN(), [True, False, None]),
    (Types.CHAR(), ["a", "é"]),
    (Types.BIG_INT(), [2**100, -(2**100), 0]),
    (Types.BIG_DEC(), [Decimal("1.50"), Decimal("NaN")]),
    (Types.INSTANT(), [dt.datetime(2024, 1, 1, tzinfo=dt.UTC)]),
    (Types.SQL_DATE(), [dt.date(2024, 1, 1)]),
    (Types.SQL_TIME(), [dt.time(1, 2)]),
    (Types.SQL_TIMESTAMP(), [dt.datetime(2024, 1, 1)]),
    (Types.PRIMITIVE_ARRAY(Types.BYTE()), [b"", b"ab"]),
    (Types.LIST(int), [[], [1, None]]),
    (Types.MAP(str, float), [{}, {"a": 1.0, "b": None}]),
    (Types.TUPLE([int, str]), [(1, "a"), (None, None)]),
    (Types.ROW_NAMED(["a", "b"], [int, str]), [Row(a=1, b="x"), (1, "x"), Row(1, "x"), None]),
    (type_of(Reading), [Reading("a", 1.0, ["x"]), Reading("a", None, [])]),
    (type_of(Point), [Point(1, 2), (1, 2)]),
    (Types.ANY(), [..., None]),
]

MISFITS = [
    (Types.STRING(), [1, b"a", "\ud800"]),
    (Types.BYTE(), [128, -129, 1.0, True, "1"]),
    (Types.SHORT(), [2**15, True]),
    (Types.INT(), [2**31, -(2**31) - 1, 1.0]),
    (Types.LONG(), [2**63, -(2**63) - 1, "1", 1.0, True]),
    (Types.FLOAT(), [1e300, True, "1", 10**400]),
    (Types.DOUBLE(), ["1.5", True, 2**53 + 1, 10**400, Decimal(1)]),
    (Types.BOOLEAN(), [0, 1, "true"]),
    (Types.CHAR(), ["", "ab", 1]),
    (Types.BIG_INT(), [1.0, True]),
    (Types.BIG_DEC(), [1.0, 1]),
    (Types.INSTANT(), [dt.datetime(2024, 1, 1), 0]),
    (Types.SQL_DATE(), [dt.datetime(2024, 1, 1), "2024-01-01"]),
    (Types.SQL_TIME(), [dt.time(1, tzinfo=dt.UTC)]),
    (Types.SQL_TIMESTAMP(), [dt.datetime(2024, 1, 1, tzinfo=dt.UTC), dt.date(2024, 1, 1)]),
    (Types.PRIMITIVE_ARRAY(Types.BYTE()), ["a", [1]]),
    (Types.LIST(int), [(1,), ["a"], "ab"]),
    (Types.MAP(str, float), [{1: 1.0}, {"a": "b"}, [], {None: 1.0}]),
    (Types.TUPLE([int, str]), [(1,), [1, "a"], (1, 2), 5]),
    (Types.ROW_NAMED(["a", "b"], [int, str]), [Row(b="x", a=1), (1,), (1, 2), {"a": 1}, 5, "ab"]),
    (type_of(Reading), [("a", 1.0, []), Reading(1, 1.0, []), Reading("a", 1.0, [1])]),
]


@pytest.mark.parametrize(("t", "value"), [(t, v) for t, vs in FITTING for v in vs], ids=repr)
def test_a_value_that_fits_passes(t, value):
    t.check(value, "here")


@pytest.mark.parametrize(("t", "value"), [(t, v) for t, vs in MISFITS for v in vs], ids=lambda v: ascii(v)[:40])
def test_a_value_that_does_not_fit_is_refused_with_type_and_place(t, value):
    with pytest.raises(TypeMismatchError) as caught:
        t.check(value, 'State "last" of operator "alerts"')
    assert 'State "last" of operator "alerts"' in str(caught.value)
    assert str(t) in str(caught.value)


def test_the_message_names_field_value_type_and_the_way_out():
    t = Types.ROW_NAMED(["id", "temperature"], [str, float])
    with pytest.raises(TypeMismatchError) as caught:
        t.check(Row(id="a", temperature="hot"), "Output of map")
    assert "field \"temperature\": 'hot' (str) is no DOUBLE" in str(caught.value)
    assert "Types.ANY()" in str(caught.value)


def test_a_message_stays_short_for_a_huge_value_and_survives_a_broken_repr():
    class Broken:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    for value in ("x" * 100_000, Broken()):
        with pytest.raises(TypeMismatchError) as caught:
            Types.DOUBLE().check(value, "here")
        assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("python", "text"),
    [
        (float, "DOUBLE"),
        (int, "LONG"),
        (str, "STRING"),
        (bool, "BOOLEAN"),
        (bytes, "PRIMITIVE_ARRAY<BYTE>"),
        (list[int], "LIST<LONG>"),
        (dict[str, float], "MAP<STRING, DOUBLE>"),
        (tuple[int, str], "TUPLE<LONG, STRING>"),
        (tuple[int, ...], "ANY"),
        (tuple[()], "TUPLE<>"),
        (object, "ANY"),
        (Any, "ANY"),
        (list, "ANY"),
        (dict, "ANY"),
        (tuple, "ANY"),
        (Optional[int], "LONG"),  # noqa: UP045
        (int | None, "LONG"),
        (int | str, "ANY"),
        (set[int], "ANY"),
        (dt.date, "SQL_DATE"),
        (dt.datetime, "ANY"),
        (Decimal, "BIG_DEC"),
        (Point, "ROW<x LONG, y LONG>"),
        (Reading, "ROW<id STRING, temperature DOUBLE, tags LIST<STRING>>"),
        ("LIST<LONG>", "LIST<LONG>"),
        (list[Point], "LIST<ROW<x LONG, y LONG>>"),
        (Types.INT(), "INT"),
    ],
)
def test_a_python_type_stands_for_a_type(python, text):
    assert str(type_of(python)) == text


@pytest.mark.parametrize("nonsense", [None, 5, "DUBLE", lambda x: x, type("Thing", (), {}), range])
def test_what_is_no_type_is_refused_at_definition(nonsense):
    with pytest.raises(JobDefinitionError, match="Types"):
        type_of(nonsense)


def test_a_users_class_is_known_to_the_program_and_not_to_the_text():
    t = type_of(Reading)
    assert isinstance(t, RowType)
    assert t.constructor is Reading
    assert "Reading" not in str(t)
    assert parse(str(t)).constructor is None
    assert parse(str(t)) != t


def test_a_row_with_clashing_or_missing_names_is_refused():
    with pytest.raises(JobDefinitionError, match="twice"):
        Types.ROW_NAMED(["a", "a"], [int, int])
    with pytest.raises(JobDefinitionError, match="one type per name"):
        Types.ROW_NAMED(["a"], [int, int])


def test_only_types_without_mutable_parts_are_handed_out_uncopied():
    assert Types.DOUBLE().immutable
    assert type_of(bytes).immutable
    assert Types.ROW([int, str]).immutable
    assert type_of(Point).immutable
    assert not Types.LIST(int).immutable
    assert not Types.TUPLE([int, list[int]]).immutable
    assert not Types.ANY().immutable
    assert not type_of(Reading).immutable


def test_arrow_types_follow_the_declared_widths():
    row = Types.ROW_NAMED(["a", "b"], [Types.INT(), Types.LIST(Types.FLOAT())])
    assert row.arrow_type == pa.struct([("a", pa.int32()), ("b", pa.list_(pa.float32()))])
    assert Types.LIST(Types.ANY()).arrow_type is None
    assert Types.ROW([int, Types.BIG_INT()]).arrow_type is None
