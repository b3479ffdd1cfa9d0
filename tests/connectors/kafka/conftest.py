"""The broker of the session, and what recovery tests use, for all tests of the Kafka connector."""

from tests.recovery.conftest import bench, start
from tests.services.kafka import kafka_broker, new_topic

__all__ = ["bench", "kafka_broker", "new_topic", "start"]
