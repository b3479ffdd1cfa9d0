"""Servers that the pages talk to."""

from __future__ import annotations

import pytest
from tests.services.kafka import kafka_broker
from tests.services.postgres import Database, database, postgres_server

from headrace.testing.kafka_broker import KafkaBroker

__all__ = ["database", "kafka_broker", "postgres_server"]


@pytest.fixture
def postgres_for_a_page(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty database, where the page looks for it."""
    monkeypatch.setenv("DATABASE_URL", database.url)


@pytest.fixture
def kafka_for_a_page(kafka_broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker with the topics of the page, where the page looks for it."""
    monkeypatch.setenv("KAFKA_SERVERS", kafka_broker.bootstrap_servers)
    for topic in ("payments", "balances"):
        kafka_broker.create_topic(topic, partitions=2)
    payments = [("ada", '{"account": "ada", "amount": 5}'), ("bob", '{"account": "bob", "amount": 7}')]
    kafka_broker.produce("payments", payments)
