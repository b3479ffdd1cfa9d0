"""The short way for tumbling and sliding windows of event time that fire when the watermark passes their end.

It does what `WindowOperator` does with an `EventTimeTrigger`, without an object or a call of the trigger per record.
An element goes the short way if all its windows are still open. Then the trigger would only register its timer, and
that is needed once for each key and window: with the first element. Elements of windows that have fired already
(allowed lateness) and late ones go the long way.
"""

from __future__ import annotations

from operator import length_hint
from typing import Any

from headrace.operators.base import Attention, Block, OperatorContext, Outputs, failure_in
from headrace.operators.watermarks import MAX_WATERMARK
from headrace.operators.windows.contents import FoldedContents
from headrace.operators.windows.operator import WindowOperator
from headrace.operators.windows.windows import encode_bounds
from headrace.state.keys import raw_key

_NONE_OPEN = (1, 0)
"""Bounds between which no time lies."""


class TumblingWindowOperator(WindowOperator):
    """Tumbling windows of event time with an `EventTimeTrigger` and no evictor."""

    def setup(self, context: OperatorContext, outputs: Outputs) -> None:
        super().setup(context, outputs)
        self._offset = self._assigner.offset  # type: ignore[attr-defined]
        self._size = self._assigner.size  # type: ignore[attr-defined]

    def open(self) -> None:
        super().open()
        contents = self._contents
        # One call less per record where contents are folded.
        self._add: Any = contents.state.fold if isinstance(contents, FoldedContents) else contents.add

    def process_block(self, block: Block, attention: Attention) -> None:
        if block.keys is None or block.timestamps is None:
            super().process_block(block, attention)
            return
        begin = block.position
        values = iter(block.values[begin:] if begin else block.values)
        value = None
        try:
            if isinstance(self._contents, FoldedContents):
                self._fold_each(block.keys[begin:], values, block.timestamps[begin:], attention)
            else:
                for self._keys.key, value, timestamp in zip(
                    block.keys[begin:], values, block.timestamps[begin:], strict=False
                ):
                    self._take_in_plain(value, timestamp)
                    if attention.raised:
                        break
        except Exception as error:
            raise failure_in(self, block.values[len(block.values) - length_hint(values) - 1], error) from error
        finally:
            block.position = len(block.values) - length_hint(values)

    def _fold_each(self, keys: Any, values: Any, timestamps: Any, attention: Attention) -> None:
        context, fold, enter = self._keys, self._add, self._contents.enter
        offset, size, watermark = self._offset, self._size, self.current_watermark
        start, end = _NONE_OPEN
        namespace = b""
        for context.key, value, timestamp in zip(keys, values, timestamps, strict=False):
            if not start <= timestamp < end:
                start = timestamp - (timestamp - offset) % size
                end = start + size
                if end - 1 <= watermark:
                    start, end = _NONE_OPEN
                    self.process(value, timestamp)
                    if attention.raised:
                        break
                    continue
                namespace = encode_bounds(start, end)
                enter(namespace)
            if fold(value):
                self._set_timers(end - 1, namespace)
            if attention.raised:
                break

    def _take_in_plain(self, value: Any, timestamp: int) -> None:
        start = timestamp - (timestamp - self._offset) % self._size
        end = start + self._size
        if end - 1 <= self.current_watermark:
            self.process(value, timestamp)
            return
        namespace = encode_bounds(start, end)
        self._contents.enter(namespace)
        if self._contents.add(value, timestamp):
            self._set_timers(end - 1, namespace)

    def _set_timers(self, last: int, namespace: bytes) -> None:
        """The timer at which the window fires and, with allowed lateness, the one at which its life ends."""
        key = self._keys.key
        self._event.register(last, key, namespace)
        if self._lateness:
            self._event.register(min(last + self._lateness, MAX_WATERMARK), key, namespace)

    def _advance_event_time(self, time_ms: int) -> None:
        contents = self._contents
        if not self._passes_on or self._lateness or not isinstance(contents, FoldedContents):
            super()._advance_event_time(time_ms)
            return
        # Without lateness and window function, what comes out of the state is the result and the end of the window.
        pop, keys, enter, take, emit = self._event.pop_due, self._keys, contents.enter, contents.state.take, self.emit
        entered = b""
        while (timer := pop(time_ms)) is not None:
            last, keys.key, namespace = timer
            if namespace != entered:
                enter(namespace)
                entered = namespace
            try:
                result = take()
            except Exception as error:
                window, key = self._window_at(namespace), raw_key(keys.key)
                raise failure_in(self, f"(timer at {last} of {window} of key {key!r})", error) from error
            if result is not None:
                emit(result, last)


class SlidingWindowOperator(TumblingWindowOperator):
    """Sliding windows of event time with an `EventTimeTrigger` and no evictor."""

    def setup(self, context: OperatorContext, outputs: Outputs) -> None:
        super().setup(context, outputs)
        self._slide = self._assigner.slide  # type: ignore[attr-defined]
        self._even = self._size % self._slide == 0
        """Every time between two starts lies in the same windows."""
        self._panes: tuple[int, list[tuple[bytes, int]]] | None = None

    def _fold_each(self, keys: Any, values: Any, timestamps: Any, attention: Attention) -> None:
        context, fold, enter = self._keys, self._add, self._contents.enter
        for context.key, value, timestamp in zip(keys, values, timestamps, strict=False):
            panes = self._panes_of(timestamp)
            if not panes or panes[-1][1] <= self.current_watermark:
                self.process(value, timestamp)
            else:
                for namespace, last in panes:
                    enter(namespace)
                    if fold(value):
                        self._set_timers(last, namespace)
            if attention.raised:
                break

    def _take_in_plain(self, value: Any, timestamp: int) -> None:
        panes = self._panes_of(timestamp)
        if not panes or panes[-1][1] <= self.current_watermark:
            self.process(value, timestamp)
            return
        for namespace, last in panes:
            self._contents.enter(namespace)
            if self._contents.add(value, timestamp):
                self._set_timers(last, namespace)

    def _panes_of(self, timestamp: int) -> list[tuple[bytes, int]]:
        """(namespace, last timestamp) of each window of that time, the latest first."""
        size = self._size
        latest = timestamp - (timestamp - self._offset) % self._slide
        known = self._panes
        if known is not None and known[0] == latest:
            return known[1]
        starts = range(latest, timestamp - size, -self._slide)
        panes = [(encode_bounds(start, start + size), start + size - 1) for start in starts]
        if self._even:
            self._panes = (latest, panes)
        return panes
