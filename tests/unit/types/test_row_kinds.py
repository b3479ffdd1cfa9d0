"""Rows of other kinds than INSERT: they keep their kind, or are refused where it would be forgotten."""

from __future__ import annotations

import copy
import pickle

import pytest

from headrace import JobDefinitionError, Row, Types
from headrace.errors import TypeMismatchError
from headrace.state.plain_values import encode_plain
from headrace.types.columns import rows_to_batch, schema_of
from headrace.types.rows import RowKind, row_class

PERSON = Types.ROW_NAMED(["name", "age"], [str, int])


@pytest.mark.parametrize("kind", RowKind)
@pytest.mark.parametrize("plain", [False, True])
def test_a_row_keeps_its_kind_when_it_is_copied_and_pickled(kind: RowKind, plain: bool) -> None:
    row = row_class(("name", "first.age"), plain)("Ann", 32)
    row.set_row_kind(kind)
    for again in (copy.copy(row), copy.deepcopy(row), pickle.loads(pickle.dumps(row))):
        assert again == row
        assert again.get_row_kind() is kind
        assert type(again) is type(row)
    assert pickle.loads(pickle.dumps(type(row))) is type(row)


def test_a_row_that_is_an_insertion_again_is_as_it_was() -> None:
    row = Row(name="Ann", age=32)
    before = type(row)
    row.set_row_kind(RowKind.UPDATE_BEFORE)
    assert type(row) is not before
    assert (row.name, row["age"], list(row)) == ("Ann", 32, ["Ann", 32])
    row.set_row_kind(RowKind.INSERT)
    assert type(row) is before


def test_kinds_are_written_as_in_a_changelog() -> None:
    assert list(map(str, RowKind)) == ["+I", "-U", "+U", "-D"]


def test_a_type_columns_and_state_refuse_a_row_whose_kind_they_would_forget() -> None:
    gone = Row.of_kind(RowKind.DELETE, name="Ann", age=32)
    with pytest.raises(JobDefinitionError, match=r"kind -D, which a typed stream or state does not keep"):
        PERSON.check(gone, "a test")
    schema = schema_of(PERSON)
    assert schema is not None
    with pytest.raises(TypeMismatchError, match="kind -D"):
        rows_to_batch(PERSON, [Row(name="Bob", age=1), gone], schema)
    with pytest.raises(TypeMismatchError, match=r"kind -D, which state does not keep"):
        encode_plain([gone])


def test_a_row_of_names_makes_rows() -> None:
    person = Row("name", "age")
    assert person("Ann", 32).as_dict() == {"name": "Ann", "age": 32}
    with pytest.raises(TypeError, match="of the fields name, age got 1 values"):
        person("Ann")
    with pytest.raises(TypeError, match="holds no field names"):
        Row("name", 3)("Ann", 32)


def test_a_row_type_tells_its_fields() -> None:
    assert PERSON.get_field_names() == ["name", "age"]  # type: ignore[attr-defined]
    assert PERSON.get_field_types() == [Types.STRING(), Types.LONG()]  # type: ignore[attr-defined]
