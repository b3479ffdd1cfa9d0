"""A commit whose answer is lost on the wire: it happened or it did not, and the records are seen once either way."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from lossy_broker import LossyBroker
from sink_lives import Life, Output, numbers, sink_builder

from headrace.connectors.kafka.markers import Markers
from headrace.errors import HeadraceError
from headrace.testing.kafka_broker import KafkaBroker


@pytest.fixture
def output(kafka_broker: KafkaBroker, new_topic: Callable[..., str]) -> Iterator[Output]:
    made = Output(kafka_broker, new_topic("out"))
    yield made
    made.close()


def life_behind(proxy: LossyBroker, output: Output) -> Life:
    return output.live(sink_builder(proxy.bootstrap_servers, output.topic, output.markers).build())


@pytest.mark.parametrize("landed", [True, False], ids=["landed", "lost"])
def test_the_writer_itself_finds_out_and_goes_on(output: Output, landed: bool) -> None:
    with LossyBroker(output.broker.port, landed=landed) as proxy:
        life = life_behind(proxy, output)
        life.write(*numbers(100))
        life.barrier(1)
        life.write(*numbers(50, 100))
        life.complete(1)
        assert proxy.cut.is_set()
        assert output.shows(*numbers(100))
        life.barrier(2)
        life.complete(2)
        assert output.shows(*numbers(150))
        output.wait_until_decided()


@pytest.mark.parametrize("landed", [True, False], ids=["landed", "lost"])
def test_a_successor_finds_out_when_the_writer_hears_nothing_more(output: Output, landed: bool) -> None:
    with LossyBroker(output.broker.port, landed=landed, stays_away=True) as proxy:
        checkpoint = deaf_commit(proxy, output)
        output.live(output.sink(), 2, checkpoint)
        assert output.shows(*numbers(100))
        output.wait_until_decided()


def test_the_check_notices_a_recovery_that_sends_without_asking_for_the_marker(
    output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LossyBroker(output.broker.port, landed=True, stays_away=True) as proxy:
        checkpoint = deaf_commit(proxy, output)
        monkeypatch.setattr(Markers, "committed", lambda *args: {})
        output.live(output.sink(), 2, checkpoint)
        assert output.seen() == numbers(100) * 2


def deaf_commit(proxy: LossyBroker, output: Output) -> list[bytes]:
    """A hundred records whose writer waits for an answer to its commit; what the checkpoint holds of them."""
    life = life_behind(proxy, output)
    life.write(*numbers(100))
    checkpoint = life.barrier(1)

    def commit() -> None:
        with contextlib.suppress(HeadraceError):
            life.complete(1)

    waiting: Any = threading.Thread(target=commit, daemon=True)
    waiting.start()
    assert proxy.cut.wait(60)
    return checkpoint
