"""Map state on RocksDB: an entry in the database per map entry, what is known of a map in the cache.

Young holds what is known of a map (`_MapView`), which may be a part of it; dirty holds changed entries (`_Changes`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.backends.elements import StateRules
from headrace.backends.expiring import has_expired
from headrace.backends.rocksdb.cache import MISSING, CacheKeeper
from headrace.backends.rocksdb.containers import LARGE, Collection
from headrace.backends.rocksdb.database import Family
from headrace.state.states import MapState

_GONE = object()
"""In a view or in changes: this map key has no entry."""


class _MapView:
    """What is known of a map: stored map key -> stored value or _GONE; `complete`: there is no more."""

    __slots__ = ("complete", "entries")

    def __init__(self, complete: bool, entries: dict[Any, Any]) -> None:
        self.complete = complete
        self.entries = entries


class _Changes:
    """Entries changed since the map was last written; `cleared`: what was written before is void."""

    __slots__ = ("cleared", "doomed", "entries")

    def __init__(self, cleared: bool, doomed: set[Any] | None = None) -> None:
        self.cleared = cleared
        self.doomed = doomed
        """Of a cleared map: all map keys that the database may have; None: not known."""
        self.entries: dict[Any, Any] = {}


class RocksMapState(Collection, MapState[Any, Any]):
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
        before: _Changes | None = self._dirty.get(scope)
        doomed = self._doomed(scope, before)
        if before is not None:
            self._pending -= len(before.entries) + 1
        self._young[scope] = _MapView(True, {})
        if doomed is None or doomed:
            self._dirty[scope] = _Changes(True, doomed)
            self._changed(1)
        elif before is not None:
            del self._dirty[scope]

    def _doomed(self, scope: Any, before: _Changes | None) -> set[Any] | None:
        """Map keys that the database may have, if the cache knows: then clearing the map need not look for them."""
        if before is not None and before.cleared:
            return before.doomed
        view: _MapView | None = self._young.get(scope) or self._old.get(scope)
        if view is None or not view.complete:
            return None
        # An entry that was removed is not in the view of a whole map, but in the database until that is written.
        return set(view.entries).union(() if before is None else before.entries)

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
        self._changed(len(changes.entries) - before, [value for value in changed.values() if value is not _GONE])

    def _drop_if_large(self, scope: Any, view: _MapView) -> None:
        if len(view.entries) > LARGE:
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
        prefixes = self._keeper.prefixes([scope for scope, _ in changes], namespace)
        for prefix, (_, changed) in sorted(zip(prefixes, changes, strict=True), key=_first):
            if changed.cleared:
                if changed.doomed is None:
                    self._erase(batch, prefix)
                else:
                    for key in changed.doomed:
                        batch.delete(prefix + key_to_bytes(key))
            for key, value in changed.entries.items():
                if value is _GONE:
                    batch.delete(prefix + key_to_bytes(key))
                else:
                    batch[prefix + key_to_bytes(key)] = to_bytes(value)

    def _written(self, namespace: bytes, changes: list[tuple[Any, Any]]) -> None:
        young, old = self._young_spaces.get(namespace, {}), self._old_spaces.get(namespace, {})
        for scope, changed in changes:
            self._pending -= len(changed.entries) + 1
            # Removed entries are not asked for again as a rule: a view that kept them would only grow.
            gone = [key for key, value in changed.entries.items() if value is _GONE]
            view = (young.get(scope) or old.get(scope)) if gone else None
            if view is not None:
                for key in gone:
                    if view.entries.get(key) is _GONE:
                        del view.entries[key]


def _first(pair: tuple[bytes, Any]) -> bytes:
    return pair[0]
