"""What users write for windows: functions that see a whole window, or what was folded of it.

All of them give their results as a generator or an iterable; None means nothing, and `yield tag, value` sends the
value to a side output. Results carry the window's last timestamp.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, TypeAlias

from headrace.operators.functions import Function, KeyedStateStore, Subscriptable


class ProcessWindowContext(Subscriptable, ABC):
    """What `ProcessWindowFunction.process` may ask. Valid only during the call."""

    @abstractmethod
    def window(self) -> Any:
        """The window that fires."""

    @abstractmethod
    def current_processing_time(self) -> int: ...

    @abstractmethod
    def current_watermark(self) -> int: ...

    @abstractmethod
    def window_state(self) -> KeyedStateStore:
        """State of this key and this window, kept from one firing to the next. Clear it in `clear`.

        Session windows have none, because their windows come and go.
        """

    @abstractmethod
    def global_state(self) -> KeyedStateStore:
        """State of this key over all its windows."""


_ProcessWindowContext: TypeAlias = ProcessWindowContext


class WindowFunction(Function):
    """Sees the elements of a window of one key."""

    @abstractmethod
    def apply(self, key: Any, window: Any, inputs: Iterable[Any]) -> Iterable[Any] | None:
        """Called each time the window fires. After `reduce` or `aggregate`, `inputs` is their one result."""


class AllWindowFunction(Function):
    """Sees the elements of a window over all records."""

    @abstractmethod
    def apply(self, window: Any, inputs: Iterable[Any]) -> Iterable[Any] | None: ...


class ProcessWindowFunction(Function):
    """Sees the elements of a window of one key, with time and state."""

    Context: TypeAlias = _ProcessWindowContext

    @abstractmethod
    def process(self, key: Any, context: _ProcessWindowContext, elements: Iterable[Any]) -> Iterable[Any] | None:
        """Called each time the window fires. After `reduce` or `aggregate`, `elements` is their one result."""

    def clear(self, context: _ProcessWindowContext) -> None:
        """Called once when the window's life is over. Clear what `window_state` holds."""


class ProcessAllWindowFunction(Function):
    """Sees the elements of a window over all records, with time and state."""

    Context: TypeAlias = _ProcessWindowContext

    @abstractmethod
    def process(self, context: _ProcessWindowContext, elements: Iterable[Any]) -> Iterable[Any] | None: ...

    def clear(self, context: _ProcessWindowContext) -> None:
        """Called once when the window's life is over. Clear what `window_state` holds."""


class JoinFunction(Function):
    """Makes one record of two that meet in a window."""

    @abstractmethod
    def join(self, first: Any, second: Any) -> Any: ...


class FlatJoinFunction(Function):
    """Makes any number of records of two that meet in a window."""

    @abstractmethod
    def join(self, first: Any, second: Any) -> Iterable[Any] | None: ...


class CoGroupFunction(Function):
    """Sees all records of a key and window, of both streams; also where one of the streams has none."""

    @abstractmethod
    def co_group(self, first: Iterable[Any], second: Iterable[Any]) -> Iterable[Any] | None: ...
