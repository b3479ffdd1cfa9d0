"""Whoever is no task of the attempt can neither end the control server nor keep its tasks out."""

from __future__ import annotations

import resource
import socket
import threading
import time

import pytest
from control_examples import PATIENCE_S, SECRET, hello, serving

from headrace.runtime.control import server as server_module
from headrace.runtime.control.client import ControlClient
from headrace.runtime.control.server import MAX_GREETING, TaskJoined

LOW_LIMIT = 3
"""Open files at most: no further one beside the standard streams, while poll() still works."""


def test_a_server_out_of_descriptors_accepts_again_when_there_are_some() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with serving() as (server, events), socket.socket() as stranger:
        resource.setrlimit(resource.RLIMIT_NOFILE, (LOW_LIMIT, hard))
        try:
            stranger.connect(("127.0.0.1", server.port))
            # Long enough that accept() has failed at least once.
            time.sleep(0.3)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        ControlClient("127.0.0.1", server.port, SECRET).send(hello())
        assert isinstance(events.next(), TaskJoined)


def test_a_handshake_has_one_deadline_however_slowly_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "HANDSHAKE_TIMEOUT_S", 0.5)
    with serving() as (server, _), socket.create_connection(("127.0.0.1", server.port)) as stranger:
        stranger.settimeout(0.2)
        assert len(stranger.recv(32)) == 32
        sent = 0
        with pytest.raises(OSError):  # noqa: PT012 - reset or broken pipe, at whichever byte
            while sent < 60:
                stranger.sendall(b"x")
                sent += 1
                try:
                    if stranger.recv(1) == b"":
                        raise ConnectionResetError
                except TimeoutError:
                    continue
        assert sent < 60, "it was never cut off"


def test_strangers_who_hold_connections_open_do_not_keep_tasks_out() -> None:
    with serving() as (server, events):
        before = threading.active_count()
        strangers = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(3 * MAX_GREETING)]
        client = ControlClient("127.0.0.1", server.port, SECRET)
        client.send(hello())
        assert isinstance(events.next(), TaskJoined)
        deadline = time.monotonic() + PATIENCE_S
        while threading.active_count() > before + MAX_GREETING + 8:
            assert time.monotonic() < deadline, threading.active_count() - before
            time.sleep(0.02)
        for stranger in strangers:
            stranger.close()
