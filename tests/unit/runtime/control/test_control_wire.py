"""Framing and handshake: nobody without the secret gets a word in."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from control_examples import PATIENCE_S, SECRET, socket_pair

from headrace.errors import FencedError
from headrace.runtime.control.wire import (
    CODE,
    LARGEST_FRAME,
    NONCE,
    Connection,
    ConnectionLost,
    FrameForged,
    greet_as_client,
    greet_as_server,
)


def greet_both(server_secret: bytes, client_secret: bytes) -> tuple[Exception | None, Exception | None]:
    """How both ends of a handshake end; a side that fails closes, as server and client do."""
    ends: dict[str, Exception | None] = {"server": None, "client": None}
    with socket_pair() as (one, other):
        server, client = Connection(one), Connection(other)

        def serve() -> None:
            try:
                greet_as_server(server, server_secret)
            except (FencedError, ConnectionLost) as error:
                ends["server"] = error
                server.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            greet_as_client(client, client_secret)
        except (FencedError, ConnectionLost) as error:
            ends["client"] = error
            client.close()
        thread.join(PATIENCE_S)
    return ends["server"], ends["client"]


def test_both_ends_that_know_the_secret_greet_each_other() -> None:
    assert greet_both(SECRET, SECRET) == (None, None)


def test_a_task_with_another_secret_is_turned_away_and_told_why() -> None:
    server, client = greet_both(SECRET, b"another")
    assert isinstance(server, FencedError)
    assert isinstance(client, FencedError)
    assert "another attempt" in str(client)


def test_a_task_does_not_believe_a_driver_that_does_not_know_the_secret() -> None:
    with socket_pair() as (one, other):
        impostor, client = Connection(one), Connection(other)

        def pretend() -> None:
            impostor.raw_send(bytes(NONCE))
            impostor.raw_receive(32 + NONCE)
            impostor.raw_send(bytes(32))

        thread = threading.Thread(target=pretend, daemon=True)
        thread.start()
        with pytest.raises(FencedError, match="not this attempt's driver"):
            greet_as_client(client, SECRET)
        thread.join(PATIENCE_S)


def test_a_proof_cannot_be_reflected() -> None:
    """The roles are part of the proof: what a task proves does not serve a driver."""
    with socket_pair() as (one, other):
        client = Connection(other)
        mirror = Connection(one)
        outcome: list[Exception] = []

        def greet() -> None:
            try:
                greet_as_client(client, SECRET)
            except (FencedError, ConnectionLost) as error:
                outcome.append(error)

        thread = threading.Thread(target=greet, daemon=True)
        thread.start()
        mirror.raw_send(bytes(NONCE))
        proof = mirror.raw_receive(32)
        mirror.raw_receive(NONCE)
        mirror.raw_send(proof)
        thread.join(PATIENCE_S)
        assert isinstance(outcome[0], FencedError)


@pytest.mark.parametrize("frames", [[b""], [b"a", b"bc" * 100_000, b""]])
def test_frames_come_out_whole_and_in_order(frames: list[bytes]) -> None:
    with socket_pair() as (one, other):
        sender, receiver = Connection(one), Connection(other)
        thread = threading.Thread(target=lambda: [sender.send(frame) for frame in frames], daemon=True)
        thread.start()
        assert [receiver.receive() for _ in frames] == frames
        thread.join(PATIENCE_S)


def test_a_frame_that_announces_too_much_is_refused_before_any_memory_is_taken() -> None:
    with socket_pair() as (one, other):
        one.sendall(struct.pack(">I", LARGEST_FRAME + 1))
        with pytest.raises(ConnectionLost, match=str(LARGEST_FRAME)):
            Connection(other).receive()


@pytest.mark.parametrize("sent", [b"", b"\0\0", b"\0\0\0\5ab"])
def test_an_end_in_the_middle_is_a_lost_connection(sent: bytes) -> None:
    with socket_pair() as (one, other):
        one.sendall(sent)
        one.close()
        with pytest.raises(ConnectionLost):
            Connection(other).receive()


def test_sending_into_a_closed_connection_is_a_lost_connection() -> None:
    with socket_pair() as (one, other):
        connection = Connection(one)
        connection.close()
        with pytest.raises(ConnectionLost):
            connection.send(b"x")
        with pytest.raises(ConnectionLost):
            connection.raw_send(b"x")
        other.close()


# -- authenticated frames


@dataclass
class Tapped:
    """The task's end of a connection whose frames pass through the hands of the test."""

    task: Connection
    wire: socket.socket

    def feed(self, data: bytes) -> None:
        self.wire.sendall(data)


