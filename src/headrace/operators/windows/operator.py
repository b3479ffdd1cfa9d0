"""The window operator: puts elements into windows, asks the trigger, fires and cleans up.

Everything that it knows is keyed state under the window's bytes as namespace, or a timer with that namespace, so a
window in the making is part of every checkpoint and goes to the new owner of its key when the job is rescaled.

    contents         state `_window`, namespace = the window
    trigger's state  states `_trigger.*`, namespace = the window
    window_state()   states of the function, namespace = the window
    global_state()   states of the function, no namespace
    timers           namespace = the window; those of the trigger and one for the end of the window's life

A window's life ends when the watermark has passed its end and the allowed lateness (by the clock: its end). What comes
later is late. So that the same records are late after a restore, the watermark is saved too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.checkpoint.handles import CheckpointId
from headrace.errors import JobDefinitionError
from headrace.operators.base import OperatorContext, Outputs, SubtaskWork, failure_in
from headrace.operators.context import StreamRuntimeContext
from headrace.operators.functions import Function, OutputTag
from headrace.operators.metrics import MetricGroup
from headrace.operators.process import emit_all
from headrace.operators.stateless import FunctionOperator
from headrace.operators.watermarks import MAX_WATERMARK, MIN_WATERMARK
from headrace.operators.windows.assigners import WindowAssigner
from headrace.operators.windows.calls import PassOn, WindowCall
from headrace.operators.windows.contents import WindowContents
from headrace.operators.windows.contexts import OperatorAssignerContext, OperatorTriggerContext, OperatorWindowContext
from headrace.operators.windows.triggers import Trigger, TriggerResult
from headrace.state.backend import KeyContext, TimerQueue
from headrace.state.descriptors import ListStateDescriptor, StateDescriptor
from headrace.state.key_groups import group_range
from headrace.state.keys import raw_key
from headrace.state.states import ListState
from headrace.types.information import Types

LATE_RECORDS = "numLateRecordsDropped"
_WATERMARKS = ListStateDescriptor("_watermark", Types.TUPLE([Types.LONG(), Types.LONG(), Types.LONG()]))
"""(first key group, last key group, watermark), one from each subtask."""


class WindowOperator(FunctionOperator):
    """Windows that stay as they were assigned. Merging ones and the short way for plain ones derive from it."""

    _keys: KeyContext
    _event: TimerQueue
    _processing: TimerQueue
    _trigger_context: OperatorTriggerContext
    _window_context: OperatorWindowContext
    _watermarks: ListState[Any]

    merging = False

    def __init__(
        self,
        assigner: WindowAssigner,
        trigger: Trigger,
        contents: WindowContents,
        call: WindowCall,
        fold_function: Any = None,
        lateness_ms: int = 0,
        late_tag: OutputTag | None = None,
    ) -> None:
        # Of two functions the window function is the one that errors and listeners speak of.
        function = fold_function if call.function is None else call.function
        super(FunctionOperator, self).__init__()
        self._function = function
        self._call = call.bind()
        self._passes_on = isinstance(call, PassOn)
        self._folds_with = fold_function if fold_function is not function else None
        self._window_call = call
        self._assigner = assigner
        self._event_time = assigner.is_event_time()
        self._serializer = assigner.get_window_serializer()
        self._trigger = trigger
        self._contents = contents
        self._lateness = lateness_ms
        self._late_tag = late_tag
        self._last_decoded: tuple[bytes, Any] = (b"", None)

    def setup(self, context: OperatorContext, outputs: Outputs) -> None:
        super().setup(context, outputs)
        backend = context.backend
        assert backend is not None
        self._keys = backend.key_context
        self._event = backend.timers("event")
        self._processing = backend.timers("processing")
        self._late = MetricGroup(context.metrics).counter(LATE_RECORDS)
        self._assigner_context = OperatorAssignerContext(self)
        self._trigger_context = OperatorTriggerContext(self)
        self._window_context = OperatorWindowContext(self, per_window_state=not self.merging)

    def own_states(self) -> Sequence[StateDescriptor]:
        return self._contents.states()

    def open(self) -> None:
        assert self.context.backend is not None
        # The functions first: the contents ask them for an accumulator, which may need what they open.
        if isinstance(self._folds_with, Function):
            try:
                self._folds_with.open(StreamRuntimeContext(self))
            except Exception as error:
                raise failure_in(self, "(none: in open())", error) from error
        super().open()
        self._contents.open(self.context.backend)
        self._restore_watermark()

    def close(self) -> None:
        try:
            if isinstance(self._folds_with, Function):
                self._folds_with.close()
        finally:
            super().close()

    # The watermark through a restore

    def _groups(self) -> range:
        return group_range(self.context.subtask, self.context.parallelism, self.context.max_parallelism)

    def _restore_watermark(self) -> None:
        self._watermarks = self.operator_states.get_union_list_state(_WATERMARKS)
        own = self._groups()
        reached = [mark for first, last, mark in self._watermarks.get() if first < own.stop and own.start <= last]
        # At the end of time everything would be late, also what a drained and continued job reads anew.
        if reached and min(reached) < MAX_WATERMARK:
            self.current_watermark = min(reached)

    def snapshot(self, checkpoint_id: CheckpointId, *, canonical: bool) -> SubtaskWork:
        own = self._groups()
        self._watermarks.update([(own.start, own.stop - 1, self.current_watermark)])
        return super().snapshot(checkpoint_id, canonical=canonical)

    # Elements

    def process(self, value: Any, timestamp: int | None) -> None:
        try:
            if not self._take_in(value, timestamp):
                self._miss(value, timestamp)
        except Exception as error:
            raise failure_in(self, value, error) from error

    def _take_in(self, value: Any, timestamp: int | None) -> bool:
        """Put an element into its windows; False if it has none that is still alive."""
        context, contents = self._trigger_context, self._contents
        alive = False
        for window in self._windows_of(value, timestamp):
            if self._is_late(window):
                continue
            alive = True
            namespace = context.namespace = self._serializer.encode(window)
            contents.enter(namespace)
            contents.add(value, timestamp)
            result = self._trigger.on_element(value, _time(timestamp), window, context)
            self._act(result, window, namespace)
            self._register_cleanup(window, namespace)
        return alive

    def _windows_of(self, value: Any, timestamp: int | None) -> Any:
        if timestamp is None and self._event_time:
            raise JobDefinitionError(
                "The record has no timestamp, but the windows are windows of event time. Give it one by "
                "assign_timestamps_and_watermarks(...) before, or use windows of processing time."
            )
        return self._assigner.assign_windows(value, _time(timestamp), self._assigner_context)

    def _miss(self, value: Any, timestamp: int | None) -> None:
        """An element went into no window: late, unless the assigner had none for it."""
        if not self._event_time or timestamp is None or timestamp + self._lateness > self.current_watermark:
            return
        if self._late_tag is None:
            self._late.inc()
        else:
            self.outputs.side(self._late_tag.tag_id, value, timestamp)

    # Firing

    def _act(self, result: TriggerResult, window: Any, namespace: bytes, *, last: bool = False) -> None:
        """Do to the entered window what the trigger said. `last`: its life is over after this."""
        if result is TriggerResult.CONTINUE:
            return
        purge = result.is_purge()
        if result.is_fire():
            self._fire(window, namespace, last=last or purge)
        if purge:
            self._contents.clear()

    def _fire(self, window: Any, namespace: bytes, *, last: bool) -> None:
        key = None if self._passes_on else raw_key(self._keys.key)
        timestamp = window.max_timestamp()
        context = self._window_context
        context.current, context.namespace = window, namespace

        def deliver(elements: Sequence[Any]) -> None:
            if self._passes_on:
                for element in elements:
                    self.emit(element, timestamp)
                return
            results = self._call(key, context, elements)
            if results is not None:
                emit_all(self, results, timestamp)

        self._contents.fire(window, self._trigger_context, deliver, last=last)

    # Time

    def watermark(self, time_ms: int) -> None:
        # A restored watermark may be ahead of what comes in; time does not go back.
        if time_ms > self.current_watermark:
            self.current_watermark = time_ms
        self._advance_event_time(time_ms)
        self.outputs.watermark(time_ms)

    def next_processing_time(self) -> int | None:
        return self._processing.peek()

    def processing_time(self, now_ms: int) -> None:
        while (timer := self._processing.pop_due(now_ms)) is not None:
            self._on_timer(timer, is_event=False)

    def _advance_event_time(self, time_ms: int) -> None:
        while (timer := self._event.pop_due(time_ms)) is not None:
            self._on_timer(timer, is_event=True)

    def _on_timer(self, timer: tuple[int, Any, bytes], *, is_event: bool) -> None:
        time_ms, self._keys.key, namespace = timer
        window = self._window_at(namespace)
        state_namespace = self._state_namespace(window, namespace)
        if state_namespace is None:
            return
        context, trigger = self._trigger_context, self._trigger
        context.namespace = namespace
        try:
            self._contents.enter(state_namespace)
            result = (trigger.on_event_time if is_event else trigger.on_processing_time)(time_ms, window, context)
            is_over = is_event is self._event_time and time_ms == self._cleanup_time(window)
            self._act(result, window, namespace, last=is_over)
            if is_over:
                self._end_life(window, namespace)
        except Exception as error:
            key = raw_key(self._keys.key)
            raise failure_in(self, f"(timer at {time_ms} of {window} of key {key!r})", error) from error

    def _state_namespace(self, window: Any, namespace: bytes) -> bytes | None:
        """Where the contents of a window of the current key lie; None if there is no such window any more."""
        return namespace

    def _window_at(self, namespace: bytes) -> Any:
        # Windows end together: many timers in a row are of one window.
        known, window = self._last_decoded
        if known != namespace:
            window = self._serializer.decode(namespace)
            self._last_decoded = (namespace, window)
        return window

    # The end of a window's life

    def _cleanup_time(self, window: Any) -> int:
        end: int = window.max_timestamp()
        return min(end + self._lateness, MAX_WATERMARK) if self._event_time else end

    def _is_late(self, window: Any) -> bool:
        return self._event_time and self._cleanup_time(window) <= self.current_watermark

    def _register_cleanup(self, window: Any, namespace: bytes) -> None:
        time_ms = self._cleanup_time(window)
        # A window without end is never cleaned up.
        if time_ms < MAX_WATERMARK:
            (self._event if self._event_time else self._processing).register(time_ms, self._keys.key, namespace)

    def _delete_cleanup(self, window: Any, namespace: bytes) -> None:
        time_ms = self._cleanup_time(window)
        if time_ms < MAX_WATERMARK:
            (self._event if self._event_time else self._processing).delete(time_ms, self._keys.key, namespace)

    def _end_life(self, window: Any, namespace: bytes) -> None:
        """Forget the entered window: contents, trigger's state, what the function kept of it."""
        self._contents.clear()
        self._trigger.clear(window, self._trigger_context)
        context = self._window_context
        context.current, context.namespace = window, namespace
        self._window_call.clear(context)


def _time(timestamp: int | None) -> int:
    return MIN_WATERMARK if timestamp is None else timestamp
