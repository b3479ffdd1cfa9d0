"""The task's end of the connection on which results of `execute_and_collect` go to the driver.

    task → ResultsHello;  then, for every delivery,  task → Collected (in parts, all but the last with `more`)
                                                     driver → Taken

The answer is what makes a delivery count: a task says that it has committed a checkpoint only when the program has the
checkpoint's results, although the two travel on different connections.
"""

from __future__ import annotations

import threading
from typing import Any

import msgspec

from headrace.runtime.control.messages import Collected, ResultsHello, Taken
from headrace.runtime.control.wire import Connection, ConnectionLost, connect

PART = 4 << 20
"""Bytes of one message at most: results may be larger than any frame."""


class ResultsClient:
    """Connects at the first delivery: most tasks collect nothing. Any thread may deliver."""

    def __init__(self, host: str, port: int, secret: bytes, hello: ResultsHello) -> None:
        self._address = (host, port)
        self._secret = secret
        self._hello = hello
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._closed = False

    def deliver(self, results: Collected) -> None:
        """Returns when the driver has taken them; raises `ConnectionLost` if it may or may not have."""
        with self._lock:
            connection = self._connected()
            payload = memoryview(results.payload)
            for start in range(0, max(1, len(payload)), PART):
                part = bytes(payload[start : start + PART])
                more = start + PART < len(payload)
                connection.send(msgspec.msgpack.encode(msgspec.structs.replace(results, payload=part, more=more)))
            try:
                answer: Any = msgspec.msgpack.decode(connection.receive(), type=Taken)
            except msgspec.MsgspecError as error:
                raise ConnectionLost(f"the driver sent something that is no answer to results ({error})") from error
            assert isinstance(answer, Taken)

    def close(self) -> None:
        """Ends a delivery that is under way, too. May be called more than once."""
        self._closed = True
        connection = self._connection
        if connection is not None:
            connection.close()

    def _connected(self) -> Connection:
        if self._connection is None:
            connection = connect(*self._address, self._secret)
            connection.send(msgspec.msgpack.encode(self._hello))
            self._connection = connection
        if self._closed:
            self._connection.close()
            raise ConnectionLost("the task is at its end")
        return self._connection
