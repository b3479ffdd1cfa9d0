"""Windowed streams: what comes between `window(...)` and the operator that it becomes.

The settings (trigger, lateness, evictor) change the object and give it back, as in Flink, until `reduce`, `aggregate`,
`apply` or `process` makes the operator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.datastream.aggregations import FieldMax, FieldMin, FieldReduce, FieldSum, RecordMax, RecordMin
from headrace.datastream.vectorised import aggregate_windows
from headrace.durations import DurationLike, to_millis
from headrace.errors import JobDefinitionError, KeyedStateError
from headrace.operators.columns.aggregates import Wanted
from headrace.operators.factories import WindowFactory
from headrace.operators.functions import AggregateFunction, Function, OutputTag, ReduceFunction, callable_of
from headrace.operators.windows.assigners import GlobalWindows, WindowAssigner
from headrace.operators.windows.calls import Apply, ApplyToAll, PassOn, Process, ProcessAll, WindowCall
from headrace.operators.windows.evictors import Evictor
from headrace.operators.windows.functions import (
    AllWindowFunction,
    ProcessAllWindowFunction,
    ProcessWindowFunction,
    WindowFunction,
)
from headrace.operators.windows.specification import WindowSpec
from headrace.operators.windows.triggers import EventTimeTrigger, NeverTrigger, Trigger
from headrace.plan.fields import resolve_field
from headrace.types.information import BasicType, TypeInformation, TypeLike, Types, type_of

if TYPE_CHECKING:
    from headrace.datastream.streams import DataStream, KeyedStream

Self = TypeVar("Self", bound="_Windowed")


class _Windowed:
    """What windows per key and windows over all records share."""

    WINDOW_FUNCTION: type[Function]
    PROCESS_FUNCTION: type[Function]

    def __init__(self, stream: KeyedStream, assigner: WindowAssigner) -> None:
        if not isinstance(assigner, WindowAssigner):
            raise JobDefinitionError(
                f"window() got {assigner!r}; wanted a window assigner, such as "
                "TumblingEventTimeWindows.of(Time.minutes(1))."
            )
        self._stream = stream
        self._assigner = assigner
        self._trigger: Trigger | None = None
        self._evictor: Evictor | None = None
        self._lateness_ms = 0
        self._late_tag: OutputTag | None = None

    def trigger(self: Self, trigger: Trigger) -> Self:
        """When windows fire, instead of the assigner's own way."""
        _wanted("trigger()", trigger, Trigger)
        self._trigger = trigger
        return self

    def evictor(self: Self, evictor: Evictor) -> Self:
        """Take elements out before or after the function. Windows then keep all their elements."""
        _wanted("evictor()", evictor, Evictor)
        self._evictor = evictor
        return self

    def allowed_lateness(self: Self, time_ms: DurationLike) -> Self:
        """How long after its end a window of event time still takes elements, and fires again for each."""
        lateness = to_millis(time_ms, "allowed_lateness()")
        if lateness < 0:
            raise JobDefinitionError(f"allowed_lateness() got {lateness} ms. Give 0 or more.")
        if lateness and not self._assigner.is_event_time():
            raise JobDefinitionError(
                f"allowed_lateness() has no meaning for {type(self._assigner).__name__}: by the clock nothing is late. "
                "Use windows of event time, or leave it out."
            )
        self._lateness_ms = lateness
        return self

    def side_output_late_data(self: Self, output_tag: OutputTag) -> Self:
        """Send late elements to this side output instead of dropping (and counting) them."""
        _wanted("side_output_late_data()", output_tag, OutputTag)
        self._late_tag = output_tag
        return self

    # Operators

    def reduce(
        self,
        reduce_function: ReduceFunction | Callable[[Any, Any], Any],
        window_function: Any = None,
        output_type: TypeLike | None = None,
    ) -> DataStream:
        """Fold the elements two by two as they come; a window function, if there is one, gets the result."""
        callable_of(reduce_function, "reduce")
        kept = self._stream.get_type()
        made = kept if output_type is None and window_function is None else output_type
        return self._made("reduce", self._call_of(window_function), made, reduce_function=reduce_function)

    def aggregate(
        self,
        aggregate_function: AggregateFunction,
        window_function: Any = None,
        accumulator_type: TypeLike | None = None,
        output_type: TypeLike | None = None,
    ) -> DataStream:
        """Fold the elements into an accumulator as they come; a window function, if there is one, gets the result."""
        _wanted("aggregate()", aggregate_function, AggregateFunction)
        accumulator = Types.ANY() if accumulator_type is None else type_of(accumulator_type)
        return self._made(
            "aggregate",
            self._call_of(window_function),
            output_type,
            aggregate_function=aggregate_function,
            accumulator_type=accumulator,
        )

    def sum(self, position_to_sum: int | str = 0) -> DataStream:
        """The sum of a field; the other fields are those of the window's first record."""
        return self._by_field("sum", FieldSum(position_to_sum))

    def min(self, position_to_min: int | str = 0) -> DataStream:
        """The minimum of a field; the other fields are those of the window's first record."""
        return self._by_field("min", FieldMin(position_to_min))

    def max(self, position_to_max: int | str = 0) -> DataStream:
        """The maximum of a field; the other fields are those of the window's first record."""
        return self._by_field("max", FieldMax(position_to_max))

    def min_by(self, position_to_min_by: int | str = 0) -> DataStream:
        """The record with the smallest value of a field; the first among equals."""
        return self._by_field("min_by", RecordMin(position_to_min_by))

    def max_by(self, position_to_max_by: int | str = 0) -> DataStream:
        """The record with the largest value of a field; the first among equals."""
        return self._by_field("max_by", RecordMax(position_to_max_by))

    def _applied(self, function: Any, output_type: TypeLike | None) -> DataStream:
        callable_of(function, "apply")
        return self._made("apply", self._apply_call(function), output_type)

    def _processed(self, function: Any, output_type: TypeLike | None) -> DataStream:
        _wanted("process()", function, self.PROCESS_FUNCTION)
        return self._made("process", self._process_call(function), output_type)

    # Building

    def _apply_call(self, function: Any) -> WindowCall:
        raise NotImplementedError

    def _process_call(self, function: Any) -> WindowCall:
        raise NotImplementedError

    def _call_of(self, function: Any) -> WindowCall:
        if function is None:
            return PassOn()
        if isinstance(function, self.PROCESS_FUNCTION):
            return self._process_call(function)
        if isinstance(function, Function) and not isinstance(function, self.WINDOW_FUNCTION):
            raise JobDefinitionError(
                f"{type(function).__name__} cannot follow here; wanted a {self.WINDOW_FUNCTION.__name__}, a "
                f"{self.PROCESS_FUNCTION.__name__} or a plain callable."
            )
        callable_of(function, "apply")
        return self._apply_call(function)

    def _by_field(self, name: str, function: FieldReduce) -> DataStream:
        kept = self._stream.get_type()
        if not (function.field == 0 and isinstance(kept, BasicType)):
            resolve_field(kept, function.field, f"{name}()")
        return self._made(name, PassOn(), kept, reduce_function=function)

    def _made(self, name: str, call: WindowCall, output_type: TypeLike | None, **folding: Any) -> DataStream:
        trigger = self._trigger
        if trigger is None:
            trigger = self._assigner.get_default_trigger(self._stream.get_execution_environment())
            if isinstance(self._assigner, GlobalWindows) and isinstance(trigger, NeverTrigger):
                raise JobDefinitionError(
                    "GlobalWindows have no end, so without a trigger they never give a result. Set one, such as "
                    "trigger(CountTrigger.of(100))."
                )
        kept: TypeInformation | None = self._stream.get_type()
        spec = WindowSpec(
            assigner=self._assigner,
            trigger=trigger,
            element_type=Types.ANY() if kept is None else kept,
            call=call,
            evictor=self._evictor,
            lateness_ms=self._lateness_ms,
            late_tag=self._late_tag,
            **folding,
        )
        return self._stream._then(f"window {name}", WindowFactory(spec), output_type)


