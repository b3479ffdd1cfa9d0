"""`sum`, `min`, `max`, `min_by` and `max_by` of keyed streams: reduce functions over one field of a record.

As in Flink, `sum`, `min` and `max` change that field alone and keep the others of the key's first record; `min_by` and
`max_by` keep the whole record that has the extreme, the first one among equals.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from headrace.errors import TypeMismatchError
from headrace.operators.functions import ReduceFunction
from headrace.types.rows import Row

_SCALARS = (int, float, complex, str, bytes)


class FieldReduce(ReduceFunction):
    """Base of the five: knows the field, by name or position."""

    def __init__(self, field: str | int) -> None:
        self.field = field

    def read(self, record: Any) -> Any:
        """The field's value. Position 0 of a number or text is the value itself."""
        if isinstance(record, Mapping | list) or (isinstance(record, tuple | Row) and isinstance(self.field, int)):
            return record[self.field]  # type: ignore[index]
        if isinstance(record, _SCALARS) and self.field == 0:
            return record
        if isinstance(self.field, str):
            return getattr(record, self.field)
        if dataclasses.is_dataclass(record):
            return getattr(record, dataclasses.fields(record)[self.field].name)
        raise self._unknown(record)

    def written(self, record: Any, value: Any) -> Any:
        """The record with another value in the field; the record itself is left as it is."""
        if isinstance(record, Mapping):
            return {**record, self.field: value}
        if isinstance(record, tuple | list | Row):
            parts = list(record)
            parts[self._position(record)] = value
            if isinstance(record, Row):
                return type(record)(*parts)
            return tuple.__new__(type(record), parts) if isinstance(record, tuple) else parts
        if isinstance(record, _SCALARS) and self.field == 0:
            return value
        if dataclasses.is_dataclass(record) and not isinstance(record, type):
            name = self.field if isinstance(self.field, str) else dataclasses.fields(record)[self.field].name
            return dataclasses.replace(record, **{name: value})
        raise self._unknown(record)

    def _position(self, record: Any) -> int:
        if isinstance(self.field, int):
            return self.field
        names: tuple[str, ...] = record.__row_names__ if isinstance(record, Row) else getattr(record, "_fields", ())
        if self.field not in names:
            raise self._unknown(record)
        return names.index(self.field)

    def _unknown(self, record: Any) -> TypeMismatchError:
        return TypeMismatchError(
            f"{type(self).__name__} wants field {self.field!r} of a {type(record).__name__}. Aggregate a field of "
            "rows, tuples, dicts or dataclasses, or write a reduce() of your own."
        )


class FieldSum(FieldReduce):
    """`sum`."""

    def reduce(self, value1: Any, value2: Any) -> Any:
        return self.written(value1, self.read(value1) + self.read(value2))


class FieldMin(FieldReduce):
    """`min`."""

    def reduce(self, value1: Any, value2: Any) -> Any:
        new = self.read(value2)
        return self.written(value1, new) if new < self.read(value1) else value1


class FieldMax(FieldReduce):
    """`max`."""

    def reduce(self, value1: Any, value2: Any) -> Any:
        new = self.read(value2)
        return self.written(value1, new) if new > self.read(value1) else value1


class RecordMin(FieldReduce):
    """`min_by`."""

    def reduce(self, value1: Any, value2: Any) -> Any:
        return value2 if self.read(value2) < self.read(value1) else value1


class RecordMax(FieldReduce):
    """`max_by`."""

    def reduce(self, value1: Any, value2: Any) -> Any:
        return value2 if self.read(value2) > self.read(value1) else value1
