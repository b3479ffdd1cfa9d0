"""Telling functions that merely return fields from all others."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from headrace.errors import JobDefinitionError
from headrace.operators.functions import KeySelector
from headrace.plan.fields import resolve_field, traced_fields
from headrace.plan.keys import key_spec
from headrace.types.information import Types, type_of
from headrace.types.rows import Row

READING = Types.ROW_NAMED(["id", "at", "temperature"], [str, int, float])
FIELD = "id"
seen: list[Any] = []


class ById(KeySelector):
    def get_key(self, value: Any) -> Any:
        return value.id


class WithOpen(ById):
    def open(self, runtime_context: Any) -> None:
        self.table = {}


def logging_selector(r: Any) -> Any:
    seen.append(1)
    return r.id


def swallowing_selector(r: Any) -> Any:
    try:
        return r.id + "x"
    except Exception:
        return r.id


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        (lambda r: r.id, (("id",), True)),
        (lambda r: r["id"], (("id",), True)),
        (lambda r: r[0], (("id",), True)),
        (lambda r: r[-1], (("temperature",), True)),
        (lambda r: r[FIELD], (("id",), True)),
        (lambda r: (r.id, r.at), (("id", "at"), False)),
        (lambda r: (r[1],), (("at",), False)),
        (operator.attrgetter("id"), (("id",), True)),
        (operator.itemgetter("id", 1), (("id", "at"), False)),
        (ById().get_key, (("id",), True)),
    ],
)
def test_a_function_that_returns_fields_is_seen_through(selector: Callable[..., Any], expected: Any) -> None:
    assert traced_fields(selector, READING) == expected


@pytest.mark.parametrize(
    "selector",
    [
        lambda r: r.at + 1,
        lambda r: -r.at,
        lambda r: r.at % 10,
        lambda r: r.at // 1000,
        lambda r: r.at > 5,
        lambda r: r.id == "a",
        lambda r: not r.at,
        lambda r: r.id[0],
        lambda r: r.id.lower,
        lambda r: r.id.lower(),
        lambda r: str(r.id),
        lambda r: f"{r.id}",
        lambda r: hash(r),
        lambda r: [*r],
        lambda r: (r.id, 1),
        lambda r: [r.id],
        lambda r: {"id": r.id},
        lambda r: "constant",
        lambda r: r,
        lambda r: (),
        lambda r: r[0:2],
        lambda r: r[7],
        lambda r: r[True],
        lambda r: r.unknown,
        lambda r: r.as_dict(),
        lambda r: r.id if r is not None else r.at,
        lambda r: r.id or r.at,
        lambda r: r.id if isinstance(r, tuple) else r.at,
        lambda r, s: r.id,
        operator.attrgetter("id.lower"),
        logging_selector,
        swallowing_selector,
        str,
        ById,
    ],
)
def test_a_function_that_does_anything_else_is_opaque(selector: Callable[..., Any]) -> None:
    assert traced_fields(selector, READING) is None
    assert seen == []


def test_nothing_is_traced_where_records_have_no_declared_fields() -> None:
    assert traced_fields(lambda r: r.id, None) is None
    assert traced_fields(lambda r: r.id, Types.STRING()) is None


def test_tuples_have_positions_and_no_names() -> None:
    pair = Types.TUPLE([str, int])
    assert traced_fields(lambda r: r[1], pair) == (("f1",), True)
    assert traced_fields(lambda r: r.f1, pair) is None


def test_a_timestamp_assigner_that_returns_a_field_is_seen_through() -> None:
    assert traced_fields(lambda r, ts: r.at, READING, further_arguments=1) == (("at",), True)


@pytest.mark.parametrize(
    "assigner", [lambda r, ts: ts, lambda r, ts: r.at + ts, lambda r, ts: (r.at, ts), lambda r, ts: r.at * 1000]
)
def test_a_timestamp_assigner_that_computes_is_opaque(assigner: Callable[..., Any]) -> None:
    assert traced_fields(assigner, READING, further_arguments=1) is None


def test_a_key_by_name_knows_its_field_and_type() -> None:
    spec = key_spec("id", READING)
    assert (spec.fields, spec.single, spec.key_type) == (("id",), True, Types.STRING())
    assert spec.selector(Row(id="a", at=1, temperature=2.0)) == "a"


@pytest.mark.parametrize("key", [("id", "at"), ["id", "at"], (0, 1)])
def test_a_key_of_several_names_is_a_tuple(key: Any) -> None:
    spec = key_spec(key, READING)
    assert (spec.fields, spec.single, spec.key_type) == (("id", "at"), False, Types.TUPLE([str, int]))
    assert spec.selector(Row(id="a", at=1, temperature=2.0)) == ("a", 1)


@pytest.mark.parametrize("type_info", [READING, None])
def test_a_key_of_one_name_in_a_tuple_is_a_tuple_of_one(type_info: Any) -> None:
    spec = key_spec(("id",), type_info)
    assert not spec.single
    assert spec.selector(Row(id="a", at=1, temperature=2.0)) == ("a",)


def test_a_field_with_a_dot_in_its_name_is_no_path() -> None:
    dotted = Types.ROW_NAMED(["a.b", "c"], [int, int])
    record = Row(**{"a.b": 1, "c": 2})
    assert key_spec("a.b", dotted).selector(record) == 1
    assert key_spec(("a.b", "c"), dotted).selector(record) == (1, 2)


@dataclass
class Reading:
    id: str
    at: int


@pytest.mark.parametrize("record", [{"id": "a", "at": 1}, Reading("a", 1), Row(id="a", at=1)])
def test_a_key_by_name_of_untyped_records_reads_mappings_and_objects(record: Any) -> None:
    spec = key_spec(("id", "at"), None)
    assert spec.fields == ()
    assert spec.selector(record) == ("a", 1)


def test_a_key_by_name_of_a_declared_dataclass_knows_its_field() -> None:
    spec = key_spec("id", type_of(Reading))
    assert spec.fields == ("id",)
    assert spec.selector(Reading("a", 1)) == "a"


def test_a_position_in_a_tuple_is_read_by_position() -> None:
    spec = key_spec(1, Types.TUPLE([str, int]))
    assert (spec.fields, spec.selector(("a", 7))) == (("f1",), 7)


def test_an_opaque_key_function_keeps_its_declared_type() -> None:
    spec = key_spec(lambda r: r.id.lower(), READING, str)
    assert (spec.fields, spec.key_type) == ((), Types.STRING())


def test_an_unknown_field_is_refused_with_the_known_ones() -> None:
    with pytest.raises(JobDefinitionError, match=r"key_by\(\) wants field 'ids'.*Their fields are id, at, temperature"):
        key_spec("ids", READING)


def test_a_field_of_a_type_without_fields_is_refused() -> None:
    with pytest.raises(JobDefinitionError, match="the records are STRING, which has no fields"):
        key_spec("id", Types.STRING())
    assert resolve_field(Types.ANY(), "id", "sum()") is None


@pytest.mark.parametrize("key", [(), [], None, 1.5, ById, True])
def test_what_is_no_key_is_refused(key: Any) -> None:
    with pytest.raises(JobDefinitionError):
        key_spec(key, None)


def test_a_key_selector_with_open_is_refused() -> None:
    with pytest.raises(JobDefinitionError, match=r"WithOpen, which has an open\(\) method"):
        key_spec(WithOpen(), READING)


@pytest.mark.parametrize("field", ["f0", 2])
def test_a_tuple_has_positions_and_no_names(field: str | int) -> None:
    pair = Types.TUPLE([Types.STRING(), Types.LONG()])
    with pytest.raises(JobDefinitionError, match="They are tuples: give a position from 0 to 1"):
        resolve_field(pair, field, "key_by()")