class WindowedStream(_Windowed):
    """A keyed stream cut into windows, per key."""

    WINDOW_FUNCTION = WindowFunction
    PROCESS_FUNCTION = ProcessWindowFunction

    def apply(
        self,
        window_function: WindowFunction | Callable[[Any, Any, Iterable[Any]], Iterable[Any] | None],
        output_type: TypeLike | None = None,
    ) -> DataStream:
        """Call the function with key, window and all elements."""
        return self._applied(window_function, output_type)

    def process(
        self, process_window_function: ProcessWindowFunction, output_type: TypeLike | None = None
    ) -> DataStream:
        """Call the function with key, context and all elements; it may keep state."""
        return self._processed(process_window_function, output_type)

    def aggregate_columns(self, outputs: Mapping[str, Wanted] | None = None, /, **columns: Wanted) -> DataStream:
        """Aggregate whole Arrow batches: `aggregate_columns(total=("amount", "sum"), n="count")`.

        Gives rows of the key's fields, `window_start`, `window_end` and these columns. The functions are sum, min, max,
        count and avg; for tumbling, sliding and session windows of event time. Late data is dropped and counted, or
        goes to the side output; within the allowed lateness a window fires again, once for each batch of late data.
        """
        if self._trigger is not None and type(self._trigger) is not EventTimeTrigger:
            raise JobDefinitionError(
                "aggregate_columns() fires when the watermark passes the end of a window, and has no trigger() such as "
                f"{type(self._trigger).__name__}. Leave it out, or use aggregate(), which takes any."
            )
        if self._evictor is not None:
            raise JobDefinitionError(
                f"aggregate_columns() keeps no records that {type(self._evictor).__name__} could take out, so it has "
                "no evictor(). Leave it out, or use aggregate()."
            )
        wanted = {**(outputs or {}), **columns}
        return aggregate_windows(self._stream, self._assigner, self._lateness_ms, self._late_tag, wanted)

    def _apply_call(self, function: Any) -> WindowCall:
        return Apply(function)

    def _process_call(self, function: Any) -> WindowCall:
        return Process(function)


