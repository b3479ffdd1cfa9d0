"""Joins: two streams by key and time, a stream with a changing table, a stream with a table that stays."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import pyarrow as pa

from headrace.datastream.connected import check_key_types, check_same_environment
from headrace.durations import DurationLike, to_millis
from headrace.errors import JobDefinitionError
from headrace.operators.connected_factories import IntervalJoinFactory, LookupJoinFactory, TemporalJoinFactory
from headrace.operators.connected_functions import ProcessJoinFunction
from headrace.operators.functions import OutputTag, callable_of
from headrace.operators.lookup import ColumnsTable, LookupTable, RowsTable
from headrace.plan.keys import KeyLike, key_spec
from headrace.types.information import TypeInformation, TypeLike, Types

if TYPE_CHECKING:
    from headrace.datastream.streams import DataStream, KeyedStream

How: TypeAlias = Literal["inner", "left"]
"""What becomes of a record without a row: `inner` drops it, `left` joins it with None."""


class IntervalJoin:
    """Two keyed streams that are about to be joined; `between` says how far apart in time."""

    def __init__(self, left: KeyedStream, right: KeyedStream) -> None:
        check_same_environment("interval_join()", left, right)
        check_key_types("interval_join()", left, right)
        self._left = left
        self._right = right

    def between(self, lower_bound: DurationLike, upper_bound: DurationLike) -> IntervalJoined:
        """Join a record at t with those of the other stream from t + lower to t + upper, both inclusive."""
        lower = to_millis(lower_bound, "lower bound of the interval join")
        upper = to_millis(upper_bound, "upper bound of the interval join")
        return IntervalJoined(self._left, self._right, lower, upper)


@dataclass(frozen=True, slots=True)
class IntervalJoined:
    """An interval join that wants its function."""

    _left: KeyedStream
    _right: KeyedStream
    _lower: int
    _upper: int
    _lower_exclusive: bool = False
    _upper_exclusive: bool = False
    _left_late: OutputTag | None = None
    _right_late: OutputTag | None = None

    def lower_bound_exclusive(self) -> IntervalJoined:
        """Leave out what lies at the lower bound itself."""
        return replace(self, _lower_exclusive=True)

    def upper_bound_exclusive(self) -> IntervalJoined:
        """Leave out what lies at the upper bound itself."""
        return replace(self, _upper_exclusive=True)

    def side_output_left_late_data(self, output_tag: OutputTag) -> IntervalJoined:
        """Where records of the left stream go that come behind the watermark; without it they are dropped."""
        return replace(self, _left_late=checked_tag("side_output_left_late_data()", output_tag))

    def side_output_right_late_data(self, output_tag: OutputTag) -> IntervalJoined:
        """The same for the right stream."""
        return replace(self, _right_late=checked_tag("side_output_right_late_data()", output_tag))

    def process(
        self,
        process_join_function: ProcessJoinFunction | Callable[[Any, Any, Any], Iterable[Any] | None],
        output_type: TypeLike | None = None,
    ) -> DataStream:
        """Any number out for each pair: `process_element(left, right, ctx)`, or a plain function of these three."""
        callable_of(process_join_function, "process_element")
        lower, upper = self._lower + self._lower_exclusive, self._upper - self._upper_exclusive
        if lower > upper:
            raise JobDefinitionError(
                f"interval_join() between {self._lower} and {self._upper} ms "
                f"({'exclusive' if self._lower_exclusive else 'inclusive'}, "
                f"{'exclusive' if self._upper_exclusive else 'inclusive'}) leaves no time in between. "
                "Let the lower bound lie before the upper one."
            )
        factory = IntervalJoinFactory(
            process_join_function,
            lower,
            upper,
            _kept_as(self._left),
            _kept_as(self._right),
            left_late=self._left_late,
            right_late=self._right_late,
        )
        return self._left.then_with(self._right, "interval_join", factory, output_type)


def temporal_join(
    stream: KeyedStream,
    table: KeyedStream,
    function: Callable[[Any, Any], Any] | None,
    how: How,
    is_deletion: Callable[[Any], bool] | None,
    late_data: OutputTag | None,
    output_type: TypeLike | None,
) -> DataStream:
    """See `KeyedStream.temporal_join`."""
    call = "temporal_join()"
    check_same_environment(call, stream, table)
    check_key_types(call, stream, table)
    factory = TemporalJoinFactory(
        _joining(call, function),
        _kept_as(stream),
        _kept_as(table),
        outer=_is_outer(call, how),
        is_deletion=is_deletion,
        late=None if late_data is None else checked_tag(call, late_data),
    )
    return stream.then_with(table, "temporal_join", factory, output_type)


def lookup_factory(
    type_info: TypeInformation | None,
    table: Any,
    key: KeyLike,
    how: How,
    table_key: KeyLike | None,
    function: Callable[[Any, Any], Any] | None,
) -> LookupJoinFactory:
    """See `DataStream.lookup_join`; `type_info` is that of the stream."""
    call = "lookup_join()"
    rows = lookup_table(table)
    if table_key is None:
        if callable(key):
            raise JobDefinitionError(
                f"{call} got a function for the key of the stream's records, which need not fit the rows of the "
                "table. Give table_key as well."
            )
        table_key = key
    return LookupJoinFactory(
        _joining(call, function),
        rows,
        key_spec(key, type_info, call=call).selector,
        key_spec(table_key, None, call=call).selector,
        outer=_is_outer(call, how),
    )


def lookup_table(table: Any) -> LookupTable:
    """Rows of a list, an Arrow table or batch, a pandas or a Spark DataFrame, which the driver collects now."""
    if isinstance(table, pa.Table):
        return ColumnsTable.of(table)
    if isinstance(table, pa.RecordBatch):
        return ColumnsTable.of(pa.Table.from_batches([table]))
    collect = getattr(table, "toArrow", None)
    if callable(collect):
        return ColumnsTable.of(collect())
    if hasattr(table, "iloc") and hasattr(table, "columns"):
        return ColumnsTable.of(pa.Table.from_pandas(table, preserve_index=False))
    if isinstance(table, str | bytes | dict) or not isinstance(table, Iterable):
        raise JobDefinitionError(
            f"lookup_join() got {table!r} for its table. Give a list of rows, an Arrow table or a DataFrame."
        )
    return RowsTable(tuple(table))


def pair(record: Any, row: Any) -> tuple[Any, Any]:
    """What a join gives where the program names no function."""
    return record, row


def checked_tag(call: str, tag: Any) -> OutputTag:
    """An output tag, or an error that names the call."""
    if not isinstance(tag, OutputTag):
        raise JobDefinitionError(f"{call} got {tag!r} for late records; wanted an OutputTag.")
    return tag


def _joining(call: str, function: Callable[[Any, Any], Any] | None) -> Any:
    if function is None:
        return pair
    callable_of(function, "join")
    return function


def _is_outer(call: str, how: str) -> bool:
    if how not in ("inner", "left"):
        raise JobDefinitionError(f'{call} got how={how!r}. Give "inner" or "left".')
    return how == "left"


def _kept_as(stream: DataStream) -> TypeInformation:
    """The type under which records of the stream are kept in state."""
    known = stream.get_type()
    return Types.ANY() if known is None else known
