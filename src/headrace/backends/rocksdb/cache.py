"""The write-back cache of decoded objects between the states and the database.

Each state has three dicts for its current namespace (and a dict of such dicts for all namespaces):

    young   what was touched since the last change of generations; a hit is one lookup here
    old     the generation before; a hit moves the entry to young
    dirty   changes that the database does not have yet, in order of first change

What is changed is in young and dirty at once, so a generation can be dropped without looking at it, and
no access keeps books about its recency. When young holds half of what the cache may hold, it becomes
old and the old one is forgotten. Dirty is bounded apart from that; above the bound its oldest part is written, in
slices, because a write holds the interpreter.

At a barrier, what a state calls dirty becomes *frozen*: it is read, but never changed, until another thread has brought
it into the database (see `frozen`). The stream does not wait for that. It can be done where stored objects are never
changed in place; collections and mutable accumulators are written by the barrier itself, so they may hold back much
less. Where most of it is *hot*, that is changes before every barrier, it stays dirty, and the checkpoint gets a copy.

While a checkpoint brings frozen entries into the database and links its files, nothing else may be written there,
or it would be part of the checkpoint: dirty then grows for a moment, beyond its bound.

For what a barrier writes itself: the longer ago the last barrier, the longer the next one may wait. That bound grows
with the time since, up to twofold: joins whose keys come back, or go away, within that time are seldom written.
"""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from itertools import islice
from typing import Any, Final

from headrace.backends.elements import StateRules, without_key
from headrace.backends.rocksdb.database import Database, Family
from headrace.backends.rocksdb.frozen import KeptChanges, Sample, Spaces, write_frozen
from headrace.backends.rocksdb.layout import prefix_for, prefixes_for
from headrace.state.backend import KeyContext
from headrace.state.states import State

MISSING: Final = object()
"""Not in the dict that was asked. None means known to be absent."""

VOID = b""
SLICE = 4096
"""Keys written in one batch, in order of key: unordered ones take RocksDB five times as long."""

_SPILL = 4 * SLICE
"""Keys that leave dirty at once at most, so that records do not wait for long."""
_PATIENCE = 2
"""How many times its bound dirty may grow while files are being linked; twice that where the bound is small."""
_WAITED_FOR = 10
"""One in so many of the entries that may be dirty at all may be such that a barrier waits for them."""
_STRETCH_EVERY_S = 2.0
"""So long after a barrier the bound of what it would wait for doubles."""
_MOST_STRETCH = 2
"""Some 40,000 entries by default, which a barrier writes in less than a tenth of a second."""
_MUCH = 4
"""As many times as many entries as dirty may be gone through, once, to make it quicker."""
_HEAVY_BYTES = 8 << 20
BYTES_PER_ENTRY = 64
LARGE_BYTES = 256
"""What is longer counts with its size among changed entries: the barrier waits for bytes too, not for entries alone."""


