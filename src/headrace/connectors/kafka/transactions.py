"""Transactional producers: one id each, and what the library's errors mean for a transaction.

retriable           nothing is decided: the same call again, on the same producer
txn_requires_abort  this transaction is lost; its records are sent again in another one
fatal               the producer is of no use any more. A transaction that took too long and a successor that took
                    the id over look the same (`_FENCED`): who is meant is asked of the marker topic
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from headrace.connectors.kafka.client import failure_code, kafka, made, serving
from headrace.connectors.kafka.errors import KafkaUnavailableError
from headrace.connectors.kafka.markers import Markers, Owner
from headrace.connectors.kafka.prepared import CommitPoint
from headrace.connectors.kafka.records import Header, OutRecord
from headrace.connectors.kafka.refusals import Undelivered
from headrace.connectors.kafka.settings import KafkaSettings
from headrace.errors import CommitOutcomeUnknownError, ConfigurationError

TRANSACTION_TIMEOUT_MS = 600_000
"""Brokers end a transaction that is open for longer; they allow 15 minutes by default. Nothing is lost by it."""
INIT_WITHIN_S = 60.0
COMMIT_WITHIN_S = 60.0
DRAINED_WITHIN_S = 30.0
ASKED_EVERY_S = 0.25
"""A client waits in vain for records of a transaction that can only be given up: so it is asked now and then."""
CALL_S = 10.0
ENDED_AT_ONCE = 8
SERVE_EVERY = 4_096
"""Records between two looks at what the client has to say."""

_DEFAULTS = {
    "linger.ms": 5,
    "batch.size": 1_000_000,
    "queue.buffering.max.messages": 500_000,
    "compression.type": "lz4",
    # Kafka's own partitioner in Java, so that both put a key into the same partition.
    "partitioner": "murmur2_random",
}
_TRANSACTIONAL = {
    **_DEFAULTS,
    "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
    # With more than one request on its way the client's thread spins, asking again and again whether it may send the
    # next one, whenever brokers answer late: a quarter of all CPU of a busy job. With one it sleeps, and what comes
    # meanwhile makes the next batch larger. Readers of committed records wait for the checkpoint anyway.
    "max.in.flight": 1,
}


class TransactionLost(Exception):
    """The transaction was not and will not be committed by this producer, or nobody knows: ask the markers."""

    def __init__(self, message: str, failure: Any) -> None:
        super().__init__(message)
        self.failure = failure
        """What the client said, a `KafkaError`."""


def transactional_id(prefix: str, subtask: int, number: int) -> str:
    return f"{prefix}-{subtask}-{number}"


def plain_producer(settings: KafkaSettings, on_delivery: Any) -> Any:
    """A producer without transactions that writes each record once, in order, as long as it lives."""
    defaults = {**_DEFAULTS, "enable.idempotence": True}
    forced = {"on_delivery": on_delivery, "delivery.report.only.error": True}
    return made(lambda: kafka("KafkaSink").Producer(settings.merged(defaults, forced)), settings, "KafkaSink")


def send(producer: Any, record: OutRecord) -> None:
    """Hand a record to a producer, waiting while its queue is full."""
    topic, value, key, partition, timestamp, headers = record
    while True:
        try:
            if partition is not None or headers is not None:
                producer.produce(topic, value, key, **_named(partition, timestamp, headers))
            # The usual records, once for each that the job writes: an argument by name costs a third of the call,
            # a dictionary of them twice as much.
            elif timestamp is None or timestamp < 0:
                producer.produce(topic, value, key)
            else:
                producer.produce(topic, value, key, timestamp=timestamp)
            return
        except BufferError:
            with serving():
                producer.poll(0.05)


def _named(partition: int | None, timestamp: int | None, headers: list[Header] | None) -> dict[str, Any]:
    """What a record has beyond topic, value and key, as the client's arguments."""
    more: dict[str, Any] = {}
    if partition is not None:
        more["partition"] = partition
    if timestamp is not None and timestamp >= 0:
        more["timestamp"] = timestamp
    if headers is not None:
        more["headers"] = headers
    return more


