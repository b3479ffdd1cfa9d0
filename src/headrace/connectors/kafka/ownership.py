"""Who may write under a prefix of transactional ids: a compare-and-set on brokers, which have none of their own.

A driver claims the prefix before it does anything else that others can see:

    1. init_transactions of `<prefix>-owner`: from here on no other driver can write an owner record
    2. read the owner record: a higher attempt of the same history means that this driver was overtaken
    3. write the new owner in a transaction under that id

Owner records are written under this id alone. If step 3 succeeds, nobody did step 1 since, so the record of step 2 was
the newest one. If it fails, another driver is claiming the prefix, and the claim starts over.

Everybody who sends or commits under the prefix, driver or task, keeps one order: init_transactions of the shard's id,
then `assert_held`, then send. A new owner writes its name first and initialises the ids of all shards afterwards. So a
zombie either reads the new name, or its id is initialised after its check, and brokers refuse what it sends.

A check before init_transactions cannot be exact: a process may be paused between the two, and then it aborts an open
transaction of the live owner. That one has the records in its log and sends them again.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

import msgspec

from headrace import failpoints
from headrace.connectors.kafka.client import kafka
from headrace.connectors.kafka.errors import KafkaUnavailableError
from headrace.connectors.kafka.markers import Markers, Owner
from headrace.connectors.kafka.settings import KafkaSettings
from headrace.connectors.kafka.transactions import TransactionalProducer, TransactionLost
from headrace.errors import ConfigurationError, FencedError

CLAIM_WITHIN_S = 60.0
HISTORIES_KEPT = 32
"""How many former histories an owner record names."""


class Ownership:
    """The claim of one attempt to one prefix. Used in the driver."""

    def __init__(self, prefix: str, markers: Markers, settings: KafkaSettings, *, takes_over: bool = False) -> None:
        self.prefix = prefix
        self._markers = markers
        self._settings = settings
        self._takes_over = takes_over
        self._token = secrets.token_hex(8)
        self._held: Owner | None = None
        self._producer: TransactionalProducer | None = None
        self.before: Owner | None = None
        """The last owner that finished its recovery; None if none did. Markers are as that one's tasks left them."""

    def claim(self, *, job: str, uid: str, attempt: int, history: str, shards: int, pool: int) -> None:
        """Become the owner, or raise `FencedError`, or `ConfigurationError` if the prefix belongs to another sink.

        The record names at least as many shards as the one before: until `settle` is called, each of them may have an
        open transaction.
        """
        claimed = Owner(job, uid, attempt, shards, pool, self._token, history, settled=False)

        def decide(found: Owner | None) -> Owner:
            if found is None:
                return claimed
            if found.token == self._token:
                return found  # our own, aborted by another driver that has not written its name
            refuse(found, claimed, self.prefix, takes_over=self._takes_over)
            return msgspec.structs.replace(
                claimed,
                shards=max(shards, found.shards),
                pool=max(pool, found.pool),
                superseded=superseded_by(history, found),
                before=found if found.settled else found.before,
            )

        self._held = self._swap(decide)
        self.before = self._held.before

    @property
    def width(self) -> tuple[int, int]:
        """Shards and ids of each that may have open transactions."""
        assert self._held is not None, "claimed before"
        return self._held.shards, self._held.pool

    def settle(self, shards: int, pool: int) -> None:
        """Recovery is finished: the next owner need look at these shards only."""
        assert self._held is not None, "claimed before"
        assert self._producer is not None
        settled = msgspec.structs.replace(self._held, shards=shards, pool=pool, settled=True, before=None)
        try:
            # If this succeeds, nobody has initialised the id since the claim.
            self._write(self._producer, settled)
        except (TransactionLost, kafka("KafkaSink").KafkaException):
            self._swap(lambda found: self._still_held(found) and settled)

    def fence_off(self, owner: Owner) -> None:
        """Tasks of this owner, found before, do not pass for it any more. Nobody else becomes the owner."""

        def decide(found: Owner | None) -> Owner:
            return msgspec.structs.replace(found or owner, token=self._token)

        self._swap(decide)

    def assert_held(self) -> None:
        """Raise `FencedError` if another owner has claimed the prefix since."""
        self._still_held(self._markers.owner(self.prefix))

    def _still_held(self, found: Owner | None) -> Owner:
        assert self._held is not None, "claimed before"
        if found is None:
            raise KafkaUnavailableError(
                f"The topic {self._markers.topic} has lost the owner of {self.prefix} while it was in use."
            )
        if found.token != self._token:
            raise overtaken(self.prefix, found, self._held.attempt)
        return found

    def _swap(self, decide: Callable[[Owner | None], Owner]) -> Owner:
        deadline = time.monotonic() + CLAIM_WITHIN_S
        while True:
            producer = TransactionalProducer(f"{self.prefix}-owner", self._settings, self._markers)
            producer.initialise()  # Step 1
            owner = decide(self._markers.owner(self.prefix))  # Step 2
            failpoints.hit("sink_recovery", "owner-read")
            try:
                self._write(producer, owner)  # Step 3
            except (TransactionLost, kafka("KafkaSink").KafkaException) as error:
                if time.monotonic() > deadline:
                    raise KafkaUnavailableError(
                        f"Kafka at {self._settings.bootstrap_servers} did not take an owner record for "
                        f"{self.prefix} within {CLAIM_WITHIN_S:g} s: {self._settings.redact(str(error))}."
                    ) from None
                continue
            self._producer = producer
            return owner

    def _write(self, producer: TransactionalProducer, owner: Owner) -> None:
        producer.begin()
        producer.write_owner(self.prefix, owner)
        producer.commit()


def refuse(found: Owner, claimed: Owner, prefix: str, *, takes_over: bool) -> None:
    """Raise if `claimed` may not follow `found`."""
    if (found.job, found.uid) != (claimed.job, claimed.uid):
        if not takes_over:
            raise ConfigurationError(
                f'The transactional id prefix "{prefix}" belongs to sink "{found.uid}" of job {found.job}: two '
                "sinks with one prefix would end each other's transactions. Choose another with "
                "set_transactional_id_prefix, or call take_over_prefix() if the other one is gone for good."
            )
    elif found.history == claimed.history != "":
        # No option overrides this: a higher attempt was begun by a driver that owns the job directory.
        if found.attempt >= claimed.attempt:
            raise overtaken(prefix, found, claimed.attempt)
    elif claimed.history in found.superseded and not takes_over:
        raise FencedError(
            f"Attempt {found.attempt} of job {found.job} has taken the transactional id prefix {prefix} over from "
            "this checkpoint directory and writes from another one. Stop that job and call take_over_prefix() to go "
            "on from here."
        )


def superseded_by(history: str, found: Owner) -> tuple[str, ...]:
    """The histories that owned the prefix before `history` does, the newest last."""
    known = [*found.superseded, found.history]
    return tuple(dict.fromkeys(one for one in known if one and one != history))[-HISTORIES_KEPT:]


def overtaken(prefix: str, owner: Owner, attempt: int) -> FencedError:
    return FencedError(
        f"Transactions of {prefix} belong to attempt {owner.attempt} of job {owner.job} now; attempt {attempt} sends "
        "and commits nothing more."
    )
