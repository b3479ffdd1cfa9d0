"""A way to the broker that loses what a test wants lost: the request that ends a transaction, or the answer to it.

Kafka frames every request and response by its length; a request begins with what it asks for and a number that the
response repeats. Brokers tell clients where they are (host as text, port as four bytes behind it), and clients would go
there past any proxy: so the port in what brokers say is replaced by the proxy's own.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from types import TracebackType

END_TXN = 26
_HOST = b"127.0.0.1"


class LossyBroker:
    """Passes everything on, until a client commits a transaction with records: then it cuts that connection, once.

    `landed`: the request reaches the broker, and is answered, before the cut: it happened, and nobody was told.
    `stays_away`: nobody gets through from then on.
    """

    def __init__(self, port: int, *, landed: bool, stays_away: bool = False) -> None:
        self._port = port
        self._landed = landed
        self._stays_away = stays_away
        self._lock = threading.Lock()
        self.cuts = 0
        self.cut = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> LossyBroker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self.cuts and self._stays_away:
                    client.close()
                    continue
                _Connection(self, client, socket.create_connection(("127.0.0.1", self._port)))

    def first(self) -> bool:
        """Whether this is the commit to lose."""
        with self._lock:
            self.cuts += 1
            return self.cuts == 1

    @property
    def landed(self) -> bool:
        return self._landed

    def renamed(self, frame: bytes) -> bytes:
        """What the broker says, with the proxy's port for its own."""
        return frame.replace(_HOST + struct.pack(">i", self._port), _HOST + struct.pack(">i", self.port))


class _Connection:
    def __init__(self, proxy: LossyBroker, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._lost: int | None = None
        for run in (self._to_server, self._to_client):
            threading.Thread(target=run, daemon=True).start()

    def _to_server(self) -> None:
        with contextlib.suppress(OSError):
            while (frame := _frame(self._client)) is not None:
                api, _, number = struct.unpack_from(">hhi", frame, 4)
                if api == END_TXN and _commits(frame) and b"-owner" not in frame and self._proxy.first():
                    if not self._proxy.landed:
                        break
                    self._lost = number
                self._server.sendall(frame)
        self._close()

    def _to_client(self) -> None:
        with contextlib.suppress(OSError):
            while (frame := _frame(self._server)) is not None:
                (number,) = struct.unpack_from(">i", frame, 4)
                if number == self._lost:
                    break
                self._client.sendall(self._proxy.renamed(frame))
        self._close()

    def _close(self) -> None:
        if self._proxy.cuts:
            self._proxy.cut.set()
        for each in (self._client, self._server):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


def _commits(frame: bytes) -> bool:
    """Whether a transaction is to be committed, not given up: the flag stands last, before the tags of new versions."""
    (version,) = struct.unpack_from(">h", frame, 6)
    return bool(frame[-2 if version >= 3 else -1])


def _frame(stream: socket.socket) -> bytes | None:
    """One request or response with its length; None at the end."""
    head = _exactly(stream, 4)
    if head is None:
        return None
    body = _exactly(stream, struct.unpack(">i", head)[0])
    return None if body is None else head + body


def _exactly(stream: socket.socket, size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        part = stream.recv(min(1 << 20, size - len(data)))
        if not part:
            return None
        data += part
    return bytes(data)
