"""What can go wrong with Kafka in particular.

KafkaUnavailableError   (HeadraceError)        brokers do not answer: the restart strategy decides
KafkaTopicError         (ConfigurationError)   a topic that is missing or cannot serve
KafkaDataLossError      (DataLossError)        records that are needed are gone: topic, partition, offsets
KafkaRefusedError       (RecordError)          brokers refuse a record, now and always: topic, key, reason
"""

from __future__ import annotations

from headrace.errors import ConfigurationError, DataLossError, HeadraceError, RecordError, permanent, retry


class KafkaUnavailableError(HeadraceError):
    """Brokers could not be reached or did not answer in time. Nothing is lost; a later attempt may succeed."""

    recovery = retry("brokers may answer again")


class KafkaTopicError(ConfigurationError):
    """A topic does not exist, or is not as the job needs it."""

    recovery = permanent("nobody creates a topic between two attempts, and a new one has other offsets")


class KafkaDataLossError(DataLossError):
    """Records between a saved position and what the topic still has are gone. The job is not restarted."""

    recovery = permanent("every attempt would find the same gap")

    def __init__(self, message: str, *, topic: str, partition: int, wanted: int, first: int, end: int) -> None:
        super().__init__(message, topic=topic, partition=partition, wanted=wanted, first=first, end=end)
        self.topic = topic
        self.partition = partition
        self.wanted = wanted
        """The offset that was to be read next."""
        self.first = first
        """The first offset that is still there."""
        self.end = end
        """The offset behind the last record."""


class KafkaRefusedError(RecordError):
    """Brokers do not take a record, and sending it again cannot help: it is too large for its topic, say."""

    recovery = permanent("brokers refuse the record whenever it is sent again")

    def __init__(self, message: str, *, topic: str, key: bytes | None, reason: str) -> None:
        super().__init__(message)
        self.topic = topic
        self.key = key
        self.reason = reason
        """As the brokers, or the client, put it."""

    def __reduce__(self) -> tuple[object, ...]:
        # Named arguments do not survive the default way of pickling an exception.
        return _refused, (str(self), self.topic, self.key, self.reason)


def _refused(message: str, topic: str, key: bytes | None, reason: str) -> KafkaRefusedError:
    return KafkaRefusedError(message, topic=topic, key=key, reason=reason)
