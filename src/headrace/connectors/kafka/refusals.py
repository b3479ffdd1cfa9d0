"""Records that brokers refuse and will refuse every time: which errors say so, which record is meant, the way out.

Brokers judge batches, and the client says the same of every record of one that is refused. So the record is chosen:
the largest if one was too large, the one without a key if a key was missed. Where the client says only that the
transaction is broken (a topic that must not be written to), it is chosen from all of the transaction.

MSG_SIZE_TOO_LARGE is said of a batch, which brokers count as one message. No record of it need be too large.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from headrace.connectors.kafka.client import kafka
from headrace.connectors.kafka.errors import KafkaRefusedError
from headrace.connectors.kafka.records import OutRecord
from headrace.connectors.kafka.settings import KafkaSettings

MOST_NOTED = 10_000
"""Records of which it is kept that they were not delivered."""
_CREATE = "Create it, or let the topic selector and the partitioner name what exists."
_SHRINK = (
    "Raise max.message.bytes of the topic (and message.max.bytes of the sink, with set_property). If no record is that "
    'large, it was a batch: set_property("batch.size", …) below the limit of the topic.'
)
_WAYS_OUT = {
    "MSG_SIZE_TOO_LARGE": _SHRINK,
    "INVALID_MSG_SIZE": _SHRINK,
    "RECORD_LIST_TOO_LARGE": _SHRINK,
    "INVALID_RECORD": "A compacted topic takes no record without a key: see that set_key gives one, or change the "
    "cleanup.policy of the topic.",
    "INVALID_TIMESTAMP": "Its timestamp is the event time: keep it within message.timestamp.before.max.ms and "
    "message.timestamp.after.max.ms of the topic, or change those.",
    "TOPIC_AUTHORIZATION_FAILED": "Allow the sink to write to the topic.",
    "CLUSTER_AUTHORIZATION_FAILED": "Allow the sink to write.",
    "UNKNOWN_TOPIC_OR_PART": _CREATE,
    "_UNKNOWN_TOPIC": _CREATE,
    "_UNKNOWN_PARTITION": _CREATE,
    "TOPIC_EXCEPTION": "Choose a name of letters, digits, '.', '_' and '-'.",
    "POLICY_VIOLATION": "See the policy of the brokers.",
    "UNSUPPORTED_FOR_MESSAGE_FORMAT": "See message.format.version of the topic.",
    "UNSUPPORTED_COMPRESSION_TYPE": "Choose another compression.type with set_property.",
}


@cache
def _ways_out() -> dict[int, str]:
    kinds = kafka("KafkaSink").KafkaError
    return {getattr(kinds, name): way_out for name, way_out in _WAYS_OUT.items()}


def is_refusal(failure: Any) -> bool:
    """Whether a `KafkaError` says that the record itself is not wanted: no retry can help, and no other producer."""
    return failure.code() in _ways_out()


class Undelivered:
    """Records that the client could not deliver, and why. `told` is its callback, for errors alone."""

    def __init__(self) -> None:
        kinds = kafka("KafkaSink").KafkaError
        self._given_up = {kinds._PURGE_QUEUE, kinds._PURGE_INFLIGHT}
        self.failure: Any = None
        """What was said of `records`, a `KafkaError`: a refusal before anything else."""
        self.records: list[OutRecord] = []

    def told(self, error: Any, message: Any) -> None:
        if error is not None and error.code() not in self._given_up:
            timestamp = message.timestamp()[1]
            self.note(error, (message.topic(), message.value(), message.key(), None, timestamp, None))

    def note(self, error: Any, record: OutRecord) -> None:
        if self.failure is None or (is_refusal(error) and not is_refusal(self.failure)):
            self.failure, self.records = error, []
        if error.code() == self.failure.code() and len(self.records) < MOST_NOTED:
            self.records.append(record)

    def forget(self) -> None:
        self.failure, self.records = None, []


def refusal(
    failure: Any, records: Iterable[OutRecord], settings: KafkaSettings, complete: int | None = None
) -> KafkaRefusedError:
    """The error for one of these records, of which the client has said `failure`.

    `complete`: the checkpoint that holds the record, if it is complete and nobody can take the record out again.
    """
    reason = settings.redact(failure.str())
    everything = list(records)
    suspects = [record for record in everything if f"{record[0]} [" in reason] or everything
    record = _meant(failure.name(), suspects)
    if record is None:
        topics, key = sorted({record[0] for record in suspects}), None
        shown = f"records for {'topic' if len(topics) == 1 else 'one of the topics'} {', '.join(topics[:10])}"
    else:
        topics, key = [record[0]], record[2]
        shown = f"a record for topic {record[0]} with {_key(key)} and {_size(record[1])}"
    text = f"Kafka at {settings.bootstrap_servers} refuses {shown}: {reason}. {_ways_out()[failure.code()]}"
    if complete is not None:
        text += (
            f" Checkpoint {complete} holds it and is complete, so every recovery sends it again: once brokers take it, "
            "start the job again, and nothing is missed. Else change what the program writes, and start it from an "
            "older checkpoint or savepoint with --from."
        )
    return KafkaRefusedError(text, topic=topics[0] if len(topics) == 1 else "", key=key, reason=reason)


def _meant(kind: str, records: Sequence[OutRecord]) -> OutRecord | None:
    """Which record it most likely is; None where it is the topic that matters."""
    match kind:
        case "MSG_SIZE_TOO_LARGE" | "INVALID_MSG_SIZE" | "RECORD_LIST_TOO_LARGE":
            return max(records, key=lambda record: len(record[1] or b"") + len(record[2] or b""))
        case "INVALID_RECORD":
            return next((record for record in records if record[2] is None), records[0])
        case "INVALID_TIMESTAMP":
            return max(records, key=lambda record: record[4] or 0)
    return None


def _key(key: bytes | None) -> str:
    return "no key" if key is None else f"key {key[:100]!r}{'…' if len(key) > 100 else ''}"


def _size(value: bytes | None) -> str:
    return "no value" if value is None else f"a value of {len(value):,} bytes"
