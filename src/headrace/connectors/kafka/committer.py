"""Commits prepared transactions: beside the writer, or in the driver when the writer is dead.

Recovery, in the driver, for one sink:
    1. learn who owned the prefix before this attempt; refuse one that belongs to another job or sink
    2. end every transaction that shards of older attempts may have left open: readers and step 3 wait for nothing
    3. read the markers, and send again what the restored checkpoint holds and no marker shows
    4. write down that this attempt owns the prefix
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from headrace.checkpoint.handles import HistoryPoint
from headrace.connectors.kafka.errors import KafkaUnavailableError
from headrace.connectors.kafka.markers import Markers, Owner
from headrace.connectors.kafka.prepared import CommitPoint, TransactionHeader, header_of
from headrace.connectors.kafka.resending import send_again
from headrace.connectors.kafka.shard import Shard
from headrace.connectors.kafka.transactions import (
    TransactionalProducer,
    TransactionLost,
    end_transactions,
    transactional_id,
)
from headrace.connectors.sink import CommittedOutput, Committer
from headrace.errors import CommitFailedError, CommitOutcomeUnknownError, ConfigurationError

if TYPE_CHECKING:
    from headrace.connectors.kafka.sink import KafkaSink

_NEVER = CommitPoint(-1, -1)


class KafkaCommitter(Committer):
    """`shards` are those of writers in this process, by job, operator and subtask."""

    def __init__(self, sink: KafkaSink, shards: Mapping[tuple[str, str, int], Shard]) -> None:
        self._sink = sink
        self._settings = sink.settings
        self._shards = shards
        self._recovering: _Recovery | None = None

    def commit(self, items: Sequence[bytes]) -> None:
        try:
            dead = [item for item in items if not self._commit_live(item)]
            if dead:
                self._recovery(header_of(dead[0])).send_missing(dead)
        except KafkaUnavailableError as error:
            raise CommitOutcomeUnknownError(str(error)) from error
        except TransactionLost as error:
            raise CommitOutcomeUnknownError(f"A Kafka transaction was lost while it was sent again: {error}.") from None

    def _commit_live(self, item: bytes) -> bool:
        """Commit a transaction of this process; False if it is none."""
        header = header_of(item)
        shard = self._shards.get((header.job_id, header.uid, header.subtask))
        if shard is None or shard.attempt != header.attempt or shard.prefix != header.prefix:
            return False
        if shard.holds(header.point):
            shard.commit(header.point, item)
        # Else it was committed before: this is the second time that somebody asks.
        return True

    # In the driver

    def attempt_starts(self, job_id: str, uid: str, attempt: int, parallelism: int) -> None:
        try:
            self._recovering = _Recovery(self._sink, job_id, uid, attempt, parallelism)
            self._recovering.begin()
        except KafkaUnavailableError as error:
            raise CommitFailedError(str(error)) from error

    def committed_since(self, job_id: str, uid: str, point: HistoryPoint) -> Sequence[CommittedOutput]:
        recovery = _Recovery(self._sink, job_id, uid, point.attempt, 0)
        try:
            # Ends what the dead left open: markers behind it could not be read. Whoever starts sends it again.
            recovery.begin()
            return recovery.committed_since(point)
        except KafkaUnavailableError as error:
            raise CommitFailedError(str(error)) from error

    def abort_leftovers(self, job_id: str, uid: str, attempt: int, keep: Sequence[bytes]) -> None:
        if self._recovering is not None:
            try:
                self._recovering.finish()
            except KafkaUnavailableError as error:
                raise CommitFailedError(str(error)) from error

    def _recovery(self, header: TransactionHeader) -> _Recovery:
        if self._recovering is None:
            # Asked without an attempt of its own: as the one that wrote the items, and nothing is taken over.
            self._recovering = _Recovery(self._sink, header.job_id, header.uid, header.attempt + 1, header.shards)
            self._recovering.begin()
        return self._recovering


class _Recovery:
    """One recovery of one sink."""

    def __init__(self, sink: KafkaSink, job_id: str, uid: str, attempt: int, parallelism: int) -> None:
        self._sink = sink
        self._settings = sink.settings
        self._job_id = job_id
        self._uid = uid
        self._attempt = attempt
        self._parallelism = parallelism
        self._prefix = sink.prefix_for(job_id, uid)
        self._markers = Markers(sink.marker_topic, sink.settings)
        self._before: Owner | None = None
        self._ended: set[str] = set()
        self._owners: dict[str, Owner | None] = {}

    def begin(self) -> None:
        before = self._before = self._markers.owner(self._prefix)  # Step 1
        if before is None:
            return
        if (before.job, before.uid) != (self._job_id, self._uid) and not self._sink.takes_over:
            raise ConfigurationError(
                f'The transactional id prefix "{self._prefix}" belongs to sink "{before.uid}" of job {before.job}: two '
                "sinks with one prefix would end each other's transactions. Choose another with "
                "set_transactional_id_prefix, or call take_over_prefix() if the other one is gone for good."
            )
        self._end(self._prefix, before.shards, before.pool)  # Step 2

    def finish(self) -> None:
        before = self._before
        shards = max(self._parallelism, 0 if before is None else before.shards)
        owner = Owner(
            job=self._job_id,
            uid=self._uid,
            attempt=self._attempt,
            # Shards of wider attempts are ended by now.
            shards=self._parallelism,
            pool=self._sink.pool_size,
            token=secrets.token_hex(8),
        )
        # Attempts are counted anew in another checkpoint directory: markers of the old count mean nothing in the new.
        foreign = before is not None and not self._is_ours(before)
        self._markers.write_owner(self._prefix, owner, forget_shards=shards if foreign else 0)  # Step 4

    def committed_since(self, point: HistoryPoint) -> list[CommittedOutput]:
        """Shards whose newest marker of that history is newer than the point, the newest last."""
        if self._before is None:
            return []
        newer = [
            (*committed, shard)
            for shard, committed in self._markers.committed(self._prefix, point.history).items()
            if committed > CommitPoint(point.attempt, point.checkpoint_id)
        ]
        return [
            CommittedOutput(
                attempt, checkpoint, f"transactions of {self._prefix}-{shard} up to checkpoint {checkpoint}"
            )
            for attempt, checkpoint, shard in sorted(newer)
        ]

    def send_missing(self, items: Sequence[bytes]) -> None:
        """Step 3. Items of one shard come in order."""
        headers = [header_of(item) for item in items]
        for prefix in dict.fromkeys(header.prefix for header in headers):
            own = [header for header in headers if header.prefix == prefix]
            if self._know_outcome(prefix, own):
                self._end(prefix, max(h.shards for h in own), max(h.pool for h in own))
                mine = [(h, item) for h, item in zip(headers, items, strict=True) if h.prefix == prefix]
                self._send_missing(prefix, mine)

    def _send_missing(self, prefix: str, items: Sequence[tuple[TransactionHeader, bytes]]) -> None:
        markers = Markers(items[0][0].markers, self._settings, items[0][0].history)
        committed = markers.committed(prefix)
        producers: dict[int, TransactionalProducer] = {}
        for header, item in items:
            if header.point <= committed.get(header.subtask, _NEVER):
                continue
            producer = producers.get(header.subtask)
            if producer is None:
                identity = transactional_id(prefix, header.subtask, 0)
                producer = producers[header.subtask] = TransactionalProducer(identity, self._settings, markers)
                producer.initialise()
            send_again(producer, item, prefix, header.subtask, header.point, self._settings)

    def _end(self, prefix: str, shards: int, pool: int) -> None:
        ids = {transactional_id(prefix, shard, n) for shard in range(shards) for n in range(pool)} - self._ended
        end_transactions(sorted(ids), self._settings, self._markers)
        self._ended |= ids

    def _is_ours(self, owner: Owner) -> bool:
        """Whether the owner before was an earlier attempt of this very history."""
        return (owner.job, owner.uid) == (self._job_id, self._uid) and owner.attempt < self._attempt

    def _know_outcome(self, prefix: str, headers: Sequence[TransactionHeader]) -> bool:
        """Whether markers can tell what was committed: raises if they cannot, unless the sink says what to do then."""
        owner = self._before if prefix == self._prefix else self._markers.owner(prefix)
        newest = max(header.attempt for header in headers)
        mine = all((header.job_id, header.uid) == (self._job_id, self._uid) for header in headers)
        where = f"{sum(header.records for header in headers)} records of checkpoint {headers[-1].checkpoint_id}"
        if owner is None:
            if not any(header.owned for header in headers):
                return True
            reason = f"the topic {headers[0].markers} has lost its markers of {prefix}"
        elif owner.attempt < newest or (mine and prefix == self._prefix and not self._is_ours(owner)):
            reason = (
                f"{prefix} was used by attempt {owner.attempt} of job {owner.job} since, from another checkpoint "
                "directory"
            )
        else:
            return True
        if self._sink.lost_markers == "send":
            return True
        if self._sink.lost_markers == "leave":
            return False
        raise CommitOutcomeUnknownError(
            f"Whether {where} are in Kafka already is unknown: {reason}. Look into the output topic, then call "
            'set_on_lost_markers("send") to send them (again), or set_on_lost_markers("leave") to leave them out.'
        )