class AllWindowedStream(_Windowed):
    """A stream cut into windows over all its records, in one subtask."""

    WINDOW_FUNCTION = AllWindowFunction
    PROCESS_FUNCTION = ProcessAllWindowFunction

    def apply(
        self,
        window_function: AllWindowFunction | Callable[[Any, Iterable[Any]], Iterable[Any] | None],
        output_type: TypeLike | None = None,
    ) -> DataStream:
        """Call the function with window and all elements."""
        return self._applied(window_function, output_type)

    def process(
        self, process_window_function: ProcessAllWindowFunction, output_type: TypeLike | None = None
    ) -> DataStream:
        """Call the function with context and all elements; it may keep state."""
        return self._processed(process_window_function, output_type)

    def aggregate_columns(self, outputs: Mapping[str, Wanted] | None = None, /, **columns: Wanted) -> DataStream:
        raise KeyedStateError(
            'aggregate_columns() works per key, but windows over all records have none. Call key_by("field") and '
            "window() instead of window_all(), or use aggregate()."
        )

    def _apply_call(self, function: Any) -> WindowCall:
        return ApplyToAll(function)

    def _process_call(self, function: Any) -> WindowCall:
        return ProcessAll(function)

    def _made(self, name: str, call: WindowCall, output_type: TypeLike | None, **folding: Any) -> DataStream:
        made = super()._made(name, call, output_type, **folding)
        # All records have one key, so more subtasks would have nothing to do.
        return made.set_parallelism(1).set_max_parallelism(1)


def no_key(value: Any) -> int:
    """The key of every record where there is none."""
    return 0


def _wanted(call: str, given: Any, wanted: type) -> None:
    if isinstance(given, type) and issubclass(given, wanted):
        raise JobDefinitionError(f"{call} got the class {given.__name__}. Write {given.__name__}(...).")
    if not isinstance(given, wanted):
        article = "an" if wanted.__name__[0] in "AEIOU" else "a"
        raise JobDefinitionError(f"{call} got {given!r}; wanted {article} {wanted.__name__}.")
