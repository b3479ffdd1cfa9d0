"""Running aggregates of a keyed stream without windows: an accumulator for each key, which only grows.

A key whose accumulator changed has a timer, so that it is known through a restore which keys are due. With results at
every watermark the timer is set just behind the current one; with results at the end it is set at the end of time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from headrace.operators.base import Operator, OperatorContext, Outputs
from headrace.operators.columns.aggregates import Aggregates, MergeParts
from headrace.operators.columns.batches import ColumnInput
from headrace.operators.columns.grouping import Grouping, PaneBuffer, keys_and_accumulators
from headrace.operators.columns.results import MOST_RESULTS, Results
from headrace.operators.columns.windowed import FOLDED_ROWS
from headrace.operators.watermarks import MAX_WATERMARK
from headrace.state.backend import KeyContext, TimerQueue
from headrace.state.descriptors import StateDescriptor
from headrace.state.folding import FoldingReducingDescriptor, FoldingState
from headrace.types.information import TypeInformation

STATE_NAME = "_aggregate"


class RunningAggregateOperator(ColumnInput, Operator):
    """Takes rows of parts. A result carries the largest timestamp of the records that it is made of."""

    _keys: KeyContext
    _event: TimerQueue
    _state: FoldingState

    def __init__(self, aggregates: Aggregates, input_type: TypeInformation, *, at_end: bool) -> None:
        super().__init__()
        self.expect(input_type)
        self._aggregates = aggregates
        self._at_end = at_end
        self._grouping = Grouping(aggregates, raw=False)
        self._buffer = PaneBuffer()
        self._results = Results(aggregates, self)

    def setup(self, context: OperatorContext, outputs: Outputs) -> None:
        super().setup(context, outputs)
        assert context.backend is not None
        self._keys = context.backend.key_context
        self._event = context.backend.timers("event")

    def own_states(self) -> Sequence[StateDescriptor]:
        merge = MergeParts(self._aggregates.parts)
        return (FoldingReducingDescriptor(STATE_NAME, merge, self._aggregates.accumulator_type),)

    def open(self) -> None:
        super().open()
        assert self.context.backend is not None
        (folded,) = self.own_states()
        self._state = self.context.backend.state(folded)

    def take_batch(self, batch: pa.RecordBatch, times: pa.Array | None) -> None:
        self._buffer.add(batch, None)
        if self._buffer.rows >= FOLDED_ROWS:
            self._fold()

    def _fold(self) -> None:
        if not self._buffer.rows:
            return
        keys, accumulators = keys_and_accumulators(self._grouping.group(self._buffer.take()), self._aggregates)
        due = MAX_WATERMARK if self._at_end else min(self.current_watermark + 1, MAX_WATERMARK)
        context, fold, register = self._keys, self._state.fold, self._event.register
        for key, accumulator in zip(keys, accumulators, strict=True):
            context.key = key
            fold(accumulator)
            register(due, key)

    def watermark(self, time_ms: int) -> None:
        self.deliver_rows()
        self._fold()
        changed: dict[Any, tuple[Any, ...]] = {}
        while (timer := self._event.pop_due(time_ms)) is not None:
            self._keys.key = timer[1]
            changed[timer[1]] = self._state.get()
            if len(changed) >= MOST_RESULTS:
                self._give(changed)
        self._give(changed)
        super().watermark(time_ms)

    def _give(self, changed: dict[Any, tuple[Any, ...]]) -> None:
        found = list(changed.values())
        self._results.add(list(changed), found, [accumulator[-1] for accumulator in found])
        self._results.flush()
        changed.clear()

    def prepare_snapshot(self, checkpoint_id: int) -> None:
        super().prepare_snapshot(checkpoint_id)
        self._fold()
