"""Collected results travel beside the control connection, and count when the driver has taken them."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest
from control_examples import PATIENCE_S, SECRET, Events, hello

from headrace.runtime.control import messages as msg
from headrace.runtime.control import results as results_module
from headrace.runtime.control.client import ControlClient
from headrace.runtime.control.results import ResultsClient
from headrace.runtime.control.server import ControlServer, TaskJoined, TaskSaid
from headrace.runtime.control.wire import ConnectionLost, connect
from headrace.runtime.job.collected import CollectedResults
from headrace.state.object_batches import BatchCodec


class Program:
    """Takes results, or holds them until it is told to go on."""

    def __init__(self) -> None:
        self.taken: list[msg.Collected] = []
        self.arrived: queue.SimpleQueue[msg.Collected] = queue.SimpleQueue()
        self.go_on = threading.Event()
        self.go_on.set()

    def take(self, results: msg.Collected) -> None:
        self.arrived.put(results)
        assert self.go_on.wait(PATIENCE_S)
        self.taken.append(results)


@contextmanager
def driver(attempt: int = 1) -> Iterator[tuple[ControlServer, Events, Program]]:
    events, program = Events(), Program()
    server = ControlServer("127.0.0.1", 0, SECRET, attempt, events.put, program.take)
    try:
        yield server, events, program
    finally:
        server.close()


def task(server: ControlServer, events: Events, attempt: int = 1) -> tuple[ControlClient, ResultsClient]:
    """A task that the driver knows, with a way for its results."""
    control = ControlClient("127.0.0.1", server.port, SECRET)
    control.send(hello())
    assert isinstance(events.next(), TaskJoined)
    return control, ResultsClient("127.0.0.1", server.port, SECRET, msg.ResultsHello(attempt, 0, 0))


def some(payload: bytes = b"results", checkpoint_id: int = 1) -> msg.Collected:
    return msg.Collected("c", "uid", 0, checkpoint_id, payload)


def test_a_delivery_returns_when_the_program_has_the_results() -> None:
    with driver() as (server, events, program):
        _, results = task(server, events)
        for checkpoint_id in (1, 2, 3):
            results.deliver(some(checkpoint_id=checkpoint_id))
            assert program.taken[-1] == some(checkpoint_id=checkpoint_id)
        results.close()
        assert events.none, "a connection for results is no task of its own"


def test_results_that_take_their_time_do_not_hold_back_the_control_plane() -> None:
    with driver() as (server, events, program):
        control, results = task(server, events)
        program.go_on.clear()
        delivered = threading.Event()
        threading.Thread(target=lambda: (results.deliver(some()), delivered.set()), daemon=True).start()
        program.arrived.get(timeout=PATIENCE_S)

        control.send(msg.Drained())
        assert events.next() == TaskSaid((0, 0), msg.Drained())
        server.send((0, 0), msg.Trigger(7))
        assert control.receive() == msg.Trigger(7)
        assert not delivered.is_set(), "what the program has not taken is not delivered"

        program.go_on.set()
        assert delivered.wait(PATIENCE_S)


@pytest.mark.parametrize("size", [0, 9, 10, 11, 35])
def test_results_larger_than_one_message_arrive_whole(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results_module, "PART", 10)
    with driver() as (server, events, program):
        _, results = task(server, events)
        payload = bytes(range(size))
        results.deliver(some(payload))
        results.deliver(some(b"next"))
        assert [taken.payload for taken in program.taken] == [payload, b"next"]


def test_results_of_another_attempt_and_of_a_task_that_never_joined_are_turned_away() -> None:
    with driver(attempt=4) as (server, events, program):
        stranger = ResultsClient("127.0.0.1", server.port, SECRET, msg.ResultsHello(4, 0, 0))
        with pytest.raises(ConnectionLost):
            stranger.deliver(some())
        control = ControlClient("127.0.0.1", server.port, SECRET)
        control.send(hello(attempt=4))
        assert isinstance(events.next(), TaskJoined)
        late = ResultsClient("127.0.0.1", server.port, SECRET, msg.ResultsHello(3, 0, 0))
        with pytest.raises(ConnectionLost):
            late.deliver(some())
        assert program.taken == []
        assert events.none


def test_a_driver_that_closes_ends_a_delivery_that_is_under_way() -> None:
    with driver() as (server, events, program):
        _, results = task(server, events)
        program.go_on.clear()
        ended: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

        def deliver() -> None:
            try:
                results.deliver(some())
                ended.put(None)
            except ConnectionLost as error:
                ended.put(error)

        threading.Thread(target=deliver, daemon=True).start()
        program.arrived.get(timeout=PATIENCE_S)
        server.close()
        assert isinstance(ended.get(timeout=PATIENCE_S), ConnectionLost)
        program.go_on.set()


def test_a_task_at_its_end_delivers_nothing_more() -> None:
    with driver() as (server, events, program):
        _, results = task(server, events)
        results.close()
        with pytest.raises(ConnectionLost, match="at its end"):
            results.deliver(some())
        assert program.taken == []


def test_whoever_talks_nonsense_on_a_connection_for_results_is_cut_off() -> None:
    with driver() as (server, events, program):
        _control, _ = task(server, events)
        connection = connect("127.0.0.1", server.port, SECRET)
        connection.send(msgspec.msgpack.encode(msg.ResultsHello(1, 0, 0)))
        connection.send(msgspec.msgpack.encode(msg.Drained()))
        with pytest.raises(ConnectionLost):
            connection.receive()
        assert program.taken == []
        assert events.none


def test_what_a_task_and_a_recovery_hand_over_at_once_is_taken_once_and_each_batch_whole() -> None:
    collected = CollectedResults()
    batches = {(s, c): [(s, c, n) for n in range(200)] for s in range(2) for c in range(1, 6)}
    start = threading.Barrier(4)

    def hand_over() -> None:
        start.wait(PATIENCE_S)
        for (subtask, checkpoint_id), values in batches.items():
            collected.take("c", "uid", subtask, checkpoint_id, BatchCodec().encode(values))

    threads = [threading.Thread(target=hand_over, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    collected.end()

    values = list(collected.iterate("c"))
    assert sorted(values) == sorted(value for batch in batches.values() for value in batch)
    for subtask in range(2):
        own = [value for value in values if value[0] == subtask]
        assert own == sorted(own)
