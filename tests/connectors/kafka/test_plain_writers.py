"""The Kafka sink without transactions: what readers see when, and what a barrier waits for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from sink_lives import Output, numbers

from headrace.connectors.kafka import DeliveryGuarantee
from headrace.connectors.sink import SinkGuarantee, SinkWriter, WriterContext
from headrace.testing.kafka_broker import KafkaBroker


@pytest.fixture
def output(kafka_broker: KafkaBroker, new_topic: Callable[..., str]) -> Iterator[Output]:
    out = Output(kafka_broker, new_topic("plain"))
    yield out
    out.close()


def writer_of(output: Output, guarantee: DeliveryGuarantee) -> SinkWriter:
    sink = output.builder().set_delivery_guarantee(guarantee).build()
    sink.preflight()
    assert sink.create_committer() is None
    assert sink.guarantee is SinkGuarantee[guarantee.name]
    writer = sink.create_writer(WriterContext("job", "sink", 0, 1, 1))
    writer.open()
    return writer


@pytest.mark.parametrize("guarantee", [DeliveryGuarantee.AT_LEAST_ONCE, DeliveryGuarantee.NONE])
def test_records_are_seen_at_once_by_readers_of_committed_ones(output: Output, guarantee: DeliveryGuarantee) -> None:
    writer = writer_of(output, guarantee)
    for value in numbers(100):
        writer.write(value, None)
    assert output.shows(*numbers(100)), "no barrier, no checkpoint"
    assert not output.open_transactions()
    writer.close()


def test_a_barrier_of_at_least_once_returns_when_brokers_have_everything_before_it(output: Output) -> None:
    writer = writer_of(output, DeliveryGuarantee.AT_LEAST_ONCE)
    for barrier in (1, 2, 3):
        for value in numbers(200, 200 * (barrier - 1)):
            writer.write(value, None)
        writer.flush()
        assert output.seen() == numbers(200 * barrier), "nobody had to wait for them"
        assert writer.prepare_commit(barrier) == ()
    writer.close()


def test_a_broker_that_is_killed_and_comes_back_loses_nothing_of_what_was_written_meanwhile(output: Output) -> None:
    writer, careless = (writer_of(output, g) for g in (DeliveryGuarantee.AT_LEAST_ONCE, DeliveryGuarantee.NONE))
    for value in numbers(100):
        writer.write(value, None)
    output.broker.kill()
    for value in numbers(100, 100):
        writer.write(value, None)
    careless.flush()  # nothing waits for it
    barrier = threading.Thread(target=writer.flush)
    barrier.start()
    barrier.join(1.0)
    assert barrier.is_alive(), "a checkpoint must not complete without what was written before it"
    output.broker.start()
    barrier.join(110)
    assert not barrier.is_alive()
    assert output.seen() == numbers(200)
    writer.close()
    careless.close()
