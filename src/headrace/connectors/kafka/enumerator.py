"""Finds partitions in the driver and deals them out.

At the first start the partitions that are there get their first offset, and in bounded mode their last. From then on
what the checkpoint says counts. Each partition belongs to one reader, by topic and number, so that the partitions of a
topic are spread evenly; a partition that turns up later goes to its reader at once and is read from its first record.

Brokers are asked on a thread of its own, except at the first start: the coordinator's thread must not wait for them.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import re
import threading
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from headrace.connectors.kafka.client import ANSWER_WITHIN_S, admin_client, answer, kafka, unavailable
from headrace.connectors.kafka.errors import KafkaTopicError, KafkaUnavailableError
from headrace.connectors.kafka.offsets import KafkaOffsetsInitializer, OffsetQuery, Partition
from headrace.connectors.kafka.settings import KafkaSettings
from headrace.connectors.kafka.split import UNBOUNDED, KafkaSplit
from headrace.connectors.source import EnumeratorContext, SplitEnumerator
from headrace.errors import HeadraceError

log = logging.getLogger(__name__)

PICK_UP_EVERY_MS = 500


@dataclass(frozen=True, slots=True)
class Subscription:
    """Which partitions a source reads: exactly one of the three is set."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: tuple[Partition, ...] = ()

    def describe(self) -> str:
        if self.pattern is not None:
            return f"topics like {self.pattern}"
        if self.partitions:
            return ", ".join(f"{topic}-{partition}" for topic, partition in self.partitions)
        return ", ".join(self.topics)


@dataclass(frozen=True, slots=True)
class Discovered:
    """Partitions as brokers know them now, with the id of each topic, and offsets of those that are new."""

    partitions: tuple[Partition, ...]
    topic_ids: dict[str, str]
    first: dict[Partition, int]
    last: dict[Partition, int]


class _State(msgspec.Struct):
    waiting: list[KafkaSplit]
    """Known, not yet given to a reader."""
    known: list[Partition]
    """Every partition that was ever found."""
    topic_ids: dict[str, str]


