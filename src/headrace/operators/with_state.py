"""`map_with_state` and `flat_map_with_state`: a function of (value, state) that gives (result, new state)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.errors import TypeMismatchError
from headrace.operators.base import failure_in
from headrace.operators.stateless import FunctionOperator
from headrace.state.descriptors import StateDescriptor, ValueStateDescriptor
from headrace.state.states import ValueState
from headrace.types.information import TypeInformation

STATE_NAME = "_state"


class WithStateOperator(FunctionOperator):
    """The state is None the first time; a returned None clears it."""

    METHOD = "map_with_state"

    _state: ValueState[Any]

    def __init__(self, function: Any, state_type: TypeInformation, flat: bool) -> None:
        super().__init__(function)
        self._state_type = state_type
        self._flat = flat

    def own_states(self) -> Sequence[StateDescriptor]:
        return (ValueStateDescriptor(STATE_NAME, self._state_type),)

    def open(self) -> None:
        assert self.context.backend is not None
        (state,) = self.own_states()
        self._state = self.context.backend.state(state)
        super().open()

    def process(self, value: Any, timestamp: int | None) -> None:
        try:
            answer = self._call(value, self._state.value())
            if type(answer) is not tuple or len(answer) != 2:
                wanted = "(results, new_state)" if self._flat else "(result, new_state)"
                raise TypeMismatchError(f"The function returned {answer!r}. Return a pair {wanted}.")
            result, state = answer
            if state is None:
                self._state.clear()
            else:
                self._state.update(state)
            if self._flat:
                emit = self.emit
                for item in result or ():
                    emit(item, timestamp)
                return
        except Exception as error:
            raise failure_in(self, value, error) from error
        self.emit(result, timestamp)
