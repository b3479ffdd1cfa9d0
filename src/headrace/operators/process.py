"""`process`: process functions with and without a key; the keyed one has timers in both time domains."""

from __future__ import annotations

from itertools import repeat
from operator import length_hint
from typing import Any

from headrace.operators.base import Attention, Block, OperatorContext, Outputs, failure_in
from headrace.operators.context import ElementContext, OperatorTimerService
from headrace.operators.functions import OutputTag, TimeDomain
from headrace.operators.stateless import FunctionOperator
from headrace.state.backend import KeyContext, KeyedStateBackend, TimerQueue


class ProcessOperator(FunctionOperator):
    """A `ProcessFunction` on a stream without a key."""

    METHOD = "process_element"

    def setup(self, context: OperatorContext, outputs: Outputs) -> None:
        super().setup(context, outputs)
        self._element = ElementContext(OperatorTimerService(self, None, None), None)

    def process(self, value: Any, timestamp: int | None) -> None:
        self._element.current_timestamp = timestamp
        try:
            results = self._call(value, self._element)
            if results is not None:
                emit_all(self, results, timestamp)
        except Exception as error:
            raise failure_in(self, value, error) from error


class KeyedProcessOperator(FunctionOperator):
    """A `KeyedProcessFunction`: state and timers scoped to the record's key."""

    METHOD = "process_element"

    _backend: KeyedStateBackend
    _keys: KeyContext
    _event: TimerQueue
    _processing: TimerQueue

    def setup(self, context: OperatorContext, outputs: Outputs) -> None:
        super().setup(context, outputs)
        assert context.backend is not None
        self._backend = context.backend
        self._keys = context.backend.key_context
        self._event = context.backend.timers("event")
        self._processing = context.backend.timers("processing")
        self._element = ElementContext(OperatorTimerService(self, self._event, self._processing), self._keys)

    def process(self, value: Any, timestamp: int | None) -> None:
        self._element.current_timestamp = timestamp
        try:
            results = self._call(value, self._element)
            if results is not None:
                emit_all(self, results, timestamp)
        except Exception as error:
            raise failure_in(self, value, error) from error

    def process_block(self, block: Block, attention: Attention) -> None:
        # The hottest loop of the engine: one frame per record, nothing looked up twice. Where it stands is read from
        # the iterator afterwards, so that no counter has to be kept.
        if block.keys is None:
            super().process_block(block, attention)
            return
        call, element, keys_context, emit, side = self._call, self._element, self._keys, self.emit, self.outputs.side
        start = block.position
        values = iter(block.values[start:] if start else block.values)
        keys = block.keys[start:] if start else block.keys
        timestamps = block.timestamps
        value = timestamp = element.current_timestamp = None
        times = repeat(None) if timestamps is None else timestamps[start:]
        try:
            for keys_context.key, value, timestamp in zip(keys, values, times):  # noqa: B905 - repeat() has no end
                if timestamp is not None:
                    element.current_timestamp = timestamp
                results = call(value, element)
                if results is not None:
                    for result in results:
                        if type(result) is tuple and len(result) == 2 and type(result[0]) is OutputTag:
                            side(result[0].tag_id, result[1], timestamp)
                        else:
                            emit(result, timestamp)
                if attention.raised:
                    break
        except Exception as error:
            raise failure_in(self, value, error) from error
        finally:
            block.position = len(block.values) - length_hint(values)

    def watermark(self, time_ms: int) -> None:
        self.current_watermark = time_ms
        self._fire(self._event, time_ms, TimeDomain.EVENT_TIME)
        self.outputs.watermark(time_ms)

    def next_processing_time(self) -> int | None:
        return self._processing.peek()

    def processing_time(self, now_ms: int) -> None:
        self._fire(self._processing, now_ms, TimeDomain.PROCESSING_TIME)

    def _fire(self, queue: TimerQueue, until_ms: int, domain: TimeDomain) -> None:
        while (timer := queue.pop_due(until_ms)) is not None:
            time_ms, key, _ = timer
            self._keys.key = key
            self._element.at_timer(time_ms, domain)
            try:
                results = self._function.on_timer(time_ms, self._element)
                if results is not None:
                    emit_all(self, results, time_ms if domain is TimeDomain.EVENT_TIME else None)
            except Exception as error:
                raise failure_in(self, f"(timer at {time_ms} of key {key!r})", error) from error


def emit_all(operator: FunctionOperator, results: Any, timestamp: int | None) -> None:
    """Send what a process function gave: values to the main output, `(OutputTag, value)` to a side output."""
    emit = operator.emit
    for result in results:
        if type(result) is tuple and len(result) == 2 and type(result[0]) is OutputTag:
            operator.outputs.side(result[0].tag_id, result[1], timestamp)
        else:
            emit(result, timestamp)
