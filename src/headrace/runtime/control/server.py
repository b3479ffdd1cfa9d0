"""The driver's end of the control plane: accepts this attempt's tasks and turns everyone else away."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from headrace.errors import FencedError
from headrace.runtime.control.messages import (
    Collected,
    FirstMessage,
    Hello,
    Message,
    Printed,
    Refuse,
    ResultsHello,
    Taken,
    TaskMessage,
)
from headrace.runtime.control.wire import Connection, ConnectionLost, greet_as_server

HANDSHAKE_TIMEOUT_S = 10.0

TaskKey = tuple[int, int]
"""(level, slot)"""


@dataclass(frozen=True, slots=True)
class TaskJoined:
    task: TaskKey
    hello: Hello


@dataclass(frozen=True, slots=True)
class TaskSaid:
    task: TaskKey
    message: Any


@dataclass(frozen=True, slots=True)
class TaskLost:
    task: TaskKey
    reason: str


ServerEvent = TaskJoined | TaskSaid | TaskLost


class ControlServer:
    """Listens for the tasks of one attempt. All three callbacks are called from connection threads.

    Printed lines do not travel with the events: a stream that blocks must not fill the coordinator's queue.
    A task that collects results opens a second connection for them, so that neither their size nor the time it takes
    to unpack them holds back what the coordinator has to know. When `on_results` has returned, the task is told.
    """

    def __init__(
        self,
        host: str,
        port: int,
        secret: bytes,
        attempt: int,
        on_event: Callable[[ServerEvent], None],
        on_results: Callable[[Collected], None] = lambda results: None,
        on_printed: Callable[[tuple[str, ...]], None] = lambda lines: None,
    ) -> None:
        self._secret = secret
        self._attempt = attempt
        self._on_event = on_event
        self._on_results = on_results
        self._on_printed = on_printed
        self._connections: dict[TaskKey, Connection] = {}
        self._results: set[Connection] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._socket = socket.create_server((host, port), backlog=512)
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, name="control-accept", daemon=True).start()

    def send(self, task: TaskKey, message: Message) -> None:
        """To one task; a task that is gone is reported by its own thread, not here."""
        with self._lock:
            connection = self._connections.get(task)
        if connection is not None:
            with contextlib.suppress(ConnectionLost):
                connection.send(msgspec.msgpack.encode(message))

    def close(self) -> None:
        with self._lock:
            self._closed = True
            connections = [*self._connections.values(), *self._results]
            self._connections.clear()
            self._results.clear()
        # A blocked accept() does not notice a closed socket, but it does notice a shutdown.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for connection in connections:
            connection.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                sock, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(sock,), name="control-task", daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.settimeout(HANDSHAKE_TIMEOUT_S)
        connection = Connection(sock)
        try:
            greet_as_server(connection, self._secret)
            hello = msgspec.msgpack.decode(connection.receive(), type=FirstMessage)
            sock.settimeout(None)
            if isinstance(hello, ResultsHello):
                self._take_results(hello, connection)
                return
            task = self._register(hello, connection)
        except (FencedError, ConnectionLost, msgspec.MsgspecError):
            connection.close()
            return
        if task is None:
            connection.close()
            return
        self._on_event(TaskJoined(task, hello))
        decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(TaskMessage)
        try:
            while True:
                message = decoder.decode(connection.receive())
                if isinstance(message, Printed):
                    self._on_printed(message.lines)
                else:
                    self._on_event(TaskSaid(task, message))
        except (ConnectionLost, msgspec.MsgspecError) as error:
            with self._lock:
                current = self._connections.get(task) is connection and not self._closed
                if current:
                    del self._connections[task]
            connection.close()
            if current:
                self._on_event(TaskLost(task, str(error)))

    def _take_results(self, hello: ResultsHello, connection: Connection) -> None:
        """Until the connection ends. Nothing is reported then: a task that is gone is missed on its other one."""
        with self._lock:
            # Only behind a hello: so a task that was turned away hands over nothing either.
            known = (hello.level, hello.slot) in self._connections
            if hello.attempt == self._attempt and known and not self._closed:
                self._results.add(connection)
            else:
                known = False
        decoder = msgspec.msgpack.Decoder(Collected)
        taken = msgspec.msgpack.encode(Taken())
        parts: list[bytes] = []
        try:
            while known:
                results = decoder.decode(connection.receive())
                parts.append(results.payload)
                if not results.more:
                    self._on_results(msgspec.structs.replace(results, payload=b"".join(parts)))
                    parts = []
                    connection.send(taken)
        finally:
            with self._lock:
                self._results.discard(connection)
            connection.close()

    def _register(self, hello: Any, connection: Connection) -> TaskKey | None:
        if not isinstance(hello, Hello):
            return None
        task = (hello.level, hello.slot)
        with self._lock:
            known = task in self._connections
            if hello.attempt == self._attempt and not known and not self._closed:
                self._connections[task] = connection
                return task
        reason = "its slot is taken" if known else f"it belongs to attempt {hello.attempt}, this is {self._attempt}"
        connection.send(msgspec.msgpack.encode(Refuse(reason)))
        return None
