"""The write-back cache of decoded objects between the states and the database.

Each state has three dicts for its current namespace (and a dict of such dicts for all namespaces):

    young   what was touched since the last change of generations; a hit is one lookup here
    old     the generation before; a hit moves the entry to young
    dirty   changes that the database does not have yet, in order of first change

What is changed is in young and dirty at once, so a generation can be dropped without looking at it, and
no access keeps books about its recency. When young holds half of what the cache may hold, it becomes
old and the old one is forgotten. Dirty is bounded apart from that, because the barrier waits until it is
written; it is written in slices, because a write holds the interpreter.

While a checkpoint links the database's files in the background, nothing may be written to the database,
or it would be part of the checkpoint: dirty then grows for a moment, up to a few times its bound.

The longer ago the last barrier, the longer the next one may wait: the bound of dirty grows with the time since, up to
twofold. Windows and joins whose keys come back, or go away, within that time are then seldom written.
"""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from itertools import islice
from typing import Any, Final

from headrace.backends.elements import StateRules, without_key
from headrace.backends.rocksdb.database import Database, Family
from headrace.backends.rocksdb.layout import prefix_for, prefixes_for
from headrace.state.backend import KeyContext
from headrace.state.states import State

MISSING: Final = object()
"""Not in the dict that was asked. None means known to be absent."""

VOID = b""
SLICE = 4096
"""Keys written in one batch, in order of key: unordered ones take RocksDB five times as long."""

_PATIENCE = 4
"""How many times its bound dirty may grow while files are being linked."""
_STRETCH_EVERY_S = 2.0
"""So long after a barrier the bound of dirty doubles."""
_MOST_STRETCH = 2
"""Some 40,000 entries by default, which a barrier writes in less than a tenth of a second."""
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
        self.prefix = prefix_for(max_parallelism)
        self.prefixes = prefixes_for(max_parallelism)
        self.context = context
        self.generation_size = max(1, cache_entries // 2)
        self.loaded = 0
        """Entries that entered the young generation, about; reset when generations change."""
        self.states: list[CachedState] = []
        self.linked = threading.Event()
        """Set unless files are being linked in the background."""
        self.linked.set()
        self._dirty_limit = dirty_limit
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
            while state.write_slice():
                pass
            state.stretch_dirty(1)
        self._written_at = time.monotonic()

    def stretch(self) -> int:
        """How many times its bound dirty may hold now."""
        stretch = 1 + int((time.monotonic() - self._written_at) / _STRETCH_EVERY_S)
        most = max(1, 2 * self.generation_size // self._dirty_limit)
        return min(stretch, most, _MOST_STRETCH)


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
        "_get",
        "_heavy",
        "_keeper",
        "_limit",
        "_namespace",
        "_old",
        "_old_spaces",
        "_prefix",
        "_release",
        "_room",
        "_rules",
        "_to_bytes",
        "_young",
        "_young_spaces",
        "family",
    )

    def __init__(self, rules: StateRules, family: Family, keeper: CacheKeeper) -> None:
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
        self._dirty_elsewhere -= len(self._dirty)
        self._fit_room()

    @property
    def namespace(self) -> bytes:
        return self._namespace

    def expire(self, entries: list[bytes], horizon: bytes) -> None:
        """Remove what of the current key has expired; of a map, only among these entries. Stamped values only."""
        raise NotImplementedError

    def limit_dirty(self, limit: int) -> None:
        self._bound = self._limit = limit
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
            while self.write_slice():
                pass

    def _spill(self) -> None:
        """Dirty is above its bound: write its oldest part."""
        keeper = self._keeper
        stretch = keeper.stretch()
        if stretch * self._bound > self._limit:
            self.stretch_dirty(stretch)
            if self._dirty_total() <= self._limit:
                return
        if not keeper.linked.is_set() and self._dirty_total() < _PATIENCE * self._limit:
            self._room += SLICE
            return
        keeper.linked.wait()
        # Down to half: the more keys are written together, the closer they lie.
        enough = self._limit // 2
        written = 0
        while self._dirty_total() > enough and (step := self.write_slice()):
            written += step
        keeper.loaded = max(keeper.loaded, self._blind(written))
        if keeper.loaded > keeper.generation_size:
            keeper.change_generations()

    def _blind(self, written: int) -> int:
        """What may be in young at least: values that were set without being read entered it uncounted."""
        return len(self._young) if len(self._young_spaces) == 1 else self._keeper.loaded + written

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
