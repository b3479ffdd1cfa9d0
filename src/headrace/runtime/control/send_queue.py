"""Frames that wait for one connection, written by a thread of its own: whoever sends never waits for the other end."""

from __future__ import annotations

import threading
import time
from collections import deque

from headrace.runtime.control.wire import Connection, ConnectionLost, PeerGone

MAX_QUEUED_BYTES = 64 << 20
"""A peer that is this far behind is given up. One frame may be larger: state can travel inside of a message."""


class SendQueue:
    """Any thread may call it."""

    def __init__(self, connection: Connection, name: str, max_bytes: int = MAX_QUEUED_BYTES) -> None:
        self._connection = connection
        self._max_bytes = max_bytes
        self._frames: deque[bytes] = deque()
        self._bytes = 0
        """Of the frames that wait and of the one that is being written."""
        self._closed = False
        self._changed = threading.Condition()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    @property
    def waiting_bytes(self) -> int:
        return self._bytes

    def put(self, frame: bytes) -> None:
        """Append a frame. If too much waits already, the connection is closed with that reason."""
        with self._changed:
            if self._closed:
                raise ConnectionLost("the connection was closed")
            if self._bytes <= self._max_bytes:
                self._frames.append(frame)
                self._bytes += len(frame)
                self._changed.notify_all()
                return
        reason = f"it took too little of what it was sent: {self._bytes:,} bytes wait, the limit is {self._max_bytes:,}"
        self._connection.close(reason)
        raise ConnectionLost(reason)

    def wait_for_room(self, wanted_bytes: int, limit_s: float) -> bool:
        """Wait until no more than `wanted_bytes` wait to be written; False if that took longer than `limit_s`."""
        with self._changed:
            return self._changed.wait_for(lambda: self._closed or self._bytes <= wanted_bytes, limit_s)

    def close(self, limit_s: float = 0.0) -> None:
        """Accept no further frame; wait at most `limit_s` until those accepted before are written."""
        until = time.monotonic() + limit_s
        with self._changed:
            self._changed.wait_for(lambda: self._closed or not self._bytes, max(0.0, until - time.monotonic()))
            self._closed = True
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or bool(self._frames))
                if self._closed:
                    return
                frame = self._frames.popleft()
            try:
                self._connection.send(frame)
            except ConnectionLost as error:
                self._connection.close(None if isinstance(error, PeerGone) else str(error))
                self.close()
                return
            with self._changed:
                self._bytes -= len(frame)
                self._changed.notify_all()
