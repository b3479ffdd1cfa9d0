"""What an aggregation over columns computes: functions, the parts they are made of, and how parts are merged.

    output     sum, min, max, count, avg of a field, or the count of all rows
    part       a column that can be merged: rows, count, sum, min, max; an average is made of a sum and a count
    result     an output's value, from its parts

The parts of some rows of a key are one tuple, the *accumulator*: `(rows, …)`. It is what state keeps of a key and
window. Nulls are left out, as in SQL: the sum, minimum, maximum or average of no values is null, and `count` of a field
counts values. Sums of whole numbers are exact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import add
from typing import Any

import pyarrow as pa

from headrace.errors import JobDefinitionError, TypeMismatchError
from headrace.operators.functions import ReduceFunction
from headrace.types.information import RowType, TupleType, TypeInformation, Types

COUNT = "count"
_SYNONYMS = {"mean": "avg", "average": "avg"}
FUNCTIONS = ("sum", "min", "max", COUNT, "avg")
PANE = "_pane"
"""The column of a pane's or session's start, beside the parts that travel."""
END = "_end"
"""The column of a session's end."""
TIMESTAMP = ""
"""In place of a field: the records' own timestamps."""
WINDOW_START, WINDOW_END = "window_start", "window_end"

_WHOLE = frozenset({"BYTE", "SHORT", "INT", "LONG"})
_FLOATS = frozenset({"FLOAT", "DOUBLE"})
_ORDERED = _WHOLE | _FLOATS | {"SQL_DATE", "SQL_TIMESTAMP", "INSTANT"}
KEYS = _WHOLE | {"STRING"}
"""Types that a key may be made of: their columns hold exactly what the record held, so the key group is the same."""

Wanted = str | tuple[str, str]
"""`"count"`, or (field, function)."""


@dataclass(frozen=True, slots=True)
class Part:
    """A column that can be merged with another of the same kind."""

    function: str
    """`rows`, `count`, `sum`, `min` or `max`."""
    field: str
    type: TypeInformation
    """As it travels between tasks."""

    @property
    def is_whole_sum(self) -> bool:
        return self.function == "sum" and str(self.type) == "LONG"

    @property
    def kept_type(self) -> TypeInformation:
        """As state keeps it: a sum may be beyond 64 bits for a while."""
        return Types.BIG_INT() if self.is_whole_sum else self.type


@dataclass(frozen=True, slots=True)
class Output:
    """A column of the result and the parts that it is made of."""

    name: str
    function: str
    parts: tuple[int, ...]
    type: TypeInformation

    def column(self, parts: Sequence[Sequence[Any]]) -> pa.Array:
        """The values, from the columns of all parts."""
        first = parts[self.parts[0]]
        values: Sequence[Any] = first
        if self.function == "avg":
            counts = parts[self.parts[1]]
            values = [total / count if count else None for total, count in zip(first, counts, strict=True)]
        try:
            return pa.array(values, self.type.arrow_type)
        except (OverflowError, pa.ArrowInvalid) as error:
            raise TypeMismatchError(
                f'A value of "{self.name}" does not fit {self.type}: {error}. For sums beyond 64 bits, sum a DOUBLE.'
            ) from error


@dataclass(frozen=True, slots=True)
class Aggregates:
    """Everything that the program said, and what follows from it."""

    keys: tuple[str, ...]
    key_types: tuple[TypeInformation, ...]
    single_key: bool
    """The key is the one field itself, not a tuple of one."""
    parts: tuple[Part, ...]
    """The first counts rows."""
    outputs: tuple[Output, ...]
    paned: bool
    """Rows are grouped by pane of time too."""
    sessions: bool = False
    """The panes are sessions, each of which has an end of its own."""

    @property
    def accumulator_type(self) -> TypeInformation:
        return Types.TUPLE([part.kept_type for part in self.parts])

    @property
    def travelling_type(self) -> TypeInformation:
        """Rows of parts on their way from one task to another: keys, the pane if there are any, parts."""
        names = [*self.by, *(part_name(i) for i in range(len(self.parts)))]
        pane = [Types.LONG()] * (len(self.by) - len(self.keys))
        return Types.ROW_NAMED(names, [*self.key_types, *pane, *(part.type for part in self.parts)])

    @property
    def by(self) -> list[str]:
        """Names of the columns that are not parts."""
        return [*self.keys, *((PANE,) if self.paned else ()), *((END,) if self.sessions else ())]

    @property
    def result_type(self) -> TypeInformation:
        """Rows of results: keys, the window if there are any, outputs."""
        window = (WINDOW_START, WINDOW_END) if self.paned else ()
        names = [*self.keys, *window, *(output.name for output in self.outputs)]
        return Types.ROW_NAMED(
            names, [*self.key_types, *(Types.LONG() for _ in window), *(output.type for output in self.outputs)]
        )


def part_name(number: int) -> str:
    """The column of a part that travels."""
    return f"_part{number}"


