"""The thread that waits for Kafka, so that a reader's `poll` never has to.

It takes messages in batches and hands them over as they are, cut by partition; what costs time for each record is
left to the reader. It stops above a limit of bytes, so that back-pressure reaches the brokers.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

from headrace.connectors.kafka.client import ANSWER_WITHIN_S, kafka, made
from headrace.connectors.kafka.errors import KafkaDataLossError, KafkaTopicError, KafkaUnavailableError
from headrace.connectors.kafka.offsets import Partition
from headrace.connectors.kafka.settings import KafkaSettings
from headrace.connectors.metrics import Counter
from headrace.errors import retry

log = logging.getLogger(__name__)

OnDataLoss = Literal["fail", "skip"]

MOST_AT_ONCE = 8_192
MOST_QUEUED = 32_768
MOST_QUEUED_BYTES = 16 * 1024 * 1024
WAIT_S = 0.1
CLOSED_WITHIN_S = 3.0


@dataclass(slots=True)
class Chunk:
    """Messages of one partition in order, or the news that its end was reached."""

    partition: Partition
    messages: list[Any]
    size: int = 0
    end: int | None = None
    """The offset behind everything a reader may see at the moment."""


def _size_of(messages: list[Any]) -> int:
    """About how many bytes: a look at each of them would cost as much as reading it."""
    step = 1 + len(messages) // 64
    return step * sum(map(len, messages[::step]))


class Fetcher:
    """Owns the consumer. `take`, `assign`, `unassign` and `commit` are called by the reader; none of them blocks."""

    def __init__(
        self,
        config: Mapping[str, Any],
        settings: KafkaSettings,
        *,
        on_data_loss: OnDataLoss,
        wake: Callable[[], None],
        lost: Counter,
    ) -> None:
        self._library = kafka("KafkaSource")
        self._settings = settings
        self._on_data_loss = on_data_loss
        self._wake = wake
        config = {**config, "on_commit": self._committed}
        self._consumer = made(lambda: self._library.Consumer(config), settings, "KafkaSource")
        self._chunks: deque[Chunk] = deque()
        self._queued = 0
        self._queued_bytes = 0
        self._room = threading.Condition()
        self._orders: deque[Callable[[], None]] = deque()
        self._positions: dict[Partition, int] = {}
        """Of the next message to be fetched."""
        self._gave_up = False
        """Whether a partition was given up: messages of it may still come."""
        self._at_once = 512
        self._closing = False
        self._commit_failed = False
        self.error: Exception | None = None
        """Why fetching is over. The reader raises it when it has taken what came before."""
        self._lost = lost
        """Counts records that were gone before they could be read, where that is allowed."""
        self._thread = threading.Thread(target=self._run, name="kafka-fetcher", daemon=True)
        self._thread.start()

    # Called by the reader

    def take(self) -> Chunk | None:
        if not self._chunks:
            return None
        chunk = self._chunks.popleft()
        with self._room:
            self._queued -= len(chunk.messages)
            self._queued_bytes -= chunk.size
            self._room.notify()
        return chunk

    def assign(self, positions: Mapping[Partition, int]) -> None:
        """Fetch these partitions as well, from these offsets on."""
        self._orders.append(lambda: self._begin(positions))

    def unassign(self, partition: Partition) -> None:
        """That partition is read to where it was to be read."""
        self._orders.append(lambda: self._end(partition))

    def pause(self, partitions: AbstractSet[Partition]) -> None:
        """Fetch nothing of these for now. What was fetched before may still be taken."""
        if partitions:
            self._orders.append(lambda: self._switch(self._consumer.pause, partitions))

    def resume(self, partitions: AbstractSet[Partition]) -> None:
        """Fetch these again, from where they were left."""
        if partitions:
            self._orders.append(lambda: self._switch(self._consumer.resume, partitions))

    def commit(self, positions: Mapping[Partition, int]) -> None:
        """Tell the group; trouble with that is logged once, until it works again, and has no further effect."""
        self._orders.append(lambda: self._commit(positions))

    def close(self) -> None:
        with self._room:
            self._closing = True
            self._room.notify()
        self._thread.join(CLOSED_WITHIN_S)

    # The thread

    def _run(self) -> None:
        try:
            while not self._closing:
                while self._orders:
                    self._orders.popleft()()
                if self._wait_for_room():
                    self._fetch()
        except Exception as error:
            self.error = error
            self._wake()
        finally:
            with contextlib.suppress(Exception):
                while self._orders:
                    self._orders.popleft()()
                self._consumer.close()

    def _wait_for_room(self) -> bool:
        with self._room:
            if self._queued >= MOST_QUEUED or self._queued_bytes >= MOST_QUEUED_BYTES:
                self._room.wait(WAIT_S)
                return False
        return True

    def _fetch(self) -> None:
        # `consume` waits until it has as many as asked for, `poll` for the first one only.
        first = self._consumer.poll(WAIT_S)
        if first is None:
            return
        messages = [first, *self._consumer.consume(self._at_once, 0)]
        if any(map(self._library.Message.error, messages)):
            messages = self._without_errors(messages)
        for chunk in self._runs(messages):
            self._positions[chunk.partition] = chunk.messages[-1].offset() + 1
            self._put(chunk)
        if messages:
            average = max(1, _size_of(messages) // len(messages))
            self._at_once = max(1, min(MOST_AT_ONCE, MOST_QUEUED_BYTES // 4 // average))

    def _runs(self, messages: list[Any]) -> list[Chunk]:
        """Messages as they came, cut where the partition changes: they come in long runs of one."""
        if not messages:
            return []
        if len(self._positions) == 1 and not self._gave_up:
            return [Chunk(next(iter(self._positions)), messages, _size_of(messages))]
        kind = self._library.Message
        chunks = []
        for topic, of_topic in groupby(messages, kind.topic):
            for number, run in groupby(of_topic, kind.partition):
                found = list(run)
                if (topic, number) in self._positions:
                    chunks.append(Chunk((topic, number), found, _size_of(found)))
        return chunks

    def _put(self, chunk: Chunk) -> None:
        with self._room:
            self._queued += len(chunk.messages)
            self._queued_bytes += chunk.size
        self._chunks.append(chunk)
        self._wake()

    def _without_errors(self, messages: list[Any]) -> list[Any]:
        """The messages that are records; what the others report is dealt with."""
        kinds = self._library.KafkaError
        good = []
        for message in messages:
            error = message.error()
            if error is None:
                good.append(message)
            elif error.code() == kinds._PARTITION_EOF:
                ends = (message.topic(), message.partition()), message.offset()
                # It must not overtake the records before it.
                for chunk in self._runs(good):
                    self._positions[chunk.partition] = chunk.messages[-1].offset() + 1
                    self._put(chunk)
                good = []
                if ends[0] in self._positions:
                    self._put(Chunk(ends[0], [], end=ends[1]))
            elif error.code() in (kinds._AUTO_OFFSET_RESET, kinds.OFFSET_OUT_OF_RANGE):
                self._meet_loss((message.topic(), message.partition()))
            else:
                self._meet(error, message)
        return good

    def _meet(self, error: Any, message: Any) -> None:
        kinds = self._library.KafkaError
        text = self._settings.redact(str(error))
        if error.code() in (kinds.UNKNOWN_TOPIC_OR_PART, kinds._UNKNOWN_TOPIC, kinds._UNKNOWN_PARTITION):
            gone = KafkaTopicError(
                f"Topic {message.topic()}, partition {message.partition()}, is gone while the job reads it: {text}. "
                "Was the topic deleted? Saved offsets mean nothing in one that is made anew."
            )
            gone.recovery = retry("brokers that restart say so too; the next attempt finds out whether it is gone")
            raise gone
        waits = (kinds._TRANSPORT, kinds._ALL_BROKERS_DOWN, kinds._TIMED_OUT, kinds._RESOLVE, kinds._MAX_POLL_EXCEEDED)
        if error.fatal() or not (error.retriable() or error.code() in waits):
            raise KafkaUnavailableError(f"Reading from Kafka at {self._settings.bootstrap_servers} failed: {text}.")
        # The client itself tries again for as long as it takes.
        log.info("Kafka: %s", text)

    def _meet_loss(self, partition: Partition) -> None:
        topic, number = partition
        wanted = self._positions.get(partition)
        if wanted is None:
            return
        where = self._library.TopicPartition(topic, number)
        first, end = self._consumer.get_watermark_offsets(where, timeout=ANSWER_WITHIN_S)
        if first <= wanted <= end:
            # It was there all the time: the leader has moved, or a follower lagged behind.
            self._seek(partition, wanted)
            return
        # Behind the end there is no gap to go on after: records from the first on are others, or were read before.
        made_anew = wanted > end
        reason = (
            "the topic has been made anew, or lost its end"
            if made_anew
            else f"{first - wanted} records were deleted by retention before they could be read"
        )
        text = f"{topic}, partition {number}: offset {wanted} is wanted, but there is {first} to {end}: {reason}."
        if made_anew or self._on_data_loss == "fail":
            way_out = "." if made_anew else f', or set_on_data_loss("skip") to go on at {first} and count what is lost.'
            raise KafkaDataLossError(
                f"{text} Start the job without its checkpoints{way_out}",
                topic=topic,
                partition=number,
                wanted=wanted,
                first=first,
                end=end,
            )
        self._lost.inc(first - wanted)
        log.warning("%s Going on at %d.", text, first)
        self._seek(partition, first)

    def _seek(self, partition: Partition, offset: int) -> None:
        self._positions[partition] = offset
        where = self._library.TopicPartition(*partition, offset)
        self._consumer.incremental_unassign([where])
        self._consumer.incremental_assign([where])

    # Orders

    def _begin(self, positions: Mapping[Partition, int]) -> None:
        self._positions.update(positions)
        self._consumer.incremental_assign(
            [self._library.TopicPartition(topic, number, offset) for (topic, number), offset in positions.items()]
        )

    def _end(self, partition: Partition) -> None:
        if self._positions.pop(partition, None) is not None:
            self._gave_up = True
            self._consumer.incremental_unassign([self._library.TopicPartition(*partition)])

    def _switch(self, how: Callable[[list[Any]], None], partitions: AbstractSet[Partition]) -> None:
        how([self._library.TopicPartition(*partition) for partition in partitions if partition in self._positions])

    def _commit(self, positions: Mapping[Partition, int]) -> None:
        offsets: Sequence[Any] = [self._library.TopicPartition(t, n, offset) for (t, n), offset in positions.items()]
        try:
            self._consumer.commit(offsets=offsets, asynchronous=True)
        except self._library.KafkaException as error:
            self._committed(error, ())

    def _committed(self, error: Any, offsets: Sequence[Any]) -> None:
        """How telling the group went. Called by the client while it is polled or closed, so on the thread as well."""
        errors = [found for found in (error, *(offset.error for offset in offsets)) if found is not None]
        if errors and not self._commit_failed:
            log.warning("Offsets could not be told to the group: %s", self._settings.redact(str(errors[0])))
        self._commit_failed = bool(errors)
