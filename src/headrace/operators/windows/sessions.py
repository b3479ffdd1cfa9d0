"""The short way for sessions of event time that fire when the watermark passes their end.

It does what `MergingWindowOperator` does with an `EventTimeTrigger`, for the elements that are most of a stream: those
that begin a key's only session, fall into it, or make it longer. The bytes of windows are compared and made without
windows, and the trigger is not asked what is known. All other elements (a second session of the key, sessions that
meet, late ones) go the long way; both ways keep the same state.
"""

from __future__ import annotations

from operator import length_hint
from typing import Any

from headrace.operators.base import Attention, Block, OperatorContext, Outputs, failure_in
from headrace.operators.watermarks import MAX_WATERMARK
from headrace.operators.windows.merging import MergingWindowOperator, pack_places, unpack_places
from headrace.operators.windows.windows import decode_bounds, encode_bounds
from headrace.state.keys import raw_key


class SessionWindowOperator(MergingWindowOperator):
    """Sessions of event time with an `EventTimeTrigger` and no evictor."""

    def setup(self, context: OperatorContext, outputs: Outputs) -> None:
        super().setup(context, outputs)
        self._gap = self._assigner.gap  # type: ignore[attr-defined]
        self._extract = self._assigner.extract  # type: ignore[attr-defined]

    def process_block(self, block: Block, attention: Attention) -> None:
        if block.keys is None or block.timestamps is None:
            super().process_block(block, attention)
            return
        begin = block.position
        values = iter(block.values[begin:] if begin else block.values)
        context = self._keys
        try:
            for context.key, value, timestamp in zip(
                block.keys[begin:], values, block.timestamps[begin:], strict=False
            ):
                if not self._take_in_shortly(value, timestamp):
                    self.process(value, timestamp)
                if attention.raised:
                    break
        except Exception as error:
            raise failure_in(self, block.values[len(block.values) - length_hint(values) - 1], error) from error
        finally:
            block.position = len(block.values) - length_hint(values)

    def _take_in_shortly(self, value: Any, timestamp: int) -> bool:
        """Take the element in if it is one of the usual; False if it must go the long way."""
        gap = self._gap if self._gap is not None else self._extract(value)
        if gap <= 0:
            return False
        start, end = timestamp, timestamp + gap
        saved = self._state.value()
        if saved is None:
            if end - 1 <= self.current_watermark:
                return False
            place = encode_bounds(start, end)
            self._state.update(pack_places([place, place]))
            self._set_timers(end - 1, place)
        else:
            parts = unpack_places(saved)
            if len(parts) != 2:
                return False
            before, place = parts
            first, last = decode_bounds(before)
            if first > end or start > last:
                return False
            start, end = min(start, first), max(end, last)
            if end - 1 <= self.current_watermark:
                return False
            if start != first or end != last:
                grown = encode_bounds(start, end)
                self._state.update(pack_places([grown, place]))
                self._drop_timers(last - 1, before)
                self._set_timers(end - 1, grown)
        self._contents.enter(place)
        self._contents.add(value, timestamp)
        return True

    def _set_timers(self, last: int, namespace: bytes) -> None:
        key = self._keys.key
        self._event.register(last, key, namespace)
        if self._lateness:
            self._event.register(min(last + self._lateness, MAX_WATERMARK), key, namespace)

    def _drop_timers(self, last: int, namespace: bytes) -> None:
        key = self._keys.key
        self._event.delete(last, key, namespace)
        if self._lateness:
            self._event.delete(min(last + self._lateness, MAX_WATERMARK), key, namespace)

    def _on_timer(self, timer: tuple[int, Any, bytes], *, is_event: bool) -> None:
        time_ms, self._keys.key, namespace = timer
        saved = self._state.value()
        parts = [] if saved is None else unpack_places(saved)
        try:
            position = parts[::2].index(namespace) * 2
        except ValueError:
            return
        _, end = decode_bounds(namespace)
        window = self._window_at(namespace)
        is_over = time_ms == self._cleanup_time(window)
        try:
            self._contents.enter(parts[position + 1])
            if time_ms == end - 1:
                self._fire(window, namespace, last=is_over)
            if is_over:
                self._contents.clear()
                del parts[position : position + 2]
                self._state.update(pack_places(parts) if parts else None)
                context = self._window_context
                context.current, context.namespace = window, namespace
                self._window_call.clear(context)
        except Exception as error:
            key = raw_key(self._keys.key)
            raise failure_in(self, f"(timer at {time_ms} of {window} of key {key!r})", error) from error
