"""Where reading begins and, for a bounded source, where it ends. Offsets are worked out once, in the driver.

    KafkaOffsetsInitializer.earliest()                          the first record that is there
    KafkaOffsetsInitializer.latest()                            behind the last one
    KafkaOffsetsInitializer.committed_offsets(reset)            where the consumer group stood; `reset` if it never did
    KafkaOffsetsInitializer.timestamp(ms)                       the first record that is not older
    KafkaOffsetsInitializer.offsets({(topic, partition): n})    as said; `reset` for partitions not named

What a checkpoint holds wins over all of them: they count at the first start only. Partitions that turn up later are
read from their first record on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, TypeAlias

from headrace.connectors.kafka.client import ANSWER_WITHIN_S, answer, kafka, made, unavailable
from headrace.connectors.kafka.errors import KafkaTopicError
from headrace.connectors.kafka.settings import KafkaSettings
from headrace.errors import ConfigurationError

Partition: TypeAlias = tuple[str, int]
"""Topic and partition."""


class KafkaOffsetResetStrategy(Enum):
    """What to do where no offset is known."""

    EARLIEST = "earliest"
    LATEST = "latest"
    NONE = "none"


class OffsetQuery:
    """Asks brokers for offsets. Used by the enumerator; blocks for as long as brokers take."""

    def __init__(self, admin: Any, settings: KafkaSettings, *, read_committed: bool) -> None:
        self._admin = admin
        self._settings = settings
        self._read_committed = read_committed

    def earliest(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        return self._list(partitions, kafka("KafkaSource").OffsetSpec.earliest(), "the first offsets")

    def latest(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """Behind the last record that a reader may see: before the first open transaction if it reads committed."""
        return self._list(partitions, kafka("KafkaSource").OffsetSpec.latest(), "the last offsets")

    def at_timestamp(self, partitions: Sequence[Partition], timestamp_ms: int) -> dict[Partition, int]:
        spec = kafka("KafkaSource").OffsetSpec.for_timestamp(timestamp_ms)
        found = self._list(partitions, spec, f"offsets at {timestamp_ms} ms")
        late = [p for p, offset in found.items() if offset < 0]
        return {**found, **(self.latest(late) if late else {})}

    def committed(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """Where the group stood; partitions in which it never committed are left out."""
        library, settings = kafka("KafkaSource"), self._settings
        if not settings.get("group.id"):
            raise ConfigurationError("committed_offsets() needs to know whose: call set_group_id().")
        config = settings.merged({}, {"enable.auto.commit": False})
        consumer = made(lambda: library.Consumer(config), settings, "KafkaSource")
        try:
            wanted = [library.TopicPartition(topic, partition) for topic, partition in partitions]
            found = consumer.committed(wanted, timeout=ANSWER_WITHIN_S)
        except library.KafkaException as error:
            raise unavailable(f"the offsets of group {settings.get('group.id')}", settings, error) from None
        finally:
            consumer.close()
        return {(p.topic, p.partition): p.offset for p in found if p.error is None and p.offset >= 0}

    def _list(self, partitions: Sequence[Partition], spec: Any, what: str) -> dict[Partition, int]:
        if not partitions:
            return {}
        library = kafka("KafkaSource")
        level = (
            library.IsolationLevel.READ_COMMITTED if self._read_committed else library.IsolationLevel.READ_UNCOMMITTED
        )
        asked = {library.TopicPartition(topic, partition): spec for topic, partition in partitions}
        futures = self._admin.list_offsets(asked, isolation_level=level, request_timeout=ANSWER_WITHIN_S)
        return {(p.topic, p.partition): answer(future, what, self._settings).offset for p, future in futures.items()}


class KafkaOffsetsInitializer(ABC):
    """How the first offset of every partition is found."""

    @abstractmethod
    def resolve(self, partitions: Sequence[Partition], query: OffsetQuery) -> dict[Partition, int]:
        """An offset for each of these partitions. Called in the driver, at the first start only."""

    @abstractmethod
    def describe(self) -> str:
        """A few words for `explain`."""

    @staticmethod
    def earliest() -> KafkaOffsetsInitializer:
        return _End(KafkaOffsetResetStrategy.EARLIEST)

    @staticmethod
    def latest() -> KafkaOffsetsInitializer:
        return _End(KafkaOffsetResetStrategy.LATEST)

    @staticmethod
    def committed_offsets(
        offset_reset_strategy: KafkaOffsetResetStrategy = KafkaOffsetResetStrategy.NONE,
    ) -> KafkaOffsetsInitializer:
        return _Committed(offset_reset_strategy)

    @staticmethod
    def timestamp(timestamp: int) -> KafkaOffsetsInitializer:
        return _Timestamp(int(timestamp))

    @staticmethod
    def offsets(
        offsets: Mapping[Partition, int],
        offset_reset_strategy: KafkaOffsetResetStrategy = KafkaOffsetResetStrategy.EARLIEST,
    ) -> KafkaOffsetsInitializer:
        """`offsets` maps (topic, partition) to the first offset to read."""
        return _Given({(str(t), int(p)): int(n) for (t, p), n in offsets.items()}, offset_reset_strategy)


def _reset(
    strategy: KafkaOffsetResetStrategy, partitions: Sequence[Partition], query: OffsetQuery, why: str
) -> dict[Partition, int]:
    if not partitions:
        return {}
    match strategy:
        case KafkaOffsetResetStrategy.EARLIEST:
            return query.earliest(partitions)
        case KafkaOffsetResetStrategy.LATEST:
            return query.latest(partitions)
    topic, partition = partitions[0]
    raise KafkaTopicError(
        f"{topic}, partition {partition}: {why}. "
        "Give a KafkaOffsetResetStrategy, EARLIEST or LATEST, for such partitions."
    )


class _End(KafkaOffsetsInitializer):
    def __init__(self, where: KafkaOffsetResetStrategy) -> None:
        self._where = where

    def resolve(self, partitions: Sequence[Partition], query: OffsetQuery) -> dict[Partition, int]:
        return _reset(self._where, partitions, query, "")

    def describe(self) -> str:
        return self._where.value


class _Committed(KafkaOffsetsInitializer):
    def __init__(self, reset: KafkaOffsetResetStrategy) -> None:
        self._strategy = reset

    def resolve(self, partitions: Sequence[Partition], query: OffsetQuery) -> dict[Partition, int]:
        found = query.committed(partitions)
        rest = [p for p in partitions if p not in found]
        return {**found, **_reset(self._strategy, rest, query, "the group has committed no offset there")}

    def describe(self) -> str:
        return f"the group's offsets (else {self._strategy.value})"


class _Timestamp(KafkaOffsetsInitializer):
    def __init__(self, timestamp_ms: int) -> None:
        if timestamp_ms < 0:
            raise ConfigurationError(
                f"KafkaOffsetsInitializer.timestamp({timestamp_ms}) lies before 1970. Give ms since."
            )
        self._timestamp_ms = timestamp_ms

    def resolve(self, partitions: Sequence[Partition], query: OffsetQuery) -> dict[Partition, int]:
        return query.at_timestamp(partitions, self._timestamp_ms)

    def describe(self) -> str:
        return f"records from {self._timestamp_ms} ms on"


class _Given(KafkaOffsetsInitializer):
    def __init__(self, offsets: dict[Partition, int], reset: KafkaOffsetResetStrategy) -> None:
        if any(offset < 0 for offset in offsets.values()):
            raise ConfigurationError(f"KafkaOffsetsInitializer.offsets({offsets}) has a negative offset.")
        self._offsets = offsets
        self._strategy = reset

    def resolve(self, partitions: Sequence[Partition], query: OffsetQuery) -> dict[Partition, int]:
        rest = [p for p in partitions if p not in self._offsets]
        given = {p: self._offsets[p] for p in partitions if p in self._offsets}
        return {**given, **_reset(self._strategy, rest, query, "no offset was given for it")}

    def describe(self) -> str:
        return f"{len(self._offsets)} given offsets (else {self._strategy.value})"
