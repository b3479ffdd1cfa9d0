"""Operators on whole Arrow batches: `map_batches` and `aggregate_columns`.

Mixins of the streams, which stay short by it. What is checked here is what can be known while the program speaks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, TypeAlias

import pyarrow as pa

from headrace.errors import JobDefinitionError, KeyedStateError
from headrace.operators.columns.aggregates import Aggregates, Wanted, aggregates_of
from headrace.operators.columns.factories import (
    ColumnWindowFactory,
    CombineFactory,
    MapBatchesFactory,
    RunningAggregateFactory,
)
from headrace.operators.columns.panes import Gaps, Panes, TimePieces
from headrace.operators.factory import OperatorFactory
from headrace.operators.functions import Function, OutputTag, callable_of
from headrace.operators.windows.assigners import (
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    WindowAssigner,
)
from headrace.plan.builder import Draft, Outlet
from headrace.plan.fields import field_type
from headrace.plan.graph import Hash, KeySpec
from headrace.plan.keys import key_spec
from headrace.types.columns import schema_of
from headrace.types.information import TypeInformation, TypeLike, Types, type_of

if TYPE_CHECKING:
    from headrace.datastream.streams import DataStream, KeyedStream

Batches: TypeAlias = pa.RecordBatch | pa.Table | Iterable[pa.RecordBatch | pa.Table] | None
"""What the function of `map_batches` may give."""


class BatchMethods:
    """The part of `DataStream` that works on batches."""

    def map_batches(  # type: ignore[misc]  # mixed into DataStream alone
        self: DataStream,
        func: Function | Callable[[pa.RecordBatch], Batches],
        output_type: TypeLike | None = None,
        *,
        timestamp_field: str | None = None,
    ) -> DataStream:
        """Arrow columns in, Arrow columns out: `func(batch)` gives a RecordBatch, a Table, an iterable of them or None.

        The batch has a column for each field of the stream's type, or one called `value`. `output_type` says what comes
        out; without it, the type stays as it is. How many records a batch holds is not defined.

        Records that come out have the timestamps in `timestamp_field`, if it is given. Otherwise, if there are as
        many as went in, each has the timestamp of the one in its place; else all have the batch's largest.
        """
        callable_of(func, "map_batches")
        given = self.get_type()
        _check_columns("map_batches()", given, "Give the operator before it an output_type, or the source a type_info")
        assert given is not None
        made = given if output_type is None else type_of(output_type)
        _check_columns("map_batches()", made, "Give it an output_type")
        if timestamp_field is not None and field_type(made, timestamp_field) != Types.LONG():
            raise JobDefinitionError(
                f'map_batches() shall take timestamps from field "{timestamp_field}", but the output {made} has no '
                "such field of type LONG. Name one that holds milliseconds since 1970."
            )
        return self._then("map_batches", MapBatchesFactory(func, given, made, timestamp_field), made)

    def aggregate_columns(
        self,
        outputs: Mapping[str, Wanted] | None = None,
        /,
        *,
        emit: Literal["watermark", "end"] = "watermark",
        **columns: Wanted,
    ) -> DataStream:
        raise KeyedStateError(
            'aggregate_columns() works per key, but this stream has none. Call key_by("field") first.'
        )


class KeyedBatchMethods:
    """The part of `KeyedStream` that works on batches."""

    def aggregate_columns(  # type: ignore[misc]  # mixed into KeyedStream alone
        self: KeyedStream,
        outputs: Mapping[str, Wanted] | None = None,
        /,
        *,
        emit: Literal["watermark", "end"] = "watermark",
        **columns: Wanted,
    ) -> DataStream:
        """Running aggregates of each key: `aggregate_columns(total=("amount", "sum"), n="count")`.

        Gives rows of the key's fields and these columns. With `emit="watermark"` each key that changed gives its new
        row when the watermark moves on, with `emit="end"` each key gives one row at the end of the input.
        """
        if emit not in ("watermark", "end"):
            raise JobDefinitionError(f'aggregate_columns() got emit={emit!r}. Give "watermark" or "end".')
        aggregates = _aggregates(self, {**(outputs or {}), **columns}, paned=False)
        factory = RunningAggregateFactory(aggregates, aggregates.travelling_type, emit == "end")
        return _behind_combine(self, aggregates, None, factory)


def aggregate_windows(
    stream: KeyedStream,
    assigner: WindowAssigner,
    lateness_ms: int,
    late_tag: OutputTag | None,
    wanted: Mapping[str, Wanted],
) -> DataStream:
    """What `WindowedStream.aggregate_columns` makes. The windows' other settings have been looked at."""
    pieces = _pieces_of(assigner)
    aggregates = _aggregates(stream, wanted, paned=True, sessions=isinstance(pieces, Gaps))
    given = stream.get_type()
    assert given is not None
    # Late records are wanted as they were, so they must not be combined before it is known that they are late.
    raw = late_tag is not None or (isinstance(pieces, Panes) and pieces.have_gaps)
    taken = given if raw else aggregates.travelling_type
    factory = ColumnWindowFactory(aggregates, assigner, pieces, taken, lateness_ms, late_tag, raw=raw)
    if raw:
        return stream._then("window aggregate_columns", factory, aggregates.result_type)
    return _behind_combine(stream, aggregates, pieces, factory)


