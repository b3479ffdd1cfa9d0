"""The task's end of the control plane."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import msgspec

from headrace.runtime.control.messages import DriverMessage, Message
from headrace.runtime.control.wire import Connection, ConnectionLost, greet_as_client

CONNECT_TIMEOUT_S = 20.0


class ControlClient:
    """One connection to the driver. `send` is thread-safe; `listen` runs in a thread of its own."""

    def __init__(self, host: str, port: int, secret: bytes) -> None:
        sock = socket.create_connection((host, port), timeout=CONNECT_TIMEOUT_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = Connection(sock)
        try:
            greet_as_client(self._connection, secret)
        except BaseException:
            self._connection.close()
            raise
        sock.settimeout(None)
        self._decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(DriverMessage)

    def send(self, message: Message) -> None:
        """May raise `ConnectionLost`. An encoder is not thread-safe, hence one call per message."""
        self._connection.send(msgspec.msgpack.encode(message))

    def receive(self) -> Any:
        return self._decoder.decode(self._connection.receive())

    def listen(self, handle: Callable[[Any], None], lost: Callable[[str], None]) -> None:
        """Hand every message on until the connection ends."""
        while True:
            try:
                message = self.receive()
            except ConnectionLost as error:
                lost(str(error))
                return
            except msgspec.MsgspecError as error:
                # A task that no longer understands its driver must not go on as if nothing was said.
                lost(f"the driver sent something that is no message ({error})")
                return
            handle(message)

    def close(self) -> None:
        self._connection.close()