class KafkaEnumerator(SplitEnumerator[KafkaSplit]):
    """See the file. `discover` picks up what the asking thread has found."""

    def __init__(
        self,
        context: EnumeratorContext,
        *,
        settings: KafkaSettings,
        subscription: Subscription,
        starting: KafkaOffsetsInitializer,
        stopping: KafkaOffsetsInitializer | None,
        discovery_ms: int | None,
        read_committed: bool,
        restored: bytes | None,
    ) -> None:
        self._context = context
        self._settings = settings
        self._subscription = subscription
        self._starting = starting
        self._stopping = stopping
        self._look_ms = discovery_ms if stopping is None else None
        self._read_committed = read_committed
        self._fresh = restored is None
        self._state = _State([], [], {}) if restored is None else msgspec.msgpack.decode(restored, type=_State)
        self._found: queue.SimpleQueue[Discovered | HeadraceError] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._complained = False
        self.discovery_interval_ms = PICK_UP_EVERY_MS

    def start(self) -> None:
        if self._fresh:
            self._add(self._look(self._starting))
        if self._fresh and self._look_ms is None:
            return
        # After a restore one look is always due: a topic may have been made anew meanwhile.
        threading.Thread(target=self._keep_looking, name="kafka-discovery", daemon=True).start()

    def handle_split_request(self, subtask: int) -> None:
        mine = [split for split in self._state.waiting if self._owner(split) == subtask]
        if mine:
            self._hand_out(subtask, mine)
        if self._stopping is not None:
            self._context.no_more_splits(subtask)

    def add_splits_back(self, splits: Sequence[KafkaSplit]) -> None:
        self._state.waiting.extend(splits)

    def discover(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                found = self._found.get_nowait()
                if isinstance(found, KafkaUnavailableError):
                    self._complain(found)
                elif isinstance(found, HeadraceError):
                    raise found
                else:
                    self._complained = False
                    self._take_up(found)

    def snapshot_state(self) -> bytes:
        return msgspec.msgpack.encode(self._state)

    def close(self) -> None:
        self._closing.set()

    # Inside

    def _owner(self, split: KafkaSplit) -> int:
        return (zlib.crc32(split.topic.encode()) + split.partition) % self._context.parallelism

    def _hand_out(self, subtask: int, splits: list[KafkaSplit]) -> None:
        given = {split.split_id for split in splits}
        self._state.waiting = [split for split in self._state.waiting if split.split_id not in given]
        self._context.assign(subtask, splits)

    def _take_up(self, found: Discovered) -> None:
        for topic, topic_id in found.topic_ids.items():
            known = self._state.topic_ids.get(topic, "")
            if known and topic_id and known != topic_id:
                raise KafkaTopicError(
                    f"Topic {topic} was deleted and made anew since this job began to read it (it was {known}, now it "
                    f"is {topic_id}): saved offsets mean nothing in it. Start the job without its checkpoints, or give "
                    "the new topic another name."
                )
            self._state.topic_ids.setdefault(topic, topic_id)
        if self._look_ms is not None:
            before = {split.split_id for split in self._state.waiting}
            self._add(found)
            for split in [s for s in self._state.waiting if s.split_id not in before]:
                log.info("Kafka: found partition %s, which is read from offset %d on.", split.split_id, split.offset)
                self._hand_out(self._owner(split), [split])

    def _add(self, found: Discovered) -> None:
        known = set(self._state.known)
        for topic, partition in [p for p in found.partitions if p not in known and p in found.first]:
            split = KafkaSplit(
                topic,
                partition,
                found.first[topic, partition],
                found.last.get((topic, partition), UNBOUNDED),
                found.topic_ids.get(topic, ""),
            )
            self._state.known.append((topic, partition))
            self._state.topic_ids.setdefault(topic, split.topic_id)
            if split.stop == UNBOUNDED or split.offset < split.stop:
                self._state.waiting.append(split)

    def _complain(self, error: HeadraceError) -> None:
        """Readers go on with what they have; one line until brokers answer again."""
        if not self._complained:
            self._complained = True
            log.warning("Looking for new partitions failed, and is tried again: %s", error)

    def _keep_looking(self) -> None:
        while True:
            try:
                self._found.put(self._look(KafkaOffsetsInitializer.earliest()))
                if self._look_ms is None:
                    return
            except HeadraceError as error:
                self._found.put(error)
            if self._closing.wait((self._look_ms or 1_000) / 1_000):
                return

    def _admin(self) -> Any:
        return admin_client(self._settings, "KafkaSource")

    def _look(self, initializer: KafkaOffsetsInitializer) -> Discovered:
        """Ask brokers which partitions there are and where new ones begin; `KafkaTopicError` for a missing topic."""
        library, subscription = kafka("KafkaSource"), self._subscription
        admin = self._admin()
        try:
            topics = admin.list_topics(timeout=ANSWER_WITHIN_S).topics
        except library.KafkaException as error:
            raise unavailable("its topics", self._settings, error) from None
        if subscription.pattern is not None:
            wanted = re.compile(subscription.pattern)
            names = [name for name in topics if wanted.fullmatch(name) and not name.startswith("__")]
        else:
            names = list(subscription.topics or dict.fromkeys(topic for topic, _ in subscription.partitions))
        missing = [name for name in names if name not in topics or topics[name].error is not None]
        if missing:
            raise KafkaTopicError(
                f"Kafka at {self._settings.bootstrap_servers} has no topic {', '.join(missing)}. "
                "Create it, or correct the name in set_topics."
            )
        there = [(name, partition) for name in sorted(names) for partition in sorted(topics[name].partitions)]
        if subscription.partitions:
            gone = [p for p in subscription.partitions if p not in there]
            if gone:
                raise KafkaTopicError(f"Topic {gone[0][0]} has no partition {gone[0][1]}. Correct set_partitions.")
            there = list(subscription.partitions)
        known = set(self._state.known)
        new = [partition for partition in there if partition not in known]
        query = OffsetQuery(admin, self._settings, read_committed=self._read_committed)
        first = initializer.resolve(new, query) if new else {}
        last = self._stopping.resolve(new, query) if new and self._stopping is not None else {}
        return Discovered(tuple(there), self._topic_ids(admin, sorted(names)), first, last)

    def _topic_ids(self, admin: Any, names: list[str]) -> dict[str, str]:
        if not names:
            return {}
        asked = admin.describe_topics(kafka("KafkaSource").TopicCollection(names), request_timeout=ANSWER_WITHIN_S)
        found = {name: answer(future, f"topic {name}", self._settings) for name, future in asked.items()}
        return {name: str(description.topic_id) for name, description in found.items() if description.topic_id}
