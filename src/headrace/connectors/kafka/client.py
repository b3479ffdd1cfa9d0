"""The Kafka client library, loaded when it is first used, and what is common to all who use it.

Nothing else here imports confluent-kafka: a program without Kafka, and every task of it, runs without the package.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from headrace.connectors.kafka.errors import KafkaUnavailableError
from headrace.connectors.kafka.settings import KafkaSettings
from headrace.errors import HeadraceError, MissingDependencyError

ANSWER_WITHIN_S = 30.0
"""How long a question to the broker may take before it counts as unavailable."""


class KafkaLibrary:
    """The names of confluent-kafka that are used here, in one place."""

    def __init__(self) -> None:
        import confluent_kafka
        from confluent_kafka import admin

        self.Consumer: Any = confluent_kafka.Consumer
        self.Producer: Any = confluent_kafka.Producer
        self.Message: Any = confluent_kafka.Message
        self.TopicPartition: Any = confluent_kafka.TopicPartition
        self.TopicCollection: Any = confluent_kafka.TopicCollection
        self.IsolationLevel: Any = confluent_kafka.IsolationLevel
        self.KafkaError: Any = confluent_kafka.KafkaError
        self.KafkaException: Any = confluent_kafka.KafkaException
        self.AdminClient: Any = admin.AdminClient
        self.NewTopic: Any = admin.NewTopic
        self.NewPartitions: Any = admin.NewPartitions
        self.OffsetSpec: Any = admin.OffsetSpec
        self.ConfigResource: Any = admin.ConfigResource
        self.ResourceType: Any = admin.ResourceType


@cache
def _library() -> KafkaLibrary:
    return KafkaLibrary()


def kafka(who: str) -> KafkaLibrary:
    """The client library; `who` needs it, and is named if it is missing."""
    try:
        return _library()
    except ImportError as error:
        raise MissingDependencyError(f'{who} needs confluent-kafka: pip install "headrace[kafka]"') from error


def admin_client(settings: KafkaSettings, who: str) -> Any:
    """A client for questions about topics and offsets."""
    return made(lambda: kafka(who).AdminClient(settings.for_admin()), settings, who)


def made(make: Any, settings: KafkaSettings, who: str) -> Any:
    """A client, or the error that says which setting the library does not take, without its secrets."""
    library = kafka(who)
    try:
        return make()
    except (library.KafkaException, ValueError, TypeError) as error:
        raise settings.refused(who, error) from None


def answer(future: Any, what: str, settings: KafkaSettings) -> Any:
    """What a broker answered to an admin request, or who did not answer to what."""
    library = kafka("Kafka")
    try:
        return future.result(ANSWER_WITHIN_S + 5)
    except library.KafkaException as error:
        raise unavailable(what, settings, error) from None
    except TimeoutError:
        raise unavailable(what, settings, f"no answer within {ANSWER_WITHIN_S:g} s") from None


def unavailable(what: str, settings: KafkaSettings, reason: Any) -> HeadraceError:
    """A question that got no good answer."""
    return KafkaUnavailableError(
        f"Kafka at {settings.bootstrap_servers} did not answer when asked for {what}: {settings.redact(str(reason))}. "
        "See that the brokers run and can be reached from this host with these settings."
    )


@contextmanager
def serving() -> Iterator[None]:
    """Around every call in which the client may call back: `poll`, `flush`, and the ends of a transaction.

    A fatal error it raises out of such a call, but tells what was not delivered first: it calls back with the error
    pending, and Python makes a SystemError of that. What is raised here is the client's own error in any case.
    """
    try:
        yield
    except SystemError as error:
        if isinstance(error.__cause__, kafka("Kafka").KafkaException):
            raise error.__cause__ from None
        raise


def failure_code(error: Any) -> Any:
    """The `KafkaError` inside a `KafkaException`."""
    return error.args[0] if error.args else error
