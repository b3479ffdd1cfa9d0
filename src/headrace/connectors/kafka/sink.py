"""The Kafka sink and its builder."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from enum import Enum
from typing import Any, Literal

from headrace.connectors.kafka.client import ANSWER_WITHIN_S, admin_client, kafka, unavailable
from headrace.connectors.kafka.committer import KafkaCommitter
from headrace.connectors.kafka.errors import KafkaTopicError
from headrace.connectors.kafka.markers import DEFAULT_TOPIC, Markers
from headrace.connectors.kafka.records import KafkaRecordSerializationSchema
from headrace.connectors.kafka.settings import KafkaSettings
from headrace.connectors.kafka.shard import Shard
from headrace.connectors.kafka.transactions import TRANSACTION_TIMEOUT_MS
from headrace.connectors.kafka.writers import ExactlyOnceWriter, PlainWriter
from headrace.connectors.sink import Committer, Sink, SinkGuarantee, SinkWriter, WriterContext
from headrace.errors import ConfigurationError

POOL_SIZE = 3
"""Transactional ids of a subtask: for the open transaction, one that is being committed, and one to spare."""

LostMarkers = Literal["fail", "send", "leave"]
_PREFIX = re.compile(r"[A-Za-z0-9._-]{1,150}")


class DeliveryGuarantee(Enum):
    """What a KafkaSink promises when the job's source can be replayed."""

    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"
    NONE = "none"


_GUARANTEES = {
    DeliveryGuarantee.EXACTLY_ONCE: SinkGuarantee.TWO_PHASE,
    DeliveryGuarantee.AT_LEAST_ONCE: SinkGuarantee.AT_LEAST_ONCE,
    DeliveryGuarantee.NONE: SinkGuarantee.NONE,
}


class KafkaSink(Sink):
    """Writes records to Kafka: made by `KafkaSink.builder()`.

    EXACTLY_ONCE: the first record after a barrier opens a transaction; its records become visible to readers with
    `isolation.level=read_committed` when their checkpoint is complete, all at once for each subtask. They are kept with
    the checkpoint too, and a marker in a compacted topic is part of the transaction: whatever dies whenever, and
    however long the job is down, recovery finds out what got through and sends only the rest.

    AT_LEAST_ONCE: visible at once; a checkpoint waits until brokers have everything before it. NONE: nothing waits.
    """

    def __init__(
        self,
        *,
        settings: KafkaSettings,
        schema: KafkaRecordSerializationSchema,
        delivery: DeliveryGuarantee,
        prefix: str | None,
        marker_topic: str,
        pool_size: int,
        takes_over: bool,
        lost_markers: LostMarkers,
    ) -> None:
        self.settings = settings
        self.schema = schema
        self.delivery = delivery
        self.guarantee = _GUARANTEES[delivery]
        self.prefix = prefix
        self.marker_topic = marker_topic
        self.pool_size = pool_size
        self.takes_over = takes_over
        self.lost_markers: LostMarkers = lost_markers
        self._shards: dict[tuple[str, str, int], Shard] = {}

    @staticmethod
    def builder() -> KafkaSinkBuilder:
        return KafkaSinkBuilder()

    def prefix_for(self, job_id: str, uid: str) -> str:
        """What the transactional ids of this sink begin with: as set, or one that no other job and sink has."""
        if self.prefix is not None:
            return self.prefix
        return f"headrace-{hashlib.sha256(b'|'.join((job_id.encode(), uid.encode()))).hexdigest()[:20]}"

    def create_writer(self, context: WriterContext) -> SinkWriter:
        if self.delivery is not DeliveryGuarantee.EXACTLY_ONCE:
            at_least_once = self.delivery is DeliveryGuarantee.AT_LEAST_ONCE
            return PlainWriter(self.schema, self.settings, at_least_once=at_least_once)
        shard = Shard(
            prefix=self.prefix_for(context.job_id, context.uid),
            job_id=context.job_id,
            uid=context.uid,
            subtask=context.subtask,
            shards=context.parallelism,
            attempt=context.attempt,
            pool=self.pool_size,
            settings=self.settings,
            markers=Markers(self.marker_topic, self.settings, context.history),
            history=context.history,
        )
        self._shards[shard.job_id, shard.uid, shard.subtask] = shard
        return ExactlyOnceWriter(shard, self.schema, self.settings, self._forget)

    def create_committer(self) -> Committer | None:
        return KafkaCommitter(self, self._shards) if self.delivery is DeliveryGuarantee.EXACTLY_ONCE else None

    def preflight(self) -> None:
        """Brokers answer, the topic is there, the marker topic is there or made, the timeout is one they allow."""
        library = kafka("KafkaSink")
        admin = admin_client(self.settings, "KafkaSink")
        try:
            found = admin.list_topics(timeout=ANSWER_WITHIN_S)
        except library.KafkaException as error:
            raise unavailable("its topics", self.settings, error) from None
        topic = self.schema.topic
        if topic is not None and (topic not in found.topics or found.topics[topic].error is not None):
            raise KafkaTopicError(f"Kafka at {self.settings.bootstrap_servers} has no topic {topic}. Create it.")
        if self.delivery is DeliveryGuarantee.EXACTLY_ONCE:
            self._check_timeout(admin, next(iter(found.brokers)))
            Markers(self.marker_topic, self.settings).create_topic()

    def describe(self) -> str:
        where = self.schema.topic or "topics chosen by record"
        note = "; readers need isolation.level=read_committed" if self._is_exact else ""
        return f"Kafka {where}, {self.delivery.value}{note}"

    @property
    def _is_exact(self) -> bool:
        return self.delivery is DeliveryGuarantee.EXACTLY_ONCE

    def _check_timeout(self, admin: Any, broker: int) -> None:
        library = kafka("KafkaSink")
        resource = library.ConfigResource(library.ResourceType.BROKER, str(broker))
        try:
            limit = admin.describe_configs([resource])[resource].result(ANSWER_WITHIN_S)["transaction.max.timeout.ms"]
        except (library.KafkaException, KeyError):
            return  # not everybody may look at settings; brokers refuse it later then
        wanted = int(self.settings.get("transaction.timeout.ms", TRANSACTION_TIMEOUT_MS))
        if wanted > int(limit.value):
            raise ConfigurationError(
                f"transaction.timeout.ms of the KafkaSink is {wanted}, but brokers allow {limit.value} "
                "(transaction.max.timeout.ms). Set it to that or less with set_property."
            )

    def _forget(self, shard: Shard) -> None:
        key = shard.job_id, shard.uid, shard.subtask
        if self._shards.get(key) is shard:
            del self._shards[key]

    def __getstate__(self) -> dict[str, Any]:
        # Connections belong to the process that made them.
        return {**self.__dict__, "_shards": {}}


