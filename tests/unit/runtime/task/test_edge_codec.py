"""Records of an edge as bytes and back: what comes out is what went in, whatever the encoding."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from edge_examples import SENSOR, by_field, edge_of
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import TypeMismatchError
from headrace.operators.base import Block
from headrace.plan.graph import Edge, Hash, KeySpec
from headrace.runtime.task.records import COLUMNS, COLUMNS_FROM, PICKLED, ROWS, TIMED, EdgeCodec
from headrace.state.keys import stored_form
from headrace.types.information import Types
from headrace.types.rows import Row

FEW, MANY = 3, COLUMNS_FROM + 5


class Reading(NamedTuple):
    id: str
    reading: float


@dataclass
class Opaque:
    """Only pickle can hold it."""

    inside: int


def there_and_back(
    edge: Edge, values: list[Any], keys: list[Any] | None = None, timestamps: list[int] | None = None
) -> tuple[int, Block]:
    flags, parts = EdgeCodec(edge).encode(values, keys, timestamps)
    return flags, EdgeCodec(edge).decode(flags, memoryview(b"".join(parts)))


def classes(value: Any) -> Any:
    """The classes of a value and of everything in it."""
    if isinstance(value, dict):
        return (dict, [(type(k), classes(v)) for k, v in value.items()])
    if isinstance(value, list | tuple):
        return (type(value), [classes(v) for v in value])
    return type(value)


plain = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=False),
        st.text(),
        st.binary(),
        st.complex_numbers(allow_nan=False),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.tuples(inner, inner),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
        st.frozensets(st.integers(), max_size=3),
    ),
    max_leaves=12,
)


@settings(deadline=None)
@given(st.lists(plain, min_size=1, max_size=40))
def test_plain_values_of_an_untyped_edge_keep_value_and_class(values: list[Any]) -> None:
    flags, block = there_and_back(edge_of(), values, None, None)
    assert flags == 0
    assert block.values == values
    assert list(map(classes, block.values)) == list(map(classes, values))


@pytest.mark.parametrize(
    "value",
    [
        np.float64(1.5),
        np.int64(3),
        np.bool_(True),
        np.str_("a"),
        np.arange(3),
        bytearray(b"abc"),
        dt.datetime(2026, 1, 2, tzinfo=dt.UTC),
        Decimal("1.50"),
        Opaque(3),
        Reading("a", 1.0),
        ...,
    ],
    ids=lambda v: type(v).__name__,
)
@pytest.mark.parametrize(
    "wrap", [lambda v: v, lambda v: (1, v), lambda v: [{"a": {v}}] if _hashable(v) else [{"a": v}]]
)
def test_what_marshal_does_not_hold_exactly_is_pickled_at_any_depth(value: Any, wrap: Any) -> None:
    """Marshal would hand a numpy number or a bytearray on as bytes, without a word."""
    flags, block = there_and_back(edge_of(), [1, wrap(value)])
    assert flags == PICKLED
    assert repr(block.values) == repr([1, wrap(value)])


def _hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def test_values_that_hold_themselves_travel_too() -> None:
    knot: list[Any] = [1]
    knot.append(knot)
    flags, block = there_and_back(edge_of(), [knot])
    assert flags == PICKLED
    assert block.values[0][1] is block.values[0]


@pytest.mark.parametrize("count", [FEW, MANY])
@pytest.mark.parametrize("timed", [False, True])
def test_typed_rows_travel_as_tuples_or_columns_and_come_out_alike(count: int, timed: bool) -> None:
    rows = [Row(id=f"s{n}", reading=n / 2) for n in range(count)]
    times = list(range(count)) if timed else None
    flags, block = there_and_back(edge_of(SENSOR), rows, None, times)
    assert bool(flags & COLUMNS) is (count == MANY)
    assert bool(flags & ROWS) is (count == FEW)
    assert bool(flags & TIMED) is (timed and count == MANY)
    assert block.values == rows
    assert isinstance(block.values[0], Row)
    assert block.timestamps == times
    assert block.keys is None


@pytest.mark.parametrize("count", [FEW, MANY])
@pytest.mark.parametrize(
    ("kind", "given_value", "comes_out"),
    [
        (Types.DOUBLE(), np.float64(1.5), 1.5),
        (Types.DOUBLE(), 3, 3.0),
        (Types.FLOAT(), 0.1, float(np.float32(0.1))),
        (Types.LONG(), np.int64(7), 7),
        (Types.INT(), np.int32(7), 7),
        (Types.INSTANT(), dt.datetime(2026, 1, 2, 3, tzinfo=dt.UTC), dt.datetime(2026, 1, 2, 3, tzinfo=dt.UTC)),
        (Types.SQL_DATE(), dt.date(2026, 1, 2), dt.date(2026, 1, 2)),
        (Types.STRING(), None, None),
        (Types.LIST(Types.LONG()), [1, 2], [1, 2]),
    ],
    ids=lambda v: str(v)[:20],
)
def test_a_field_comes_out_the_same_from_a_small_cell_and_from_a_large_one(
    count: int, kind: Any, given_value: Any, comes_out: Any
) -> None:
    row_type = Types.ROW_NAMED(["n", "x"], [Types.LONG(), kind])
    flags, block = there_and_back(edge_of(row_type), [Row(n=n, x=given_value) for n in range(count)])
    assert not flags & PICKLED
    assert [row.x for row in block.values] == [comes_out] * count
    assert {type(row.x) for row in block.values} == {type(comes_out)}


def test_a_single_typed_value_does_not_depend_on_who_made_it() -> None:
    flags, block = there_and_back(edge_of(Types.DOUBLE()), [np.float64(1.5), 2.5])
    assert flags == 0
    assert [(v, type(v)) for v in block.values] == [(1.5, float), (2.5, float)]


MARKED = Types.TUPLE([Types.BYTE(), SENSOR, Types.DOUBLE()])
TWO_SIDES = Types.TUPLE([Types.BYTE(), SENSOR, SENSOR])


@pytest.mark.parametrize(
    ("given_values", "come_out"),
    [
        ([(0, Row(id="a", reading=1.5), None), (1, None, 2.5)], [(0, ("a", 1.5), None), (1, None, 2.5)]),
        ([(0, Row(id="a", reading=np.float64(1.5)), None)], [(0, ("a", 1.5), None)]),
        ([(1, None, np.float64(2.5))], [(1, None, 2.5)]),
        ([(0, Row(id="a", reading=3), None)], [(0, ("a", 3.0), None)]),
        ([(np.int8(1), Row(id="a", reading=1.5), np.float64(0.5))], [(1, ("a", 1.5), 0.5)]),
        ([(0, Row(id=None, reading=1.5), 7)], [(0, (None, 1.5), 7.0)]),
        ([(0, SENSOR.make()(("a", 1.5)), None), (1, None, 2.5)], [(0, ("a", 1.5), None), (1, None, 2.5)]),
        ([(0, SENSOR.make()(("a", 1.5)), None)] * 2, [(0, ("a", 1.5), None)] * 2),
        ([(0, SENSOR.make()(("a", np.float64(1.5))), None)], [(0, ("a", 1.5), None)]),
    ],
)
def test_rows_inside_tuples_are_rows_of_plain_values_on_the_other_side(
    given_values: list[Any], come_out: list[Any]
) -> None:
    _, block = there_and_back(edge_of(MARKED), given_values)
    found = [None if v is None else (v[0], None if v[1] is None else tuple(v[1]), v[2]) for v in block.values]
    assert repr(found) == repr(come_out)
    assert {type(v[1]) for v in block.values if v is not None} <= {SENSOR.value_class, type(None)}


def test_a_side_that_is_empty_throughout_a_cell_travels_as_well() -> None:
    row = SENSOR.make()(("a", 1.5))
    _, block = there_and_back(edge_of(TWO_SIDES), [(1, None, row)] * 3)
    assert block.values == [(1, None, row)] * 3


def test_timestamps_of_numpy_are_whole_numbers_on_the_other_side() -> None:
    _, block = there_and_back(edge_of(), ["a"], None, [np.int64(5)])  # type: ignore[list-item]
    assert block.timestamps == [5]
    assert type(block.timestamps[0]) is int


@pytest.mark.parametrize("count", [FEW, MANY])
@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (Types.STRING(), ["a", "b"]),
        (Types.LONG(), [1, -5]),
        (Types.INT(), [1, 2]),
        (Types.BOOLEAN(), [True, False]),
        (Types.DOUBLE(), [3, 0.5]),
        (Types.FLOAT(), [0.1, 0.2]),
        (Types.SQL_DATE(), [dt.date(2026, 1, 1), dt.date(2026, 1, 2)]),
    ],
    ids=lambda v: str(v)[:12],
)
def test_the_receiver_sees_the_key_by_which_the_record_was_routed(count: int, kind: Any, values: list[Any]) -> None:
    row_type = Types.ROW_NAMED(["k", "n"], [kind, Types.LONG()])
    rows = [Row(k=values[n % 2], n=n) for n in range(count)]
    keys = [stored_form(row.k) for row in rows]
    _, block = there_and_back(edge_of(row_type, by_field("k")), rows, keys)
    assert block.keys == keys
    assert [type(k) for k in block.keys or ()] == [type(k) for k in keys]


def test_keys_that_the_columns_tell_are_not_sent() -> None:
    rows = [Row(id=f"s{n}", reading=0.0) for n in range(MANY)]
    keys = [row.id for row in rows]
    told = b"".join(EdgeCodec(edge_of(SENSOR, by_field("id"))).encode(rows, keys, None)[1])
    sent = b"".join(EdgeCodec(edge_of(SENSOR, Hash(KeySpec(lambda r: r.id)))).encode(rows, keys, None)[1])
    assert len(told) < len(sent)


@pytest.mark.parametrize("count", [FEW, MANY])
def test_keys_of_a_function_travel_with_the_records(count: int) -> None:
    rows = [Row(id=f"s{n}", reading=float(n)) for n in range(count)]
    keys = [stored_form((row.id, 1.0)) for row in rows]
    _, block = there_and_back(edge_of(SENSOR, Hash(KeySpec(lambda r: (r.id, 1.0)))), rows, keys)
    assert block.keys == keys


@pytest.mark.parametrize("count", [FEW, MANY])
def test_keys_of_two_fields_are_read_from_the_columns(count: int) -> None:
    row_type = Types.ROW_NAMED(["a", "b"], [Types.STRING(), Types.LONG()])
    rows = [Row(a=f"s{n}", b=n) for n in range(count)]
    keys = [stored_form((row.a, row.b)) for row in rows]
    partitioning = Hash(KeySpec(lambda r: (r.a, r.b), ("a", "b"), single=False))
    _, block = there_and_back(edge_of(row_type, partitioning), rows, keys)
    assert block.keys == keys


@pytest.mark.parametrize("count", [FEW, MANY])
@pytest.mark.parametrize("wrong", [Row(id="a", reading="warm"), Row(id=1, reading=1.0), Row(id="a"), "no row at all"])
def test_a_value_that_the_type_cannot_hold_is_refused_by_name(count: int, wrong: Any) -> None:
    rows = [Row(id=f"s{n}", reading=0.0) for n in range(count - 1)]
    with pytest.raises(TypeMismatchError):
        EdgeCodec(edge_of(SENSOR)).encode([*rows, wrong], None, None)


def test_a_single_value_that_the_type_cannot_hold_is_refused_and_the_edge_is_named() -> None:
    with pytest.raises(TypeMismatchError, match=r"edge 3.*'a'.*LONG"):
        EdgeCodec(edge_of(Types.LONG())).encode(["a"], None, None)


def test_columns_travel_as_they_are() -> None:
    codec = EdgeCodec(edge_of(SENSOR, by_field("id")))
    batch = pa.RecordBatch.from_pydict({"id": ["a", "b"], "reading": [1.0, None]})
    flags, parts = codec.encode_columns(batch, None, pa.array([5, 6], pa.int64()))
    payload = memoryview(b"".join(parts))
    back, keys, times = codec.decode_columns(flags, payload)
    assert back.equals(batch)
    assert (keys, times.to_pylist()) == (None, [5, 6])
    block = codec.decode(flags, payload)
    assert block.keys == ["a", "b"]
    assert block.values == [Row(id="a", reading=1.0), Row(id="b", reading=None)]
