"""Windows that grow together (sessions).

The contents of a window lie where the first of the windows that became it had put them, so that a session that
grows by one element moves nothing. Which window's contents lie where is itself state, one value per key:

    state `_merging`   msgpack array: window, where its contents lie, next window, where its contents lie, …

Both as the bytes of the serializer. Only where two windows meet that both had contents are these brought together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from headrace.errors import JobDefinitionError
from headrace.operators.base import OperatorContext, Outputs
from headrace.operators.windows.assigners import MergeCallback, MergingWindowAssigner
from headrace.operators.windows.operator import WindowOperator
from headrace.operators.windows.windows import WindowSerializer
from headrace.state.descriptors import ValueStateDescriptor
from headrace.state.states import ValueState
from headrace.types.information import Types

_PLACES = ValueStateDescriptor("_merging", Types.PRIMITIVE_ARRAY(Types.BYTE()))
pack_places = msgspec.msgpack.Encoder().encode
unpack_places = msgspec.msgpack.Decoder(list[bytes]).decode

OnMerge = Callable[[Any, Sequence[Any], bytes, Sequence[bytes]], None]
"""`(new window, windows that became it, where its contents lie, where contents lay that go there)`"""


class MergingWindows:
    """The windows of one key that are alive, each with the place of its contents."""

    def __init__(self, assigner: MergingWindowAssigner, serializer: WindowSerializer, saved: bytes | None) -> None:
        self._assigner = assigner
        self._encode = serializer.encode
        parts = [] if saved is None else unpack_places(saved)
        self._places: dict[Any, bytes] = {
            serializer.decode(window): place for window, place in zip(parts[::2], parts[1::2], strict=True)
        }

    def saved(self) -> bytes | None:
        """What to keep in state; None if there are no windows."""
        if not self._places:
            return None
        return pack_places([part for window, place in self._places.items() for part in (self._encode(window), place)])

    def place_of(self, window: Any) -> bytes | None:
        """Where the contents of a window lie; None if it is not alive (any more, as itself)."""
        return self._places.get(window)

    def retire(self, window: Any) -> None:
        """The window's life is over."""
        self._places.pop(window, None)

    def add(self, window: Any, on_merge: OnMerge) -> Any:
        """Take a new element's window in, and give the window that it is part of now.

        `on_merge` is called for every merge in which windows with contents take part, before this returns.
        """
        groups = _Groups()
        self._assigner.merge_windows([*self._places, window], groups)
        result, is_placed = window, window in self._places
        for merged, cover in groups.found:
            known = [part for part in dict.fromkeys(merged) if part in self._places]
            if window in merged:
                result = cover
                is_placed = bool(known)
            if not known:
                continue
            target = self._places[known[0]]
            others = [self._places[part] for part in known[1:]]
            for part in known:
                del self._places[part]
            self._places[cover] = target
            if known != [cover]:
                on_merge(cover, known, target, others)
        if not is_placed:
            self._places[result] = self._encode(result)
        return result


class _Groups(MergeCallback):
    """Collects what the assigner says."""

    def __init__(self) -> None:
        self.found: list[tuple[list[Any], Any]] = []

    def merge(self, to_be_merged: Iterable[Any], merge_result: Any) -> None:
        self.found.append((list(to_be_merged), merge_result))


class MergingWindowOperator(WindowOperator):
    """The window operator for a `MergingWindowAssigner`."""

    merging = True

    _assigner: MergingWindowAssigner
    _state: ValueState[bytes]

    def setup(self, context: OperatorContext, outputs: Outputs) -> None:
        super().setup(context, outputs)
        if not self._trigger.can_merge():
            raise JobDefinitionError(
                f'Windows of operator "{context.name}" merge, but {type(self._trigger).__name__} cannot. '
                "Give it can_merge() and on_merge(), or use windows that do not merge."
            )

    def open(self) -> None:
        assert self.context.backend is not None
        self._state = self.context.backend.state(_PLACES)
        super().open()

    def _take_in(self, value: Any, timestamp: int | None) -> bool:
        context, contents = self._trigger_context, self._contents
        before = self._state.value()
        windows = MergingWindows(self._assigner, self._serializer, before)
        alive = False
        for assigned in self._windows_of(value, timestamp):
            window = windows.add(assigned, self._merge)
            if self._is_late(window):
                windows.retire(window)
                continue
            alive = True
            place = windows.place_of(window)
            assert place is not None
            namespace = context.namespace = self._serializer.encode(window)
            contents.enter(place)
            contents.add(value, timestamp)
            result = self._trigger.on_element(value, -(2**63) if timestamp is None else timestamp, window, context)
            self._act(result, window, namespace)
            self._register_cleanup(window, namespace)
        after = windows.saved()
        if after != before:
            self._state.update(after)
        return alive

    def _merge(self, window: Any, merged: Sequence[Any], target: bytes, sources: Sequence[bytes]) -> None:
        if self._is_late(window):
            raise JobDefinitionError(
                f"Merging {', '.join(map(str, merged))} gave {window}, whose life was over at the present watermark "
                f"({self.current_watermark}). A window cannot end earlier by merging: correct the assigner's "
                "merge_windows()."
            )
        context, trigger, encode = self._trigger_context, self._trigger, self._serializer.encode
        context.namespace = encode(window)
        context.merged = [encode(part) for part in merged if part != window]
        trigger.on_merge(window, context)
        for part in merged:
            if part != window:
                context.namespace = encode(part)
                trigger.clear(part, context)
                self._delete_cleanup(part, context.namespace)
        if sources:
            self._contents.merge(target, sources)

    def _state_namespace(self, window: Any, namespace: bytes) -> bytes | None:
        saved = self._state.value()
        if saved is None:
            return None
        return MergingWindows(self._assigner, self._serializer, saved).place_of(window)

    def _end_life(self, window: Any, namespace: bytes) -> None:
        super()._end_life(window, namespace)
        windows = MergingWindows(self._assigner, self._serializer, self._state.value())
        windows.retire(window)
        self._state.update(windows.saved())