class TransactionalProducer:
    """One transactional id. `initialise` ends whatever a predecessor left open under it, and fences it off."""

    def __init__(self, identity: str, settings: KafkaSettings, markers: Markers) -> None:
        self.identity = identity
        self._settings = settings
        self._markers = markers
        self._library = kafka("KafkaSink")
        self.undelivered = Undelivered()
        """Of the open transaction."""
        forced = {
            "transactional.id": identity,
            "enable.idempotence": True,
            "on_delivery": self.undelivered.told,
            "delivery.report.only.error": True,
        }
        config = settings.merged(_TRANSACTIONAL, forced)
        self.producer = made(lambda: self._library.Producer(config), settings, "KafkaSink")
        self._marker_partitions = 0
        self.open_since: float | None = None
        self._marked = False

    @property
    def marker_topic(self) -> str:
        return self._markers.topic

    def initialise(self) -> None:
        # First, so that a connection is there: else the coordinator is looked for again after half a second only.
        self._marker_partitions = self._markers.partitions(self.producer)
        deadline = time.monotonic() + INIT_WITHIN_S
        while True:
            try:
                with serving():
                    self.producer.init_transactions(CALL_S)
                return
            except self._library.KafkaException as error:
                self._retry_or_raise(failure_code(error), deadline)

    def _retry_or_raise(self, error: Any, deadline: float) -> None:
        kinds = self._library.KafkaError
        text = self._settings.redact(str(error))
        if error.code() == kinds.INVALID_TRANSACTION_TIMEOUT:
            raise ConfigurationError(
                "transaction.timeout.ms of the KafkaSink is larger than the brokers allow (transaction.max.timeout.ms, "
                "15 minutes by default). Make it smaller with set_property."
            )
        if error.code() in (kinds.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, kinds.CLUSTER_AUTHORIZATION_FAILED):
            raise ConfigurationError(
                f"The brokers do not allow transactional id {self.identity}: {text}. Allow ids with this prefix."
            )
        if error.fatal() or time.monotonic() > deadline:
            raise KafkaUnavailableError(
                f"Kafka at {self._settings.bootstrap_servers} did not give transactional id {self.identity}: {text}."
            )
        time.sleep(0.05)

    def begin(self) -> None:
        # Before it succeeds: a producer that cannot even begin is of no use any more, as one with an open transaction.
        self.open_since = time.monotonic()
        self.producer.begin_transaction()
        self._marked = False
        self.undelivered.forget()

    def trouble(self) -> Any:
        """Why the open transaction can only be given up, as far as the client knows; None if nothing is wrong with it.

        What it could not deliver it has told, if it was served. For the rest it has no question. But told to begin a
        transaction where one is open, it does nothing and answers with the error of this one, if it has one.
        """
        if self.undelivered.failure is not None:
            return self.undelivered.failure
        try:
            self.producer.begin_transaction()
        except self._library.KafkaException as error:
            failure = failure_code(error)
            if failure.txn_requires_abort() or failure.fatal():
                return failure
        return None

    def settled(self, timeout: float) -> Any:
        """Wait until brokers have answered for all records, at most for so long; then what `trouble` says."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                with serving():
                    left = self.producer.flush(ASKED_EVERY_S)
                trouble = self.trouble()
            except self._library.KafkaException as error:
                return failure_code(error)
            if trouble is not None or left == 0 or time.monotonic() > deadline:
                return trouble

    def drained(self) -> bool:
        """Wait until brokers have all its records; False if they do not take them."""
        try:
            with serving():
                return bool(self.producer.flush(DRAINED_WITHIN_S) == 0)
        except self._library.KafkaException:
            return False

    def serve(self) -> Any:
        """Let the client tell what it has to, without waiting; why it can do nothing more, or None."""
        try:
            with serving():
                self.producer.poll(0)
        except self._library.KafkaException as error:
            return failure_code(error)
        return None

    def mark(self, prefix: str, subtask: int, point: CommitPoint) -> None:
        """Put the marker into the open transaction, once: from now on it must be committed soon."""
        if self._marked:
            return
        key, value = self._markers.marker(prefix, subtask, point)
        partition = self._markers.partition(prefix, self._marker_partitions)
        send(self.producer, (self._markers.topic, value, key, partition, None, None))
        self._marked = True

    def write_owner(self, prefix: str, owner: Owner) -> None:
        """Put an owner record into the open transaction."""
        key, value = self._markers.owner_record(prefix, owner)
        partition = self._markers.partition(prefix, self._marker_partitions)
        send(self.producer, (self._markers.topic, value, key, partition, None, None))

    def commit(self) -> None:
        """Commit, trying again while nothing is decided.

        `TransactionLost`: it must be sent again unless its marker is there. `CommitOutcomeUnknownError`: brokers are
        away; the same call may be made again.
        """
        deadline = time.monotonic() + COMMIT_WITHIN_S
        while True:
            try:
                with serving():
                    self.producer.commit_transaction(CALL_S)
                self.open_since = None
                return
            except self._library.KafkaException as error:
                failure = failure_code(error)
                if not failure.retriable() or failure.fatal() or failure.txn_requires_abort():
                    # Records that the client itself has given up it only counts here; what became of them it has told.
                    failure = self.undelivered.failure or failure
                    raise TransactionLost(self._settings.redact(str(failure)), failure) from None
                if time.monotonic() > deadline:
                    raise CommitOutcomeUnknownError(
                        f"Kafka at {self._settings.bootstrap_servers} did not answer within {COMMIT_WITHIN_S:g} s "
                        f"whether transaction {self.identity} is committed: {self._settings.redact(str(failure))}."
                    ) from None

    def abort(self, timeout: float = CALL_S) -> None:
        """Give the open transaction up. Raises nothing: what cannot be aborted is ended by the next `initialise`."""
        with contextlib.suppress(self._library.KafkaException), serving():
            self.producer.abort_transaction(timeout)
        self.open_since = None

    def discard(self) -> None:
        """Forget it with all it had still to send."""
        with contextlib.suppress(self._library.KafkaException), serving():
            self.producer.purge(in_queue=True, in_flight=True, blocking=False)

    def failure(self, error: Any) -> Any:
        """Why a record could not be handed over: the record itself, or what has become of the transaction."""
        failure = failure_code(error)
        if failure.code() == self._library.KafkaError._STATE:
            return self.trouble() or failure
        return failure


def end_transactions(identities: Iterable[str], settings: KafkaSettings, markers: Markers) -> None:
    """Abort whatever is open under these ids, and fence off whoever wrote it. Several at a time: each asks brokers."""

    def end(identity: str) -> None:
        TransactionalProducer(identity, settings, markers).initialise()

    with ThreadPoolExecutor(ENDED_AT_ONCE, thread_name_prefix="kafka-end") as pool:
        list(pool.map(end, identities))
