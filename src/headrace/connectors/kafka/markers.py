"""Markers in a compacted topic: which transactions were committed, and who owns a prefix of transactional ids.

    key                   value (JSON)
    owner:<prefix>        {"job", "uid", "attempt", "shards", "pool", "token", "history", "superseded",
                          "settled", "before"}
                          by the driver of each attempt, see `ownership`
    shard:<prefix>:<n>    {"attempt", "checkpoint", "history"}      part of the shard's transaction

A marker is visible exactly when the records of its transaction are. Group offsets would do the same, but expire.

Reading them right takes two things. A reader of committed records stops at the first open transaction, so those of our
own dead are ended before, and one of another job is waited for: only what lies before the end of the topic as it was
*then* counts. Owner records are read whether or not they are committed: an owner is known before any transaction is
ended, and a driver that wrote its name and died has overtaken older ones all the same.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from headrace.connectors.kafka.client import ANSWER_WITHIN_S, admin_client, answer, kafka, made, unavailable
from headrace.connectors.kafka.errors import KafkaTopicError, KafkaUnavailableError
from headrace.connectors.kafka.prepared import CommitPoint
from headrace.connectors.kafka.settings import KafkaSettings

DEFAULT_TOPIC = "headrace-markers"
READ_WITHIN_S = 120.0


class Owner(msgspec.Struct, frozen=True):
    """Who writes under a prefix."""

    job: str
    uid: str
    attempt: int
    shards: int
    pool: int
    token: str
    """Random for each attempt: tells two owners apart that agree in everything else."""
    history: str = ""
    """Which job directory counts the attempt; empty if unknown."""
    superseded: tuple[str, ...] = ()
    """Histories that owned the prefix before this one, the newest last."""
    settled: bool = True
    """Its recovery is finished, and tasks may have written under its name."""
    before: Owner | None = None
    """If not settled: the last settled owner, whose markers these are still; None if there was none."""


class Marker(NamedTuple):
    """How far a shard's output is visible."""

    point: CommitPoint
    history: str
    """Whose numbers these are; empty if the marker does not say."""


class _Point(msgspec.Struct, frozen=True):
    attempt: int
    checkpoint: int
    history: str = ""
    """Whose numbers these are."""


