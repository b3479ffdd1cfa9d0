"""Values of a program's own, with and without a type."""

from __future__ import annotations

import pytest

from headrace.connectors.collection import CollectionSource
from headrace.errors import TypeMismatchError
from headrace.testing.source_driver import SourceDriver
from headrace.types.information import Types
from headrace.types.rows import Row

PERSON = Types.ROW_NAMED(["name", "age"], [Types.STRING(), Types.INT()])


def test_tuples_of_a_row_type_come_out_as_rows() -> None:
    driver = SourceDriver(CollectionSource([("ann", 1), Row(name="bob", age=2), Row("eve", 3)], PERSON))
    driver.run()

    assert [(row.name, row["age"]) for row in driver.values] == [("ann", 1), ("bob", 2), ("eve", 3)]


def test_a_value_that_its_type_cannot_hold_is_named_when_the_program_is_written() -> None:
    with pytest.raises(TypeMismatchError, match=r"Value 1 of the collection.*age"):
        CollectionSource([("ann", 1), ("bob", "two")], PERSON)


def test_values_without_a_type_come_out_as_they_are() -> None:
    values = [("ann", 1), {"b": 2}, None]
    driver = SourceDriver(CollectionSource(values), parallelism=3)
    driver.run()

    assert driver.values == values
    assert driver.ended
    assert {record.subtask for record in driver.records} == {0}
