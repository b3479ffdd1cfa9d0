"""Operators with two inputs: `map`, `flat_map` and `process` of connected streams.

Both inputs come to one subtask and one thread, record by record; for an operator with keys, a record of either input
sets the key, so state and timers of that key are shared. Watermarks are the minimum over both inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.operators.base import Attention, Block
from headrace.operators.functions import callable_of
from headrace.operators.process import KeyedProcessOperator, ProcessOperator
from headrace.operators.stateless import FlatMapOperator, FunctionOperator, MapOperator


class TwoInputOperator(FunctionOperator):
    """Runs an operator of one input on both, with a method of the function for each."""

    SECOND_METHOD = ""

    def __init__(self, function: Any) -> None:
        super().__init__(function)
        self._second = callable_of(function, self.SECOND_METHOD)

    def input(self, number: int) -> Callable[[Block, Attention], None]:
        return self.process_block if number == 0 else self.process_second_block

    def process_second_block(self, block: Block, attention: Attention) -> None:
        """The second input, through the same loop as the first."""
        first, self._call = self._call, self._second
        try:
            self.process_block(block, attention)
        finally:
            self._call = first


class CoMapOperator(TwoInputOperator, MapOperator):
    """`map1` and `map2`."""

    METHOD = "map1"
    SECOND_METHOD = "map2"


class CoFlatMapOperator(TwoInputOperator, FlatMapOperator):
    """`flat_map1` and `flat_map2`."""

    METHOD = "flat_map1"
    SECOND_METHOD = "flat_map2"


class CoProcessOperator(TwoInputOperator, ProcessOperator):
    """A `CoProcessFunction` on streams without keys."""

    METHOD = "process_element1"
    SECOND_METHOD = "process_element2"


class KeyedCoProcessOperator(TwoInputOperator, KeyedProcessOperator):
    """A `KeyedCoProcessFunction`, or a `CoProcessFunction` on streams connected by key."""

    METHOD = "process_element1"
    SECOND_METHOD = "process_element2"