class CacheKeeper:
    """What the caches of one subtask share: the database, the bound on entries, and whether writing is allowed."""

    def __init__(
        self, database: Database, max_parallelism: int, context: KeyContext, cache_entries: int, dirty_limit: int
    ):
        self.database = database
        self.max_parallelism = max_parallelism
        self.prefix = prefix_for(max_parallelism)
        self.prefixes = prefixes_for(max_parallelism)
        self.context = context
        self.generation_size = max(1, cache_entries // 2)
        self.loaded = 0
        """Entries that entered the young generation, about; reset when generations change."""
        self.states: list[CachedState] = []
        self.linked = threading.Event()
        """Set unless frozen entries are being written, or files linked, in the background."""
        self.linked.set()
        self._dirty_limit = max(1, min(dirty_limit, cache_entries // 2))
        self._written_at = time.monotonic()

    def add(self, state: CachedState) -> None:
        """A state was declared: the bound on changed entries is shared anew."""
        self.states.append(state)
        for known in self.states:
            known.limit_dirty(max(1, self._dirty_limit // len(self.states)))

    def change_generations(self) -> None:
        self.loaded = 0
        for state in self.states:
            state.change_generations()

    def write_all(self) -> None:
        """Bring the database up to date. Waits for files that are being linked."""
        self.linked.wait()
        for state in self.states:
            state.write_everything()

    def freeze(self, *, keep: bool) -> list[KeptChanges]:
        """At a barrier, before `linked` is cleared: changes wait for `write_frozen`, or are written.

        `keep`: hot ones stay dirty. They are given back, and belong to the checkpoint beside the database.
        """
        self.linked.wait()
        found: list[KeptChanges] = []
        for state in self.states:
            if state.freezable:
                kept = state.freeze(keep=keep)
                found += [] if kept is None else [kept]
            else:
                state.write_everything()
                state.stretch_dirty(1)
        self._written_at = time.monotonic()
        # What was set without being read entered unseen.
        self.loaded = max(self.loaded, sum(state.young_count() for state in self.states))
        if self.loaded > self.generation_size:
            self.change_generations()
        return found

    def write_frozen(self) -> None:
        """Bring what is frozen into the database. On a thread of its own, while `linked` is cleared.

        What could not be written (`StorageError`) stays frozen, and is dirty again once `linked` is set.
        """
        for state in self.states:
            if state.freezable:
                state.write_frozen()

    def stretch(self) -> int:
        """How many times its bound dirty may hold now, where a barrier waits for it."""
        return min(1 + int((time.monotonic() - self._written_at) / _STRETCH_EVERY_S), _MOST_STRETCH)


class CachedState(State):
    """What all five states on RocksDB share. Touched by the mailbox thread only."""

    __slots__ = (
        "_admit",
        "_bound",
        "_context",
        "_dirty",
        "_dirty_elsewhere",
        "_dirty_spaces",
        "_from_bytes",
        "_frozen",
        "_frozen_spaces",
        "_get",
        "_heavy",
        "_hot",
        "_keeper",
        "_limit",
        "_namespace",
        "_old",
        "_old_spaces",
        "_prefix",
        "_release",
        "_room",
        "_rules",
        "_sample",
        "_to_bytes",
        "_young",
        "_young_spaces",
        "family",
        "freezable",
    )

    def __init__(self, rules: StateRules, family: Family, keeper: CacheKeeper, *, freezable: bool = False) -> None:
        self._rules = rules
        self._keeper = keeper
        self._context = keeper.context
        self.family = family
        self._get = family.get
        self._prefix = keeper.prefix
        elements = rules.elements
        self._admit, self._release = elements.admit, elements.release
        self._to_bytes, self._from_bytes = elements.to_bytes, elements.from_bytes
        self._namespace = VOID
        self._young: dict[Any, Any] = {}
        self._old: dict[Any, Any] = {}
        self._dirty: dict[Any, Any] = {}
        self._young_spaces = {VOID: self._young}
        self._old_spaces = {VOID: self._old}
        self._dirty_spaces = {VOID: self._dirty}
        self._frozen: dict[Any, Any] = {}
        self._frozen_spaces: Spaces = {}
        self._sample = Sample()
        self._hot = False
        """Whether dirty stayed dirty at the last barrier."""
        self.freezable = freezable
        """Whether stored objects are never changed in place, so that they can be written beside the stream."""
        self._dirty_elsewhere = 0
        """Changed entries in other namespaces than the current one."""
        self._bound = SLICE
        self._limit = SLICE
        """The bound of dirty, stretched by the time since the last barrier."""
        self._room = SLICE
        """What dirty may hold in the current namespace before some of it is written."""
        self._heavy = 0
        keeper.add(self)

    def set_namespace(self, namespace: bytes) -> None:
        """Scope all later accesses to that namespace (a window). The operator calls it, never the user."""
        before = self._namespace
        if namespace == before:
            return
        # Dicts are made on arrival, since most visits write; those that stayed empty go on departure.
        if before:
            if not self._young:
                self._young_spaces.pop(before, None)
            if not self._dirty:
                self._dirty_spaces.pop(before, None)
        self._dirty_elsewhere += len(self._dirty)
        self._namespace = namespace
        self._young = self._young_spaces.setdefault(namespace, {})
        self._old = self._old_spaces.get(namespace) or {}
        self._dirty = self._dirty_spaces.setdefault(namespace, {})
        self._frozen = self._frozen_spaces.get(namespace) or {}
        self._dirty_elsewhere -= len(self._dirty)
        self._fit_room()

    @property
    def namespace(self) -> bytes:
        return self._namespace

    def expire(self, entries: list[bytes], horizon: bytes) -> None:
        """Remove what of the current key has expired; of a map, only among these entries. Stamped values only."""
        raise NotImplementedError

    def limit_dirty(self, limit: int) -> None:
        """Share in the entries that may be dirty."""
        self._bound = self._limit = limit if self.freezable else max(1, limit // _WAITED_FOR)
        self._fit_room()

    def stretch_dirty(self, stretch: int) -> None:
        self._limit = self._bound * stretch
        self._fit_room()

    def _fit_room(self) -> None:
        self._room = self._limit - self._dirty_elsewhere

    def _dirty_total(self) -> int:
        """Changed entries over all namespaces."""
        return self._dirty_elsewhere + len(self._dirty)

    def change_generations(self) -> None:
        """Forget the old generation; what is in it and dirty stays in dirty."""
        namespace = self._namespace
        self._old_spaces = self._young_spaces
        self._old = self._young
        self._young = {}
        self._young_spaces = {namespace: self._young}

    def _key(self) -> Any:
        key = self._context.key
        if key is None:
            raise without_key(self._rules.where)
        return key

    def _loaded(self, weight: int = 0) -> None:
        """An entry came into the young generation; `weight` are its bytes, if known."""
        keeper = self._keeper
        keeper.loaded += 1 + weight // BYTES_PER_ENTRY
        if keeper.loaded > keeper.generation_size:
            keeper.change_generations()

    def _weigh(self, size: int) -> None:
        """A large value was put in: entries alone would not bound the memory."""
        self._heavy += size
        self._keeper.loaded += size // BYTES_PER_ENTRY
        if self._heavy > _HEAVY_BYTES:
            linked = self._keeper.linked
            if not linked.is_set() and self._heavy < _PATIENCE * _HEAVY_BYTES:
                return
            linked.wait()
            self.write_everything()

    def _spill(self) -> None:
        """Dirty is above its bound: write its oldest part."""
        keeper = self._keeper
        if not self.freezable and (stretch := keeper.stretch()) * self._bound > self._limit:
            self.stretch_dirty(stretch)
            if self._dirty_total() <= self._limit:
                return
        patience = _PATIENCE if self.freezable else 2 * _PATIENCE
        if not keeper.linked.is_set() and self._dirty_total() < patience * self._limit:
            self._room += SLICE
            return
        keeper.linked.wait()
        self._thaw()
        # Down to half: the more keys are written together, the closer they lie.
        enough = max(self._limit // 2, self._dirty_total() - _SPILL)
        written = 0
        while self._dirty_total() > enough and (step := self.write_slice()):
            written += step
        keeper.loaded = max(keeper.loaded, self._blind(written))
        if keeper.loaded > keeper.generation_size:
            keeper.change_generations()

    def young_count(self) -> int:
        """Keys in the young generation, over all namespaces."""
        return sum(map(len, self._young_spaces.values()))

    def _blind(self, written: int) -> int:
        """What may be in young at least: values that were set without being read entered it uncounted."""
        return len(self._young) if len(self._young_spaces) == 1 else self._keeper.loaded + written

    def freeze(self, *, keep: bool) -> KeptChanges | None:
        """See `CacheKeeper.freeze`: a copy of what is dirty, if that is hot and may be kept; else it is frozen."""
        self._thaw()
        hot = self._sample.is_hot(self._dirty_spaces) and keep
        if hot:
            if not self._hot:
                self._share_keys()
            floats = self._rules.elements.exact is float
            self._hot = True
            return KeptChanges.of(self.family.name, self._dirty_spaces, self._to_bytes, floats=floats)
        self._hot = False
        namespace = self._namespace
        if not self._dirty:
            del self._dirty_spaces[namespace]
        self._frozen_spaces, self._frozen = self._dirty_spaces, self._dirty
        self._dirty = {}
        self._dirty_spaces = {namespace: self._dirty}
        self._dirty_elsewhere = self._heavy = 0
        self._fit_room()
        return None

    def _share_keys(self) -> None:
        """Let dirty hold the key objects that young holds: an update then touches one of them, and not two."""
        for namespace, dirty in self._dirty_spaces.items():
            young = self._young_spaces.get(namespace, {})
            if len(young) <= _MUCH * len(dirty):
                shared = {key: dirty[key] for key in young if key in dirty}
                shared.update(dirty)
                dirty.clear()
                dirty.update(shared)

    def write_frozen(self) -> int:
        """Bring it into the database; how many bytes. Not called on the mailbox thread, which reads it meanwhile."""
        keeper, spaces = self._keeper, self._frozen_spaces
        written = write_frozen(keeper.database, self.family, spaces, self._to_bytes, keeper.max_parallelism)
        # Only now: whoever still finds an entry in these dicts, finds the same in the database.
        self._frozen_spaces = {}
        for changes in spaces.values():
            # The dicts themselves: the mailbox thread may have the one of its namespace at hand.
            changes.clear()
        return written

    def _thaw(self) -> None:
        """What was frozen and could not be written is dirty again, as far as it was not changed since."""
        spaces = self._frozen_spaces
        if not spaces:
            return
        self._frozen_spaces, self._frozen = {}, {}
        for namespace, changes in spaces.items():
            dirty = self._dirty_spaces.setdefault(namespace, {})
            for key, stored in changes.items():
                dirty.setdefault(key, stored)
        self._dirty_elsewhere = sum(map(len, self._dirty_spaces.values())) - len(self._dirty)
        self._fit_room()

    def write_everything(self) -> None:
        """Write all that the database does not have. `linked` must be set."""
        self._thaw()
        while self.write_slice():
            pass

    def write_slice(self) -> int:
        """Write the oldest changed keys, of any namespace; how many there were. 0: nothing is dirty."""
        database = self._keeper.database
        batch = database.batch(self.family)
        taken: list[tuple[bytes, dict[Any, Any], list[Any]]] = []
        left = SLICE
        for namespace, dirty in self._dirty_spaces.items():
            changes = list(islice(dirty.items(), left))
            if changes:
                self._add_to(batch, namespace, changes)
                taken.append((namespace, dirty, changes))
                left -= len(changes)
            if not left:
                break
        if not taken:
            self._heavy = 0
        else:
            database.write(batch)
        # Only now: what a failed write would have lost is still dirty.
        for namespace, dirty, changes in taken:
            for key, _ in changes:
                del dirty[key]
            if namespace != self._namespace:
                self._dirty_elsewhere -= len(changes)
                if not dirty:
                    del self._dirty_spaces[namespace]
            self._written(namespace, changes)
        self._fit_room()
        return SLICE - left

    @abstractmethod
    def _add_to(self, batch: Any, namespace: bytes, changes: list[tuple[Any, Any]]) -> None:
        """Put changes of keys of one namespace into a batch."""

    def _written(self, namespace: bytes, changes: list[tuple[Any, Any]]) -> None:
        """Changes of keys of one namespace are in the database now and no longer dirty."""
