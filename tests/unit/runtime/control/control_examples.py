"""A control server whose events can be waited for."""

from __future__ import annotations

import queue
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from headrace.runtime.control.heartbeats import Heartbeats
from headrace.runtime.control.messages import Hello
from headrace.runtime.control.server import ControlServer, ServerEvent
from headrace.runtime.control.wire import Connection, greet_as_client

SECRET = b"s" * 32
PATIENCE_S = 60.0


def hello(attempt: int = 1, level: int = 0, slot: int = 0) -> Hello:
    return Hello(attempt, level, slot, 123, "host")


def raw_connection(port: int) -> Connection:
    """A client that may say anything."""
    connection = Connection(socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S))
    greet_as_client(connection, SECRET)
    return connection


class Events:
    """What the server reported, in order."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[ServerEvent] = queue.SimpleQueue()
        self.put = self._queue.put

    def next(self) -> ServerEvent:
        return self._queue.get(timeout=PATIENCE_S)

    @property
    def none(self) -> bool:
        return self._queue.empty()


@contextmanager
def serving(attempt: int = 1, heartbeats: Heartbeats | None = None) -> Iterator[tuple[ControlServer, Events]]:
    events = Events()
    server = ControlServer("127.0.0.1", 0, SECRET, attempt, events.put, heartbeats=heartbeats)
    try:
        yield server, events
    finally:
        server.close()


@contextmanager
def socket_pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    one.settimeout(PATIENCE_S)
    other.settimeout(PATIENCE_S)
    with one, other:
        yield one, other
