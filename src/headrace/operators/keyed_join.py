"""What the joins of two keyed streams share: a key for each record of either input, and event-time timers."""

from __future__ import annotations

import struct
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Final

from headrace.errors import JobDefinitionError
from headrace.operators.base import Attention, Block, OperatorContext, Outputs, failure_in
from headrace.operators.stateless import FunctionOperator
from headrace.state.backend import KeyContext, KeyedStateBackend, TimerQueue

TIME: Final = struct.Struct(">q")
"""A time, or a slice of it, as a namespace."""


class KeyedJoinOperator(FunctionOperator):
    """Base of joins by key and event time."""

    _backend: KeyedStateBackend
    _keys: KeyContext
    _timers: TimerQueue

    def setup(self, context: OperatorContext, outputs: Outputs) -> None:
        super().setup(context, outputs)
        assert context.backend is not None
        self._backend = context.backend
        self._keys = context.backend.key_context
        self._timers = context.backend.timers("event")

    def input(self, number: int) -> Callable[[Block, Attention], None]:
        take = self.process if number == 0 else self.process_second

        def take_block(block: Block, attention: Attention) -> None:
            values, timestamps, keys = block.values, block.timestamps, block.keys
            assert keys is not None, "both inputs of a keyed join come by key"
            keys_context = self._keys
            start = position = block.position
            value = None
            try:
                if timestamps is None:
                    value = values[start]
                    raise self._no_timestamp()
                for position in range(start, len(values)):
                    value = values[position]
                    keys_context.key = keys[position]
                    take(value, timestamps[position])
                    if attention.raised:
                        break
            except Exception as error:
                raise failure_in(self, value, error) from error
            finally:
                block.position = position + 1

        return take_block

    @abstractmethod
    def process_second(self, value: Any, timestamp: int) -> None:
        """One record of the second input; its key is set."""

    @abstractmethod
    def fire(self, time_ms: int, namespace: bytes) -> None:
        """A timer is due; its key is set."""

    def watermark(self, time_ms: int) -> None:
        self.current_watermark = time_ms
        pop, keys = self._timers.pop_due, self._keys
        while (timer := pop(time_ms)) is not None:
            due_ms, keys.key, namespace = timer
            try:
                self.fire(due_ms, namespace)
            except Exception as error:
                raise failure_in(self, f"(timer at {due_ms} of key {keys.key!r})", error) from error
        self.outputs.watermark(time_ms)

    def _no_timestamp(self) -> JobDefinitionError:
        return JobDefinitionError(
            f'Operator "{self.context.name}" joins by event time, but its record has no timestamp. Give both streams '
            "a WatermarkStrategy with a timestamp assigner: in from_source(), or by "
            "assign_timestamps_and_watermarks()."
        )