class Markers:
    """The marker topic as one sink sees it. Every call connects anew; none is on the path of a record."""

    def __init__(self, topic: str, settings: KafkaSettings, history: str = "") -> None:
        """`history`: whose numbers the markers hold that are made here."""
        self.topic = topic
        self._settings = settings
        self._history = history

    def create_topic(self) -> None:
        """Make the topic if it is missing: compacted, with the brokers' own replication."""
        library = kafka("KafkaSink")
        admin = admin_client(self._settings, "KafkaSink")
        try:
            found = admin.list_topics(timeout=ANSWER_WITHIN_S).topics
        except library.KafkaException as error:
            raise unavailable("its topics", self._settings, error) from None
        if self.topic in found:
            self._check_compacted(admin)
            return
        new = library.NewTopic(self.topic, 1, -1, config={"cleanup.policy": "compact"})
        try:
            admin.create_topics([new])[self.topic].result(ANSWER_WITHIN_S)
        except library.KafkaException as error:
            if error.args[0].code() != library.KafkaError.TOPIC_ALREADY_EXISTS:
                raise KafkaTopicError(
                    f"The topic {self.topic}, which holds the markers of exactly-once output, is missing and could not "
                    f"be created: {self._settings.redact(str(error))}. Create it with cleanup.policy=compact, or name "
                    "another with set_marker_topic."
                ) from None

    def marker(self, prefix: str, subtask: int, point: CommitPoint) -> tuple[bytes, bytes]:
        """Key and value of the record that goes into a transaction."""
        return _shard_key(prefix, subtask), msgspec.json.encode(
            _Point(point.attempt, point.checkpoint_id, self._history)
        )

    def partition(self, prefix: str, count: int) -> int:
        """All records about one prefix stand in one partition, in order."""
        return zlib.crc32(prefix.encode()) % count

    def owner(self, prefix: str) -> Owner | None:
        """Who wrote under the prefix last; None if nobody ever did."""
        last = self._read(committed=False).get(_owner_key(prefix))
        return None if last is None else msgspec.json.decode(last, type=Owner)

    def owner_record(self, prefix: str, owner: Owner) -> tuple[bytes, bytes]:
        """Key and value of the record that names the owner of a prefix."""
        return _owner_key(prefix), msgspec.json.encode(owner)

    def committed(self, prefix: str) -> dict[int, Marker]:
        """How far each shard's output is visible. The ids of all dead shards must have been ended before."""
        start = _shard_key(prefix, 0)[:-1]
        markers = {}
        for key, value in self._read(committed=True).items():
            if key.startswith(start):
                point = msgspec.json.decode(value, type=_Point)
                markers[int(key[len(start) :])] = Marker(CommitPoint(point.attempt, point.checkpoint), point.history)
        return markers

    def partitions(self, client: Any) -> int:
        """How many partitions the topic has, asked by a client that is there already."""
        return self._partitions(client)

    # Inside

    def _partitions(self, client: Any) -> int:
        library = kafka("KafkaSink")
        try:
            found = client.list_topics(self.topic, timeout=ANSWER_WITHIN_S).topics[self.topic]
        except library.KafkaException as error:
            raise unavailable(f"the topic {self.topic}", self._settings, error) from None
        if found.error is not None or not found.partitions:
            raise KafkaUnavailableError(
                f"The topic {self.topic}, which holds the markers of exactly-once output, is gone: "
                f"{self._settings.redact(str(found.error))}. Start the job anew to have it made, if nothing is missed."
            )
        return len(found.partitions)

    def _read(self, *, committed: bool) -> dict[bytes, bytes]:
        """The last value of every key that has one, up to the end of the topic as it is now."""
        library, settings = kafka("KafkaSink"), self._settings
        admin = admin_client(settings, "KafkaSink")
        ends = self._ends(admin)
        consumer = made(lambda: library.Consumer(self._consumer_config(committed)), settings, "KafkaSink")
        try:
            # Offset 0, not "the beginning": that would have to be asked for, with half a second's pause before a retry.
            consumer.assign([library.TopicPartition(self.topic, p, 0) for p in ends])
            return self._read_until(consumer, ends)
        finally:
            consumer.close()

    def _read_until(self, consumer: Any, ends: Mapping[int, int]) -> dict[bytes, bytes]:
        kinds = kafka("KafkaSink").KafkaError
        last: dict[bytes, bytes] = {}
        left = {partition for partition, end in ends.items() if end > 0}
        deadline = time.monotonic() + READ_WITHIN_S
        while left:
            message = consumer.poll(0.2)
            if time.monotonic() > deadline:
                raise KafkaUnavailableError(
                    f"The markers in {self.topic} could not be read to their end within {READ_WITHIN_S:g} s: brokers "
                    "do not answer, or another job's transaction stands open there."
                )
            if message is None:
                continue
            error = message.error()
            if error is None:
                if message.value() is None:
                    last.pop(message.key(), None)
                elif message.key() is not None:
                    last[message.key()] = message.value()
                reached = message.offset() + 1
            elif error.code() == kinds._PARTITION_EOF:
                reached = message.offset()
            elif error.fatal() or error.code() == kinds.UNKNOWN_TOPIC_OR_PART:
                raise unavailable(f"the markers in {self.topic}", self._settings, error)
            else:
                continue
            if reached >= ends[message.partition()]:
                left.discard(message.partition())
        return last

    def _ends(self, admin: Any) -> dict[int, int]:
        """Behind the last record of every partition, whether or not it is part of an open transaction."""
        library = kafka("KafkaSink")
        spec, level = library.OffsetSpec.latest(), library.IsolationLevel.READ_UNCOMMITTED
        asked = {library.TopicPartition(self.topic, p): spec for p in range(self._partitions(admin))}
        futures = admin.list_offsets(asked, isolation_level=level, request_timeout=ANSWER_WITHIN_S)
        what = f"the end of {self.topic}"
        return {p.partition: answer(future, what, self._settings).offset for p, future in futures.items()}

    def _consumer_config(self, committed: bool) -> dict[str, Any]:
        return {
            **self._settings.for_admin(),
            "group.id": "headrace-markers",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            # By default brokers hold an answer back for half a second, hoping for more.
            "fetch.wait.max.ms": 20,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
        }

    def _check_compacted(self, admin: Any) -> None:
        library = kafka("KafkaSink")
        resource = library.ConfigResource(library.ResourceType.TOPIC, self.topic)
        try:
            found = admin.describe_configs([resource])[resource].result(ANSWER_WITHIN_S)
        except library.KafkaException:
            return  # not everybody may look at settings
        policy = found.get("cleanup.policy")
        if policy is not None and policy.value != "compact":
            raise KafkaTopicError(
                f"The topic {self.topic} holds markers that must not expire, but its cleanup.policy is {policy.value}. "
                "Set it to compact, or name another topic with set_marker_topic."
            )


def _owner_key(prefix: str) -> bytes:
    return f"owner:{prefix}".encode()


def _shard_key(prefix: str, subtask: int) -> bytes:
    return f"shard:{prefix}:{subtask}".encode()
