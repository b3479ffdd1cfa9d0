"""The windows themselves, and the bytes under which state and timers of a window are kept.

    TimeWindow     start i64 | end i64      (big-endian)
    CountWindow    number i64
    GlobalWindow   0x00

The bytes are the *namespace* of everything that belongs to a window, so they are part of every checkpoint.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from struct import Struct
from typing import Any, Protocol

from headrace.errors import DamagedCheckpointError
from headrace.operators.watermarks import MAX_WATERMARK

_PAIR = Struct(">qq")
_NUMBER = Struct(">q")
_GLOBAL = b"\x00"


class Window(ABC):
    """A finite piece of a stream. Equal windows are one window, so windows are values."""

    __slots__ = ()

    @abstractmethod
    def max_timestamp(self) -> int:
        """The largest timestamp that still belongs to it; `MAX_WATERMARK` for a window that time does not end."""


@dataclass(frozen=True, slots=True, order=True)
class TimeWindow(Window):
    """All times from `start` to just before `end`, in milliseconds since 1970."""

    start: int
    end: int

    def max_timestamp(self) -> int:
        return self.end - 1

    def intersects(self, other: TimeWindow) -> bool:
        """Whether the two overlap or touch, so that sessions are one session."""
        return self.start <= other.end and self.end >= other.start

    def cover(self, other: TimeWindow) -> TimeWindow:
        """The smallest window that holds both."""
        return TimeWindow(min(self.start, other.start), max(self.end, other.end))

    @staticmethod
    def get_window_start_with_offset(timestamp: int, offset: int, window_size: int) -> int:
        """Where the window of that size begins in which `timestamp` lies; before 1970 too."""
        return timestamp - (timestamp - offset) % window_size

    def __str__(self) -> str:
        return f"TimeWindow({self.start}, {self.end})"


@dataclass(frozen=True, slots=True, order=True)
class CountWindow(Window):
    """The window with that number among the count windows of a key."""

    id: int

    def max_timestamp(self) -> int:
        return MAX_WATERMARK


@dataclass(frozen=True, slots=True)
class GlobalWindow(Window):
    """The one window of all records of a key."""

    def max_timestamp(self) -> int:
        return MAX_WATERMARK

    @staticmethod
    def get() -> GlobalWindow:
        return _THE_GLOBAL_WINDOW


_THE_GLOBAL_WINDOW = GlobalWindow()


class WindowSerializer(Protocol):
    """Windows to bytes and back. Equal windows must give equal bytes, and no window may give none."""

    def encode(self, window: Any) -> bytes: ...

    def decode(self, data: bytes) -> Any: ...


class TimeWindowSerializer:
    """Bytes of a `TimeWindow`."""

    def encode(self, window: TimeWindow) -> bytes:
        return _PAIR.pack(window.start, window.end)

    def decode(self, data: bytes) -> TimeWindow:
        _expect(data, _PAIR.size, "time window")
        return TimeWindow(*_PAIR.unpack(data))


class CountWindowSerializer:
    """Bytes of a `CountWindow`."""

    def encode(self, window: CountWindow) -> bytes:
        return _NUMBER.pack(window.id)

    def decode(self, data: bytes) -> CountWindow:
        _expect(data, _NUMBER.size, "count window")
        return CountWindow(*_NUMBER.unpack(data))


class GlobalWindowSerializer:
    """The byte of the global window."""

    def encode(self, window: GlobalWindow) -> bytes:
        return _GLOBAL

    def decode(self, data: bytes) -> GlobalWindow:
        _expect(data, len(_GLOBAL), "global window")
        return _THE_GLOBAL_WINDOW


def encode_bounds(start: int, end: int) -> bytes:
    """`TimeWindowSerializer.encode` without the window, for paths that make no object per record."""
    return _PAIR.pack(start, end)


def decode_bounds(data: bytes) -> tuple[int, int]:
    """(start, end) of what `encode_bounds` made."""
    _expect(data, _PAIR.size, "time window")
    return _PAIR.unpack(data)


def _expect(data: bytes, size: int, what: str) -> None:
    if len(data) != size:
        raise DamagedCheckpointError(
            f"A {what} was saved with {len(data)} bytes ({data[:16].hex(' ')}) instead of {size}. If the program now "
            "uses another kind of window for this operator, give the operator a new uid."
        )
