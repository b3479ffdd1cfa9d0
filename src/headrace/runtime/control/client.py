"""The task's end of the control plane."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from headrace.runtime.control.messages import DriverMessage, Message
from headrace.runtime.control.wire import ConnectionLost, connect


class ControlClient:
    """One connection to the driver. `send` is thread-safe; `listen` runs in a thread of its own."""

    def __init__(self, host: str, port: int, secret: bytes) -> None:
        self._connection = connect(host, port, secret)
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
