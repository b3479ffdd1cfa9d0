"""What users write to be told of matches, and how `select` and `flat_select` become the same thing.

A match is a dict from pattern name to the list of its events, in the order in which they came; a pattern that was left
out has no entry. As everywhere, a method that emits is a generator or returns an iterable, and `yield tag, value` goes
to a side output.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

from headrace.operators.functions import Function, OutputTag, callable_of

Match = dict[str, list[Any]]


class PatternContext(ABC):
    """What a pattern function may ask. Valid only during the call."""

    @abstractmethod
    def timestamp(self) -> int:
        """Time of the match: that of its last event; of a timed-out one, when its time was over."""

    @abstractmethod
    def current_processing_time(self) -> int:
        """The task's clock in milliseconds since 1970."""

    @abstractmethod
    def output(self, tag: OutputTag, value: Any) -> None:
        """Send to a side output, as `yield tag, value` does."""


class PatternProcessFunction(Function):
    """Called for every match."""

    Context = PatternContext

    @abstractmethod
    def process_match(self, match: Match, ctx: PatternContext) -> Iterable[Any] | None:
        """Any number out for each match."""


class TimedOutPartialMatchHandler(ABC):
    """Mix into a `PatternProcessFunction` that wants to hear of partial matches whose time was over."""

    @abstractmethod
    def process_timed_out_match(self, match: Match, ctx: PatternContext) -> Iterable[tuple[OutputTag, Any]] | None:
        """Called once for each. May send to side outputs only."""


class PatternSelectFunction(Function):
    """One result for each match."""

    @abstractmethod
    def select(self, pattern: Match) -> Any: ...


class PatternFlatSelectFunction(Function):
    """Any number of results for each match."""

    @abstractmethod
    def flat_select(self, pattern: Match) -> Iterable[Any] | None: ...


class PatternTimeoutFunction(Function):
    """One result for each partial match whose time was over."""

    @abstractmethod
    def timeout(self, pattern: Match, timeout_timestamp: int) -> Any: ...


class PatternFlatTimeoutFunction(Function):
    """Any number of results for each partial match whose time was over."""

    @abstractmethod
    def timeout(self, pattern: Match, timeout_timestamp: int) -> Iterable[Any] | None: ...


class EventComparator(Function):
    """Puts events of one timestamp in order."""

    @abstractmethod
    def compare(self, value1: Any, value2: Any) -> int:
        """Below 0 if `value1` comes first, above 0 if `value2` does."""


class Selecting(PatternProcessFunction):
    """`select` and `flat_select` as a process function."""

    def __init__(self, function: Any, flat: bool) -> None:
        self.function = function
        self._flat = flat
        self._call: Callable[..., Any] = callable_of(function, "flat_select" if flat else "select")

    def open(self, runtime_context: Any) -> None:
        if isinstance(self.function, Function):
            self.function.open(runtime_context)

    def close(self) -> None:
        if isinstance(self.function, Function):
            self.function.close()

    def process_match(self, match: Match, ctx: PatternContext) -> Iterable[Any] | None:
        result = self._call(match)
        return result if self._flat else (result,)


class SelectingWithTimeout(Selecting, TimedOutPartialMatchHandler):
    """The same, with a second function whose results go to a side output."""

    def __init__(self, function: Any, flat: bool, tag: OutputTag, timeout: Any) -> None:
        super().__init__(function, flat)
        self._tag = tag
        self._timeout = timeout
        self._timeout_call: Callable[..., Any] = callable_of(timeout, "timeout")

    def open(self, runtime_context: Any) -> None:
        super().open(runtime_context)
        if isinstance(self._timeout, Function):
            self._timeout.open(runtime_context)

    def close(self) -> None:
        try:
            super().close()
        finally:
            if isinstance(self._timeout, Function):
                self._timeout.close()

    def process_timed_out_match(self, match: Match, ctx: PatternContext) -> None:
        result = self._timeout_call(match, ctx.timestamp())
        for value in (result or ()) if self._flat else (result,):
            ctx.output(self._tag, value)
