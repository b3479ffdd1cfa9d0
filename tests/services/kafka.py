"""A real Kafka broker for tests: one for the whole session, and topics of a test's own."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.testing.kafka_broker import KafkaBroker

CACHE = Path(__file__).parents[2] / ".services"
"""Where the broker's jars are kept between runs; ignored by git."""


@pytest.fixture(scope="session")
def kafka_broker() -> Iterator[KafkaBroker]:
    """Tests that stop or kill it start it again before they end."""
    with KafkaBroker(CACHE) as broker:
        yield broker


@pytest.fixture
def new_topic(kafka_broker: KafkaBroker) -> Callable[..., str]:
    """Makes a topic with a name of its own: `new_topic("payments", partitions=2)`."""

    def make(name: str = "topic", partitions: int = 1, **config: str) -> str:
        topic = f"{name}-{uuid.uuid4().hex[:8]}"
        kafka_broker.create_topic(topic, partitions, {key.replace("_", "."): value for key, value in config.items()})
        return topic

    return make
