"""How far the query that feeds a job may run ahead of it."""

from __future__ import annotations

import threading


class Backlog:
    """Bytes in the spool that no reader has yet; a query waits while they are too many. For one attempt."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._bytes = 0
        self._changed = threading.Condition()
        self._closed = False

    def waiting(self, size: int) -> None:
        """So many bytes wait for readers now. Told by the enumerator."""
        with self._changed:
            self._bytes = size
            self._changed.notify_all()

    def wait_for_room(self) -> bool:
        """Return when the next batch may be written; False if none will be: the attempt is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._bytes <= self._limit)
            return not self._closed

    def close(self) -> None:
        """Let go whoever waits."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
