"""What a reader of state gives out, and how stored bytes become values again.

The types are those that the checkpoint names, as text; no class of the program is loaded. A row therefore comes back
as a plain `Row`, and pickled values are refused unless the reader was told that their origin is trusted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from struct import Struct
from typing import Any, NamedTuple

import msgspec

from headrace.backends.elements import STAMP
from headrace.backends.table import Rows
from headrace.checkpoint.handles import OperatorStateShare, StateShape
from headrace.errors import DamagedCheckpointError, RestoreError
from headrace.state.codecs import codec_for
from headrace.state.keys import raw_key
from headrace.types.kinds import MapType, TypeInformation
from headrace.types.text import parse

_POSITION = Struct(">Q")
_TIME_WINDOW = Struct(">qq")
_TIMED = re.compile(r"TTL<(.*)>", re.DOTALL)
_ENTRY = msgspec.msgpack.Decoder(tuple[bytes, bytes])


class StateInfo(msgspec.Struct, frozen=True):
    """One state of a checkpoint, by name and type."""

    uid: str
    operator: str
    name: str
    kind: str
    """value, list, map, reducing, aggregating, timers, operator-list, operator-union, broadcast"""
    type: str
    codec: str


class KeyedEntry(NamedTuple):
    """One entry of keyed state. A list has one for each element, a map one for each of its keys."""

    key: Any
    namespace: bytes
    """Empty outside of windows; see `window_of`."""
    entry: Any
    """The position in a list, the key in a map, None for all other states."""
    value: Any
    """For an aggregating state, the accumulator."""
    last_used_ms: int | None = None
    """Of an entry with a time-to-live."""


class TimerEntry(NamedTuple):
    """A registered timer."""

    key: Any
    namespace: bytes
    time_ms: int


class OperatorElement(NamedTuple):
    """One element of operator state. Broadcast state has a key too, and is given once, not once for each subtask."""

    subtask: int
    key: Any
    value: Any


def window_of(namespace: bytes) -> tuple[int, int] | None:
    """Start and end of the time window that a namespace stands for, in milliseconds; None if it is none."""
    return _TIME_WINDOW.unpack(namespace) if len(namespace) == _TIME_WINDOW.size else None


class EntryDecoder:
    """Turns the stored rows of one state into entries."""

    def __init__(self, shape: StateShape, *, allow_pickle: bool) -> None:
        timed = _TIMED.fullmatch(shape.type)
        whole = parse(timed[1] if timed else shape.type)
        self.shape = shape
        self.has_ttl = timed is not None
        self.map_key_type: TypeInformation | None = None
        self.value_type: TypeInformation = whole
        if shape.kind in ("map", "broadcast"):
            if not isinstance(whole, MapType):
                raise DamagedCheckpointError(f'State "{shape.name}" is a {shape.kind} state of {shape.type}, no MAP.')
            self.map_key_type, self.value_type = whole.key, whole.value
        for part in (self.map_key_type, self.value_type):
            if part is not None and part.codec_name == "pickle" and not allow_pickle:
                raise RestoreError(
                    f'State "{shape.name}" holds pickled objects ({shape.type}), and to unpickle is to run what is '
                    "inside. If you trust where the checkpoint comes from, read it with allow_pickle=True."
                )
        self._value: Callable[[bytes], Any] = codec_for(self.value_type).decode
        self._map_key = None if self.map_key_type is None else codec_for(self.map_key_type).decode

    def entries(self, rows: Rows) -> Iterator[KeyedEntry]:
        """The entries of a block of rows, in its order."""
        count = len(rows.keys)
        if rows.values is None or (rows.entries is None) == (self.shape.kind in ("list", "map")):
            raise DamagedCheckpointError(
                f'Rows of state "{self.shape.name}" lack the columns of a {self.shape.kind} state.'
            )
        namespaces = rows.namespaces or [b""] * count
        for i in range(count):
            stamp, value = self._split(rows.values[i])
            yield KeyedEntry(
                raw_key(rows.keys[i]),
                namespaces[i],
                None if rows.entries is None else self._entry(rows.entries[i]),
                self._value(value),
                stamp,
            )

    def elements(self, share: OperatorStateShare, subtask: int) -> Iterator[OperatorElement]:
        """The elements of operator state of one subtask."""
        for data in share.elements:
            if self._map_key is None:
                yield OperatorElement(subtask, None, self._value(data))
                continue
            try:
                key, value = _ENTRY.decode(data)
            except msgspec.MsgspecError as error:
                raise DamagedCheckpointError(
                    f'An entry of broadcast state "{self.shape.name}" holds no key and value: {error}.'
                ) from error
            yield OperatorElement(subtask, self._map_key(key), self._value(value))

    def _split(self, stored: bytes) -> tuple[int | None, bytes]:
        if not self.has_ttl:
            return None, stored
        if len(stored) < STAMP.size:
            raise DamagedCheckpointError(f'An entry of state "{self.shape.name}" lacks its time stamp.')
        return STAMP.unpack_from(stored)[0], stored[STAMP.size :]

    def _entry(self, raw: bytes) -> Any:
        if self._map_key is not None:
            return self._map_key(raw)
        if len(raw) != _POSITION.size:
            raise DamagedCheckpointError(f'An element of list state "{self.shape.name}" has no valid position.')
        return _POSITION.unpack(raw)[0]
