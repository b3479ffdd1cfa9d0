"""Commits prepared transactions: beside the writer, or in the driver when the writer is dead.

Recovery, in the driver, for one sink:
    1. claim the prefix: tasks and drivers of older attempts notice it before they send anything more, see `ownership`
    2. end every transaction that shards of older attempts may have left open: readers and step 3 wait for nothing
    3. read the markers, and send again what the restored checkpoint holds and no marker shows
    4. note that recovery is finished, and how many shards this attempt has

Before each step that others can see, the driver makes sure that it is still the owner.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from headrace import failpoints
from headrace.checkpoint.handles import HistoryPoint
from headrace.connectors.kafka.errors import KafkaUnavailableError
from headrace.connectors.kafka.markers import Marker, Markers, Owner
from headrace.connectors.kafka.ownership import Ownership
from headrace.connectors.kafka.prepared import CommitPoint, TransactionHeader, header_of
from headrace.connectors.kafka.resending import send_again
from headrace.connectors.kafka.shard import Shard
from headrace.connectors.kafka.transactions import (
    ENDED_AT_ONCE,
    TransactionalProducer,
    TransactionLost,
    end_transactions,
    transactional_id,
)
from headrace.connectors.sink import CommittedOutput, Committer
from headrace.errors import CommitFailedError, CommitOutcomeUnknownError

if TYPE_CHECKING:
    from headrace.connectors.kafka.sink import KafkaSink


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
            if self._recovering is not None:
                self._recovering.assert_owner()
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
            self._recovering = _Recovery(self._sink, job_id, uid, attempt, parallelism, self.history)
            self._recovering.begin()
        except KafkaUnavailableError as error:
            raise CommitFailedError(str(error)) from error

    def committed_since(self, job_id: str, uid: str, point: HistoryPoint) -> Sequence[CommittedOutput]:
        try:
            return _Recovery(self._sink, job_id, uid, point.attempt, 0, self.history).committed_since(point)
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
            # Without an attempt of its own, so nothing is claimed.
            self._recovering = _Recovery(self._sink, header.job_id, header.uid, header.attempt + 1, header.shards)
        return self._recovering


class _Recovery:
    """One recovery of one sink. `history` counts `attempt`."""

    def __init__(
        self, sink: KafkaSink, job_id: str, uid: str, attempt: int, parallelism: int, history: str = ""
    ) -> None:
        self._sink = sink
        self._settings = sink.settings
        self._job_id = job_id
        self._uid = uid
        self._attempt = attempt
        self._parallelism = parallelism
        self._history = history
        self._prefix = sink.prefix_for(job_id, uid)
        self._markers = Markers(sink.marker_topic, sink.settings)
        self._claims: dict[tuple[str, str], Ownership] = {}
        """By marker topic and prefix. One that an older program used is claimed when its items are sent again."""
        self._ended: set[str] = set()

    def begin(self) -> None:
        claim = self._claim(self._prefix, self._markers, self._parallelism, self._sink.pool_size)  # Step 1
        self._end(self._prefix, self._markers, *claim.width)  # Step 2
        failpoints.hit("sink_recovery", "ended")

    def finish(self) -> None:
        failpoints.hit("sink_recovery", "sent")
        for claim in self._claims.values():
            is_own = claim.prefix == self._prefix
            claim.settle(self._parallelism if is_own else 0, self._sink.pool_size if is_own else 0)  # Step 4

    def assert_owner(self) -> None:
        for claim in self._claims.values():
            claim.assert_held()

    def committed_since(self, point: HistoryPoint) -> list[CommittedOutput]:
        """Shards whose newest marker of that history is newer than the point, the newest last."""
        owner = self._markers.owner(self._prefix)
        if owner is None:
            return []
        if owner.history == self._history != "":
            # Or tasks of an older attempt of this job directory could go on, and commit after the markers are read.
            Ownership(self._prefix, self._markers, self._settings).fence_off(owner)
        # Markers behind what the dead left open could not be read. Whoever starts sends it again.
        self._end(self._prefix, self._markers, owner.shards, owner.pool)
        newer = [
            (*marker.point, shard)
            for shard, marker in self._markers.committed(self._prefix).items()
            if marker.history == point.history and marker.point > CommitPoint(point.attempt, point.checkpoint_id)
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
        for topic, prefix in dict.fromkeys((header.markers, header.prefix) for header in headers):
            mine = [
                (h, item) for h, item in zip(headers, items, strict=True) if (h.markers, h.prefix) == (topic, prefix)
            ]
            self._send_missing(prefix, topic, mine)

    def _send_missing(self, prefix: str, topic: str, items: Sequence[tuple[TransactionHeader, bytes]]) -> None:
        shards, pool = max(h.shards for h, _ in items), max(h.pool for h, _ in items)
        markers = Markers(topic, self._settings, items[0][0].history)
        owner = self._owner_before(prefix, markers, shards, pool)
        self._end(prefix, markers, shards, pool)
        committed = markers.committed(prefix)
        failpoints.hit("sink_recovery", "markers-read")
        missing = [(h, item) for h, item in items if self._is_missing(h, committed.get(h.subtask), owner)]
        claim = self._claims.get((topic, prefix))
        if missing and claim is not None:
            claim.assert_held()
        producers: dict[int, TransactionalProducer] = {}
        for subtask in dict.fromkeys(header.subtask for header, _ in missing):
            identity = transactional_id(prefix, subtask, 0)
            producers[subtask] = TransactionalProducer(identity, self._settings, markers)
            producers[subtask].initialise()
        failpoints.hit("sink_recovery", "initialised")
        if missing and claim is not None:
            # After the ids are initialised: whoever becomes the owner from here on initialises them again.
            claim.assert_held()
        for header, item in missing:
            failpoints.hit("sink_recovery", "before-send")
            send_again(producers[header.subtask], item, prefix, header.subtask, header.point, self._settings)

    def _owner_before(self, prefix: str, markers: Markers, shards: int, pool: int) -> Owner | None:
        """Who wrote under the prefix before this recovery, which claims it now if it has not yet."""
        if not self._claims:
            return markers.owner(prefix)
        claim = self._claims.get((markers.topic, prefix)) or self._claim(prefix, markers, shards, pool)
        return claim.before

    def _claim(self, prefix: str, markers: Markers, shards: int, pool: int) -> Ownership:
        # A prefix of former days belonged to the sink whose items these are, whatever it is called now.
        takes_over = self._sink.takes_over or prefix != self._prefix
        claim = Ownership(prefix, markers, self._settings, takes_over=takes_over)
        failpoints.hit("sink_recovery", "start")
        claim.claim(
            job=self._job_id,
            uid=self._uid,
            attempt=self._attempt,
            history=self._history,
            shards=shards,
            pool=pool,
        )
        failpoints.hit("sink_recovery", "claimed")
        self._claims[markers.topic, prefix] = claim
        return claim

    def _end(self, prefix: str, markers: Markers, shards: int, pool: int) -> None:
        ids = {transactional_id(prefix, shard, n) for shard in range(shards) for n in range(pool)} - self._ended
        claim = self._claims.get((markers.topic, prefix))
        for start in range(0, len(ids), ENDED_AT_ONCE):
            if start and claim is not None:
                claim.assert_held()
            end_transactions(sorted(ids)[start : start + ENDED_AT_ONCE], self._settings, markers)
        self._ended |= ids

    def _is_missing(self, header: TransactionHeader, marker: Marker | None, owner: Owner | None) -> bool:
        """Whether an item is to be sent: raises if markers cannot tell, unless the sink says what to do then."""
        unknown = self._unknown(header, marker, owner)
        if unknown is None:
            return marker is None or not _covers(marker, header)
        if self._sink.lost_markers == "fail":
            raise CommitOutcomeUnknownError(
                f"Whether {header.records} records of checkpoint {header.checkpoint_id} are in Kafka already is "
                f"unknown: {unknown}. Look into the output topic, then call "
                'set_on_lost_markers("send") to send them (again), or set_on_lost_markers("leave") to leave them out.'
            )
        return self._sink.lost_markers == "send"

    def _unknown(self, header: TransactionHeader, marker: Marker | None, owner: Owner | None) -> str | None:
        """Why markers cannot tell whether an item was committed; None if they can."""
        if owner is None:
            return f"the topic {header.markers} has lost its markers of {header.prefix}" if header.owned else None
        used = (
            f"{header.prefix} was used by attempt {owner.attempt} of job {owner.job} since, from another checkpoint "
            "directory"
        )
        if not owner.history or not header.history:
            # Written by a version that did not say: attempts alone have to tell.
            mine = (header.job_id, header.uid, header.prefix) == (self._job_id, self._uid, self._prefix)
            return used if owner.attempt < header.attempt or (mine and owner.attempt >= self._attempt) else None
        if marker is None or marker.history in ("", header.history):
            return None
        histories = [*owner.superseded, owner.history]
        if header.history in histories and marker.history in histories[: histories.index(header.history)]:
            return None  # left from before the history of the item
        return used


def _covers(marker: Marker, header: TransactionHeader) -> bool:
    return marker.history in ("", header.history) and marker.point >= header.point
