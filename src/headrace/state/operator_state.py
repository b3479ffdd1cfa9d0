"""Operator state: what a subtask keeps as a whole, beside what it keeps per key.

| state | each subtask has | restored at the same parallelism | at another |
| --- | --- | --- | --- |
| list | elements of its own | its own | all elements, dealt out in turn |
| union list | elements of its own | the elements of all subtasks | the same |
| broadcast | a map, meant to be the same everywhere | its own | one copy for all |

It lives in memory and goes into `_metadata` as it is, so it is meant to be small. Elements are bytes of their codec; an
entry of a broadcast state is

    msgpack array: key bytes, value bytes
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from headrace.checkpoint.handles import OperatorStateShare, StateShape
from headrace.errors import DamagedCheckpointError, JobDefinitionError, ReadOnlyStateError, StateConflictError
from headrace.state.codecs import Codec, codec_for
from headrace.state.descriptors import ListStateDescriptor, MapStateDescriptor, StateDescriptor
from headrace.state.evolution import Converter, NotEvolvable, converter
from headrace.state.states import BroadcastState, ListState, ReadOnlyBroadcastState
from headrace.types.information import TypeInformation
from headrace.types.rows import Row

LIST: Final = "operator-list"
UNION: Final = "operator-union"
BROADCAST: Final = "broadcast"

_SCALARS: Final = frozenset({type(None), bool, int, float, complex, str, bytes})
_ENTRY: Final = msgspec.msgpack.Decoder(tuple[bytes, bytes])


class OperatorStateStore(ABC):
    """Where a `CheckpointedFunction` gets its operator states, in `initialize_state`.

    A state asked for twice by one name is the same state. Other operators and other subtasks have their own.
    """

    @abstractmethod
    def get_list_state(self, state_descriptor: ListStateDescriptor) -> ListState[Any]:
        """Elements that any subtask may take over: dealt out evenly when the parallelism changes."""

    @abstractmethod
    def get_union_list_state(self, state_descriptor: ListStateDescriptor) -> ListState[Any]:
        """Elements that every subtask gets all of at a restore, and takes what concerns it."""

    @abstractmethod
    def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> BroadcastState[Any, Any]:
        """A map that the program keeps the same in all subtasks."""


class OperatorStates(OperatorStateStore):
    """The operator states of one subtask. Touched by the mailbox thread only."""

    def __init__(self, uid: str, *, object_reuse: bool = False) -> None:
        self._uid = uid
        self._object_reuse = object_reuse
        self._states: dict[str, OperatorListState | OperatorBroadcastState] = {}
        self._unclaimed: dict[str, OperatorStateShare] = {}
        """Restored and not asked for yet. It goes into every snapshot as it came, so that it is not lost."""

    def get_list_state(self, state_descriptor: ListStateDescriptor) -> ListState[Any]:
        return self._list(state_descriptor, LIST)

    def get_union_list_state(self, state_descriptor: ListStateDescriptor) -> ListState[Any]:
        return self._list(state_descriptor, UNION)

    def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> BroadcastState[Any, Any]:
        if not isinstance(state_descriptor, MapStateDescriptor):
            raise JobDefinitionError(f"A broadcast state wants a MapStateDescriptor, not {state_descriptor!r}.")
        shape = _shape(state_descriptor, BROADCAST)
        state = self._known(shape)
        if state is None:
            keys = _Values(state_descriptor.key_type, self._where(shape), False)
            values = _Values(state_descriptor.element_type, self._where(shape), self._object_reuse)
            state = OperatorBroadcastState(shape, keys, values)
            self._claim(state, state_descriptor.element_type)
        assert isinstance(state, OperatorBroadcastState)
        return state

    def restore(self, shares: Sequence[OperatorStateShare]) -> None:
        """Take back what was dealt to this subtask. Called once, before any state is asked for."""
        self._unclaimed = {share.shape.name: share for share in shares}

    def snapshot(self) -> tuple[OperatorStateShare, ...]:
        """All states as they are now."""
        own = [OperatorStateShare(state.shape, state.elements()) for state in self._states.values()]
        return (*own, *self._unclaimed.values())

    def _list(self, descriptor: ListStateDescriptor, kind: str) -> OperatorListState:
        if not isinstance(descriptor, ListStateDescriptor):
            raise JobDefinitionError(f"A list state wants a ListStateDescriptor, not {descriptor!r}.")
        shape = _shape(descriptor, kind)
        state = self._known(shape)
        if state is None:
            values = _Values(descriptor.element_type, self._where(shape), self._object_reuse)
            state = OperatorListState(shape, values)
            self._claim(state, descriptor.element_type)
        assert isinstance(state, OperatorListState)
        return state

    def _known(self, shape: StateShape) -> OperatorListState | OperatorBroadcastState | None:
        state = self._states.get(shape.name)
        if state is not None and state.shape != shape:
            raise self._conflict(state.shape, shape, "is already declared as", "Give one of the two another name.")
        return state

    def _claim(self, state: OperatorListState | OperatorBroadcastState, element_type: TypeInformation) -> None:
        """A state that the program declares now, with what was restored of it."""
        share = self._unclaimed.get(state.shape.name)
        if share is not None:
            try:
                convert = converter(_as_map(share.shape), _as_map(state.shape), element_type)
            except NotEvolvable as error:
                way_out = f"({error}.) Rename the state, or restore into a program that declares it as it was saved."
                raise self._conflict(share.shape, state.shape, "was saved as", way_out) from None
            state.load(share.elements, convert or bytes)
            del self._unclaimed[state.shape.name]
        self._states[state.shape.name] = state

    def _conflict(self, known: StateShape, wanted: StateShape, before: str, way_out: str) -> StateConflictError:
        return StateConflictError(
            f'Operator state "{wanted.name}" of operator "{self._uid}" {before} {_text(known)} but is now '
            f"{_text(wanted)}. {way_out}"
        )

    def _where(self, shape: StateShape) -> str:
        return f'Operator state "{shape.name}" of operator "{self._uid}"'


def _shape(descriptor: StateDescriptor, kind: str) -> StateShape:
    if descriptor.active_ttl is not None:
        raise JobDefinitionError(
            f'Operator state "{descriptor.name}" is declared with a time-to-live, which only keyed state has. '
            "Take it from the descriptor."
        )
    return msgspec.structs.replace(descriptor.shape, kind=kind)


def _as_map(shape: StateShape) -> StateShape:
    """For the rules of type evolution a broadcast state is a map."""
    return msgspec.structs.replace(shape, kind="map") if shape.kind == BROADCAST else shape


def _text(shape: StateShape) -> str:
    names = {LIST: "list state", UNION: "union list state", BROADCAST: "broadcast state"}
    return f"{names.get(shape.kind, shape.kind)} of {shape.type}"


class _Kept:
    """A value in state. `data` is None where the value may still change in the program's hands (object reuse)."""

    __slots__ = ("data", "frozen", "value")

    def __init__(self, value: Any, data: bytes | None, frozen: bool) -> None:
        self.value = value
        self.data = data
        self.frozen = frozen


