"""Timers of one time domain in memory: a heap by time, with deleted timers skipped when they surface.

Both backends use it: a timer that is about to fire must be found without asking a database. On RocksDB it holds the
earliest timers only, where there are many. The queue is part of every snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import Any, TypeAlias

Timer: TypeAlias = tuple[int, Any, bytes]
"""(time in milliseconds, stored key, namespace)."""

_SLACK = 1024
"""Deleted timers that may linger before the heap is rebuilt, beyond as many as are alive."""


class FrozenTimers:
    """Timers as they were at a barrier; iterating sorts them, which may be done on another thread."""

    __slots__ = ("_tickets",)

    def __init__(self, tickets: dict[Timer, int]) -> None:
        self._tickets = tickets

    def __iter__(self) -> Iterator[Timer]:
        """Earliest first, those of one time in the order of registration."""
        tickets = self._tickets
        return iter(sorted(tickets, key=lambda timer: (timer[0], tickets[timer])))


class HeapTimerQueue:
    """Keeps the `TimerQueue` contract; touched by the mailbox thread only.

    The heap holds (time, ticket, key, namespace). Tickets grow, so timers of one time fire in the
    order of their registration and keys of different types are never compared. `_alive` maps each
    timer to the ticket of its heap entry; an entry with another ticket was deleted.
    """

    __slots__ = ("_alive", "_heap", "_ticket")

    def __init__(self, timers: Iterable[Timer] = ()) -> None:
        self._alive: dict[Timer, int] = {}
        self._heap: list[tuple[int, int, Any, bytes]] = []
        self._ticket = 0
        self.load(timers)

    def load(self, timers: Iterable[Timer]) -> None:
        """Add many timers at once, at restore: one heapify instead of a push each."""
        ticket = self._ticket
        alive = self._alive
        heap = self._heap
        for timer in timers:
            if timer not in alive:
                ticket += 1
                alive[timer] = ticket
                heap.append((timer[0], ticket, timer[1], timer[2]))
        self._ticket = ticket
        heapify(heap)

    def register(self, time_ms: int, key: Any, namespace: bytes = b"") -> bool:
        timer = (time_ms, key, namespace)
        alive = self._alive
        if timer in alive:
            return False
        self._ticket = ticket = self._ticket + 1
        alive[timer] = ticket
        heappush(self._heap, (time_ms, ticket, key, namespace))
        return True

    def has(self, time_ms: int, key: Any, namespace: bytes = b"") -> bool:
        return (time_ms, key, namespace) in self._alive

    def delete(self, time_ms: int, key: Any, namespace: bytes = b"") -> bool:
        if self._alive.pop((time_ms, key, namespace), None) is None:
            return False
        if len(self._heap) > 2 * len(self._alive) + _SLACK:
            self._heap = [(time, ticket, key, space) for (time, key, space), ticket in self._alive.items()]
            heapify(self._heap)
        return True

    def peek(self) -> int | None:
        heap = self._heap
        alive = self._alive
        while heap:
            time_ms, ticket, key, namespace = heap[0]
            if alive.get((time_ms, key, namespace)) == ticket:
                return time_ms
            heappop(heap)
        return None

    def pop_due(self, until_ms: int) -> Timer | None:
        heap = self._heap
        alive = self._alive
        while heap and heap[0][0] <= until_ms:
            time_ms, ticket, key, namespace = heappop(heap)
            timer = (time_ms, key, namespace)
            if alive.get(timer) == ticket:
                del alive[timer]
                return timer
        return None

    def __len__(self) -> int:
        return len(self._alive)

    def freeze(self) -> FrozenTimers:
        """A view that later changes do not touch, for a snapshot that is written in the background."""
        return FrozenTimers(self._alive.copy())

    def __iter__(self) -> Iterator[Timer]:
        """All timers, earliest first, those of one time in the order of registration. For snapshots."""
        return iter(FrozenTimers(self._alive))

    @property
    def heap_size(self) -> int:
        """Entries in the heap, deleted ones included; tests watch that it stays bounded."""
        return len(self._heap)
