"""How a window's elements become output: the window function behind one way of calling it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from headrace.operators.functions import Function, callable_of
from headrace.operators.windows.contexts import OperatorWindowContext


class WindowCall(ABC):
    """Calls the window function. One object per subtask, made anew in each task."""

    def __init__(self, function: Any = None) -> None:
        self.function = function

    @abstractmethod
    def bind(self) -> Callable[[Any, OperatorWindowContext, Sequence[Any]], Iterable[Any] | None]:
        """What to call at each firing: `(key, context, elements) -> results`."""

    def clear(self, context: OperatorWindowContext) -> None:  # noqa: B027 - only process functions care
        """A window's life is over."""


class PassOn(WindowCall):
    """No window function: what was folded is the result."""

    def bind(self) -> Callable[[Any, OperatorWindowContext, Sequence[Any]], Iterable[Any] | None]:
        return lambda key, context, elements: elements


class Apply(WindowCall):
    """A `WindowFunction`, or a callable of key, window and elements."""

    def bind(self) -> Callable[[Any, OperatorWindowContext, Sequence[Any]], Iterable[Any] | None]:
        apply = callable_of(self.function, "apply")
        return lambda key, context, elements: apply(key, context.current, elements)


class ApplyToAll(WindowCall):
    """An `AllWindowFunction`, or a callable of window and elements."""

    def bind(self) -> Callable[[Any, OperatorWindowContext, Sequence[Any]], Iterable[Any] | None]:
        apply = callable_of(self.function, "apply")
        return lambda key, context, elements: apply(context.current, elements)


class Process(WindowCall):
    """A `ProcessWindowFunction`."""

    def bind(self) -> Callable[[Any, OperatorWindowContext, Sequence[Any]], Iterable[Any] | None]:
        return callable_of(self.function, "process")

    def clear(self, context: OperatorWindowContext) -> None:
        if isinstance(self.function, Function):
            self.function.clear(context)  # type: ignore[attr-defined]


class ProcessAll(Process):
    """A `ProcessAllWindowFunction`."""

    def bind(self) -> Callable[[Any, OperatorWindowContext, Sequence[Any]], Iterable[Any] | None]:
        process = callable_of(self.function, "process")
        return lambda key, context, elements: process(context, elements)
