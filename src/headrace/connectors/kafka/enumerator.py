"""Finds partitions in the driver and deals them out.

At the first start the partitions that are there get their first offset, and in bounded mode their last. From then on
what the checkpoint says counts. Each partition belongs to one reader, by topic and number, so that the partitions of a
topic are spread evenly; a partition that turns up later goes to its reader at once and is read from its first record.

After a restore no partition is given out before brokers have said that its topic is the one whose offsets were saved:
records of another one of the same name must not reach the job.

Brokers are asked on a thread of its own, except at the first start: the coordinator's thread must not wait for them.
After a restore it is asked at once, while tasks are being started, so that the answer is there when they are.
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
FIRST_ANSWER_WITHIN_S = 5.0
"""How long the start waits for brokers after a restore. If it takes longer, splits follow when they have answered."""
ASK_AGAIN_MS = 1_000
"""After a restore, until brokers have answered once."""


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
    gone: frozenset[str] = frozenset()
    """Topics that were found once and do not exist any more."""


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
        self._sure = self._fresh
        """Whether topics are known to be those whose offsets are saved."""
        self._asking: set[int] = set()
        """Readers that asked before that was known."""
        self.discovery_interval_ms = PICK_UP_EVERY_MS
        if not self._fresh:
            self._begin_looking()

    def start(self) -> None:
        if not self._fresh:
            with contextlib.suppress(queue.Empty):
                self._take(self._found.get(timeout=FIRST_ANSWER_WITHIN_S))
            return
        self._add(self._look(self._starting))
        if self._look_ms is not None:
            self._begin_looking()

    def handle_split_request(self, subtask: int) -> None:
        if not self._sure:
            self._asking.add(subtask)
            return
        mine = self._waiting_for(subtask)
        if mine:
            self._hand_out(subtask, mine)
        if self._stopping is not None:
            self._context.no_more_splits(subtask)

    def holds_back(self, subtask: int) -> bool:
        return not self._sure and bool(self._waiting_for(subtask))

    def add_splits_back(self, splits: Sequence[KafkaSplit]) -> None:
        self._state.waiting.extend(splits)

    def discover(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                self._take(self._found.get_nowait())

    def snapshot_state(self) -> bytes:
        return msgspec.msgpack.encode(self._state)

    def close(self) -> None:
        self._closing.set()

    # Inside

    def _owner(self, split: KafkaSplit) -> int:
        return (zlib.crc32(split.topic.encode()) + split.partition) % self._context.parallelism

    def _waiting_for(self, subtask: int) -> list[KafkaSplit]:
        return [split for split in self._state.waiting if self._owner(split) == subtask]

    def _hand_out(self, subtask: int, splits: list[KafkaSplit]) -> None:
        given = {split.split_id for split in splits}
        self._state.waiting = [split for split in self._state.waiting if split.split_id not in given]
        self._context.assign(subtask, splits)

    def _take(self, found: Discovered | HeadraceError) -> None:
        """What the asking thread has found, or why it has not."""
        if isinstance(found, KafkaUnavailableError):
            self._complain(found)
        elif isinstance(found, HeadraceError):
            raise found
        else:
            self._complained = False
            self._take_up(found)

    def _take_up(self, found: Discovered) -> None:
        gone = sorted({split.topic for split in self._state.waiting} & found.gone)
        if gone:
            raise KafkaTopicError(
                f"Topic {gone[0]} is gone, and this job has not read it to its end. Saved offsets mean nothing in one "
                "that is made anew: start the job without its checkpoints."
            )
        for topic, topic_id in found.topic_ids.items():
            known = self._state.topic_ids.get(topic, "")
            if known and topic_id and known != topic_id:
                raise KafkaTopicError(
                    f"Topic {topic} was deleted and made anew since this job began to read it (it was {known}, now it "
                    f"is {topic_id}): saved offsets mean nothing in it. Start the job without its checkpoints, or give "
                    "the new topic another name."
                )
            self._state.topic_ids[topic] = known or topic_id
        self._sure = True
        asking, self._asking = self._asking, set()
        for subtask in sorted(asking):
            self.handle_split_request(subtask)
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

    def _begin_looking(self) -> None:
        threading.Thread(target=self._keep_looking, name="kafka-discovery", daemon=True).start()

    def _keep_looking(self) -> None:
        pause_ms = ASK_AGAIN_MS
        while True:
            try:
                self._found.put(self._look(KafkaOffsetsInitializer.earliest()))
                if self._look_ms is None:
                    return
                pause_ms = self._look_ms
            except HeadraceError as error:
                self._found.put(error)
            except Exception as error:
                # Restored splits wait for the answer: whatever keeps it from coming must be heard of.
                reason = self._settings.redact(f"{type(error).__name__}: {error}")
                self._found.put(HeadraceError(f"Looking for {self._subscription.describe()} in Kafka failed: {reason}"))
            if self._closing.wait(pause_ms / 1_000):
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
        once = {topic for topic, _ in known}
        new = [partition for partition in there if partition not in known]
        query = OffsetQuery(admin, self._settings, read_committed=self._read_committed)
        first = initializer.resolve(new, query) if new else {}
        last = self._stopping.resolve(new, query) if new and self._stopping is not None else {}
        # A restored job reads on what it has begun, be it called otherwise now: these topics are looked at as well.
        ids = self._topic_ids(admin, sorted({*names, *(topic for topic in once if topic in topics)}))
        return Discovered(tuple(there), ids, first, last, frozenset(topic for topic in once if topic not in topics))

    def _topic_ids(self, admin: Any, names: list[str]) -> dict[str, str]:
        if not names:
            return {}
        asked = admin.describe_topics(kafka("KafkaSource").TopicCollection(names), request_timeout=ANSWER_WITHIN_S)
        found = {name: answer(future, f"topic {name}", self._settings) for name, future in asked.items()}
        return {name: str(description.topic_id) for name, description in found.items() if description.topic_id}
