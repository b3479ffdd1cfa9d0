"""The broker of the session, and what recovery tests use, for all tests of the Kafka connector."""

from __future__ import annotations

from tests.recovery.conftest import bench, faults, programs, start
from tests.services.kafka import kafka_broker, new_topic

__all__ = ["bench", "faults", "kafka_broker", "new_topic", "programs", "start"]
