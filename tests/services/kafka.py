"""A real Kafka broker for tests: one for the whole session, and topics of a test's own."""

from __future__ import annotations

import atexit
import uuid
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from headrace.testing.kafka_broker import KafkaBroker

CACHE = Path(__file__).parents[2] / ".services"
"""Where the broker's jars are kept between runs; ignored by git."""


@cache
def _broker() -> KafkaBroker:
    broker = KafkaBroker(CACHE)
    atexit.register(broker.close)
    broker.start()
    return broker


@pytest.fixture(scope="session")
def kafka_broker() -> KafkaBroker:
    """Tests that stop or kill it start it again before they end.

    Several folders use this fixture, each with a session of its own: the broker is one for all of them.
    """
    return _broker()


@pytest.fixture
def new_topic(kafka_broker: KafkaBroker) -> Callable[..., str]:
    """Makes a topic with a name of its own: `new_topic("payments", partitions=2)`."""

    def make(name: str = "topic", partitions: int = 1, **config: str) -> str:
        topic = f"{name}-{uuid.uuid4().hex[:8]}"
        kafka_broker.create_topic(topic, partitions, {key.replace("_", "."): value for key, value in config.items()})
        return topic

    return make
