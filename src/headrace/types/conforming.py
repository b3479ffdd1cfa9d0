"""What an operator with a declared output type gives, brought to that type, whether or not it travels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.types.kinds import BasicType, RowType, TypeInformation

_EXACT: dict[str, type] = {"DOUBLE": float, "BOOLEAN": bool, "STRING": str}
"""Types whose values need no look beyond their Python class."""


def conformer(type_info: TypeInformation | None, where: str) -> Callable[[Any], Any] | None:
    """A function that checks a value and makes rows of tuples; None where any value will do.

    Called once per record, so a value that is what it should be costs one comparison. `where` names the operator in
    the error.
    """
    if isinstance(type_info, RowType):
        return _row_conformer(type_info, where)
    if not isinstance(type_info, BasicType):
        return None
    exact, check = _EXACT.get(str(type_info)), type_info.check

    def checked(value: Any) -> Any:
        if type(value) is not exact:
            check(value, where)
        return value

    return checked


def _row_conformer(row_type: RowType, where: str) -> Callable[[Any], Any]:
    wanted, make, take_apart, check = row_type.value_class, row_type.make(), row_type.take_apart(), row_type.check

    def as_row(value: Any) -> Any:
        if type(value) is wanted:
            return value
        check(value, where)
        return None if value is None else make(take_apart(value))

    return as_row
