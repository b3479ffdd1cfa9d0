"""List state on RocksDB: an entry in the database per element, whole lists in the cache.

What is known of a list is one object (`_Held`), in young as long as it is the whole list, and in dirty as long as
elements of it are not in the database. Where its elements lie is known with it, so that clearing a cached list reads
nothing.

The first element of a list is at position 0, always; all that follow are numbered by one counter of the state. So one
read of a single key, which RocksDB's filters answer for most lists that are not there, tells whether there is a list,
where a scan would cost ten times as much. Databases of releases before this rule have lists without such a head
(`headed` is False then): there, what is not cached is found by scans.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headrace.backends.elements import StateRules
from headrace.backends.expiring import has_expired
from headrace.backends.rocksdb.cache import CacheKeeper
from headrace.backends.rocksdb.containers import LARGE, Collection
from headrace.backends.rocksdb.database import Family
from headrace.backends.rocksdb.layout import HEAD, POSITION
from headrace.state.states import ListState


class _Held:
    """What is known of one list."""

    __slots__ = ("complete", "fresh", "is_dirty", "places", "placing", "replace", "values")

    def __init__(self, complete: bool, places: list[int] | None) -> None:
        self.values: list[Any] = []
        """The whole list if `complete`, else the fresh elements at its end."""
        self.complete = complete
        self.fresh = 0
        """How many elements, the last ones, the database does not have yet."""
        self.places = places
        """Positions of what the database has; None: not known."""
        self.replace = False
        """What the database has is void."""
        self.is_dirty = False
        self.placing: list[int] = []
        """Positions of the fresh elements while they are being written."""


class RocksListState(Collection, ListState[Any]):
    """A list per key."""

    __slots__ = ("headed", "position")

    def __init__(self, rules: StateRules, family: Family, keeper: CacheKeeper) -> None:
        super().__init__(rules, family, keeper)
        self.position = 1
        """Number of the next element to be written that is not the first of its list; above all in the database."""
        self.headed = True
        """Whether every list in the database has an element at position 0."""

    def get(self) -> list[Any]:
        values = self._whole(self._key())
        return list(map(self._release, values)) if self._rules.elements.packed else values.copy()

    def add(self, value: Any) -> None:
        key = self._context.key
        admitted = self._admit(value)
        held: _Held | None = self._young.get(key)
        if held is None:
            held = self._find(key)
        self._add(key, held, admitted)

    def start(self, value: Any) -> None:
        """The same where the caller knows that the list is empty, which spares a look. Operators call it, not users."""
        key = self._key()
        admitted = self._admit(value)
        # In the cache, or with deletions that are not written yet?
        held: _Held | None = self._young.get(key) or self._old.get(key) or self._dirty.get(key)
        if held is None:
            held = self._young[key] = _Held(True, [])
        self._add(key, held, admitted)

    def _add(self, key: Any, held: _Held, admitted: Any) -> None:
        held.values.append(admitted)
        held.fresh += 1
        self._keeper.loaded += 1
        count = 1
        if not held.is_dirty:
            held.is_dirty = True
            self._dirty[key] = held
            count = 2
        if self._sized or len(held.values) > LARGE:
            self._grown(key, held, count, (admitted,))
            return
        self._pending += count
        if self._pending > self._room:
            self._spill()

    def add_all(self, values: Iterable[Any]) -> None:
        # All are checked before any is added: a misfit leaves the list as it was.
        admitted = list(map(self._admit, values))
        if not admitted:
            return
        key = self._key()
        held = self._young.get(key) or self._find(key)
        held.values.extend(admitted)
        held.fresh += len(admitted)
        self._keeper.loaded += len(admitted)
        self._grown(key, held, len(admitted) + self._mark(key, held), admitted)

    def update(self, values: Iterable[Any]) -> None:
        self._replace(self._key(), list(map(self._admit, values or ())))

    def clear(self) -> None:
        key = self._key()
        self._replace(key, [])
        if self._namespace:
            # A window that is cleared is over as a rule, and nobody asks for it again.
            self._young.pop(key, None)

    def expire(self, entries: list[bytes], horizon: bytes) -> None:
        key = self._key()
        values = self._whole(key)
        alive = [stored for stored in values if not has_expired(stored, horizon)]
        if len(alive) < len(values):
            self._replace(key, alive)

    def _replace(self, key: Any, admitted: list[Any]) -> None:
        held = self._young.get(key) or self._find(key)
        dropped = held.fresh
        held.values = admitted
        held.fresh = len(admitted)
        held.complete = True
        held.replace = held.places is None or bool(held.places)
        if not admitted and not held.replace:
            # The database never had anything of it, so there is nothing to write.
            if held.is_dirty:
                held.is_dirty = False
                del self._dirty[key]
                self._pending -= dropped + 1
            return
        self._keeper.loaded += len(admitted)
        self._young[key] = held
        self._grown(key, held, len(admitted) - dropped + self._mark(key, held), admitted)

    def _mark(self, key: Any, held: _Held) -> int:
        """It has changed; gives how many dirty keys there are more by that."""
        if held.is_dirty:
            return 0
        held.is_dirty = True
        self._dirty[key] = held
        return 1

    def _grown(self, key: Any, held: _Held, count: int, admitted: Iterable[Any]) -> None:
        if len(held.values) > LARGE:
            self._forget(key, held)
        self._changed(count, admitted)

    def _forget(self, key: Any, held: _Held) -> None:
        """It is too large to be cached: keep what must be written."""
        if held.complete and held.fresh < len(held.values):
            del held.values[: len(held.values) - held.fresh]
        held.complete = False
        if held.places:
            held.places = None
        self._young.pop(key, None)
        self._old.pop(key, None)

    def _find(self, key: Any) -> _Held:
        """What is known of a list that is not in young; if nothing is, a look into the database for its head."""
        if key is None:
            key = self._key()  # raises
        held: _Held | None = self._old.pop(key, None)
        if held is None:
            changed: _Held | None = self._dirty.get(key)
            held = changed
            if held is None:
                if not self.headed or self._get(self._prefix(key, self._namespace) + HEAD) is not None:
                    return _Held(False, None)
                held = _Held(True, [])
            elif not held.complete:
                return held
        self._young[key] = held
        self._keeper.loaded += len(held.values)
        self._loaded()
        return held

    def _whole(self, key: Any) -> list[Any]:
        """All elements; the caller does not change the list."""
        held: _Held = self._young.get(key) or self._find(key)
        if held.complete:
            return held.values
        values: list[Any] = []
        places: list[int] | None = held.places
        if not held.replace:
            from_bytes, unpack = self._from_bytes, POSITION.unpack
            places = []
            for raw, stored in self.family.under(self._prefix(key, self._namespace)):
                places.append(unpack(raw[-8:])[0])
                values.append(from_bytes(stored))
        values += held.values
        if len(values) <= LARGE:
            held.values, held.places, held.complete = values, places, True
            self._young[key] = held
            self._keeper.loaded += len(values)
            self._loaded()
        return values

    def _add_to(self, batch: Any, namespace: bytes, changes: list[tuple[Any, Any]]) -> None:
        to_bytes, pack = self._to_bytes, POSITION.pack
        prefixes = self._keeper.prefixes([key for key, _ in changes], namespace)
        position = self.position
        for prefix, (_, held) in sorted(zip(prefixes, changes, strict=True), key=_first):
            if held.replace:
                if held.places is None:
                    self._erase(batch, prefix)
                else:
                    for place in held.places:
                        batch.delete(prefix + pack(place))
            fresh = held.fresh
            head = [0] if fresh and (held.replace or held.places == []) else []
            after = position + fresh - len(head)
            places = held.placing = [*head, *range(position, after)]
            position = after
            values = held.values if fresh == len(held.values) else held.values[-fresh:] if fresh else ()
            for place, value in zip(places, values, strict=True):
                batch[prefix + pack(place)] = to_bytes(value)
        self.position = position

    def _written(self, namespace: bytes, changes: list[tuple[Any, Any]]) -> None:
        written = 0
        for _, held in changes:
            written += held.fresh + 1
            if held.replace:
                held.places = held.placing
            elif held.places is not None:
                held.places += held.placing
            held.placing = []
            held.replace = held.is_dirty = False
            held.fresh = 0
            if not held.complete:
                # Part of a list, which is nowhere but in dirty.
                held.values = []
        self._pending -= written


def _first(pair: tuple[bytes, Any]) -> bytes:
    return pair[0]
