"""State for records that come key by key: what belongs to a key is forgotten when its last record was processed.

In batch mode the input of a keyed operator is sorted by key, so one key's state is all there ever is, however many keys
and records there are, and nothing of it needs to be on disk.
"""

from __future__ import annotations

from headrace.backends.heap.backend import HeapBackend
from headrace.backends.heap.layout import VOID
from headrace.backends.snapshots import DOMAINS
from headrace.state.backend import BackendContext
from headrace.state.timers import HeapTimerQueue


class OneKeyTimers(HeapTimerQueue):
    """Timers of one key at a time. While the key is being finished they may be closed: nothing is registered then."""

    __slots__ = ("closed",)

    def __init__(self) -> None:
        super().__init__()
        self.closed = False

    def register(self, time_ms: int, key: object, namespace: bytes = b"") -> bool:
        return not self.closed and super().register(time_ms, key, namespace)


class OneKeyBackend(HeapBackend):
    """A heap backend that is emptied after every key."""

    def __init__(self, context: BackendContext) -> None:
        super().__init__(context)
        self._queues = [OneKeyTimers() for _ in DOMAINS]
        self._timers.update(zip(DOMAINS, self._queues, strict=True))

    def close_timers(self, closed: bool) -> None:
        """From now on timers that are registered are left out, or kept again."""
        for queue in self._queues:
            queue.closed = closed

    def forget(self) -> None:
        """The current key is done: its state and its timers go."""
        for state in self.declared.values():
            # A state holds on to the dict of its namespace, so it must leave it before the dict goes.
            state.set_namespace(VOID)
        for table in self._tables.values():
            void = table.spaces[VOID]
            void.clear()
            if len(table.spaces) > 1:
                table.spaces.clear()
                table.spaces[VOID] = void
        for queue in self._queues:
            while queue.pop_due(_END_OF_TIME) is not None:
                pass


_END_OF_TIME = 2**63 - 1
