"""All that a program says about a window, as the plan keeps it; each task makes its operator from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.errors import JobDefinitionError
from headrace.operators.functions import OutputTag
from headrace.operators.windows.aligned import SlidingWindowOperator, TumblingWindowOperator
from headrace.operators.windows.assigners import (
    EventTimeSessionWindows,
    MergingWindowAssigner,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    WindowAssigner,
)
from headrace.operators.windows.calls import WindowCall
from headrace.operators.windows.contents import (
    STATE_NAME,
    EvictingContents,
    FoldedContents,
    ListedContents,
    WindowContents,
    fold_by_aggregate,
    fold_by_reduce,
)
from headrace.operators.windows.evictors import Evictor
from headrace.operators.windows.merging import MergingWindowOperator
from headrace.operators.windows.operator import WindowOperator
from headrace.operators.windows.sessions import SessionWindowOperator
from headrace.operators.windows.triggers import EventTimeTrigger, Trigger
from headrace.state.folding import FoldingAggregatingDescriptor, FoldingReducingDescriptor
from headrace.types.information import TypeInformation

_SHORT_WAYS: dict[type[WindowAssigner], type[WindowOperator]] = {
    TumblingEventTimeWindows: TumblingWindowOperator,
    SlidingEventTimeWindows: SlidingWindowOperator,
    EventTimeSessionWindows: SessionWindowOperator,
}
"""Operators for windows that fire at their end and keep what they hold, by the exact class of the assigner."""


@dataclass(frozen=True)
class WindowSpec:
    """Which windows, when they fire and what they keep."""

    assigner: WindowAssigner
    trigger: Trigger
    element_type: TypeInformation
    call: WindowCall
    reduce_function: Any = None
    aggregate_function: Any = None
    accumulator_type: TypeInformation | None = None
    evictor: Evictor | None = None
    lateness_ms: int = 0
    late_tag: OutputTag | None = None

    def __post_init__(self) -> None:
        if isinstance(self.assigner, MergingWindowAssigner) and not self.trigger.can_merge():
            raise JobDefinitionError(
                f"The windows of {type(self.assigner).__name__} merge, but {type(self.trigger).__name__} cannot. "
                "Give it can_merge() and on_merge(), or use windows that do not merge."
            )

    @property
    def fold_function(self) -> Any:
        return self.reduce_function if self.reduce_function is not None else self.aggregate_function

    def contents(self) -> WindowContents:
        """What the operator keeps of each window."""
        if self.evictor is not None:
            fold = None
            if self.reduce_function is not None:
                fold = fold_by_reduce(self.reduce_function)
            elif self.aggregate_function is not None:
                fold = fold_by_aggregate(self.aggregate_function)
            return EvictingContents(self.element_type, self.evictor, fold)
        if self.reduce_function is not None:
            shared = not self.assigner.assigns_one
            return FoldedContents(
                FoldingReducingDescriptor(STATE_NAME, self.reduce_function, self.element_type, shared_values=shared)
            )
        if self.aggregate_function is not None:
            assert self.accumulator_type is not None
            return FoldedContents(
                FoldingAggregatingDescriptor(STATE_NAME, self.aggregate_function, self.accumulator_type)
            )
        return ListedContents(self.element_type)

    def operator(self) -> WindowOperator:
        """A new operator, of the class that does least per record."""
        kind: type[WindowOperator] = WindowOperator
        if type(self.trigger) is EventTimeTrigger and self.evictor is None:
            kind = _SHORT_WAYS.get(type(self.assigner), kind)
        if kind is WindowOperator and isinstance(self.assigner, MergingWindowAssigner):
            kind = MergingWindowOperator
        return kind(
            self.assigner,
            self.trigger,
            self.contents(),
            self.call,
            self.fold_function,
            self.lateness_ms,
            self.late_tag,
        )