class _Values:
    """How values of one type are let in and handed out.

    What cannot change is handed out as it is. All else is handed out as a copy, so that nobody outside shares an
    object with the state, unless the program promised object reuse.
    """

    __slots__ = ("_check", "_codec", "_shared", "_where")

    def __init__(self, type_info: TypeInformation, where: str, object_reuse: bool) -> None:
        self._codec: Codec = codec_for(type_info)
        self._check: Callable[[Any, str], None] = type_info.check
        self._where = where
        self._shared = object_reuse and not self._codec.immutable

    def admit(self, value: Any) -> _Kept:
        """Check a value given by the program. Raises TypeMismatchError."""
        self._check(value, self._where)
        if self._shared:
            return _Kept(value, None, True)
        return self.from_bytes(self._codec.encode(value))

    def from_bytes(self, data: bytes) -> _Kept:
        value = self._codec.decode(data)
        if self._shared:
            return _Kept(value, None, True)
        frozen = self._codec.immutable or _cannot_change(value)
        return _Kept(value if frozen else None, data, frozen)

    def release(self, kept: _Kept) -> Any:
        """What the program gets."""
        if kept.frozen:
            return kept.value
        assert kept.data is not None
        return self._codec.decode(kept.data)

    def to_bytes(self, kept: _Kept) -> bytes:
        return self._codec.encode(kept.value) if kept.data is None else kept.data

    def key_bytes(self, key: Any) -> bytes:
        """The same bytes for keys that are one key."""
        if key is None:
            raise JobDefinitionError(f"{self._where}: None cannot be a key of a map. Use a key of your own.")
        self._check(key, self._where)
        encode = self._codec.encode
        return encode(self._codec.decode(encode(key)))


def _cannot_change(value: Any) -> bool:
    kind = type(value)
    if kind in _SCALARS:
        return True
    if kind is tuple or kind is frozenset or isinstance(value, Row):
        return all(map(_cannot_change, value))
    return False


