"""Rows behave as tuples with names, in this process and the next."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark import cloudpickle

from headrace.types.rows import Row, make_rows, row_class

values = st.lists(st.one_of(st.integers(), st.text(), st.none(), st.floats(allow_nan=False)), max_size=6)


def test_a_field_is_read_by_attribute_by_name_by_position_and_by_slice():
    r = Row(id="a", temperature=1.5, ok=True)
    assert (r.id, r["temperature"], r[2], r[-1], r[1:]) == ("a", 1.5, True, True, (1.5, True))
    assert r.as_dict() == {"id": "a", "temperature": 1.5, "ok": True}
    assert repr(r) == "Row(id='a', temperature=1.5, ok=True)"


def test_a_row_without_names_calls_its_fields_by_position():
    r = Row("a", 1.5)
    assert (r.f0, r.f1) == ("a", 1.5)


def test_rows_of_the_same_fields_share_a_class_which_also_constructs():
    reading = row_class(("id", "temperature"))
    assert type(Row(id="a", temperature=1.0)) is reading
    assert reading("a", 1.0) == reading("a", temperature=1.0) == reading(temperature=1.0, id="a")


@pytest.mark.parametrize("arguments", [(("a",), {}), (("a", 1, 2), {}), (("a",), {"id": "b"}), ((), {"x": 1})])
def test_a_row_class_refuses_missing_doubled_and_unknown_fields(arguments):
    positional, named = arguments
    with pytest.raises(TypeError, match="id, temperature"):
        row_class(("id", "temperature"))(*positional, **named)


def test_values_by_position_and_by_name_do_not_mix():
    with pytest.raises(TypeError, match="not both"):
        Row(1, b=2)


def test_an_unknown_field_is_a_key_error_that_lists_the_known_ones():
    with pytest.raises(KeyError, match="id, temperature"):
        Row(id="a", temperature=1.0)["humidity"]
    with pytest.raises(AttributeError):
        Row(id="a").humidity  # noqa: B018


@pytest.mark.parametrize("name", ["count", "index", "as_dict", "class", "_names", "cls", "self", "names"])
def test_a_field_may_be_called_like_a_method_or_a_keyword(name):
    r = Row(**{name: 7, "other": 8})
    assert r[name] == 7
    assert getattr(r, name) == 7
    assert Row.as_dict(r) == {name: 7, "other": 8}
    assert pickle.loads(pickle.dumps(r)) == r
    assert repr(r) == f"Row({name}=7, other=8)"


@pytest.mark.parametrize("name", ["__class__", "__row_names__", "__reduce__", "two words", "é", "1st"])
def test_a_field_whose_name_is_no_attribute_is_read_by_item(name):
    r = make_rows((name,), [[7]])[0]
    assert r[name] == 7
    assert isinstance(r, Row)
    assert pickle.loads(pickle.dumps(r))[name] == 7


@given(values)
def test_a_row_equals_and_hashes_as_the_tuple_of_its_values(fields):
    r = Row(**{f"c{i}": v for i, v in enumerate(fields)})
    assert r == tuple(fields)
    assert hash(r) == hash(tuple(fields))
    assert list(r) == fields
    assert len(r) == len(fields)


@given(values)
def test_pickle_and_copies_bring_back_class_names_and_values(fields):
    r = Row(**{f"c{i}": v for i, v in enumerate(fields)})
    for back in (pickle.loads(pickle.dumps(r)), pickle.loads(cloudpickle.dumps(r)), copy.copy(r), copy.deepcopy(r)):
        assert type(back) is type(r)
        assert back == r


def test_a_pickled_row_is_read_by_a_process_that_never_saw_its_class():
    data = cloudpickle.dumps([Row(id="a", temperature=1.0), Row(id="b", temperature=2.0)])
    program = (
        "import pickle, sys\n"
        "rows = pickle.loads(bytes.fromhex(sys.argv[1]))\n"
        "print([(r.id, r['temperature']) for r in rows])"
    )
    done = subprocess.run([sys.executable, "-c", program, data.hex()], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[('a', 1.0), ('b', 2.0)]"


def test_a_function_that_holds_a_row_class_travels_by_cloudpickle():
    reading = row_class(("id", "temperature"))
    build = pickle.loads(cloudpickle.dumps(lambda: reading("a", 2.0)))
    assert build() == Row(id="a", temperature=2.0)
    assert build().temperature == 2.0
    assert isinstance(build(), Row)


def test_rows_are_made_in_bulk_from_columns():
    rows = make_rows(("id", "n"), [["a", "b"], [1, 2]])
    assert [(r.id, r.n) for r in rows] == [("a", 1), ("b", 2)]
    assert make_rows(("id", "n"), [[], []]) == []


def test_columns_of_unequal_length_are_refused():
    with pytest.raises(ValueError, match="zip"):
        make_rows(("id", "n"), [["a", "b"], [1]])


def test_a_row_matches_in_a_match_statement():
    match Row(id="a", temperature=1.0):
        case Row(id="a", temperature=t):
            assert t == 1.0
        case _:
            pytest.fail("no match")


def test_two_fields_of_one_name_are_refused():
    with pytest.raises(ValueError, match="twice"):
        row_class(("a", "a"))