class KafkaSinkBuilder:
    """PyFlink's builder, with a few setters more. Each setter returns the builder; `build` checks the whole."""

    def __init__(self) -> None:
        self._settings = KafkaSettings()
        self._schema: KafkaRecordSerializationSchema | None = None
        self._delivery = DeliveryGuarantee.NONE
        self._prefix: str | None = None
        self._marker_topic = DEFAULT_TOPIC
        self._pool_size = POOL_SIZE
        self._takes_over = False
        self._lost_markers: LostMarkers = "fail"

    def set_bootstrap_servers(self, bootstrap_servers: str) -> KafkaSinkBuilder:
        return self.set_property("bootstrap.servers", bootstrap_servers)

    def set_delivery_guarantee(self, delivery_guarantee: DeliveryGuarantee) -> KafkaSinkBuilder:
        self._delivery = DeliveryGuarantee(delivery_guarantee)
        return self

    def set_transactional_id_prefix(self, transactional_id_prefix: str) -> KafkaSinkBuilder:
        """What transactional ids begin with, for access rules. Without one, a name is made of job and operator."""
        if _PREFIX.fullmatch(transactional_id_prefix) is None:
            raise ConfigurationError(
                f"set_transactional_id_prefix({transactional_id_prefix!r}): wanted up to 150 letters, digits, '.', '_' "
                "and '-'."
            )
        self._prefix = transactional_id_prefix
        return self

    def set_record_serializer(self, record_serializer: KafkaRecordSerializationSchema) -> KafkaSinkBuilder:
        self._schema = record_serializer
        return self

    def set_marker_topic(self, topic: str) -> KafkaSinkBuilder:
        """The compacted topic of markers, `headrace-markers` by default. Sinks and jobs may share one."""
        self._marker_topic = topic
        return self

    def set_transactions_per_subtask(self, number: int) -> KafkaSinkBuilder:
        """How many transactions a subtask may have open: checkpoints that run at once and one more; 3 by default."""
        if number < 1:
            raise ConfigurationError(f"set_transactions_per_subtask({number}): wanted 1 or more.")
        self._pool_size = number
        return self

    def take_over_prefix(self) -> KafkaSinkBuilder:
        """Use the prefix although another job or sink has used it: that one must be gone for good."""
        self._takes_over = True
        return self

    def set_on_lost_markers(self, what: LostMarkers) -> KafkaSinkBuilder:
        """What to do on recovery if the markers of this sink are gone: `"fail"`, `"send"` or `"leave"` the rest."""
        if what not in ("fail", "send", "leave"):
            raise ConfigurationError(f'set_on_lost_markers({what!r}): wanted "fail", "send" or "leave".')
        self._lost_markers = what
        return self

    def set_property(self, key: str, value: Any) -> KafkaSinkBuilder:
        """Any setting of librdkafka. Secrets are shown nowhere."""
        if key in ("transactional.id", "enable.idempotence"):
            raise ConfigurationError(f"{key} is the sink's own business. Use set_transactional_id_prefix.")
        self._settings = self._settings.with_property(key, value)
        return self

    def set_properties(self, props: Mapping[str, Any]) -> KafkaSinkBuilder:
        for key, value in props.items():
            self.set_property(key, value)
        return self

    def build(self) -> KafkaSink:
        self._settings.require_servers("KafkaSink")
        if self._schema is None:
            raise ConfigurationError("KafkaSink does not know how to write records. Call set_record_serializer.")
        return KafkaSink(
            settings=self._settings,
            schema=self._schema,
            delivery=self._delivery,
            prefix=self._prefix,
            marker_topic=self._marker_topic,
            pool_size=self._pool_size,
            takes_over=self._takes_over,
            lost_markers=self._lost_markers,
        )