class OperatorListState(ListState[Any]):
    """Elements of one subtask, in order."""

    def __init__(self, shape: StateShape, values: _Values) -> None:
        self.shape = shape
        self._values = values
        self._kept: list[_Kept] = []

    def get(self) -> list[Any]:
        return list(map(self._values.release, self._kept))

    def add(self, value: Any) -> None:
        self._kept.append(self._values.admit(value))

    def add_all(self, values: Iterable[Any]) -> None:
        self._kept.extend([self._values.admit(value) for value in values])

    def update(self, values: Iterable[Any]) -> None:
        self._kept = [self._values.admit(value) for value in values]

    def clear(self) -> None:
        self._kept = []

    def load(self, elements: Iterable[bytes], convert: Converter) -> None:
        self._kept = [self._values.from_bytes(convert(data)) for data in elements]

    def elements(self) -> tuple[bytes, ...]:
        return tuple(map(self._values.to_bytes, self._kept))


class OperatorBroadcastState(BroadcastState[Any, Any]):
    """A map in order of first insertion. Entries are found by the bytes of their key, so 1 and True stay apart."""

    def __init__(self, shape: StateShape, keys: _Values, values: _Values) -> None:
        self.shape = shape
        self._keys = keys
        self._values = values
        self._entries: dict[bytes, tuple[_Kept, _Kept]] = {}

    def get(self, key: Any) -> Any:
        entry = self._entries.get(self._keys.key_bytes(key))
        return None if entry is None else self._values.release(entry[1])

    def put(self, key: Any, value: Any) -> None:
        raw = self._keys.key_bytes(key)
        self._entries[raw] = (self._keys.from_bytes(raw), self._values.admit(value))

    def put_all(self, entries: Mapping[Any, Any]) -> None:
        # All are checked before any is put: a misfit leaves the map as it was.
        admitted = [(self._keys.key_bytes(key), self._values.admit(value)) for key, value in entries.items()]
        for raw, kept in admitted:
            self._entries[raw] = (self._keys.from_bytes(raw), kept)

    def remove(self, key: Any) -> None:
        self._entries.pop(self._keys.key_bytes(key), None)

    def contains(self, key: Any) -> bool:
        return self._keys.key_bytes(key) in self._entries

    def items(self) -> list[tuple[Any, Any]]:
        key, value = self._keys.release, self._values.release
        return [(key(k), value(v)) for k, v in self._entries.values()]

    def keys(self) -> list[Any]:
        return [self._keys.release(key) for key, _ in self._entries.values()]

    def values(self) -> list[Any]:
        return [self._values.release(value) for _, value in self._entries.values()]

    def is_empty(self) -> bool:
        return not self._entries

    def clear(self) -> None:
        self._entries.clear()

    def load(self, elements: Iterable[bytes], convert: Converter) -> None:
        self._entries = {}
        for data in elements:
            try:
                raw, value = _ENTRY.decode(data)
            except msgspec.MsgspecError as error:
                raise DamagedCheckpointError(
                    f'An entry of broadcast state "{self.shape.name}" does not hold a key and a value: {error}. '
                    "Restore from another checkpoint."
                ) from error
            self._entries[raw] = (self._keys.from_bytes(raw), self._values.from_bytes(convert(value)))

    def elements(self) -> tuple[bytes, ...]:
        pack = msgspec.msgpack.encode
        return tuple(pack((raw, self._values.to_bytes(value))) for raw, (_, value) in self._entries.items())


class ReadOnlyView(ReadOnlyBroadcastState[Any, Any]):
    """A broadcast state as the side without the broadcast sees it."""

    def __init__(self, state: BroadcastState[Any, Any], name: str) -> None:
        self._state = state
        self._name = name

    def get(self, key: Any) -> Any:
        return self._state.get(key)

    def contains(self, key: Any) -> bool:
        return self._state.contains(key)

    def items(self) -> Iterable[tuple[Any, Any]]:
        return self._state.items()

    def keys(self) -> Iterable[Any]:
        return self._state.keys()

    def values(self) -> Iterable[Any]:
        return self._state.values()

    def is_empty(self) -> bool:
        return self._state.is_empty()

    def __iter__(self) -> Iterator[Any]:
        return iter(self._state)

    def _refuse(self, *_: Any) -> Any:
        raise ReadOnlyStateError(
            f'Broadcast state "{self._name}" may only be read here: each subtask sees other records, and the copies '
            "would drift apart. Change it in process_broadcast_element()."
        )

    put = put_all = remove = clear = __setitem__ = __delitem__ = _refuse
