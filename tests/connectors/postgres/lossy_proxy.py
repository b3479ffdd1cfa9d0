"""A way to the server that loses what a test wants lost."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType


class LossyProxy:
    """Passes bytes on, both ways, until a client sends `trigger`; then it cuts that connection, once.

    With `forward` the words still reach the server, and it waits for the server's answer before it cuts: what was
    asked for happened, and nobody was told. Without it they never arrive.
    """

    def __init__(self, port: int, trigger: bytes, *, forward: bool) -> None:
        self._port = port
        self._trigger = trigger
        self._forward = forward
        self._lock = threading.Lock()
        self.cuts = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> LossyProxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._port))
                answered = threading.Event()
                cut = threading.Event()
                for run in (self._to_server, self._to_client):
                    threading.Thread(target=run, args=(client, server, cut, answered), daemon=True).start()

    def _to_server(
        self, client: socket.socket, server: socket.socket, cut: threading.Event, answered: threading.Event
    ) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(65_536):
                if self._trigger in data and self._first():
                    cut.set()
                    if self._forward:
                        server.sendall(data)
                        answered.wait(30)
                    break
                server.sendall(data)
        _close(client, server)

    def _to_client(
        self, client: socket.socket, server: socket.socket, cut: threading.Event, answered: threading.Event
    ) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(65_536):
                if cut.is_set():
                    answered.set()
                    break
                client.sendall(data)
        answered.set()
        if not cut.is_set():
            _close(client, server)

    def _first(self) -> bool:
        with self._lock:
            self.cuts += 1
            return self.cuts == 1


def _close(*sockets: socket.socket) -> None:
    for each in sockets:
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        each.close()
