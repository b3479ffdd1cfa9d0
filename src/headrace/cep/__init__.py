"""Patterns of events in a stream, in Flink's terms: `CEP.pattern(stream, Pattern.begin(...)).select(...)`.

Names load when they are first used: a task needs the automaton, and nothing of what builds programs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.cep.conditions import ConditionContext, IterativeCondition, SimpleCondition
    from headrace.cep.functions import (
        EventComparator,
        PatternContext,
        PatternFlatSelectFunction,
        PatternFlatTimeoutFunction,
        PatternProcessFunction,
        PatternSelectFunction,
        PatternTimeoutFunction,
        TimedOutPartialMatchHandler,
    )
    from headrace.cep.pattern import GroupPattern, Pattern
    from headrace.cep.skip import AfterMatchSkipStrategy
    from headrace.cep.steps import WithinType
    from headrace.cep.stream import CEP, PatternStream
    from headrace.errors import MalformedPatternError

_HOMES = {
    "headrace.cep.conditions": ("ConditionContext", "IterativeCondition", "SimpleCondition"),
    "headrace.cep.functions": (
        "EventComparator",
        "PatternContext",
        "PatternFlatSelectFunction",
        "PatternFlatTimeoutFunction",
        "PatternProcessFunction",
        "PatternSelectFunction",
        "PatternTimeoutFunction",
        "TimedOutPartialMatchHandler",
    ),
    "headrace.cep.pattern": ("GroupPattern", "Pattern"),
    "headrace.cep.skip": ("AfterMatchSkipStrategy",),
    "headrace.cep.steps": ("WithinType",),
    "headrace.cep.stream": ("CEP", "PatternStream"),
    "headrace.errors": ("MalformedPatternError",),
}
"""Where each public name is defined."""

__all__ = [
    "CEP",
    "AfterMatchSkipStrategy",
    "ConditionContext",
    "EventComparator",
    "GroupPattern",
    "IterativeCondition",
    "MalformedPatternError",
    "Pattern",
    "PatternContext",
    "PatternFlatSelectFunction",
    "PatternFlatTimeoutFunction",
    "PatternProcessFunction",
    "PatternSelectFunction",
    "PatternStream",
    "PatternTimeoutFunction",
    "SimpleCondition",
    "TimedOutPartialMatchHandler",
    "WithinType",
]

_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