@contextmanager
def greeted() -> Iterator[tuple[Connection, socket.socket, Tapped]]:
    """A driver's connection, the socket at which its frames arrive, and a task that gets only what it is fed."""
    with socket_pair() as (one, other), socket_pair() as (wire, end):
        driver, task = Connection(one), Connection(other)
        thread = threading.Thread(target=greet_as_server, args=(driver, SECRET), daemon=True)
        thread.start()
        greet_as_client(task, SECRET)
        thread.join(PATIENCE_S)
        task._socket = end
        yield driver, other, Tapped(task, wire)


def frame_of(driver: Connection, arrives: socket.socket, payload: bytes) -> bytes:
    """What goes over the wire for one message."""
    driver.send(payload)
    size = 4 + CODE + len(payload)
    data = b""
    while len(data) < size:
        data += arrives.recv(size - len(data))
    return data


def test_authenticated_frames_arrive_in_order() -> None:
    with greeted() as (driver, arrives, other):
        for payload in (b"", b"one", b"x" * 100_000):
            frame = frame_of(driver, arrives, payload)
            threading.Thread(target=other.feed, args=(frame,), daemon=True).start()
            assert other.task.receive() == payload


@pytest.mark.parametrize("position", [4, 4 + CODE - 1, 4 + CODE, -1], ids=["code", "end of code", "payload", "end"])
def test_a_frame_of_which_one_bit_was_changed_is_refused(position: int) -> None:
    with greeted() as (driver, arrives, other):
        frame = bytearray(frame_of(driver, arrives, b"commit 7"))
        frame[position] ^= 1
        other.feed(frame)
        with pytest.raises(FrameForged, match="wrong authentication code"):
            other.task.receive()


def test_a_frame_that_is_repeated_left_out_or_reordered_is_refused() -> None:
    with greeted() as (driver, arrives, other):
        first = frame_of(driver, arrives, b"first")
        other.feed(first)
        assert other.task.receive() == b"first"
        other.feed(first)
        with pytest.raises(FrameForged):
            other.task.receive()
    with greeted() as (driver, arrives, other):
        frame_of(driver, arrives, b"first")
        other.feed(frame_of(driver, arrives, b"second"))
        with pytest.raises(FrameForged):
            other.task.receive()


def test_a_frame_of_another_connection_is_refused() -> None:
    """The same secret and the same sequence number: only the nonces of the handshake differ."""
    with greeted() as (driver, arrives, _), greeted() as (_, _, other):
        other.feed(frame_of(driver, arrives, b"recorded"))
        with pytest.raises(FrameForged):
            other.task.receive()


def test_a_frame_cannot_be_sent_back_to_its_sender() -> None:
    with socket_pair() as (one, other):
        driver, task = Connection(one), Connection(other)
        thread = threading.Thread(target=greet_as_server, args=(driver, SECRET), daemon=True)
        thread.start()
        greet_as_client(task, SECRET)
        thread.join(PATIENCE_S)
        other.sendall(frame_of(driver, other, b"mine"))
        with pytest.raises(FrameForged):
            driver.receive()


def test_a_frame_without_a_code_is_refused_by_an_authenticated_connection() -> None:
    with greeted() as (_, _, other):
        plain = b"no code at all, but long enough"
        other.feed(struct.pack(">I", len(plain) - CODE) + plain)
        with pytest.raises(FrameForged):
            other.task.receive()
