"""Ends that stand still: whoever sends to them does not wait, and they are lost with a reason."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
import pytest
from control_examples import PATIENCE_S, SECRET, hello, raw_connection, serving

from headrace.runtime.control import messages as msg
from headrace.runtime.control.client import ControlClient
from headrace.runtime.control.heartbeats import Heartbeats, keep_beating
from headrace.runtime.control.server import TaskJoined, TaskLost, TaskSaid
from headrace.runtime.control.wire import Connection, ConnectionLost, greet_as_server

QUICK = Heartbeats(interval_s=0.05, timeout_s=1.0)
UNHURRIED = Heartbeats(interval_s=0.05, timeout_s=PATIENCE_S)
MEGABYTE = msg.AssignSplits("u", 0, (b"x" * (1 << 20),))


def in_time(work: Callable[[], None]) -> bool:
    """Whether the work ends although nobody helps it."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    return not thread.is_alive()


@contextmanager
def silent_driver() -> Iterator[tuple[int, list[Connection]]]:
    """A driver that greets tasks and then neither reads nor sends anything."""
    connections: list[Connection] = []

    def accept(listener: socket.socket) -> None:
        sock, _ = listener.accept()
        connection = Connection(sock)
        greet_as_server(connection, SECRET)
        connections.append(connection)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, args=(listener,), daemon=True).start()
        yield listener.getsockname()[1], connections
        for connection in connections:
            connection.close()


def test_sending_to_a_task_that_takes_nothing_does_not_wait_for_it() -> None:
    with serving(heartbeats=UNHURRIED) as (server, events):
        stalled = raw_connection(server.port)
        stalled.send(msgspec.msgpack.encode(hello()))
        assert isinstance(events.next(), TaskJoined)
        neighbour = ControlClient("127.0.0.1", server.port, SECRET)
        neighbour.send(hello(slot=1))
        assert isinstance(events.next(), TaskJoined)

        def send() -> None:
            for _ in range(20):
                server.send((0, 0), MEGABYTE)
            server.send((0, 1), msg.Start())

        assert in_time(send)
        assert neighbour.receive() == msg.Start()
        assert events.none
        assert [msgspec.msgpack.decode(stalled.receive(), type=msg.DriverMessage) for _ in range(20)] == [MEGABYTE] * 20


def test_a_task_that_takes_nothing_for_too_long_is_lost_by_name_although_it_still_talks() -> None:
    with serving(heartbeats=QUICK) as (server, events):
        stalled = raw_connection(server.port)
        stalled.send(msgspec.msgpack.encode(hello(level=3, slot=1)))
        assert isinstance(events.next(), TaskJoined)
        for _ in range(20):
            server.send((3, 1), MEGABYTE)
        beat = msgspec.msgpack.encode(msg.Heartbeat())
        deadline = time.monotonic() + PATIENCE_S
        while events.none:
            assert time.monotonic() < deadline
            try:
                stalled.send(beat)
            except ConnectionLost:
                break
            time.sleep(0.02)
        lost = events.next()
    assert isinstance(lost, TaskLost)
    assert lost.task == (3, 1)
    assert "took nothing" in lost.reason
    assert "heartbeat.timeout" in lost.reason


def test_a_task_that_is_too_far_behind_is_lost_at_once() -> None:
    with serving(heartbeats=UNHURRIED) as (server, events):
        stalled = raw_connection(server.port)
        stalled.send(msgspec.msgpack.encode(hello()))
        assert isinstance(events.next(), TaskJoined)
        large = msg.AssignSplits("u", 0, (b"x" * (40 << 20),))
        for _ in range(3):
            server.send((0, 0), large)
        lost = events.next()
    assert isinstance(lost, TaskLost)
    assert "the limit is 67,108,864" in lost.reason


def test_a_task_that_is_silent_is_lost() -> None:
    with serving(heartbeats=QUICK) as (server, events):
        silent = raw_connection(server.port)
        silent.send(msgspec.msgpack.encode(hello(slot=2)))
        assert isinstance(events.next(), TaskJoined)
        lost = events.next()
    assert isinstance(lost, TaskLost)
    assert lost.task == (0, 2)
    assert "nothing was heard" in lost.reason


def test_ends_that_have_nothing_to_say_keep_each_other_alive() -> None:
    patient = Heartbeats(interval_s=0.01, timeout_s=20.0)
    with serving(heartbeats=patient) as (server, events):
        client = ControlClient("127.0.0.1", server.port, SECRET, patient)
        client.send(hello())
        assert isinstance(events.next(), TaskJoined)
        lost: list[str] = []
        threading.Thread(target=client.listen, args=(lambda message: None, lost.append), daemon=True).start()
        deadline = time.monotonic() + PATIENCE_S
        enough = 40 * 30
        while client._connection.bytes_received < enough or server._peers[0, 0].connection.bytes_received < enough:
            assert time.monotonic() < deadline, "heartbeats do not come"
            time.sleep(0.01)
        assert events.none
        assert not lost
        client.send(msg.Drained())
        assert events.next() == TaskSaid((0, 0), msg.Drained()), "heartbeats are no events"


def test_a_task_whose_driver_is_silent_takes_it_for_lost() -> None:
    with silent_driver() as (port, _):
        client = ControlClient("127.0.0.1", port, SECRET, QUICK)
        lost: list[str] = []
        assert in_time(lambda: client.listen(lambda message: None, lost.append))
    assert "nothing was heard from it for 1 s" in lost[0]


def test_a_task_does_not_wait_for_a_driver_that_takes_nothing() -> None:
    with silent_driver() as (port, _):
        client = ControlClient("127.0.0.1", port, SECRET, UNHURRIED)
        large = msg.Announced("u", 0, (b"x" * (10 << 20),))

        def send() -> None:
            for _ in range(5):
                client.send(large)

        assert in_time(send)
        assert not client.wait_for_room(1 << 20, 0.0)
        assert in_time(client.close)


def test_the_last_words_of_a_task_are_sent_before_it_closes() -> None:
    with serving() as (server, events):
        client = ControlClient("127.0.0.1", server.port, SECRET)
        client.send(hello())
        for checkpoint_id in range(200):
            client.send(msg.Committed(checkpoint_id))
        client.close()
        assert isinstance(events.next(), TaskJoined)
        assert [events.next() for _ in range(200)] == [TaskSaid((0, 0), msg.Committed(n)) for n in range(200)]
        assert isinstance(events.next(), TaskLost)


def test_time_in_which_the_process_itself_was_paused_is_not_counted_as_silence() -> None:
    """The clock leaps, as it does while the process is stopped and the other end goes on sending."""
    times = iter([0.0, 0.1, 300.1, 300.2])
    elapsed: list[float] = []
    ended = threading.Event()

    def beat(seconds: float) -> None:
        elapsed.append(seconds)
        if len(elapsed) == 3:
            ended.set()

    keep_beating(Heartbeats(interval_s=0.001, timeout_s=50.0), beat, ended, lambda: next(times))
    assert elapsed == [pytest.approx(0.002)] * 3
