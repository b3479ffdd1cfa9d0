"""`sum`, `min`, `max`, `min_by`, `max_by` fold records as Flink does."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple

import pytest

from headrace.datastream.aggregations import FieldMax, FieldMin, FieldReduce, FieldSum, RecordMax, RecordMin
from headrace.errors import TypeMismatchError
from headrace.types.rows import Row


class Named(NamedTuple):
    id: str
    n: int


@dataclass(frozen=True)
class Data:
    id: str
    n: int


def fold(function: FieldReduce, records: list[Any]) -> Any:
    return reduce(function.reduce, records)


FORMS = [
    (lambda i, n: (i, n), 1),
    (lambda i, n: [i, n], 1),
    (lambda i, n: {"id": i, "n": n}, "n"),
    (lambda i, n: Row(id=i, n=n), "n"),
    (lambda i, n: Row(id=i, n=n), 1),
    (Named, "n"),
    (Named, 1),
    (Data, "n"),
    (Data, 1),
]


@pytest.mark.parametrize(("make", "field"), FORMS)
def test_sum_min_and_max_keep_the_other_fields_of_the_first_record(make: Any, field: Any) -> None:
    records = [make("a", 5), make("b", 3), make("c", 9)]
    assert fold(FieldSum(field), records) == make("a", 17)
    assert fold(FieldMin(field), records) == make("a", 3)
    assert fold(FieldMax(field), records) == make("a", 9)
    assert type(fold(FieldSum(field), records)) is type(records[0])
    assert records[0] == make("a", 5)


@pytest.mark.parametrize(("make", "field"), FORMS)
def test_min_by_and_max_by_keep_the_whole_record_the_first_among_equals(make: Any, field: Any) -> None:
    records = [make("a", 5), make("b", 3), make("c", 9), make("d", 3), make("e", 9)]
    assert fold(RecordMin(field), records) == make("b", 3)
    assert fold(RecordMax(field), records) == make("c", 9)


def test_position_zero_of_a_number_is_the_number() -> None:
    assert fold(FieldSum(0), [1, 2, 3]) == 6
    assert fold(FieldMin(0), [2, 1, 3]) == 1
    assert fold(RecordMax(0), ["a", "c", "b"]) == "c"


@pytest.mark.parametrize(("record", "field"), [(5, 1), (object(), 0), ((1, 2), "n")])
def test_a_record_without_the_field_is_refused(record: Any, field: Any) -> None:
    with pytest.raises((TypeMismatchError, AttributeError)):
        FieldSum(field).reduce(record, record)
