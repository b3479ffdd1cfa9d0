"""The broker of the session, and what recovery tests use, for all tests of the Kafka connector."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from programs import Program
from tests.recovery.conftest import bench, faults, start
from tests.services.kafka import kafka_broker, new_topic

__all__ = ["bench", "faults", "kafka_broker", "new_topic", "start"]


@pytest.fixture
def programs() -> Iterator[list[Program]]:
    """Programs that a test has started; those still alive at its end are killed."""
    started: list[Program] = []
    yield started
    for program in started:
        if program.process.poll() is None:
            program.kill_tree()
