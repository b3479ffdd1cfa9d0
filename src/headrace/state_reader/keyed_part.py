"""The keyed state of one operator in some of its key groups, in a database of its own, to be changed and saved anew.

The driver has one for all key groups; where state comes from DataFrames, each Spark task has one for its share. It
goes through RocksDB with the same checks as in a running job: so it may be larger than memory.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from headrace.backends.rocksdb.backend import RocksDBBackend
from headrace.checkpoint.handles import KeyedSnapshot, StateShape
from headrace.checkpoint.storage.base import FileStore
from headrace.errors import JobDefinitionError
from headrace.state.backend import BackendContext
from headrace.state.descriptors import StateDescriptor, ValueStateDescriptor
from headrace.state.keys import stored_form

FOLDED = ("reducing", "aggregating")
"""Kinds of states whose functions are not known here: nothing is folded, their values are kept as they are given."""


class KeyedPart:
    """Used by one thread. `close` removes its files."""

    def __init__(self, uid: str, index: int, groups: range, max_parallelism: int, folder: Path) -> None:
        """`folder` must exist; the part removes it in the end. `index` is only for messages."""
        self._uid = uid
        self._folder = folder
        self._backend = RocksDBBackend(BackendContext(uid, index, groups, max_parallelism, folder))
        self._kinds: dict[str, str] = {}

    def load(self, snapshots: Iterable[KeyedSnapshot], store: FileStore) -> None:
        """Begin with what was saved, as far as it is of these key groups. At most once, before anything else."""
        unfolded = [self._unfolded(snapshot) for snapshot in snapshots]
        if unfolded:
            self._backend.restore(unfolded, store)

    def put(self, descriptor: StateDescriptor, rows: Iterable[tuple[Any, Any]], namespace: bytes = b"") -> None:
        """Replace what the state holds under each key."""
        put = self.putter(descriptor, namespace)
        for key, value in rows:
            put(key, value)
        self._backend.key_context.key = None

    def putter(self, descriptor: StateDescriptor, namespace: bytes = b"") -> Callable[[Any, Any], None]:
        """`put(key, value)` for one row; not to be mixed with another state's unless the namespace is the same."""
        state = self._state(descriptor)
        state.set_namespace(namespace)
        replace: Callable[[Any], None] = state.update if descriptor.KIND != "map" else _replacing(state)
        context = self._backend.key_context

        def put(key: Any, value: Any) -> None:
            context.key = stored_form(key)
            replace(value)

        return put

    def remove(self, descriptor: StateDescriptor, key: Any, namespace: bytes = b"") -> None:
        """Forget what the state holds under one key."""
        state = self._state(descriptor)
        state.set_namespace(namespace)
        self._backend.key_context.key = stored_form(key)
        state.clear()
        self._backend.key_context.key = None

    def register_timer(self, domain: str, time_ms: int, key: Any, namespace: bytes) -> None:
        self._backend.timers(domain).register(time_ms, stored_form(key), namespace)

    def delete_timer(self, domain: str, time_ms: int, key: Any, namespace: bytes) -> None:
        self._backend.timers(domain).delete(time_ms, stored_form(key), namespace)

    def save(self, checkpoint_id: int, store: FileStore) -> KeyedSnapshot:
        """All of it in the canonical format, which both backends restore at any parallelism."""
        keyed = self._backend.snapshot(checkpoint_id, canonical=True).write(store)
        return msgspec.structs.replace(keyed, shapes=tuple(map(self._refolded, keyed.shapes)))

    def close(self) -> None:
        self._backend.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _state(self, descriptor: StateDescriptor) -> Any:
        if descriptor.KIND not in FOLDED:
            return self._backend.state(descriptor)
        known = self._kinds.setdefault(descriptor.name, descriptor.KIND)
        if known != descriptor.KIND:
            raise JobDefinitionError(
                f'State "{descriptor.name}" of operator "{self._uid}" is {known}, not {descriptor.KIND}.'
            )
        plain = ValueStateDescriptor(descriptor.name, descriptor.element_type)
        if descriptor.active_ttl is not None:
            plain.enable_time_to_live(descriptor.active_ttl)
        return self._backend.state(plain)

    def _unfolded(self, keyed: KeyedSnapshot) -> KeyedSnapshot:
        shapes = []
        for shape in keyed.shapes:
            if shape.kind in FOLDED:
                self._kinds[shape.name] = shape.kind
                shape = msgspec.structs.replace(shape, kind="value")
            shapes.append(shape)
        return msgspec.structs.replace(keyed, shapes=tuple(shapes))

    def _refolded(self, shape: StateShape) -> StateShape:
        kind = self._kinds.get(shape.name) if shape.kind == "value" else None
        return shape if kind is None else msgspec.structs.replace(shape, kind=kind)


def _replacing(state: Any) -> Callable[[Mapping[Any, Any]], None]:
    def replace(entries: Mapping[Any, Any]) -> None:
        state.clear()
        state.put_all(entries)

    return replace
