"""The Kafka source and its builder: partitions of topics, with their offsets in the checkpoint."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from headrace.connectors.kafka.enumerator import KafkaEnumerator, Subscription
from headrace.connectors.kafka.fetcher import OnDataLoss
from headrace.connectors.kafka.offsets import KafkaOffsetsInitializer, Partition
from headrace.connectors.kafka.reader import KafkaReader, OnError, RecordDeserializer
from headrace.connectors.kafka.settings import KafkaSettings
from headrace.connectors.kafka.split import KafkaSplit
from headrace.connectors.kafka.values import DeserializationSchema
from headrace.connectors.source import (
    Boundedness,
    EnumeratorContext,
    ReaderContext,
    Source,
    SourceReader,
    SplitEnumerator,
)
from headrace.durations import DurationLike, to_millis
from headrace.errors import ConfigurationError
from headrace.types.information import TypeInformation, TypeLike, type_of

DISCOVERY_MS = 10_000


class KafkaSource(Source[KafkaSplit]):
    """Reads Kafka topics exactly once: made by `KafkaSource.builder()`.

    Each partition is one split with its own watermark, read in order by one reader. Offsets live in the checkpoint;
    the consumer group is told of them after each completed checkpoint, for monitors only. Records of open or aborted
    transactions are not read, unless `isolation.level` is set to `read_uncommitted`. The event time of a record is
    its Kafka timestamp, unless the watermark strategy assigns another.
    """

    split_type = KafkaSplit

    def __init__(
        self,
        *,
        settings: KafkaSettings,
        subscription: Subscription,
        starting: KafkaOffsetsInitializer,
        stopping: KafkaOffsetsInitializer | None,
        values: DeserializationSchema | None,
        records: RecordDeserializer | None,
        record_type: TypeInformation | None,
        discovery_ms: int | None,
        commits: bool,
        on_error: OnError,
        on_data_loss: OnDataLoss,
    ) -> None:
        self.settings = settings
        self.subscription = subscription
        self.starting = starting
        self.stopping = stopping
        self.values = values
        self.records = records
        self.discovery_ms = discovery_ms
        self.commits = commits
        self.on_error: OnError = on_error
        self.on_data_loss: OnDataLoss = on_data_loss
        self._type = record_type if values is None else values.produced_type

    @staticmethod
    def builder() -> KafkaSourceBuilder:
        return KafkaSourceBuilder()

    @property
    def boundedness(self) -> Boundedness:
        return Boundedness.UNBOUNDED if self.stopping is None else Boundedness.BOUNDED

    @property
    def produced_type(self) -> TypeInformation | None:
        return self._type

    @property
    def read_committed(self) -> bool:
        return bool(self.settings.get("isolation.level", "read_committed") == "read_committed")

    def create_enumerator(self, context: EnumeratorContext, restored: bytes | None) -> SplitEnumerator[KafkaSplit]:
        return KafkaEnumerator(
            context,
            settings=self.settings,
            subscription=self.subscription,
            starting=self.starting,
            stopping=self.stopping,
            discovery_ms=self.discovery_ms,
            read_committed=self.read_committed,
            restored=restored,
        )

    def create_reader(self, context: ReaderContext) -> SourceReader[KafkaSplit]:
        return KafkaReader(
            context,
            settings=self.settings,
            values=self.values,
            records=self.records,
            bounded=self.stopping is not None,
            read_committed=self.read_committed,
            commits=self.commits and bool(self.settings.get("group.id")),
            on_error=self.on_error,
            on_data_loss=self.on_data_loss,
        )

    def describe(self) -> str:
        until = "" if self.stopping is None else f" until {self.stopping.describe()}"
        isolation = "" if self.read_committed else ", uncommitted records too"
        return f"Kafka {self.subscription.describe()} from {self.starting.describe()}{until}{isolation}"


class KafkaSourceBuilder:
    """PyFlink's builder, with a few setters more. Each setter returns the builder; `build` checks the whole."""

    def __init__(self) -> None:
        self._settings = KafkaSettings()
        self._subscription: Subscription | None = None
        self._starting = KafkaOffsetsInitializer.earliest()
        self._stopping: KafkaOffsetsInitializer | None = None
        self._values: DeserializationSchema | None = None
        self._records: RecordDeserializer | None = None
        self._record_type: TypeInformation | None = None
        self._discovery_ms: int | None = DISCOVERY_MS
        self._commits = True
        self._on_error: OnError = "fail"
        self._on_data_loss: OnDataLoss = "fail"

    def set_bootstrap_servers(self, bootstrap_servers: str) -> KafkaSourceBuilder:
        return self.set_property("bootstrap.servers", bootstrap_servers)

    def set_group_id(self, group_id: str) -> KafkaSourceBuilder:
        """The consumer group that is told the offsets of completed checkpoints, and that `committed_offsets` asks."""
        return self.set_property("group.id", group_id)

    def set_client_id_prefix(self, prefix: str) -> KafkaSourceBuilder:
        return self.set_property("client.id", prefix)

    def set_topics(self, *topics: str) -> KafkaSourceBuilder:
        return self._subscribe(Subscription(topics=tuple(dict.fromkeys(topics))))

    def set_topic_pattern(self, topic_pattern: str) -> KafkaSourceBuilder:
        """All topics whose whole name the regular expression matches, those that are made later too."""
        try:
            re.compile(topic_pattern)
        except re.error as error:
            raise ConfigurationError(
                f"set_topic_pattern({topic_pattern!r}) is no regular expression: {error}."
            ) from None
        return self._subscribe(Subscription(pattern=topic_pattern))

    def set_partitions(self, partitions: set[Partition]) -> KafkaSourceBuilder:
        """Exactly these (topic, partition) pairs."""
        return self._subscribe(Subscription(partitions=tuple(sorted((str(t), int(p)) for t, p in partitions))))

    def set_starting_offsets(self, starting_offsets: KafkaOffsetsInitializer) -> KafkaSourceBuilder:
        """Where to begin at the first start; by default at the first record. A checkpoint wins over it."""
        self._starting = starting_offsets
        return self

    def set_bounded(self, stopping_offsets: KafkaOffsetsInitializer) -> KafkaSourceBuilder:
        """Read up to these offsets, worked out at the first start, and end."""
        self._stopping = stopping_offsets
        return self

    def set_unbounded(self, stopping_offsets: KafkaOffsetsInitializer | None = None) -> KafkaSourceBuilder:
        if stopping_offsets is not None:
            raise ConfigurationError("A source that stops somewhere is bounded: use set_bounded().")
        self._stopping = None
        return self

    def set_value_only_deserializer(self, deserialization_schema: DeserializationSchema) -> KafkaSourceBuilder:
        """How values are read. Records without a value (tombstones) are left out and counted."""
        self._values, self._records = deserialization_schema, None
        return self

    def set_deserializer(
        self, deserializer: RecordDeserializer, type_info: TypeLike | None = None
    ) -> KafkaSourceBuilder:
        """A function of the whole `KafkaRecord`: key, headers, offset and all. Slower than a value-only one."""
        self._values, self._records = None, deserializer
        self._record_type = None if type_info is None else type_of(type_info)
        return self

    def set_discovery_interval(self, interval: DurationLike | None) -> KafkaSourceBuilder:
        """How often to look for new partitions and topics; None for never. Ten seconds by default."""
        self._discovery_ms = None if interval is None else max(1, to_millis(interval, "set_discovery_interval"))
        return self

    def set_commit_offsets_on_checkpoints(self, commits: bool) -> KafkaSourceBuilder:
        self._commits = bool(commits)
        return self

    def set_on_error(self, on_error: OnError) -> KafkaSourceBuilder:
        """What a record that cannot be read means: `"fail"`, or `"skip"` to leave it out, log and count it."""
        if on_error not in ("fail", "skip"):
            raise ConfigurationError(f'set_on_error({on_error!r}): wanted "fail" or "skip".')
        self._on_error = on_error
        return self

    def set_on_data_loss(self, on_data_loss: OnDataLoss) -> KafkaSourceBuilder:
        """What it means that needed records are gone: `"fail"`, or `"skip"` to go on behind them and count them."""
        if on_data_loss not in ("fail", "skip"):
            raise ConfigurationError(f'set_on_data_loss({on_data_loss!r}): wanted "fail" or "skip".')
        self._on_data_loss = on_data_loss
        return self

    def set_property(self, key: str, value: Any) -> KafkaSourceBuilder:
        """Any setting of librdkafka. Secrets are shown nowhere."""
        self._settings = self._settings.with_property(key, value)
        return self

    def set_properties(self, props: Mapping[str, Any]) -> KafkaSourceBuilder:
        for key, value in props.items():
            self.set_property(key, value)
        return self

    def build(self) -> KafkaSource:
        self._settings.require_servers("KafkaSource")
        if self._subscription is None:
            raise ConfigurationError(
                "KafkaSource reads nothing yet. Call set_topics, set_topic_pattern or set_partitions."
            )
        if self._values is None and self._records is None:
            raise ConfigurationError(
                "KafkaSource does not know how to read values. Call set_value_only_deserializer, "
                "for example with SimpleStringSchema() or JsonRowDeserializationSchema(type_info)."
            )
        return KafkaSource(
            settings=self._settings,
            subscription=self._subscription,
            starting=self._starting,
            stopping=self._stopping,
            values=self._values,
            records=self._records,
            record_type=self._record_type,
            discovery_ms=self._discovery_ms,
            commits=self._commits,
            on_error=self._on_error,
            on_data_loss=self._on_data_loss,
        )

    def _subscribe(self, subscription: Subscription) -> KafkaSourceBuilder:
        if self._subscription is not None:
            raise ConfigurationError(
                f"KafkaSource reads {self._subscription.describe()} already. Call one of set_topics, "
                "set_topic_pattern and set_partitions, once."
            )
        self._subscription = subscription
        return self
