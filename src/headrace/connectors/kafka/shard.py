"""The transactions of one sink subtask: the open one, and those that are prepared and wait for their checkpoint.

    write ─▶ open transaction ─ barrier ─▶ prepared ─ checkpoint complete ─▶ marker + commit ─▶ its id is free again
                 │                            │
                 └── broken, too old, or no id free: records go on into the log alone, and are sent at the commit

The log is the truth and the transaction a head start: whatever happens to the transaction, the commit finds out by the
marker whether it went through, and sends the log where it did not.

Order: records of a key must stand in their partition in the order in which they were written. So a transaction begins
when brokers have everything of the one before; and while one waits to be sent again, all behind it wait with it.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

from headrace import failpoints
from headrace.connectors.kafka.client import failure_code, kafka
from headrace.connectors.kafka.errors import KafkaUnavailableError
from headrace.connectors.kafka.markers import Markers, Owner
from headrace.connectors.kafka.ownership import overtaken
from headrace.connectors.kafka.prepared import CommitPoint, RecordLog, TransactionHeader
from headrace.connectors.kafka.records import OutRecord
from headrace.connectors.kafka.refusals import is_refusal, refusal
from headrace.connectors.kafka.resending import send_again
from headrace.connectors.kafka.settings import KafkaSettings
from headrace.connectors.kafka.transactions import (
    SERVE_EVERY,
    TRANSACTION_TIMEOUT_MS,
    TransactionalProducer,
    TransactionLost,
    send,
    transactional_id,
)
from headrace.errors import CommitOutcomeUnknownError

log = logging.getLogger(__name__)

MOST_BEHIND = 256 * 1024 * 1024
"""Bytes of records that may wait in memory alone while brokers are away."""
BARRIER_WAITS_S = 10.0
"""How long a barrier waits at most until brokers have said whether they take its records."""
OLDEST = 0.6
"""A transaction is given up at this share of the transaction timeout: readers must not wait for it until the end."""


class OpenTransaction:
    """Records since the last barrier, in the log and, if all goes well, in a transaction."""

    __slots__ = ("log", "overtaken", "producer")

    def __init__(self, producer: TransactionalProducer | None) -> None:
        self.producer = producer
        self.overtaken = False
        """One before it is sent again, so what it has written stands too early."""
        self.log = RecordLog()


class Shard:
    """Used by the writer on the mailbox thread and by the committer in the background; guarded by `_lock`."""

    def __init__(
        self,
        *,
        prefix: str,
        job_id: str,
        uid: str,
        subtask: int,
        shards: int,
        attempt: int,
        pool: int,
        settings: KafkaSettings,
        markers: Markers,
        history: str = "",
    ) -> None:
        self.prefix = prefix
        self.subtask = subtask
        self.attempt = attempt
        self.job_id = job_id
        self.uid = uid
        self._history = history
        self._shards = shards
        self._pool = pool
        self._settings = settings
        self.markers = markers
        timeout_ms = int(settings.get("transaction.timeout.ms", TRANSACTION_TIMEOUT_MS))
        self._oldest_s = OLDEST * timeout_ms / 1_000
        self._lock = threading.RLock()
        self._free: list[int] = list(range(pool))
        self._ready: dict[int, TransactionalProducer] = {}
        self._lost: set[int] = set()
        """Ids whose producer is of no use any more, perhaps fenced off: the owner is asked before one is made anew."""
        self._numbers: dict[str, int] = {transactional_id(prefix, subtask, n): n for n in range(pool)}
        self._prepared: dict[CommitPoint, TransactionalProducer | None] = {}
        self._open: OpenTransaction | None = None
        self._last: TransactionalProducer | None = None
        """Of the transaction that was prepared last: it may still have records on their way."""
        self._behind = False
        """A prepared transaction waits to be sent again, so all newer ones must wait behind it."""
        self._since_served = 0
        self._token: str | None = None
        self._opening: threading.Thread | None = None
        self._opening_failed: Exception | None = None

    # The writer

    def open(self) -> None:
        """Get the first id ready and learn who owns the prefix, while the task is still starting."""
        self._opening = threading.Thread(target=self._prepare_to_write, name="kafka-sink-open", daemon=True)
        self._opening.start()

    def _prepare_to_write(self) -> None:
        try:
            self._ready[0] = self._made(0)
            owner = self.markers.owner(self.prefix)
            if owner is not None:
                # A task that starts late must not take its successor's name for its own.
                if not self._is_mine(owner):
                    raise overtaken(self.prefix, owner, self.attempt)
                self._token = owner.token
        except Exception as error:
            self._opening_failed = error

    def write(self, record: OutRecord) -> None:
        transaction = self._open
        if transaction is None:
            transaction = self._open = self._begin()
        transaction.log.append(record)
        producer = transaction.producer
        if producer is None or self._behind or transaction.overtaken:
            self._write_later(transaction)
            return
        try:
            send(producer.producer, record)
        except kafka("KafkaSink").KafkaException as error:
            if is_refusal(failure_code(error)):
                raise refusal(failure_code(error), [record], self._settings) from None
            self._fail(transaction, producer, producer.failure(error))
            return
        self._since_served += 1
        if self._since_served >= SERVE_EVERY:
            self._serve(transaction, producer)

    def _write_later(self, transaction: OpenTransaction) -> None:
        """A record is in the log and must not be sent now."""
        if transaction.producer is not None:
            self._give_up(transaction, "one before it is sent again")
        elif transaction.log.size > MOST_BEHIND:
            raise KafkaUnavailableError(
                f"Brokers at {self._settings.bootstrap_servers} take no records, and {MOST_BEHIND >> 20} MiB wait "
                "in memory. See that they run; the job goes on from its last checkpoint."
            )

    def prepare(self, checkpoint_id: int) -> bytes | None:
        """What the checkpoint keeps of the records since the last barrier; None if there were none."""
        transaction = self._open
        if transaction is None:
            return None
        header = TransactionHeader(
            prefix=self.prefix,
            job_id=self.job_id,
            uid=self.uid,
            subtask=self.subtask,
            shards=self._shards,
            pool=self._pool,
            attempt=self.attempt,
            checkpoint_id=checkpoint_id,
            markers=self.markers.topic,
            records=transaction.log.counted(),
            owned=self._token is not None,
            history=self._history,
        )
        payload = transaction.log.seal(header)
        if transaction.producer is not None and (self._behind or transaction.overtaken):
            self._give_up(transaction, "one before it is sent again")
        with self._lock:
            self._prepared[header.point] = self._last = transaction.producer
            self._behind = self._behind or transaction.producer is None
            self._open = None
        return payload

    def flush(self) -> None:
        """Records leave the client's queue now, and brokers say whether they take them: raises if they refuse one.

        Called at every barrier. A refused record must not get into a completed checkpoint, from where every recovery
        would send it again; and only brokers know their limits. Waiting costs the checkpoint as long as brokers need
        for what is under way, and records nothing: the transaction behind the barrier waits for the same (`_begin`).
        Brokers that do not answer hold no checkpoint up for longer than `BARRIER_WAITS_S`: the log has it all.
        """
        transaction = self._open
        if transaction is not None and transaction.producer is not None:
            self._serve(transaction, transaction.producer)
        if transaction is not None and transaction.producer is not None:
            producer = transaction.producer
            trouble = producer.settled(BARRIER_WAITS_S)
            if trouble is not None:
                self._fail(transaction, producer, trouble)

    def close(self) -> None:
        """Give up what was not committed: recovery sends it again. Readers need not wait for the timeout then."""
        if self._opening is not None:
            self._opening.join(1.0)
        transaction, self._open = self._open, None
        with self._lock:
            left = [p for p in self._prepared.values() if p is not None]
            self._prepared.clear()
        if transaction is not None and transaction.producer is not None:
            left.append(transaction.producer)
        for producer in left:
            producer.discard()
            producer.abort(2.0)

    # The committer

    def holds(self, point: CommitPoint) -> bool:
        """Whether that transaction was prepared here and is not committed yet."""
        with self._lock:
            return point in self._prepared

    def commit(self, point: CommitPoint, payload: bytes) -> None:
        """Show a prepared transaction. Called in the background, one at a time, in order."""
        with self._lock:
            producer = self._prepared.get(point)
        if producer is not None:
            try:
                producer.mark(self.prefix, self.subtask, point)
                producer.commit()
                self._done(point, producer)
                return
            except (TransactionLost, kafka("KafkaSink").KafkaException) as error:
                log.info("Kafka: transaction %s is sent again: %s", producer.identity, error)
                self._fall_behind(point)
        producer = self._taken_for_sending()
        try:
            # After the id is initialised: whoever becomes the owner from here on initialises it again.
            self._assert_owner()
            if not self._is_committed(point):
                failpoints.hit("sink_recovery", "task-sends")
                send_again(producer, payload, self.prefix, self.subtask, point, self._settings)
        except TransactionLost as error:
            self._assert_owner()
            raise CommitOutcomeUnknownError(f"Kafka transaction {producer.identity} was lost again: {error}.") from None
        finally:
            self._put_back(producer)
        self._done(point, None)

    def _taken_for_sending(self) -> TransactionalProducer:
        producer = self._take()
        if producer is None:
            raise KafkaUnavailableError(
                f"All {self._pool} transactional ids of {self.prefix}-{self.subtask} are in use."
            )
        return producer

    def _is_committed(self, point: CommitPoint) -> bool:
        marker = self.markers.committed(self.prefix).get(self.subtask)
        return marker is not None and marker.history in ("", self._history) and marker.point >= point

    def _is_mine(self, owner: Owner) -> bool:
        known = "" in (owner.history, self._history) or owner.history == self._history
        return known and (owner.job, owner.uid, owner.attempt) == (self.job_id, self.uid, self.attempt)

    def _assert_owner(self) -> None:
        """After being fenced: with a newer owner, this task must not send or commit any more."""
        owner = self.markers.owner(self.prefix)
        if owner is not None and (not self._is_mine(owner) or self._token not in (None, owner.token)):
            raise overtaken(self.prefix, owner, self.attempt)

    # Ids

    def _begin(self) -> OpenTransaction:
        if self._opening is not None:
            self._opening.join()
            self._opening = None
            if self._opening_failed is not None:
                raise self._opening_failed
        last, self._last = self._last, None
        if self._behind or (last is not None and not last.drained()):
            return OpenTransaction(None)
        producer = self._take()
        if producer is None:
            return OpenTransaction(None)
        try:
            producer.begin()
        except kafka("KafkaSink").KafkaException as error:
            log.info("Kafka: transaction %s could not begin: %s", producer.identity, failure_code(error))
            self._forget(producer)
            return OpenTransaction(None)
        return OpenTransaction(producer)

    def _take(self) -> TransactionalProducer | None:
        with self._lock:
            if not self._free:
                return None
            # A lost one first: to make it anew ends what stands open under it. Then one that is ready.
            self._free.sort(key=lambda n: (n not in self._lost, n not in self._ready))
            number = self._free.pop(0)
            producer = self._ready.get(number)
        if producer is None:
            try:
                if number in self._lost:
                    self._assert_owner()
                producer = self._made(number)
            except BaseException:
                with self._lock:
                    self._free.append(number)
                raise
            with self._lock:
                self._ready[number] = producer
                self._lost.discard(number)
        return producer

    def _made(self, number: int) -> TransactionalProducer:
        identity = transactional_id(self.prefix, self.subtask, number)
        producer = TransactionalProducer(identity, self._settings, self.markers)
        producer.initialise()
        return producer

    def _put_back(self, producer: TransactionalProducer) -> None:
        """Free again; one that is broken is made anew when it is wanted."""
        number = self._numbers[producer.identity]
        with self._lock:
            if producer.open_since is not None:
                self._ready.pop(number, None)
                self._lost.add(number)
            if number not in self._free:
                self._free.append(number)

    def _forget(self, producer: TransactionalProducer) -> None:
        number = self._numbers[producer.identity]
        producer.discard()
        with self._lock:
            self._ready.pop(number, None)
            self._lost.add(number)
            if number not in self._free:
                self._free.append(number)

    def _fall_behind(self, point: CommitPoint) -> None:
        """That transaction is lost: it and all that were prepared after it are to be sent again, in order."""
        with self._lock:
            self._behind = True
            if self._open is not None:
                self._open.overtaken = True
            given_up = [p for other, p in self._prepared.items() if other >= point and p is not None]
            self._prepared = {other: None if other >= point else p for other, p in self._prepared.items()}
        for producer in given_up:
            producer.discard()
            producer.abort(2.0)
            self._forget(producer)

    def _done(self, point: CommitPoint, producer: TransactionalProducer | None) -> None:
        with self._lock:
            self._prepared.pop(point, None)
            self._behind = any(p is None for p in self._prepared.values())
        if producer is not None:
            self._put_back(producer)

    # While writing

    def _serve(self, transaction: OpenTransaction, producer: TransactionalProducer) -> None:
        self._since_served = 0
        broken = producer.serve()
        if broken is not None:
            self._fail(transaction, producer, broken)
        elif producer.open_since is not None and time.monotonic() - producer.open_since > self._oldest_s:
            self._give_up(transaction, "it is open for too long")

    def _fail(self, transaction: OpenTransaction, producer: TransactionalProducer, failure: Any) -> None:
        """The client says that the transaction cannot go on: what will never do any better is raised."""
        if is_refusal(failure):
            raise refusal(failure, producer.undelivered.records or transaction.log.decoded(), self._settings)
        self._give_up(transaction, self._settings.redact(str(failure)))

    def _give_up(self, transaction: OpenTransaction, reason: str) -> None:
        """Go on without a transaction; what is in the log is sent when its checkpoint completes."""
        producer, transaction.producer = transaction.producer, None
        assert producer is not None
        log.info("Kafka: transaction %s is given up: %s. Its records are sent later.", producer.identity, reason)
        producer.discard()
        producer.abort(2.0)
        self._forget(producer)
