"""Rows behave as tuples with names, in this process and the next."""

from __future__ import annotations

import copy
import gc
import pickle
import subprocess
import sys
import weakref

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark import cloudpickle

from headrace.types import rows
from headrace.types.information import Types
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
    with pytest.raises(TypeError, match="rgument"):
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


@given(values, values)
def test_a_row_compares_and_adds_up_as_the_tuple_of_its_values(fields, others):
    r, o, a, b = Row(*map(repr, fields)), Row(*map(repr, others)), tuple(map(repr, fields)), tuple(map(repr, others))
    assert [r < o, r <= o, r > o, r >= o, r == o, r != o] == [a < b, a <= b, a > b, a >= b, a == b, a != b]
    assert [r < b, r <= b, r > b, r >= b, r == b, r != b] == [a < b, a <= b, a > b, a >= b, a == b, a != b]
    assert [b < r, b <= r, b > r, b >= r, b == r, b != r] == [b < a, b <= a, b > a, b >= a, b == a, b != a]
    assert r + o == r + b == a + o == a + b
    assert type(r + o) is tuple
    assert list(reversed(r)) == list(reversed(a))
    assert all((x in r) == (x in a) and Row.count(r, x) == a.count(x) for x in b)
    assert [Row.index(r, x) for x in a] == [a.index(x) for x in a]


def test_a_row_is_no_list_and_compares_with_none():
    assert Row(1, 2) != [1, 2]
    assert Row(1, 2) != None  # noqa: E711
    with pytest.raises(TypeError):
        Row(1) < 1  # noqa: B015


def test_a_row_cannot_be_changed():
    r = Row(id="a")
    with pytest.raises(AttributeError):
        r.id = "b"
    with pytest.raises(AttributeError):
        r.other = "b"
    with pytest.raises(TypeError):
        r["id"] = "b"
    assert r.id == "a"


def test_plain_and_open_rows_of_the_same_values_are_the_same():
    plain, open_ = row_class(("id", "n"), True)("a", 1), Row(id="a", n=1)
    assert type(plain) is not type(open_)
    assert plain == open_
    assert {plain: 1}[open_] == 1
    assert repr(plain) == repr(open_)


def test_the_collector_need_not_know_rows_of_plain_values_but_frees_open_rows_that_hold_themselves():
    assert not gc.is_tracked(row_class(("id", "n"), True)("a", 1))
    assert not gc.is_tracked(Row(id="a", n=1))

    class Witness:
        pass

    witness, holder = Witness(), []
    gone = weakref.ref(witness)
    holder.append(Row(witness=witness, holder=holder))
    del witness, holder
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize(
    ("t", "plain"),
    [
        (Types.ROW_NAMED(["a", "b"], [str, Types.INSTANT()]), True),
        (Types.ROW_NAMED(["a"], [Types.PRIMITIVE_ARRAY(Types.BYTE())]), True),
        (Types.ROW_NAMED(["a"], [Types.ROW([Types.TUPLE([int, str])])]), True),
        (Types.ROW_NAMED(["a"], [Types.LIST(Types.LONG())]), False),
        (Types.ROW_NAMED(["a"], [Types.MAP(Types.STRING(), Types.LONG())]), False),
        (Types.ROW_NAMED(["a"], [Types.ANY()]), False),
        (Types.ROW_NAMED(["a"], [Types.PICKLED_BYTE_ARRAY()]), False),
        (Types.ROW_NAMED(["a"], [Types.TUPLE([Types.LIST(Types.LONG())])]), False),
    ],
    ids=str,
)
def test_rows_are_plain_where_their_type_rules_out_that_they_hold_themselves(t, plain):
    assert t.value_class is row_class(t.names, plain)
    assert type(t.make()([None] * len(t.names))) is t.value_class
    assert [type(v) for v in t.make_all()([[None]] * len(t.names))] == [t.value_class]


@given(values, st.booleans())
def test_pickle_and_copies_bring_back_class_names_and_values(fields, plain):
    r = row_class(tuple(f"c{i}" for i in range(len(fields))), plain)(*fields)
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


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("name", ["id", "a.b", "c,d", "(", "two words", "é", "__x", "100%", "\ud800"])
def test_a_row_class_travels_by_name_whatever_its_fields_are_called(name, plain):
    cls = row_class((name, "_0"), plain)
    assert pickle.loads(pickle.dumps(cls)) is cls
    assert pickle.loads(cloudpickle.dumps(cls)) is cls
    r = pickle.loads(pickle.dumps(cls(1, 2)))
    assert type(r) is cls
    assert (r[name], getattr(r, name), r["_0"], getattr(r, "_0")) == (1, 1, 2, 2)  # noqa: B009


def test_a_row_class_unpickles_in_a_process_that_never_made_it():
    data = pickle.dumps(row_class(("id", "a.b"), True))
    program = "import pickle, sys\nprint(pickle.loads(bytes.fromhex(sys.argv[1]))(1, 2))"
    done = subprocess.run([sys.executable, "-c", program, data.hex()], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "Row(id=1, a.b=2)"


def test_the_module_has_no_other_attributes_than_its_own():
    with pytest.raises(AttributeError, match="has no attribute 'Rows'"):
        rows.Rows  # noqa: B018
    with pytest.raises(ImportError):
        from headrace.types.rows import nothing  # noqa: F401


def test_a_class_stays_the_same_while_rows_of_it_live():
    r = row_class(("kept", "alive"))(1, 2)
    row_class.cache_clear()
    assert row_class(("kept", "alive")) is type(r)
    assert type(Row(kept=1, alive=2)) is type(r)


def test_msgspec_takes_a_row_for_the_array_of_its_values():
    assert msgspec.msgpack.encode(Row(id="a", n=1)) == msgspec.msgpack.encode(("a", 1))


def test_rows_are_made_in_bulk_from_columns():
    made = make_rows(("id", "n"), [["a", "b"], [1, 2]])
    assert [(r.id, r.n) for r in made] == [("a", 1), ("b", 2)]
    assert make_rows(("id", "n"), [[], []]) == []


def test_columns_of_unequal_length_are_refused():
    with pytest.raises(ValueError, match=r"unequal length.* 2, 1"):
        make_rows(("id", "n"), [["a", "b"], [1]])


def test_a_row_matches_in_a_match_statement():
    match Row(id="a", temperature=1.0):
        case Row(id="a", temperature=t):
            assert t == 1.0
        case _:
            pytest.fail("no match")
    match Row(id="a", temperature=1.0):
        case ["a", t]:
            assert t == 1.0
        case _:
            pytest.fail("no match")


def test_two_fields_of_one_name_are_refused():
    with pytest.raises(ValueError, match="twice"):
        row_class(("a", "a"))
