"""The socket source: lines from a real socket, in order, with back-pressure, and an honest word about replay."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from headrace import SocketSource, StreamExecutionEnvironment
from headrace.connectors.socket_source import MOST_LINES_AHEAD, SocketReader, SocketSplit, SocketUnavailableError
from headrace.connectors.source import PollStatus, ReaderContext, SourceBatch
from headrace.errors import ConfigurationError
from headrace.plan.explain import explain
from headrace.plan.guarantees import Guarantee, guarantees


class Sender:
    """Listens, and says what the test tells it to say to the first who connects."""

    def __init__(self, *, listening: bool = True) -> None:
        # A port that is bound and not listened to refuses whoever calls, and nobody else can take it.
        self.listener = socket.socket()
        self.listener.bind(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.connection: socket.socket | None = None
        if listening:
            self.listener.listen()

    def say(self, data: bytes) -> None:
        if self.connection is None:
            self.connection, _ = self.listener.accept()
        self.connection.sendall(data)

    def hang_up(self) -> None:
        if self.connection is not None:
            self.connection.close()
        self.listener.close()


@pytest.fixture
def sender() -> Iterator[Sender]:
    made = Sender()
    yield made
    made.hang_up()


@pytest.fixture
def silent() -> Iterator[Sender]:
    """One that has a port, and does not listen yet."""
    made = Sender(listening=False)
    yield made
    made.hang_up()


def reader_of(source: SocketSource) -> tuple[SocketReader, threading.Event]:
    woken = threading.Event()
    reader = source.create_reader(ReaderContext(0, 1, wake=woken.set))
    assert isinstance(reader, SocketReader)
    reader.open()
    reader.add_splits([SocketSplit(source.host, source.port)])
    reader.no_more_splits()
    return reader, woken


def read(reader: SocketReader, woken: threading.Event, count: int) -> list[str]:
    """So many lines, or all until the end."""
    lines: list[str] = []
    deadline = time.monotonic() + 60
    while len(lines) < count and time.monotonic() < deadline:
        woken.clear()
        batch = reader.poll(1_000)
        if batch is PollStatus.ENDED:
            break
        if isinstance(batch, SourceBatch):
            assert batch.values is not None
            lines += batch.values
        else:
            assert batch is PollStatus.IDLE
            woken.wait(10)
    return lines


def test_lines_come_whole_and_in_order_however_they_are_cut_on_the_way(sender: Sender) -> None:
    reader, woken = reader_of(SocketSource("127.0.0.1", sender.port))
    text = "first\r\nsecond\n\nümläut€\n".encode()
    for i in range(0, len(text), 3):
        sender.say(text[i : i + 3])
    assert read(reader, woken, 4) == ["first", "second", "", "ümläut€"]
    reader.close()


def test_a_last_line_without_an_end_is_a_line_and_then_the_input_has_ended(sender: Sender) -> None:
    reader, woken = reader_of(SocketSource("127.0.0.1", sender.port))
    sender.say(b"a\nb")
    sender.hang_up()
    assert read(reader, woken, 99) == ["a", "b"]
    assert reader.poll(10) is PollStatus.ENDED
    assert reader.snapshot() == []
    reader.close()


def test_another_delimiter_may_be_longer_than_a_letter(sender: Sender) -> None:
    reader, woken = reader_of(SocketSource("127.0.0.1", sender.port, delimiter="||"))
    sender.say(b"a|")
    sender.say(b"|b\n||")
    assert read(reader, woken, 2) == ["a", "b\n"]
    reader.close()


def test_a_slow_job_stops_a_fast_sender(sender: Sender) -> None:
    reader, woken = reader_of(SocketSource("127.0.0.1", sender.port))
    total = 40 * MOST_LINES_AHEAD

    def send() -> None:
        for start in range(0, total, 1_000):
            sender.say("".join(f"{n}\n" for n in range(start, start + 1_000)).encode())
        sender.hang_up()

    sending = threading.Thread(target=send)
    sending.start()
    receiver = reader._line_of
    assert receiver is not None
    assert woken.wait(60)
    lines = read(reader, woken, 1)
    assert len(receiver._lines) < 4 * MOST_LINES_AHEAD
    lines += read(reader, woken, total)
    sending.join(60)
    assert lines == [str(n) for n in range(total)]
    reader.close()


def test_while_nobody_listens_it_tries_again_for_as_long_as_it_was_told(silent: Sender) -> None:
    reader, woken = reader_of(SocketSource("127.0.0.1", silent.port, max_retry=-1))
    assert reader.poll(10) is PollStatus.IDLE
    silent.listener.listen()
    silent.say(b"at last\n")
    assert read(reader, woken, 1) == ["at last"]
    reader.close()


def test_an_address_where_nobody_listens_is_named(silent: Sender) -> None:
    reader, woken = reader_of(SocketSource("127.0.0.1", silent.port))
    with pytest.raises(SocketUnavailableError, match=rf"127\.0\.0\.1:{silent.port}.*nc -lk"):
        read(reader, woken, 1)
    reader.close()


@pytest.mark.parametrize("wrong", [{"port": 0}, {"port": 70_000}, {"port": 1, "delimiter": ""}])
def test_impossible_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        SocketSource("localhost", **wrong)


def test_a_job_on_a_socket_is_at_most_once_and_explain_says_why() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.enable_checkpointing(1_000)
    env.socket_text_stream("localhost", 9999).map(str.upper).print()
    plan, settings = env.build("shout")

    promised = guarantees(plan, settings.checkpointing)

    assert promised.guarantee is Guarantee.AT_MOST_ONCE
    text = explain(plan, settings)
    assert "at-most-once" in text
    assert 'source "socket localhost:9999" cannot go back' in text
    assert "put a log that can be replayed (files, Kafka) before the job" in text
