"""`CEP.pattern(stream, pattern)`: a pattern on a stream, and what is to be done with its matches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, overload

from headrace.cep.functions import (
    EventComparator,
    PatternFlatSelectFunction,
    PatternFlatTimeoutFunction,
    PatternProcessFunction,
    PatternSelectFunction,
    PatternTimeoutFunction,
    Selecting,
    SelectingWithTimeout,
)
from headrace.cep.operator import PatternFactory
from headrace.cep.pattern import Pattern
from headrace.datastream.streams import DataStream, KeyedStream
from headrace.errors import JobDefinitionError, MalformedPatternError
from headrace.operators.functions import OutputTag, callable_of
from headrace.types.information import TypeLike, Types

Comparator = EventComparator | Callable[[Any, Any], int]
Select = PatternSelectFunction | PatternFlatSelectFunction | Callable[[dict[str, list[Any]]], Any]
Timeout = PatternTimeoutFunction | PatternFlatTimeoutFunction | Callable[[dict[str, list[Any]], int], Any]


class CEP:
    """Where patterns meet streams."""

    @staticmethod
    def pattern(stream: DataStream, pattern: Pattern, comparator: Comparator | None = None) -> PatternStream:
        """Look for the pattern in the stream: for each key by itself, or in one task if the stream has no key.

        `comparator` puts events of one timestamp in order; without it they stay as they came. What is wrong with the
        pattern is said here.
        """
        if not isinstance(stream, DataStream):
            raise JobDefinitionError(f"CEP.pattern() got {stream!r} as its first argument; wanted a stream.")
        if not isinstance(pattern, Pattern):
            raise MalformedPatternError(f"CEP.pattern() got {pattern!r}; wanted a Pattern. Begin with Pattern.begin().")
        pattern.sequence()
        compare = None if comparator is None else callable_of(comparator, "compare")
        return PatternStream(stream, pattern, compare)


@dataclass(frozen=True)
class PatternStream:
    """A stream with a pattern on it. Immutable: what sets something returns another one."""

    stream: DataStream
    pattern: Pattern
    comparator: Callable[[Any, Any], int] | None = None
    event_time: bool = True
    late_tag: OutputTag | None = None

    def in_event_time(self) -> PatternStream:
        """Events count in the order of their timestamps, once the watermark has passed them. The default."""
        return replace(self, event_time=True)

    def in_processing_time(self) -> PatternStream:
        """Events count in the order in which they come, and `within` goes by the clock."""
        return replace(self, event_time=False)

    def side_output_late_data(self, late_data_output_tag: OutputTag) -> PatternStream:
        """Send events that come after the watermark has passed them to this side output. Else they are dropped."""
        return replace(self, late_tag=_checked_tag(late_data_output_tag, "side_output_late_data()"))

    def process(
        self, pattern_process_function: PatternProcessFunction, output_type: TypeLike | None = None
    ) -> DataStream:
        """Any number out for each match, and to side outputs for each that timed out."""
        if not isinstance(pattern_process_function, PatternProcessFunction):
            raise JobDefinitionError(
                f"process() of a pattern stream got {pattern_process_function!r}; wanted an object of a "
                "PatternProcessFunction. For a plain function use select() or flat_select()."
            )
        return self._then(pattern_process_function, output_type)

    @overload
    def select(self, function: Select, output_type: TypeLike | None = None, /) -> DataStream: ...

    @overload
    def select(
        self, tag: OutputTag, timeout: Timeout, function: Select, output_type: TypeLike | None = None, /
    ) -> DataStream: ...

    def select(self, *arguments: Any) -> DataStream:
        """One result for each match: `select(function)`, or `select(function, output_type)`.

        `select(tag, timeout_function, function)`: besides, `timeout_function(match, timestamp)` of each partial match
        whose time was over goes to that side output.
        """
        return self._selected("select()", False, arguments)

    @overload
    def flat_select(self, function: Select, output_type: TypeLike | None = None, /) -> DataStream: ...

    @overload
    def flat_select(
        self, tag: OutputTag, timeout: Timeout, function: Select, output_type: TypeLike | None = None, /
    ) -> DataStream: ...

    def flat_select(self, *arguments: Any) -> DataStream:
        """Any number of results for each match, and for each that timed out. Arguments as for `select`."""
        return self._selected("flat_select()", True, arguments)

    def _selected(self, call: str, flat: bool, arguments: tuple[Any, ...]) -> DataStream:
        match arguments:
            case (OutputTag() as tag, timeout, function, *rest) if len(rest) < 2:
                return self._then(SelectingWithTimeout(function, flat, tag, timeout), *rest)
            case (function, *rest) if len(rest) < 2 and not isinstance(function, OutputTag):
                return self._then(Selecting(function, flat), *rest)
        raise JobDefinitionError(
            f"{call} got {arguments!r}. Give a function of the match; or a side output tag, a function of what timed "
            "out and a function of the match. Last of all may come the type of the results."
        )

    def _then(self, function: PatternProcessFunction, output_type: TypeLike | None = None) -> DataStream:
        events = self.stream.get_type()
        factory = PatternFactory(
            self.pattern,
            function,
            Types.ANY() if events is None else events,
            self.event_time,
            self.late_tag,
            self.comparator,
        )
        if isinstance(self.stream, KeyedStream):
            return self.stream._then("pattern", factory, output_type)
        return self.stream.key_by(_one_for_all)._then("pattern", factory, output_type).set_parallelism(1)


def _one_for_all(event: Any) -> int:
    """The key of all events of a stream without keys."""
    return 0


def _checked_tag(tag: OutputTag, call: str) -> OutputTag:
    if not isinstance(tag, OutputTag):
        raise JobDefinitionError(f"{call} got {tag!r}; wanted an OutputTag.")
    return tag
