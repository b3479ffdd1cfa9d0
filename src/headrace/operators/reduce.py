"""Keyed running `reduce`, and `sum`, `min`, `max` and their kin, which are reduce functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.operators.base import OperatorContext, Outputs, failure_in
from headrace.operators.stateless import FunctionOperator
from headrace.state.descriptors import StateDescriptor, ValueStateDescriptor
from headrace.state.states import ValueState
from headrace.types.information import TypeInformation

STATE_NAME = "_reduced"


class ReduceOperator(FunctionOperator):
    """Folds each record into its key's value and emits the new value."""

    METHOD = "reduce"

    _state: ValueState[Any]

    def __init__(self, function: Any, value_type: TypeInformation) -> None:
        super().__init__(function)
        self._value_type = value_type

    def setup(self, context: OperatorContext, outputs: Outputs) -> None:
        super().setup(context, outputs)
        assert context.backend is not None

    def own_states(self) -> Sequence[StateDescriptor]:
        return (ValueStateDescriptor(STATE_NAME, self._value_type),)

    def open(self) -> None:
        assert self.context.backend is not None
        (reduced,) = self.own_states()
        self._state = self.context.backend.state(reduced)
        super().open()

    def process(self, value: Any, timestamp: int | None) -> None:
        try:
            before = self._state.value()
            after = value if before is None else self._call(before, value)
            self._state.update(after)
        except Exception as error:
            raise failure_in(self, value, error) from error
        self.emit(after, timestamp)
