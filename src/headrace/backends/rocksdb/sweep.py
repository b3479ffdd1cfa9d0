"""Cleanup of expired entries in RocksDB, in place of Flink's compaction filter, which Python cannot supply.

Steps, on the mailbox thread unless it says otherwise:

    1  after every `slice` accesses to the state, look at as many of its entries in the database, from where the last
       slice ended; only the time stamp at the head of the stored value is read
    2  what has expired there is looked up through the cache, which may know better, and removed through it
    3  at the end of a round over all key groups: the removals are written; on a thread of its own, ranges of key groups
       that lost a tenth of their entries or more are flushed and compacted, which gives their space back

Step 3 waits while a checkpoint links the database's files: nothing may be written then.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import islice
from typing import Any

from headrace.backends.expiring import Expiry, has_expired
from headrace.backends.rocksdb.cache import CachedState, CacheKeeper
from headrace.backends.rocksdb.layout import GROUP, group_bounds, split

SPARSE = 10
"""A key group is compacted when one in so many of its entries was removed."""


class RocksSweep:
    """The cleanup of one state. Called at every access."""

    def __init__(self, state: CachedState, keeper: CacheKeeper, expiry: Expiry, groups: range, slice: int) -> None:
        self._state = state
        self._keeper = keeper
        self._expiry = expiry
        self._start, self._stop = group_bounds(groups)
        self._slice = slice
        self._accesses = 0
        self._cursor = self._start
        self._seen: dict[int, int] = {}
        """Entries looked at in this round, by key group."""
        self._removed: dict[int, int] = {}
        self._sparse: list[range] = []
        """Ranges of key groups that wait for step 3."""
        self._compaction: threading.Thread | None = None

    def __call__(self) -> None:
        self._accesses += 1
        if self._accesses < self._slice:
            return
        self._accesses = 0
        if self._sparse:
            self._compact()
        self._sweep()

    def close(self) -> None:
        """Wait for a compaction that is under way; the database is closed next."""
        if self._compaction is not None:
            self._compaction.join()

    def _sweep(self) -> None:
        """Step 1."""
        horizon = self._expiry.horizon()
        looked = 0
        raw = self._cursor
        expired: list[bytes] = []
        for raw, stored in islice(self._state.family.scan(self._cursor, self._stop), self._slice):
            looked += 1
            (group,) = GROUP.unpack_from(raw)
            self._seen[group] = self._seen.get(group, 0) + 1
            if has_expired(stored, horizon):
                self._removed[group] = self._removed.get(group, 0) + 1
                expired.append(raw)
        if expired:
            self._remove(expired, horizon)
        if looked == self._slice:
            self._cursor = raw + b"\0"
        else:
            self._end_round()

    def _remove(self, expired: list[bytes], horizon: bytes) -> None:
        """Step 2. The cache stays true, since everything goes through it."""
        state, context = self._state, self._keeper.context
        key_before, namespace_before = context.key, state.namespace
        found: dict[tuple[Any, bytes], list[bytes]] = {}
        for raw in expired:
            key, namespace, entry = split(raw)
            found.setdefault((key, namespace), []).append(entry)
        try:
            for (context.key, namespace), entries in found.items():
                state.set_namespace(namespace)
                state.expire(entries, horizon)
        finally:
            context.key = key_before
            state.set_namespace(namespace_before)

    def _end_round(self) -> None:
        sparse = sorted(g for g, count in self._removed.items() if count * SPARSE >= self._seen[g])
        self._sparse = list(_ranges(sparse))
        self._seen, self._removed = {}, {}
        self._cursor = self._start
        if self._sparse:
            self._compact()

    def _compact(self) -> None:
        """Step 3, if it can be done now; else at a later slice."""
        if not self._keeper.linked.is_set() or (self._compaction is not None and self._compaction.is_alive()):
            return
        self._state.write_everything()
        family, ranges, self._sparse = self._state.family, self._sparse, []

        def compact() -> None:
            family.flush()
            for groups in ranges:
                family.compact(*group_bounds(groups))

        self._compaction = threading.Thread(target=compact, name=f"compact-{family.name}", daemon=True)
        self._compaction.start()


def _ranges(groups: list[int]) -> Iterator[range]:
    """Neighbours together: files hold many key groups, and each would be rewritten for each of them."""
    start = None
    for i, group in enumerate(groups):
        start = group if start is None else start
        if i + 1 == len(groups) or groups[i + 1] != group + 1:
            yield range(start, group + 1)
            start = None
