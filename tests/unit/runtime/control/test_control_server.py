"""The driver's end and the task's end of the control plane, over real sockets on loopback."""

from __future__ import annotations

import threading

import msgspec
import pytest
from control_examples import PATIENCE_S, SECRET, hello, raw_connection, serving

from headrace.errors import FencedError
from headrace.runtime.control import messages as msg
from headrace.runtime.control.client import ControlClient
from headrace.runtime.control.server import TaskJoined, TaskLost, TaskSaid
from headrace.runtime.control.wire import CODE, ConnectionLost


def test_a_task_says_hello_talks_and_is_missed_when_it_is_gone() -> None:
    with serving() as (server, events):
        client = ControlClient("127.0.0.1", server.port, SECRET)
        client.send(hello(level=2, slot=3))
        joined = events.next()
        assert joined == TaskJoined((2, 3), hello(level=2, slot=3))
        client.send(msg.Committed(5))
        assert events.next() == TaskSaid((2, 3), msg.Committed(5))
        server.send((2, 3), msg.Trigger(6, unaligned=True))
        assert client.receive() == msg.Trigger(6, unaligned=True)
        server.send((9, 9), msg.Release())
        client.close()
        lost = events.next()
        assert isinstance(lost, TaskLost)
        assert lost.task == (2, 3)
        server.send((2, 3), msg.Release())


def test_a_second_hello_for_a_slot_is_refused_and_the_first_task_stays() -> None:
    with serving() as (server, events):
        first = ControlClient("127.0.0.1", server.port, SECRET)
        first.send(hello())
        events.next()
        second = ControlClient("127.0.0.1", server.port, SECRET)
        second.send(hello())
        refusal = second.receive()
        assert refusal == msg.Refuse("its slot is taken")
        with pytest.raises(ConnectionLost):
            second.receive()
        server.send((0, 0), msg.Start())
        assert first.receive() == msg.Start()
        assert events.none


def test_a_task_of_an_older_attempt_is_refused_by_number() -> None:
    with serving(attempt=4) as (server, events):
        client = ControlClient("127.0.0.1", server.port, SECRET)
        client.send(hello(attempt=3))
        refusal = client.receive()
        assert isinstance(refusal, msg.Refuse)
        assert "attempt 3, this is 4" in refusal.reason
        assert events.none


def test_a_slot_may_be_taken_again_after_its_task_is_gone() -> None:
    with serving() as (server, events):
        first = ControlClient("127.0.0.1", server.port, SECRET)
        first.send(hello())
        events.next()
        first.close()
        assert isinstance(events.next(), TaskLost)
        second = ControlClient("127.0.0.1", server.port, SECRET)
        second.send(hello())
        assert isinstance(events.next(), TaskJoined)


def test_a_task_with_the_wrong_secret_never_gets_to_say_hello() -> None:
    with serving() as (server, events):
        with pytest.raises(FencedError):
            ControlClient("127.0.0.1", server.port, b"wrong")
        ControlClient("127.0.0.1", server.port, SECRET).send(hello())
        assert isinstance(events.next(), TaskJoined), "the server goes on"


def test_whoever_does_not_begin_with_a_hello_is_cut_off() -> None:
    with serving() as (server, events):
        for first_words in (msgspec.msgpack.encode(msg.Drained()), b"\xc1 no message"):
            stranger = raw_connection(server.port)
            stranger.send(first_words)
            with pytest.raises(ConnectionLost):
                stranger.receive()
        assert events.none


def test_a_task_that_talks_nonsense_is_a_lost_task() -> None:
    with serving() as (server, events):
        task = raw_connection(server.port)
        task.send(msgspec.msgpack.encode(hello()))
        assert isinstance(events.next(), TaskJoined)
        task.send(b"\xc1 no message")
        assert isinstance(events.next(), TaskLost)


def test_a_task_whose_frames_are_tampered_with_is_lost_with_that_reason() -> None:
    with serving() as (server, events):
        task = raw_connection(server.port)
        task.send(msgspec.msgpack.encode(hello()))
        assert isinstance(events.next(), TaskJoined)
        forged = msgspec.msgpack.encode(msg.Committed(7))
        task.raw_send(len(forged).to_bytes(4, "big") + bytes(CODE) + forged)
        lost = events.next()
        assert isinstance(lost, TaskLost)
        assert "wrong authentication code" in lost.reason


def test_closing_the_server_ends_every_connection_and_reports_no_loss() -> None:
    with serving() as (server, events):
        client = ControlClient("127.0.0.1", server.port, SECRET)
        client.send(hello())
        events.next()
        server.close()
        with pytest.raises(ConnectionLost):
            client.receive()
        assert events.none


def listen(client: ControlClient) -> tuple[list[object], list[str]]:
    """All that a client hears until the connection is over."""
    heard: list[object] = []
    lost: list[str] = []
    thread = threading.Thread(target=client.listen, args=(heard.append, lost.append), daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    return heard, lost


def test_a_task_hears_everything_in_order_and_notices_that_the_driver_is_gone() -> None:
    with serving() as (server, events):
        client = ControlClient("127.0.0.1", server.port, SECRET)
        client.send(hello())
        events.next()
        for checkpoint_id in range(50):
            server.send((0, 0), msg.Complete(checkpoint_id))
        server.close()
        heard, lost = listen(client)
    assert heard == [msg.Complete(n) for n in range(50)]
    assert len(lost) == 1


def test_a_task_that_does_not_understand_its_driver_takes_it_for_lost() -> None:
    with serving() as (server, events):
        client = ControlClient("127.0.0.1", server.port, SECRET)
        client.send(hello())
        events.next()
        server._peers[0, 0].connection.send(b"\xc1 no message")
        heard, lost = listen(client)
    assert heard == []
    assert "no message" in lost[0]


@pytest.mark.parametrize(
    "message",
    [
        msg.Deploy(restored=True, subtasks=(msg.SubtaskRestoration("u", 1, extra=b"x"),)),
        msg.AssignSplits("u", 1, (b"a", b"b"), last=True),
        msg.Trigger(3, True, True, True, True),
        msg.Complete(4, ("f",)),
        msg.Abort(5),
        msg.Refuse("because"),
    ],
    ids=lambda m: type(m).__name__,
)
def test_messages_of_the_driver_come_back_equal(message: msg.Message) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=msg.DriverMessage) == message
