"""The task's end of the control plane."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import msgspec

from headrace.runtime.control.heartbeats import Heartbeats, Pulse, keep_beating
from headrace.runtime.control.messages import DriverMessage, Heartbeat, Message
from headrace.runtime.control.send_queue import SendQueue
from headrace.runtime.control.wire import ConnectionLost, connect

CLOSE_S = 2.0
"""How long the end of a task waits until the driver has taken its last messages."""


class ControlClient:
    """One connection to the driver, with heartbeats. `send` is thread-safe and never waits for the driver."""

    def __init__(self, host: str, port: int, secret: bytes, heartbeats: Heartbeats | None = None) -> None:
        heartbeats = heartbeats or Heartbeats()
        self._connection = connect(host, port, secret)
        self._queue = SendQueue(self._connection, "control-send")
        self._decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(DriverMessage)
        self._ended = threading.Event()
        pulse = Pulse(self._connection, self._queue, heartbeats.timeout_s)
        threading.Thread(
            target=keep_beating, args=(heartbeats, pulse.beat, self._ended), name="heartbeat", daemon=True
        ).start()

    def send(self, message: Message) -> None:
        """May raise `ConnectionLost`. An encoder is not thread-safe, hence one call per message."""
        self._queue.put(msgspec.msgpack.encode(message))

    def wait_for_room(self, waiting_bytes: int, limit_s: float) -> bool:
        """For what may be dropped: whether at most `waiting_bytes` wait to be sent, now or within `limit_s`."""
        return self._queue.wait_for_room(waiting_bytes, limit_s)

    def receive(self) -> Any:
        """The next message that is no heartbeat."""
        while True:
            message = self._decoder.decode(self._connection.receive())
            if not isinstance(message, Heartbeat):
                return message

    def listen(self, handle: Callable[[Any], None], lost: Callable[[str], None]) -> None:
        """Hand every message on until the connection ends. Runs in a thread of its own."""
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
        self._ended.set()
        self._queue.close(CLOSE_S)
        self._connection.close()
