"""Conditions of patterns: which events fit. Plain callables, simple conditions and iterative ones.

A simple condition looks at the event alone and is asked once for each event, however many partial matches wait for
it. An iterative one may also ask which events a partial match has taken so far, so it is asked for each of them.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from headrace.errors import MalformedPatternError
from headrace.operators.functions import Function


class ConditionContext(ABC):
    """What an iterative condition may ask. Valid only during the call."""

    @abstractmethod
    def get_events_for_pattern(self, name: str) -> list[Any]:
        """Events that the partial match at hand has taken for that pattern, in order. Empty if there are none."""

    @abstractmethod
    def timestamp(self) -> int | None:
        """Event time of the event at hand in milliseconds; in processing time, when it came."""

    @abstractmethod
    def current_processing_time(self) -> int:
        """The task's clock in milliseconds since 1970."""


class IterativeCondition(Function):
    """Decides by the event and by what the partial match has taken before. Give an object of it to `where`."""

    @abstractmethod
    def filter(self, value: Any, ctx: ConditionContext) -> bool:
        """Whether the event fits. Called for every event and every partial match that waits for this pattern."""


class SimpleCondition(Function):
    """Decides by the event alone."""

    @abstractmethod
    def filter(self, value: Any) -> bool:
        """Whether the event fits. Called at most once for every event."""

    @staticmethod
    def of(function: Callable[[Any], bool]) -> SimpleCondition:
        """A simple condition of a plain function."""
        return _FunctionCondition(function)


class _FunctionCondition(SimpleCondition):
    def __init__(self, function: Callable[[Any], bool]) -> None:
        if not callable(function):
            raise MalformedPatternError(f"SimpleCondition.of() got {function!r}, which cannot be called.")
        self.filter = function  # type: ignore[method-assign, assignment]  # one call less for every event

    def filter(self, value: Any) -> bool:
        raise AssertionError("replaced by the function in every object")


ConditionLike: TypeAlias = IterativeCondition | SimpleCondition | Callable[..., bool]
"""A condition object, or a plain function of `(event)` or of `(event, context)`."""


@dataclass(frozen=True)
class Condition:
    """A condition as the automaton uses it. `simple`: called with the event alone."""

    call: Callable[..., Any]
    simple: bool
    functions: tuple[Function, ...] = ()
    """Function objects in it, to be opened and closed with the operator."""

    def asked(self) -> Callable[[Any, ConditionContext], Any]:
        """The same as a function of event and context, whichever kind it is."""
        if not self.simple:
            return self.call
        call = self.call
        return lambda event, context: call(event)


def condition_of(given: ConditionLike, call: str) -> Condition:
    """The condition that a program gave; `call` names the method in the error."""
    if isinstance(given, IterativeCondition):
        return Condition(given.filter, False, (given,))
    if isinstance(given, SimpleCondition):
        return Condition(given.filter, True, (given,))
    if isinstance(given, type) and issubclass(given, Function):
        raise MalformedPatternError(f"{call} got the class {given.__name__}. Write {given.__name__}(...).")
    if not callable(given):
        raise MalformedPatternError(
            f"{call} got {given!r}; wanted a function of the event, a function of event and context, a SimpleCondition "
            "or an IterativeCondition."
        )
    return Condition(given, _arguments_of(given) < 2)


def both(first: Condition | None, second: Condition) -> Condition:
    """True where both are. `second` is asked only where `first` is true."""
    if first is None:
        return second
    functions = first.functions + second.functions
    if first.simple and second.simple:
        one, other = first.call, second.call
        return Condition(lambda event: one(event) and other(event), True, functions)
    left, right = first.asked(), second.asked()
    return Condition(lambda event, context: left(event, context) and right(event, context), False, functions)


def either(first: Condition | None, second: Condition | None) -> Condition | None:
    """True where at least one is; None, which is always true, if one of them is."""
    if first is None or second is None:
        return None
    functions = first.functions + second.functions
    if first.simple and second.simple:
        one, other = first.call, second.call
        return Condition(lambda event: one(event) or other(event), True, functions)
    left, right = first.asked(), second.asked()
    return Condition(lambda event, context: left(event, context) or right(event, context), False, functions)


def instance_of(kind: type) -> Condition:
    """True for objects of that class."""
    return Condition(lambda event: isinstance(event, kind), True)


def _arguments_of(function: Callable[..., Any]) -> int:
    """How many arguments it cannot do without. Functions that do not tell, mostly built in, take the event alone."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 1
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in by_position and p.default is p.empty for p in parameters)
