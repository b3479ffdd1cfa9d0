"""Timers beyond what memory should hold: the earliest in memory, the others in a column family of the database.

    memory      a heap, as on the heap backend; holds every timer before the *frontier*, and some of that very time
    database    every timer behind the frontier, and some of that very time; named `timers:` and the time domain

While there are few timers there is no frontier and no column family, and nothing costs more than on the heap backend.
When there are more than `limit`, the later half goes into the database; when memory has run empty, the earliest of the
database come back. So memory always holds the next timer to fire, and the database is asked only about timers of a
distant time. Keys of the column family (big-endian):

    key_group u16 | time + 2**63 as u64 | key_len u32 | key | namespace                  values are empty

A key group is one range, as in every family, and sorted by time. What comes back is taken from all groups in order
of time, and deleted; a cursor for each group spares the walk over what was deleted there before.

Of timers of one time, those in memory fire in the order of registration, those in the database in that of their bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, merge
from itertools import chain, islice
from struct import Struct
from typing import Any, Final, TypeAlias

from headrace.backends.rocksdb.cache import CacheKeeper
from headrace.backends.rocksdb.database import Family
from headrace.backends.rocksdb.layout import GROUP, timers_family
from headrace.backends.table import Rows, pack_time
from headrace.errors import DamagedCheckpointError
from headrace.state.key_groups import key_group
from headrace.state.keys import decode_key, encode_key
from headrace.state.timers import HeapTimerQueue, Timer

_HEAD = Struct(">HQI")
_TIME = slice(GROUP.size, GROUP.size + 8)
_BIAS = 1 << 63

_SLICE: Final = 4096
"""Changes that go into the database at once: a write holds the interpreter."""
_PATIENCE: Final = 16
"""How many such slices may wait while files are being linked."""
_COMING_BACK: Final = 10_000
"""Timers that come back from the database at once, if memory may hold twice as many."""

Encode: TypeAlias = Callable[[Timer], bytes]


def encoder_for(max_parallelism: int) -> Encode:
    """`encode(timer)`: its key in the column family, for that number of key groups."""
    head = _HEAD.pack

    def encode(timer: Timer) -> bytes:
        time_ms, key, namespace = timer
        raw = encode_key(key)
        return head(key_group(key, max_parallelism), time_ms + _BIAS, len(raw)) + raw + namespace

    return encode


def decode_timer(raw: bytes) -> Timer:
    """The timer of a key of the column family."""
    try:
        _, time, key_length = _HEAD.unpack_from(raw)
        end = _HEAD.size + key_length
        if end > len(raw):
            raise ValueError
        return time - _BIAS, decode_key(raw[_HEAD.size : end]), raw[end:]
    except Exception as error:
        raise DamagedCheckpointError(
            f"A timer of {len(raw)} bytes ({raw[:16].hex(' ')}…) is not in the layout of timers. "
            "Restore from another checkpoint."
        ) from error


def rows_of_entries(items: Iterable[tuple[bytes, bytes]]) -> Iterator[Rows]:
    """Entries of the column family as rows of a table, some thousand at a time."""
    timers = (decode_timer(raw) for raw, _ in items)
    while some := list(islice(timers, _SLICE)):
        keys, spaces = [key for _, key, _ in some], [space for _, _, space in some]
        yield Rows(keys, spaces, [pack_time(time_ms) for time_ms, _, _ in some], None)


class RocksTimerQueue(HeapTimerQueue):
    """Keeps the `TimerQueue` contract; touched by the mailbox thread only.

    `_pending` holds changes that the database does not have yet: the encoded timer, and whether it is there or gone.
    """

    __slots__ = ("_cursors", "_domain", "_encode", "_frontier", "_groups", "_limit", "_opened", "_pending", "_spilled")

    def __init__(
        self, domain: str, limit: int, key_groups: range, max_parallelism: int, opened: Callable[[], CacheKeeper]
    ) -> None:
        """`limit`: timers that memory may hold. `opened` gives the database, when there is something for it."""
        super().__init__()
        self._domain = domain
        self._limit = limit
        self._groups = key_groups
        self._encode = encoder_for(max_parallelism)
        self._opened = opened
        self._frontier: int | None = None
        self._spilled = 0
        self._pending: dict[bytes, bool] = {}
        self._cursors: dict[bytes, bytes] = {}

    @property
    def spilled(self) -> int:
        """How many timers are in the database, or on their way into it."""
        return self._spilled

    # The contract

    def register(self, time_ms: int, key: Any, namespace: bytes = b"") -> bool:
        frontier = self._frontier
        if frontier is None or time_ms < frontier:
            if not super().register(time_ms, key, namespace):
                return False
            if len(self._alive) > self._limit:
                self._spill()
            return True
        timer = (time_ms, key, namespace)
        raw = self._encode(timer)
        if timer in self._alive or self._is_spilled(raw):
            return False
        self._spilled += 1
        self._change(raw, True)
        return True

    def has(self, time_ms: int, key: Any, namespace: bytes = b"") -> bool:
        if super().has(time_ms, key, namespace):
            return True
        frontier = self._frontier
        if frontier is None or time_ms < frontier:
            return False
        return self._is_spilled(self._encode((time_ms, key, namespace)))

    def delete(self, time_ms: int, key: Any, namespace: bytes = b"") -> bool:
        if super().delete(time_ms, key, namespace):
            return True
        frontier = self._frontier
        if frontier is None or time_ms < frontier:
            return False
        raw = self._encode((time_ms, key, namespace))
        if not self._is_spilled(raw):
            return False
        self._change(raw, False)
        self._left(1)
        return True

    def peek(self) -> int | None:
        if not self._alive and self._spilled:
            self._come_back()
        return super().peek()

    def pop_due(self, until_ms: int) -> Timer | None:
        if not self._alive and self._frontier is not None and self._frontier <= until_ms:
            self._come_back()
        return super().pop_due(until_ms)

    def __len__(self) -> int:
        return len(self._alive) + self._spilled

    def __iter__(self) -> Iterator[Timer]:
        """All timers, earliest first."""
        if not self._spilled:
            return super().__iter__()
        self.write()
        return chain(super().__iter__(), map(decode_timer, self._in_order()))

    # Snapshots

    def write(self) -> None:
        """Bring the database up to date: before its files are linked, or its entries read."""
        pending = self._pending
        if not pending:
            return
        keeper = self._opened()
        keeper.linked.wait()
        family = self._family()
        order = sorted(pending)
        for start in range(0, len(order), _SLICE):
            batch = keeper.database.batch(family)
            for raw in order[start : start + _SLICE]:
                if pending[raw]:
                    batch[raw] = b""
                    group = raw[: GROUP.size]
                    if raw < self._cursors.get(group, b""):
                        self._cursors[group] = raw
                else:
                    batch.delete(raw)
            keeper.database.write(batch)
        pending.clear()

    def restore(self, timers: Iterable[Timer]) -> None:
        """Take over what the restored database holds, and add timers, earliest first, that are not in it.

        Called once, on a queue that has none.
        """
        self._adopt()
        frontier = self._frontier
        if frontier is None:
            self.load(timers)
        else:
            found = list(timers)
            self.load(timer for timer in found if timer[0] <= frontier)
            for timer in found:
                if timer[0] > frontier:
                    self._spilled += 1
                    self._change(self._encode(timer), True)
        if len(self._alive) > self._limit:
            self._spill()

    # Inside

    def _adopt(self) -> None:
        """Take over what is in the column family, if there is one."""
        if timers_family(self._domain) not in self._opened().database.families:
            return
        self._spilled = sum(1 for group in self._groups for _ in self._scan(group))
        first = next(self._in_order(), None)
        if first is not None:
            self._frontier = decode_timer(first)[0]

    def _spill(self) -> None:
        """The later half of what is in memory goes into the database."""
        alive = self._alive
        order = sorted(alive, key=lambda timer: (timer[0], alive[timer]))
        leaving = order[self._limit // 2 :]
        self._frontier = leaving[0][0]
        self._spilled += len(leaving)
        for timer in leaving:
            del alive[timer]
        self._heap = [(time, ticket, key, space) for (time, key, space), ticket in alive.items()]
        heapify(self._heap)
        for timer in leaving:
            self._change(self._encode(timer), True)

    def _come_back(self) -> None:
        """Memory is empty: the earliest timers of the database come back, and the frontier moves behind them."""
        self.write()
        keeper = self._opened()
        keeper.linked.wait()
        count = max(1, min(_COMING_BACK, self._limit // 2))
        coming = list(islice(self._in_order(), count))
        assert coming, f"{self._spilled} timers were counted in the database and none is there"
        family = self._family()
        for start in range(0, len(coming), _SLICE):
            batch = keeper.database.batch(family)
            for raw in coming[start : start + _SLICE]:
                batch.delete(raw)
            keeper.database.write(batch)
        for raw in coming:
            # In order within each group, so the last one stays.
            self._cursors[raw[: GROUP.size]] = raw + b"\0"
        timers = [decode_timer(raw) for raw in coming]
        self.load(timers)
        self._frontier = timers[-1][0]
        self._left(len(timers))

    def _left(self, count: int) -> None:
        """So many timers are no longer in the database."""
        self._spilled -= count
        if not self._spilled:
            self._frontier = None

    def _is_spilled(self, raw: bytes) -> bool:
        known = self._pending.get(raw)
        return self._family().get(raw) is not None if known is None else known

    def _change(self, raw: bytes, is_there: bool) -> None:
        pending = self._pending
        pending[raw] = is_there
        if len(pending) >= _SLICE and (self._opened().linked.is_set() or len(pending) >= _PATIENCE * _SLICE):
            self.write()

    def _family(self) -> Family:
        keeper = self._opened()
        name = timers_family(self._domain)
        family = keeper.database.families.get(name)
        if family is None:
            # A new column family must not appear in the middle of a checkpoint's files.
            keeper.linked.wait()
            family = keeper.database.family(name)
        return family

    def _scan(self, group: int) -> Iterator[bytes]:
        start, stop = GROUP.pack(group), GROUP.pack(group + 1)
        return (raw for raw, _ in self._family().scan(self._cursors.get(start, start), stop))

    def _in_order(self) -> Iterator[bytes]:
        """Timers of the database, earliest first; those that are pending must be written before."""
        by_time = [((raw[_TIME], raw) for raw in self._scan(group)) for group in self._groups]
        return (raw for _, raw in merge(*by_time))
