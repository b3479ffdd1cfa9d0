"""List and map state on RocksDB: an entry in the database per element, whole lists and maps in the cache.

*Lists*: young holds complete lists; dirty holds what was added since (`_Additions`), so that adding to a
list that is not cached reads nothing. *Maps*: young holds what is known of a map (`_MapView`), which may be a
part of it; dirty holds changed entries (`_Changes`). Collections above `_LARGE` entries are not cached.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from headrace.backends.elements import StateRules
from headrace.backends.expiring import has_expired
from headrace.backends.rocksdb.cache import MISSING, CachedState, CacheKeeper
from headrace.backends.rocksdb.database import Family
from headrace.backends.rocksdb.layout import POSITION
from headrace.state.states import ListState, MapState

_LARGE = 10_000
_LARGE_BYTES = 1024

_GONE = object()
"""In a view or in changes: this map key has no entry."""


class _Additions:
    """Elements added to a list since it was last written; `replace`: what was written before is void."""

    __slots__ = ("replace", "values")

    def __init__(self, replace: bool, values: list[Any]) -> None:
        self.replace = replace
        self.values = values


class _Collection(CachedState):
    """Counts changed elements, not changed keys: one key may gather many."""

    __slots__ = ("_pending", "_sized")

    def __init__(self, rules: StateRules, family: Family, keeper: CacheKeeper) -> None:
        self._pending = 0
        """Changed elements and keys, over all namespaces."""
        elements = rules.elements
        self._sized = elements.packed or elements.is_text or elements.exact is bytes
        super().__init__(rules, family, keeper)

    def _fit_room(self) -> None:
        self._room = self._limit

    def _dirty_total(self) -> int:
        return self._pending

    def _changed(self, count: int, values: Iterable[Any] = ()) -> None:
        self._pending += count
        if self._pending > self._room:
            self._spill()
        if self._sized:
            size = sum(len(value) for value in values if value is not None and value is not _GONE)
            if size > _LARGE_BYTES:
                self._weigh(size)

    def _erase(self, batch: Any, prefix: bytes) -> None:
        # One by one: a range deletion per key would burden every later read of the family.
        for raw, _ in self.family.under(prefix):
            batch.delete(raw)


class RocksListState(_Collection, ListState[Any]):
    """A list per key; elements are numbered as they are written."""

    __slots__ = ("position",)

    def __init__(self, rules: StateRules, family: Family, keeper: CacheKeeper) -> None:
        super().__init__(rules, family, keeper)
        self.position = 0
        """Number of the next element to be written, above all that are in the database."""

    def get(self) -> list[Any]:
        key = self._key()
        values = self._cached(key)
        if values is None:
            values = self._load(key)
        return list(map(self._release, values)) if self._rules.elements.packed else values.copy()

    def add(self, value: Any) -> None:
        self._append(self._key(), [self._admit(value)])

    def add_all(self, values: Iterable[Any]) -> None:
        # All are checked before any is added: a misfit leaves the list as it was.
        admitted = list(map(self._admit, values))
        if admitted:
            self._append(self._key(), admitted)

    def update(self, values: Iterable[Any]) -> None:
        self._replace(self._key(), list(map(self._admit, values or ())))

    def clear(self) -> None:
        self._replace(self._key(), [])

    def expire(self, entries: list[bytes], horizon: bytes) -> None:
        key = self._key()
        values = self._cached(key)
        if values is None:
            values = self._load(key)
        alive = [stored for stored in values if not has_expired(stored, horizon)]
        if len(alive) < len(values):
            self._replace(key, alive)

    def _append(self, key: Any, admitted: list[Any]) -> None:
        cached = self._cached(key)
        if cached is not None:
            cached.extend(admitted)
            if len(cached) > _LARGE:
                self._young.pop(key, None)
                self._old.pop(key, None)
        additions = self._dirty.get(key)
        if additions is None:
            self._dirty[key] = _Additions(False, admitted.copy())
            self._pending += 1
        else:
            additions.values.extend(admitted)
        self._changed(len(admitted), admitted)

    def _replace(self, key: Any, admitted: list[Any]) -> None:
        before = self._dirty.get(key)
        if before is not None:
            self._pending -= len(before.values) + 1
        self._dirty[key] = _Additions(True, admitted)
        self._young[key] = admitted.copy()
        self._old.pop(key, None)
        self._changed(len(admitted) + 1, admitted)

    def _cached(self, key: Any) -> list[Any] | None:
        values: list[Any] | None = self._young.get(key)
        if values is None:
            values = self._old.pop(key, None)
            if values is not None:
                self._young[key] = values
                self._loaded()
        return values

    def _load(self, key: Any) -> list[Any]:
        additions = self._dirty.get(key)
        values: list[Any] = []
        if additions is None or not additions.replace:
            from_bytes = self._from_bytes
            values = [from_bytes(raw) for _, raw in self.family.under(self._prefix(key, self._namespace))]
        if additions is not None:
            values.extend(additions.values)
        if len(values) <= _LARGE:
            self._young[key] = values
            self._keeper.loaded += len(values)
            self._loaded()
        return values

    def _add_to(self, batch: Any, namespace: bytes, changes: list[tuple[Any, Any]]) -> None:
        to_bytes, pack = self._to_bytes, POSITION.pack
        for key, additions in changes:
            prefix = self._prefix(key, namespace)
            if additions.replace:
                self._erase(batch, prefix)
            for value in additions.values:
                batch[prefix + pack(self.position)] = to_bytes(value)
                self.position += 1

    def _written(self, changes: list[tuple[Any, Any]]) -> None:
        self._pending -= sum(len(additions.values) + 1 for _, additions in changes)


class _MapView:
    """What is known of a map: stored map key -> stored value or _GONE; `complete`: there is no more."""

    __slots__ = ("complete", "entries")

    def __init__(self, complete: bool, entries: dict[Any, Any]) -> None:
        self.complete = complete
        self.entries = entries


class _Changes:
    """Entries changed since the map was last written; `cleared`: what was written before is void."""

    __slots__ = ("cleared", "entries")

    def __init__(self, cleared: bool) -> None:
        self.cleared = cleared
        self.entries: dict[Any, Any] = {}


class RocksMapState(_Collection, MapState[Any, Any]):
    """A map per key; single entries are read and written by themselves."""

    __slots__ = ("_admit_key", "_key_from_bytes", "_key_to_bytes", "_release_key")

    def __init__(self, rules: StateRules, family: Family, keeper: CacheKeeper) -> None:
        super().__init__(rules, family, keeper)
        keys = rules.map_keys
        assert keys is not None
        self._admit_key, self._release_key = keys.admit, keys.release
        self._key_to_bytes, self._key_from_bytes = keys.to_bytes, keys.from_bytes

    def get(self, key: Any) -> Any:
        stored = self._lookup(self._admit_key(key))
        return None if stored is _GONE else self._release(stored)

    def contains(self, key: Any) -> bool:
        return self._lookup(self._admit_key(key)) is not _GONE

    def put(self, key: Any, value: Any) -> None:
        self._change({self._admit_key(key): self._admit(value)})

    def put_all(self, entries: Mapping[Any, Any]) -> None:
        # All are checked before any is put: a misfit leaves the map as it was.
        self._change({self._admit_key(key): self._admit(value) for key, value in entries.items()})

    def remove(self, key: Any) -> None:
        self._change({self._admit_key(key): _GONE})

    def clear(self) -> None:
        scope = self._key()
        before = self._dirty.get(scope)
        if before is not None:
            self._pending -= len(before.entries) + 1
        self._dirty[scope] = _Changes(True)
        self._young[scope] = _MapView(True, {})
        self._changed(1)

    def expire(self, entries: list[bytes], horizon: bytes) -> None:
        gone = {}
        for stored_key in map(self._key_from_bytes, entries):
            stored = self._lookup(stored_key)
            if stored is not _GONE and has_expired(stored, horizon):
                gone[stored_key] = _GONE
        self._change(gone)

    def items(self) -> list[tuple[Any, Any]]:
        release_key, release = self._release_key, self._release
        return [(release_key(key), release(value)) for key, value in self._all().items()]

    def keys(self) -> list[Any]:
        return list(map(self._release_key, self._all()))

    def values(self) -> list[Any]:
        return list(map(self._release, self._all().values()))

    def is_empty(self) -> bool:
        view = self._view(self._key())
        if any(value is not _GONE for value in view.entries.values()):
            return False
        return view.complete or not self._all()

    def _view(self, scope: Any) -> _MapView:
        view: _MapView | None = self._young.get(scope)
        if view is None:
            view = self._old.get(scope)
            if view is None:
                changes = self._dirty.get(scope)
                view = _MapView(False, {}) if changes is None else _MapView(changes.cleared, dict(changes.entries))
            self._young[scope] = view
            self._loaded()
        return view

    def _lookup(self, stored_key: Any) -> Any:
        scope = self._key()
        view = self._view(scope)
        stored = view.entries.get(stored_key, MISSING)
        if stored is not MISSING:
            return stored
        if view.complete:
            return _GONE
        raw = self._get(self._prefix(scope, self._namespace) + self._key_to_bytes(stored_key))
        stored = _GONE if raw is None else self._from_bytes(raw)
        view.entries[stored_key] = stored
        self._loaded(0 if raw is None else len(raw))
        self._drop_if_large(scope, view)
        return stored

    def _change(self, changed: dict[Any, Any]) -> None:
        scope = self._key()
        if not changed:
            return
        view = self._view(scope)
        view.entries.update(changed)
        changes = self._dirty.get(scope)
        if changes is None:
            changes = self._dirty[scope] = _Changes(False)
            self._pending += 1
        before = len(changes.entries)
        changes.entries.update(changed)
        self._drop_if_large(scope, view)
        self._changed(len(changes.entries) - before, changed.values())

    def _drop_if_large(self, scope: Any, view: _MapView) -> None:
        if len(view.entries) > _LARGE:
            self._young.pop(scope, None)
            self._old.pop(scope, None)

    def _all(self) -> dict[Any, Any]:
        """All entries of the current map; the caller does not change the dict."""
        scope = self._key()
        view = self._view(scope)
        entries = view.entries
        if not view.complete:
            prefix = self._prefix(scope, self._namespace)
            key_from, value_from, length = self._key_from_bytes, self._from_bytes, len(prefix)
            entries = {}
            for raw_key, raw in self.family.under(prefix):
                stored_key = key_from(raw_key[length:])
                if stored_key not in view.entries:
                    entries[stored_key] = value_from(raw)
            self._keeper.loaded += len(entries)
            entries.update(view.entries)
        entries = {key: value for key, value in entries.items() if value is not _GONE}
        view.entries = entries
        view.complete = True
        self._drop_if_large(scope, view)
        return entries

    def _add_to(self, batch: Any, namespace: bytes, changes: list[tuple[Any, Any]]) -> None:
        to_bytes, key_to_bytes = self._to_bytes, self._key_to_bytes
        for scope, changed in changes:
            prefix = self._prefix(scope, namespace)
            if changed.cleared:
                self._erase(batch, prefix)
            for key, value in changed.entries.items():
                if value is _GONE:
                    batch.delete(prefix + key_to_bytes(key))
                else:
                    batch[prefix + key_to_bytes(key)] = to_bytes(value)

    def _written(self, changes: list[tuple[Any, Any]]) -> None:
        self._pending -= sum(len(changed.entries) + 1 for _, changed in changes)
