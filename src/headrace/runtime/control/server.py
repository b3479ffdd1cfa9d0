"""The driver's end of the control plane: accepts this attempt's tasks and turns everyone else away."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from headrace.errors import FencedError
from headrace.runtime.control.address import cannot_listen
from headrace.runtime.control.heartbeats import Heartbeats, Pulse, keep_beating
from headrace.runtime.control.messages import (
    Collected,
    FirstMessage,
    Heartbeat,
    Hello,
    Message,
    Printed,
    Refuse,
    ResultsHello,
    Taken,
    TaskMessage,
)
from headrace.runtime.control.send_queue import SendQueue
from headrace.runtime.control.wire import Connection, ConnectionLost, PeerGone, greet_as_server

HANDSHAKE_TIMEOUT_S = 10.0
"""For the whole handshake and the hello."""
MAX_GREETING = 64
"""Connections at once that have not said who they are, each with a thread. Beyond it the oldest is closed."""
ACCEPT_PAUSE_S = 0.1
CLOSE_S = 1.0

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


@dataclass(frozen=True, slots=True)
class _Peer:
    """A task that has joined."""

    connection: Connection
    queue: SendQueue
    pulse: Pulse


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
        heartbeats: Heartbeats | None = None,
    ) -> None:
        self._secret = secret
        self._attempt = attempt
        self._on_event = on_event
        self._on_results = on_results
        self._on_printed = on_printed
        self._heartbeats = heartbeats or Heartbeats()
        self._greeting: dict[Connection, None] = {}
        """Connections that have not said who they are, the oldest first."""
        self._peers: dict[TaskKey, _Peer] = {}
        self._results: set[Connection] = set()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._socket = socket.create_server((host, port), family=family, backlog=512)
        except OSError as error:
            raise cannot_listen(host, port, error) from error
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, name="control-accept", daemon=True).start()
        threading.Thread(
            target=keep_beating, args=(self._heartbeats, self._beat, self._closed), name="heartbeat", daemon=True
        ).start()

    def send(self, task: TaskKey, message: Message) -> None:
        """To one task; never waits for it. A task that is gone is reported by its own thread, not here."""
        with self._lock:
            peer = self._peers.get(task)
        if peer is not None:
            with contextlib.suppress(ConnectionLost):
                peer.queue.put(msgspec.msgpack.encode(message))

    def close(self) -> None:
        """End every connection. Messages on their way get `CLOSE_S` in all."""
        self._closed.set()
        with self._lock:
            peers = list(self._peers.values())
            others = [*self._greeting, *self._results]
            self._peers.clear()
            self._results.clear()
        # A blocked accept() does not notice a closed socket, but it does notice a shutdown.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        until = time.monotonic() + CLOSE_S
        for peer in peers:
            peer.queue.close(max(0.0, until - time.monotonic()))
            peer.connection.close()
        for connection in others:
            connection.close()

    def _beat(self, elapsed_s: float) -> None:
        with self._lock:
            peers = list(self._peers.values())
        for peer in peers:
            peer.pulse.beat(elapsed_s)

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                sock, _ = self._socket.accept()
            except OSError:
                # Too many open files, a connection that was reset: neither may end the server.
                self._closed.wait(ACCEPT_PAUSE_S)
                continue
            connection = Connection(sock)
            with self._lock:
                self._greeting[connection] = None
                oldest = next(iter(self._greeting)) if len(self._greeting) > MAX_GREETING else None
                if oldest is not None:
                    del self._greeting[oldest]
            # A task needs a moment for its handshake. Strangers who hold connections open make room for it.
            if oldest is not None:
                oldest.close()
            try:
                threading.Thread(target=self._serve, args=(sock, connection), name="control-task", daemon=True).start()
            except RuntimeError:
                # No further thread can be started now.
                self._turn_away(connection)

    def _turn_away(self, connection: Connection) -> None:
        with self._lock:
            self._greeting.pop(connection, None)
        connection.close()

    def _serve(self, sock: socket.socket, connection: Connection) -> None:
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.receive_within(HANDSHAKE_TIMEOUT_S)
            greet_as_server(connection, self._secret)
            hello = msgspec.msgpack.decode(connection.receive(), type=FirstMessage)
            connection.receive_within(None)
            with self._lock:
                self._greeting.pop(connection, None)
            if isinstance(hello, ResultsHello):
                self._take_results(hello, connection)
                return
            task = self._register(hello, connection)
        except (FencedError, ConnectionLost, msgspec.MsgspecError, OSError):
            self._turn_away(connection)
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
                elif not isinstance(message, Heartbeat):
                    self._on_event(TaskSaid(task, message))
        except PeerGone as error:
            self._lose(task, connection, f"it exited without reporting an error, or its host is gone ({error})")
        except ConnectionLost as error:
            self._lose(task, connection, str(error))
        except msgspec.MsgspecError as error:
            self._lose(task, connection, f"it sent something that is no message ({error})")

    def _lose(self, task: TaskKey, connection: Connection, reason: str) -> None:
        with self._lock:
            peer = self._peers.get(task)
            current = peer is not None and peer.connection is connection and not self._closed.is_set()
            if current:
                del self._peers[task]
        connection.close()
        if peer is not None and current:
            peer.queue.close()
            self._on_event(TaskLost(task, reason))

    def _take_results(self, hello: ResultsHello, connection: Connection) -> None:
        """Until the connection ends. Nothing is reported then: a task that is gone is missed on its other one."""
        with self._lock:
            # Only behind a hello: so a task that was turned away hands over nothing either.
            known = (hello.level, hello.slot) in self._peers
            if hello.attempt == self._attempt and known and not self._closed.is_set():
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
            known = task in self._peers
            if hello.attempt == self._attempt and not known and not self._closed.is_set():
                queue = SendQueue(connection, f"control-send-{hello.level}.{hello.slot}")
                self._peers[task] = _Peer(connection, queue, Pulse(connection, queue, self._heartbeats.timeout_s))
                return task
        reason = "its slot is taken" if known else f"it belongs to attempt {hello.attempt}, this is {self._attempt}"
        connection.send(msgspec.msgpack.encode(Refuse(reason)))
        return None