def aggregates_of(
    row_type: TypeInformation | None,
    keys: Sequence[str],
    single_key: bool,
    wanted: Mapping[str, Wanted],
    *,
    paned: bool,
    sessions: bool = False,
    call: str,
) -> Aggregates:
    """Check what the program wants against the type of its records. `call` names the place."""
    if not isinstance(row_type, RowType | TupleType) or row_type.arrow_type is None:
        what = "any Python object" if row_type is None else str(row_type)
        raise JobDefinitionError(
            f"{call} works on columns, but the records are {what}. Give the operator before it an output_type, such as "
            "Types.ROW_NAMED([names], [types])."
        )
    types = dict(zip(row_type.names, row_type.types, strict=True))
    if not keys:
        raise JobDefinitionError(
            f"{call} finds keys in columns, but the key is computed by a function. Name its fields, as in "
            'key_by("id"); a key that is computed must become a field first, by map() or map_batches().'
        )
    for key in keys:
        if str(types[key]) not in KEYS:
            raise JobDefinitionError(
                f'{call} wants keys of text or whole numbers, but field "{key}" is {types[key]}. Make a field of such '
                "a type of it, or use aggregate(), which takes any key."
            )
    if not wanted:
        raise JobDefinitionError(f'{call} got nothing to compute. Name a result, as in total=("amount", "sum").')
    parts = [Part("rows", "", Types.LONG())]
    outputs = tuple(_output(name, how, types, parts, call) for name, how in wanted.items())
    if not paned:
        parts.append(Part("max", TIMESTAMP, Types.LONG()))
    taken = {*keys, *((WINDOW_START, WINDOW_END) if paned else ())}
    for output in outputs:
        if output.name in taken:
            raise JobDefinitionError(
                f'{call} has a result called "{output.name}", but the column of that name is already there. Rename it.'
            )
    key_types = tuple(types[key] for key in keys)
    return Aggregates(tuple(keys), key_types, single_key, tuple(parts), outputs, paned, sessions)


def _output(name: str, how: Wanted, types: Mapping[str, TypeInformation], parts: list[Part], call: str) -> Output:
    if how == COUNT:
        return Output(name, COUNT, (0,), Types.LONG())
    if not isinstance(how, tuple) or len(how) != 2 or not all(isinstance(word, str) for word in how):
        raise JobDefinitionError(
            f'{call} got {name}={how!r}. Write {name}=("field", "function") with one of {", ".join(FUNCTIONS)}, '
            f'or {name}="count" for the number of rows.'
        )
    source, function = how[0], _SYNONYMS.get(how[1], how[1])
    if source not in types:
        raise JobDefinitionError(
            f'{call} wants field "{source}" for {name}, which the records do not have. Their fields are '
            f"{', '.join(types)}."
        )
    if function not in FUNCTIONS:
        raise JobDefinitionError(
            f"{call} got the function {how[1]!r} for {name}. There are {', '.join(FUNCTIONS)} (mean is avg); write any "
            "other as an AggregateFunction for aggregate()."
        )
    kind, field_type = str(types[source]), types[source]
    allowed = {"sum": _WHOLE | _FLOATS, "avg": _WHOLE | _FLOATS, "min": _ORDERED, "max": _ORDERED}.get(function)
    if allowed is not None and kind not in allowed:
        raise JobDefinitionError(
            f'{call} wants {function} of field "{source}", which is {kind}. It takes {", ".join(sorted(allowed))}.'
        )
    total_type = Types.LONG() if kind in _WHOLE else Types.DOUBLE()
    match function:
        case "sum":
            return Output(name, function, (_place(parts, Part("sum", source, total_type)),), total_type)
        case "avg":
            total = _place(parts, Part("sum", source, total_type))
            count = _place(parts, Part(COUNT, source, Types.LONG()))
            return Output(name, function, (total, count), Types.DOUBLE())
        case "count":
            return Output(name, function, (_place(parts, Part(COUNT, source, Types.LONG())),), Types.LONG())
        case _:
            return Output(name, function, (_place(parts, Part(function, source, field_type)),), field_type)


def _place(parts: list[Part], part: Part) -> int:
    if part not in parts:
        parts.append(part)
    return parts.index(part)


@dataclass(frozen=True)
class MergeParts(ReduceFunction):
    """Two accumulators into one; what the state of windows and running aggregates folds with."""

    parts: tuple[Part, ...]
    _steps: tuple[Any, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        steps = {"rows": add, COUNT: add, "sum": _sum, "min": _least, "max": _greatest}
        object.__setattr__(self, "_steps", tuple(steps[part.function] for part in self.parts))

    def reduce(self, value1: tuple[Any, ...], value2: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple([step(a, b) for step, a, b in zip(self._steps, value1, value2, strict=True)])


def _sum(a: Any, b: Any) -> Any:
    if a is None or b is None:
        return b if a is None else a
    return a + b


# A NaN is left out where there is anything else, as Arrow does within a batch; `!=` is true of a NaN alone.


def _least(a: Any, b: Any) -> Any:
    if a is None or b is None:
        return b if a is None else a
    return b if b < a or a != a else a


def _greatest(a: Any, b: Any) -> Any:
    if a is None or b is None:
        return b if a is None else a
    return b if b > a or a != a else a
