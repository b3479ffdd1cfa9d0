"""Lookup join: rows of a table that stays, given as a list, as Arrow or as a DataFrame."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from two_input_rig import Rig

from headrace import Row, StreamExecutionEnvironment, Types
from headrace.datastream.joins import lookup_factory, lookup_table
from headrace.errors import JobDefinitionError, UserFunctionError

CITIES = [
    {"id": 1, "name": "Rome", "people": 2.8},
    {"id": 2, "name": "Oslo", "people": 0.7},
    {"id": 2, "name": "Bern", "people": None},
]


class Frame:
    """What a Spark DataFrame is to the join."""

    def toArrow(self) -> pa.Table:
        return pa.Table.from_pylist(CITIES)


TABLES: dict[str, Callable[[], Any]] = {
    "rows": lambda: [Row(**city) for city in CITIES],
    "dicts": lambda: CITIES,
    "arrow": lambda: pa.Table.from_pylist(CITIES),
    "batch": lambda: pa.RecordBatch.from_pylist(CITIES),
    "dataframe": lambda: Frame(),
}


def joined(tmp_path: Path, records: list[Any], *args: Any, **kwargs: Any) -> list[Any]:
    factory = pickle.loads(pickle.dumps(lookup_factory(None, *args, **kwargs)))
    rig = Rig(factory.create, tmp_path, flavour=None)
    rig.block(0, 0, records)
    return rig.out.values


def defaults(**changes: Any) -> dict[str, Any]:
    return {"how": "inner", "table_key": None, "function": None} | changes


@pytest.mark.parametrize("kind", TABLES)
def test_a_record_meets_every_row_of_its_key(tmp_path: Path, kind: str) -> None:
    found = joined(tmp_path, [{"id": 2}, {"id": 9}, {"id": 1}], TABLES[kind](), "id", **defaults())
    assert [(record["id"], row["name"]) for record, row in found] == [(2, "Oslo"), (2, "Bern"), (1, "Rome")]


def name_or_none(record: Any, row: Any) -> Any:
    return record, None if row is None else row.name


def second(record: Any) -> Any:
    return record[1]


def test_a_left_join_keeps_records_without_a_row_and_the_function_makes_the_result(tmp_path: Path) -> None:
    records = [("a", 1), ("b", 9), ("c", None)]
    found = joined(
        tmp_path,
        records,
        pa.Table.from_pylist([*CITIES, {"id": None, "name": "nowhere", "people": 0.0}]),
        second,
        **defaults(how="left", table_key="id", function=name_or_none),
    )
    assert found == [(("a", 1), "Rome"), (("b", 9), None), (("c", None), None)]


def test_keys_of_several_fields(tmp_path: Path) -> None:
    rows = [("a", 1, "x"), ("a", 2, "y")]
    found = joined(tmp_path, [("a", 2)], rows, (0, 1), **defaults())
    assert found == [(("a", 2), ("a", 2, "y"))]


def test_keys_of_another_type_are_other_keys(tmp_path: Path) -> None:
    assert joined(tmp_path, [("1",), (1,)], [(1, "x")], 0, **defaults()) == [((1,), (1, "x"))]


@pytest.mark.parametrize("table", ["rome", {"a": 1}, 5, None])
def test_what_is_no_table_is_refused(table: Any) -> None:
    with pytest.raises(JobDefinitionError, match="Give a list of rows"):
        lookup_table(table)


def test_a_function_as_key_needs_one_for_the_rows_too() -> None:
    with pytest.raises(JobDefinitionError, match="Give table_key as well"):
        lookup_factory(None, [], second, **defaults())
    with pytest.raises(JobDefinitionError, match='"inner" or "left"'):
        lookup_factory(None, [], 0, **defaults(how="outer"))


def test_a_field_that_typed_records_do_not_have_is_refused() -> None:
    kind = Types.ROW_NAMED(["a"], [Types.LONG()])
    with pytest.raises(JobDefinitionError, match=r"lookup_join.*'id'"):
        lookup_factory(kind, CITIES, "id", **defaults())


def test_a_row_that_has_no_such_key_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserFunctionError, match=r"\(1,\)"):
        joined(tmp_path, [], [(1,)], 3, **defaults())


def test_it_is_an_operator_like_map() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.from_collection([(1,)]).lookup_join([(1, "x")], 0).print()
    plan, _ = env.build("lookup")
    assert len(plan.levels) == 1, "it needs no exchange of its own"
