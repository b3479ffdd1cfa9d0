"""Framing and handshake of the control plane.

    frame:      length u32 (big-endian) | msgpack
    handshake:  server → 32 random bytes;  client → HMAC-SHA256(secret, "task" | nonce), 32 random bytes;
                server → HMAC-SHA256(secret, "driver" | client's nonce)

Both ends prove that they know the secret of the attempt before a single message is decoded.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import socket
import struct
import threading

from headrace.errors import FencedError

_LENGTH = struct.Struct(">I")
LARGEST_FRAME = 1 << 30
NONCE = 32
CONNECT_TIMEOUT_S = 20.0


class ConnectionLost(Exception):
    """The other end is gone."""


class Connection:
    """Frames over a socket. One thread receives; any thread sends."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._send_lock = threading.Lock()
        self._stream = sock.makefile("rb", buffering=1 << 16)

    def send(self, data: bytes) -> None:
        try:
            with self._send_lock:
                self._socket.sendall(_LENGTH.pack(len(data)) + data)
        except OSError as error:
            raise ConnectionLost(str(error)) from error

    def receive(self) -> bytes:
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        if length > LARGEST_FRAME:
            raise ConnectionLost(f"a frame of {length} bytes was announced; the limit is {LARGEST_FRAME}")
        return self._exactly(length)

    def _exactly(self, n: int) -> bytes:
        try:
            data = self._stream.read(n)
        except (OSError, ValueError) as error:
            raise ConnectionLost(str(error)) from error
        if data is None or len(data) < n:
            raise ConnectionLost("the connection was closed")
        return bytes(data)

    def raw_send(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise ConnectionLost(str(error)) from error

    def raw_receive(self, n: int) -> bytes:
        return self._exactly(n)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        # The stream holds the descriptor open too. Its reader, if there is one, was woken by the shutdown.
        with contextlib.suppress(OSError, ValueError):
            self._stream.close()


def _proof(secret: bytes, role: bytes, nonce: bytes) -> bytes:
    return hmac.new(secret, role + nonce, hashlib.sha256).digest()


def greet_as_server(connection: Connection, secret: bytes) -> None:
    """Check that the client knows the secret, and prove that this side does."""
    nonce = os.urandom(NONCE)
    connection.raw_send(nonce)
    proof = connection.raw_receive(hashlib.sha256().digest_size)
    theirs = connection.raw_receive(NONCE)
    if not hmac.compare_digest(proof, _proof(secret, b"task", nonce)):
        raise FencedError("A task of another attempt, or a stranger, tried to connect; it was turned away.")
    connection.raw_send(_proof(secret, b"driver", theirs))


def greet_as_client(connection: Connection, secret: bytes) -> None:
    """Prove that this side knows the secret, and check that the server does."""
    nonce = connection.raw_receive(NONCE)
    mine = os.urandom(NONCE)
    connection.raw_send(_proof(secret, b"task", nonce) + mine)
    try:
        proof = connection.raw_receive(hashlib.sha256().digest_size)
    except ConnectionLost as error:
        raise FencedError("The driver turned this task away: it belongs to another attempt.") from error
    if not hmac.compare_digest(proof, _proof(secret, b"driver", mine)):
        raise FencedError("What answers on the driver's control port is not this attempt's driver.")


def connect(host: str, port: int, secret: bytes) -> Connection:
    """A connection to the driver of this attempt, both ends known to each other."""
    sock = socket.create_connection((host, port), timeout=CONNECT_TIMEOUT_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection = Connection(sock)
    try:
        greet_as_client(connection, secret)
    except BaseException:
        connection.close()
        raise
    sock.settimeout(None)
    return connection