def _pieces_of(assigner: WindowAssigner) -> Panes | Gaps:
    """By the exact class: a class derived from one of these may assign other windows."""
    kind = type(assigner)
    if kind is TumblingEventTimeWindows:
        assert isinstance(assigner, TumblingEventTimeWindows)
        return Panes(assigner.size, assigner.size, assigner.offset)
    if kind is SlidingEventTimeWindows:
        assert isinstance(assigner, SlidingEventTimeWindows)
        return Panes(assigner.size, assigner.slide, assigner.offset)
    if kind is EventTimeSessionWindows:
        assert isinstance(assigner, EventTimeSessionWindows)
        if assigner.gap is not None:
            return Gaps(assigner.gap)
        raise JobDefinitionError(
            "aggregate_columns() has sessions of a fixed gap, but with_dynamic_gap() asks a function for the gap of "
            "each record. Use EventTimeSessionWindows.with_gap(...), or aggregate(), which has both."
        )
    raise JobDefinitionError(
        f"aggregate_columns() has tumbling, sliding and session windows of event time, not {kind.__name__}. Use "
        "one of these (TumblingEventTimeWindows, SlidingEventTimeWindows, EventTimeSessionWindows), or aggregate(), "
        "which has them all."
    )


def _aggregates(
    stream: KeyedStream, wanted: Mapping[str, Wanted], *, paned: bool, sessions: bool = False
) -> Aggregates:
    spec = _key_of(stream)
    return aggregates_of(
        stream.get_type(),
        spec.fields,
        spec.single,
        wanted,
        paned=paned,
        sessions=sessions,
        call="aggregate_columns()",
    )


def _key_of(stream: KeyedStream) -> KeySpec:
    partitioning = stream.outlets[0].partitioning
    assert isinstance(partitioning, Hash)
    return partitioning.key


def _behind_combine(
    stream: KeyedStream, aggregates: Aggregates, panes: TimePieces | None, factory: OperatorFactory
) -> DataStream:
    """An operator on parts, with one before each of its inputs that makes parts of rows, in the task that has them."""
    environment = stream.get_execution_environment()
    given, parts = stream.get_type(), aggregates.travelling_type
    assert given is not None
    key = aggregates.keys[0] if aggregates.single_key else aggregates.keys
    routed = Hash(key_spec(key, parts))
    outlets = []
    for outlet in stream.outlets:
        rows = replace(outlet, partitioning=None)
        draft = environment.declare(Draft("combine", CombineFactory(aggregates, panes, given), ((rows, 0),), parts))
        # Beside the operator that makes the rows: a combiner of another width would need an exchange of its own.
        draft.parallelism = outlet.source.parallelism
        outlets.append(Outlet(draft, partitioning=routed, type=parts))
    name = "aggregate_columns" if panes is None else "window aggregate_columns"
    return type(stream)(environment, tuple(outlets))._then(name, factory, aggregates.result_type)


def _check_columns(call: str, given: TypeInformation | None, remedy: str) -> None:
    if given is None or schema_of(given) is None:
        what = "any Python object" if given is None else f"{given}, a part of which has no column"
        raise JobDefinitionError(
            f"{call} works on columns, but the records are {what}. {remedy}, such as Types.ROW_NAMED([names], [types])."
        )
