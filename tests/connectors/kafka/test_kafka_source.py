"""The Kafka source against a real broker, driven by hand: offsets, bounds, patterns, transactions, lost records."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace import StreamExecutionEnvironment, Time, WatermarkStrategy
from headrace.connectors.kafka import (
    JsonRowDeserializationSchema,
    KafkaDataLossError,
    KafkaOffsetResetStrategy,
    KafkaOffsetsInitializer,
    KafkaSource,
    KafkaSourceBuilder,
    KafkaTopicError,
    SimpleStringSchema,
)
from headrace.connectors.kafka.client import kafka
from headrace.connectors.kafka.reader import KafkaReader
from headrace.connectors.source import Boundedness
from headrace.errors import RecordError
from headrace.operators.source import SourceOperator
from headrace.runtime.task.metrics import readings
from headrace.testing import JobHarness
from headrace.testing.kafka_broker import KafkaBroker
from headrace.testing.source_driver import SourceDriver, SourceSnapshot
from headrace.types.information import Types

LATEST = KafkaOffsetsInitializer.latest()
NewTopic = Callable[..., str]


class Driving:
    """Drives sources against the broker and closes what a test leaves open."""

    def __init__(self, broker: KafkaBroker) -> None:
        self.broker = broker
        self._open: list[SourceDriver] = []

    def builder(self, *topics: str) -> KafkaSourceBuilder:
        builder = KafkaSource.builder().set_bootstrap_servers(self.broker.bootstrap_servers)
        builder.set_value_only_deserializer(SimpleStringSchema())
        return builder.set_topics(*topics) if topics else builder

    def drive(self, source: KafkaSource, parallelism: int = 1, restored: SourceSnapshot | None = None) -> SourceDriver:
        driver = SourceDriver(source, parallelism=parallelism, restored=restored)
        self._open.append(driver)
        return driver

    def close(self) -> None:
        for driver in self._open:
            driver.close()


@pytest.fixture
def kafka_driving(kafka_broker: KafkaBroker) -> Iterator[Driving]:
    driving = Driving(kafka_broker)
    yield driving
    driving.close()


def run_until(driver: SourceDriver, done: Callable[[], bool], *, limit: int = 100) -> None:
    """Poll until it is so: records come when the broker sends them, partitions when it has said which there are."""
    deadline = time.monotonic() + 120
    while not done():
        assert time.monotonic() < deadline, f"after 120 s only {len(driver.records)} records"
        driver.run(limit=limit)
        driver.discover()
        time.sleep(0.005)


def read_some(driver: SourceDriver, records: int, limit: int = 10) -> None:
    """About so many in all, and not to the end."""
    deadline = time.monotonic() + 120
    while len(driver.records) < records:
        assert time.monotonic() < deadline, f"after 120 s only {len(driver.records)} records"
        driver.run(records=limit)
        driver.discover()
        time.sleep(0.002)


def read_to_the_end(driver: SourceDriver, limit: int = 100) -> list[Any]:
    run_until(driver, lambda: driver.ended, limit=limit)
    return driver.values


def numbered(count: int, start: int = 0) -> list[tuple[str, str]]:
    return [(f"k{n % 7}", f"v{n}") for n in range(start, start + count)]


def test_a_bounded_source_reads_every_partition_to_its_end_in_order(
    kafka_driving: Driving, new_topic: NewTopic
) -> None:
    topic = new_topic(partitions=3)
    kafka_driving.broker.produce(topic, numbered(1_000))
    source = kafka_driving.builder(topic).set_bounded(LATEST).build()
    assert source.boundedness is Boundedness.BOUNDED
    driver = kafka_driving.drive(source, parallelism=2)
    assert Counter(read_to_the_end(driver)) == Counter(v for _, v in numbered(1_000))
    for split in {record.split_id for record in driver.records}:
        own = [int(record.value[1:]) for record in driver.records if record.split_id == split]
        assert own == sorted(own)
    assert len({(record.split_id, record.subtask) for record in driver.records}) == 3, "one reader for each partition"
    assert all(record.timestamp and record.timestamp > 1_600_000_000_000 for record in driver.records)


@pytest.mark.parametrize("parallelism", [1, 3])
def test_after_a_restore_at_any_parallelism_reading_goes_on_behind_the_last_record(
    kafka_driving: Driving, new_topic: NewTopic, parallelism: int
) -> None:
    topic = new_topic(partitions=4)
    kafka_driving.broker.produce(topic, numbered(2_000))
    source = kafka_driving.builder(topic).set_bounded(LATEST).build()
    first = kafka_driving.drive(source, parallelism=2)
    read_some(first, 700, limit=37)
    snapshot, before = first.snapshot(), list(first.values)
    # Its end was worked out at the first start: what is written later does not belong to it.
    kafka_driving.broker.produce(topic, numbered(100, 2_000))
    second = kafka_driving.drive(source, parallelism, snapshot)
    assert Counter(before + read_to_the_end(second, limit=41)) == Counter(v for _, v in numbered(2_000))


def test_reading_begins_where_it_was_told(kafka_driving: Driving, new_topic: NewTopic) -> None:
    topic = new_topic()
    broker = kafka_driving.broker
    broker.produce(topic, numbered(10))
    time.sleep(0.05)  # so that the second half has later timestamps, not for anything to happen
    broker.produce(topic, numbered(10, 10))
    second_half = broker.read(topic)[10].timestamp()[1]

    def values(starting: KafkaOffsetsInitializer, group: str | None = None) -> list[Any]:
        builder = kafka_driving.builder(topic).set_starting_offsets(starting).set_bounded(LATEST)
        if group is not None:
            builder.set_group_id(group)
        return read_to_the_end(kafka_driving.drive(builder.build()))

    assert values(KafkaOffsetsInitializer.earliest()) == [f"v{n}" for n in range(20)]
    assert values(KafkaOffsetsInitializer.latest()) == []
    assert values(KafkaOffsetsInitializer.timestamp(second_half)) == [f"v{n}" for n in range(10, 20)]
    assert values(KafkaOffsetsInitializer.timestamp(second_half + 3_600_000)) == []
    assert values(KafkaOffsetsInitializer.offsets({(topic, 0): 17})) == ["v17", "v18", "v19"]
    to_earliest = KafkaOffsetsInitializer.committed_offsets(KafkaOffsetResetStrategy.EARLIEST)
    assert len(values(to_earliest, group=f"never-{topic}")) == 20
    with pytest.raises(KafkaTopicError, match=f"{topic}, partition 0: the group has committed no offset there"):
        values(KafkaOffsetsInitializer.committed_offsets(), group=f"never-{topic}")


def told_to(group: str, broker: KafkaBroker, *partitions: tuple[str, int]) -> list[int]:
    """The offsets that a group has."""
    library = kafka("the test")
    consumer = library.Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": group})
    told = consumer.committed([library.TopicPartition(*partition) for partition in partitions], timeout=30)
    consumer.close()
    return [partition.offset for partition in told]


def test_the_group_is_told_the_end_of_partitions_that_are_read_to_it(
    kafka_driving: Driving, new_topic: NewTopic
) -> None:
    topic = new_topic(partitions=2)
    kafka_driving.broker.produce(topic, numbered(10), 0)
    kafka_driving.broker.produce(topic, numbered(25), 1)
    ends = KafkaOffsetsInitializer.offsets({(topic, 0): 10, (topic, 1): 20})
    driver = kafka_driving.drive(kafka_driving.builder(topic).set_group_id(f"group-{topic}").set_bounded(ends).build())
    assert len(read_to_the_end(driver)) == 30
    (reader,) = driver.readers
    reader.snapshot_for(1)
    reader.checkpoint_complete(1)
    driver.close()
    assert told_to(f"group-{topic}", kafka_driving.broker, (topic, 0), (topic, 1)) == [10, 20]


def test_that_the_group_could_not_be_told_is_in_the_log(
    kafka_driving: Driving, new_topic: NewTopic, caplog: pytest.LogCaptureFixture
) -> None:
    topic = new_topic()
    kafka_driving.broker.produce(topic, numbered(10))
    driver = kafka_driving.drive(kafka_driving.builder(topic).set_group_id(f"group-{topic}").build())
    run_until(driver, lambda: len(driver.records) == 10)
    (reader,) = driver.readers
    assert isinstance(reader, KafkaReader)
    reader._fetcher.commit({("no-such-topic", 0): 5})
    run_until(driver, lambda: "Offsets could not be told to the group" in caplog.text)


def test_only_the_given_partitions_are_read(kafka_driving: Driving, new_topic: NewTopic) -> None:
    one, other = new_topic(partitions=3), new_topic(partitions=2)
    for topic, partition in [(one, 0), (one, 1), (one, 2), (other, 0), (other, 1)]:
        kafka_driving.broker.produce(topic, [(None, f"{topic}:{partition}")], partition)
    builder = kafka_driving.builder().set_partitions({(one, 0), (one, 2), (other, 1)}).set_bounded(LATEST)
    driver = kafka_driving.drive(builder.build(), parallelism=2)
    assert sorted(read_to_the_end(driver)) == sorted([f"{one}:0", f"{one}:2", f"{other}:1"])
    with pytest.raises(KafkaTopicError, match=f"Topic {one} has no partition 7"):
        kafka_driving.drive(kafka_driving.builder().set_partitions({(one, 7)}).build())


def test_the_group_is_told_the_offsets_of_completed_checkpoints_only(
    kafka_driving: Driving, new_topic: NewTopic
) -> None:
    topic = new_topic()
    kafka_driving.broker.produce(topic, numbered(100))
    group = f"group-{topic}"
    driver = kafka_driving.drive(kafka_driving.builder(topic).set_group_id(group).build())
    reader = driver.readers[0]
    read_some(driver, 30)
    reader.snapshot_for(1)
    at_first = reader.snapshot()[0].offset
    read_some(driver, 60)
    reader.snapshot_for(2)
    reader.checkpoint_complete(1)
    driver.close()
    assert told_to(group, kafka_driving.broker, (topic, 0)) == [at_first]
    resumed = KafkaOffsetsInitializer.committed_offsets()
    again = kafka_driving.builder(topic).set_group_id(group).set_starting_offsets(resumed).set_bounded(LATEST).build()
    assert read_to_the_end(kafka_driving.drive(again)) == [f"v{n}" for n in range(at_first, 100)]


def test_partitions_and_topics_that_turn_up_later_are_read_from_their_first_record(
    kafka_driving: Driving, new_topic: NewTopic
) -> None:
    broker = kafka_driving.broker
    topic = new_topic("growing")
    broker.produce(topic, numbered(10))
    builder = kafka_driving.builder().set_topic_pattern(f"{topic}.*").set_discovery_interval(50)
    source = builder.set_starting_offsets(LATEST).build()
    assert source.boundedness is Boundedness.UNBOUNDED
    driver = kafka_driving.drive(source, parallelism=2)
    broker.produce(topic, [(None, "old partition")], partition=0)
    admin = broker.admin()
    grown = admin.create_partitions([kafka("the test").NewPartitions(topic, 2)])
    grown[topic].result(90)
    broker._wait_for_leaders(topic, 2)
    broker.produce(topic, [(None, "new partition")], partition=1)
    broker.create_topic(f"{topic}-more")
    broker.produce(f"{topic}-more", [(None, "new topic")])
    run_until(driver, lambda: len(driver.records) >= 3)
    assert sorted(driver.values) == ["new partition", "new topic", "old partition"]
    # A checkpoint knows them: none is found a second time.
    again = kafka_driving.drive(source, 1, driver.snapshot())
    broker.produce(topic, [(None, "later")], partition=1)
    run_until(again, lambda: len(again.records) >= 1)
    assert again.values == ["later"]


def test_records_of_open_and_aborted_transactions_are_not_read(kafka_driving: Driving, new_topic: NewTopic) -> None:
    broker = kafka_driving.broker
    topic = new_topic()
    config = {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": f"t-{topic}"}
    producer = kafka("the test").Producer(config)
    producer.init_transactions(30)
    for name, ends in (
        ("aborted", producer.abort_transaction),
        ("committed", producer.commit_transaction),
        ("also aborted", producer.abort_transaction),
    ):
        producer.begin_transaction()
        for n in range(5):
            producer.produce(topic, f"{name} {n}")
        producer.flush(30)
        ends(30)
    # The partition ends with records that no reader of committed ones sees: the end must be noticed all the same.
    bounded = kafka_driving.builder(topic).set_bounded(LATEST).build()
    assert read_to_the_end(kafka_driving.drive(bounded)) == [f"committed {n}" for n in range(5)]
    everything = kafka_driving.builder(topic).set_bounded(LATEST).set_property("isolation.level", "read_uncommitted")
    assert len(read_to_the_end(kafka_driving.drive(everything.build()))) == 15


def test_records_that_retention_deleted_are_an_error_with_topic_partition_and_offsets(
    kafka_driving: Driving, new_topic: NewTopic
) -> None:
    broker = kafka_driving.broker
    topic = new_topic()
    broker.produce(topic, numbered(100))
    source = kafka_driving.builder(topic).set_bounded(LATEST).build()
    first = kafka_driving.drive(source)
    read_some(first, 20)
    snapshot, read = first.snapshot(), len(first.records)
    first.close()
    library = kafka("the test")
    admin = broker.admin()
    for deleted in admin.delete_records([library.TopicPartition(topic, 0, 60)]).values():
        deleted.result(90)

    with pytest.raises(KafkaDataLossError) as loss:
        read_to_the_end(kafka_driving.drive(source, 1, snapshot))
    assert (loss.value.topic, loss.value.partition) == (topic, 0)
    assert (loss.value.wanted, loss.value.first, loss.value.end) == (read, 60, 100)
    assert f"{topic}, partition 0: offset {read} is wanted, but there is 60 to 100" in str(loss.value)
    assert f"{60 - read} records were deleted by retention" in str(loss.value)

    careless = kafka_driving.builder(topic).set_bounded(LATEST).set_on_data_loss("skip").build()
    driver = kafka_driving.drive(careless, 1, snapshot)
    assert read_to_the_end(driver) == [f"v{n}" for n in range(60, 100)]
    assert driver.metrics.counts == {"recordsLost": 60 - read}


@pytest.mark.parametrize("how", ["bounded", "unbounded", "without discovery", "skipping what is lost"])
def test_of_a_topic_that_was_deleted_and_made_anew_not_one_record_is_read(
    kafka_driving: Driving, new_topic: NewTopic, how: str
) -> None:
    broker = kafka_driving.broker
    topic = new_topic()
    broker.produce(topic, numbered(50))
    builder = kafka_driving.builder(topic)
    if how == "bounded":
        builder.set_bounded(LATEST)
    elif how == "without discovery":
        builder.set_discovery_interval(None)
    elif how == "skipping what is lost":
        builder.set_on_data_loss("skip")
    source = builder.build()
    first = kafka_driving.drive(source)
    read_some(first, 20)
    snapshot = first.snapshot()
    first.close()
    broker.delete_topic(topic)
    broker.create_topic(topic)
    # More than before, so that the saved offset is there, but means another record.
    broker.produce(topic, numbered(80))
    read: list[Any] = []

    def restored() -> None:
        # The start itself raises, unless the broker takes its time. Then nothing is read until it has answered.
        driver = kafka_driving.drive(source, 1, snapshot)
        deadline = time.monotonic() + 2
        while not driver.records and time.monotonic() < deadline:
            driver.run()
            time.sleep(0.005)
        read.extend(driver.values)
        run_until(driver, lambda: False)

    with pytest.raises(KafkaTopicError, match=f"Topic {topic} was deleted and made anew"):
        restored()
    assert read == []


def test_a_position_behind_the_end_is_an_error_whatever_may_be_lost(
    kafka_driving: Driving, new_topic: NewTopic
) -> None:
    topic = new_topic()
    kafka_driving.broker.produce(topic, numbered(30))
    beyond = KafkaOffsetsInitializer.offsets({(topic, 0): 50})
    builder = kafka_driving.builder(topic).set_starting_offsets(beyond).set_on_data_loss("skip")
    driver = kafka_driving.drive(builder.build())
    with pytest.raises(KafkaDataLossError, match="the topic has been made anew, or lost its end") as loss:
        run_until(driver, lambda: False)
    assert (loss.value.wanted, loss.value.first, loss.value.end) == (50, 0, 30)
    assert "set_on_data_loss" not in str(loss.value), "it would not help"
    assert driver.records == []


def test_a_topic_that_does_not_exist_is_named(kafka_driving: Driving) -> None:
    with pytest.raises(KafkaTopicError, match="has no topic no-such-topic"):
        kafka_driving.drive(kafka_driving.builder("no-such-topic").build())


def test_a_record_that_cannot_be_read_is_named_or_skipped_and_counted(
    kafka_driving: Driving, new_topic: NewTopic
) -> None:
    topic = new_topic()
    good = [(None, f'{{"account": "a{n}", "amount": {n}}}') for n in range(5)]
    bad: list[tuple[Any, Any]] = [(None, "{oops"), (None, '{"account": 5}'), ("key", None)]
    kafka_driving.broker.produce(topic, [*good[:3], *bad, *good[3:]])
    row = Types.ROW_NAMED(["account", "amount"], [Types.STRING(), Types.LONG()])
    builder = kafka_driving.builder(topic).set_bounded(LATEST)
    builder.set_value_only_deserializer(JsonRowDeserializationSchema(row))
    with pytest.raises(RecordError, match=f"{topic}, partition 0, offset 3 cannot be read: .*oops"):
        read_to_the_end(kafka_driving.drive(builder.build()))
    driver = kafka_driving.drive(builder.set_on_error("skip").build())
    assert [(value.account, value.amount) for value in read_to_the_end(driver)] == [(f"a{n}", n) for n in range(5)]
    assert driver.metrics.counts == {"recordsSkipped": 2, "tombstones": 1}
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    with JobHarness(env.from_source(builder.build(), WatermarkStrategy.no_watermarks(), "in").uid("in")) as job:
        assert len(job.run_to_end()) == 5
        counted = readings(job.operators("in"))
    assert counted == {"in.recordsSkipped": 2, "in.tombstones": 1, "in.recordsLost": 0}


def test_a_deserializer_of_whole_records_sees_key_headers_and_place(
    kafka_driving: Driving, new_topic: NewTopic
) -> None:
    topic = new_topic()
    producer = kafka("the test").Producer({"bootstrap.servers": kafka_driving.broker.bootstrap_servers})
    producer.produce(topic, b"value", b"key", headers=[("trace", b"1"), ("empty", None)], timestamp=1_700_000_000_000)
    producer.produce(topic, None, b"gone")
    producer.flush(30)
    builder = kafka_driving.builder(topic).set_bounded(LATEST).set_deserializer(lambda record: record)
    one, other = read_to_the_end(kafka_driving.drive(builder.build()))
    assert one == (topic, 0, 0, 1_700_000_000_000, b"key", b"value", (("trace", b"1"), ("empty", None)))
    assert (other.key, other.value) == (b"gone", None)


def test_reading_goes_on_by_itself_after_the_broker_was_killed_and_came_back(
    kafka_driving: Driving, new_topic: NewTopic
) -> None:
    topic = new_topic()
    broker = kafka_driving.broker
    broker.produce(topic, numbered(100))
    driver = kafka_driving.drive(kafka_driving.builder(topic).set_discovery_interval(100).build())
    run_until(driver, lambda: len(driver.records) >= 100)
    broker.kill()
    driver.run()
    driver.discover()
    broker.start()
    broker.produce(topic, numbered(100, 100))
    run_until(driver, lambda: len(driver.records) >= 200)
    assert driver.values == [f"v{n}" for n in range(200)]


def test_a_paused_partition_gives_nothing_and_goes_on_where_it_was(kafka_driving: Driving, new_topic: NewTopic) -> None:
    topic = new_topic(partitions=2)
    for partition in (0, 1):
        kafka_driving.broker.produce(topic, [("k", f"{partition}:{n}") for n in range(30_000)], partition)
    driver = kafka_driving.drive(kafka_driving.builder(topic).set_bounded(LATEST).build())
    read_some(driver, 500)
    (reader,) = driver.readers
    (paused,) = {split.split_id for split in reader.snapshot() if split.partition == 0}
    reader.pause_splits({paused})
    before = sum(record.split_id == paused for record in driver.records)
    run_until(driver, lambda: len(driver.records) == before + 30_000)
    assert sum(record.split_id == paused for record in driver.records) == before
    reader.pause_splits(set())
    values = read_to_the_end(driver, limit=5_000)
    for partition in (0, 1):
        own = [int(value.split(":")[1]) for value in values if value.startswith(f"{partition}:")]
        assert own == list(range(30_000))


def test_a_partition_that_is_far_ahead_waits_for_the_slow_one(kafka_driving: Driving, new_topic: NewTopic) -> None:
    topic = new_topic(partitions=2)
    broker = kafka_driving.broker
    fast, after = 60_000, 20
    broker.produce(topic, [("k", f"fast:{second}") for second in range(fast)], 0)
    broker.produce(topic, [("k", f"slow:{second}") for second in range(after)], 1)
    strategy = (
        WatermarkStrategy.for_monotonous_timestamps()
        .with_timestamp_assigner(lambda value, _: int(value.split(":")[1]) * 1_000)
        .with_watermark_alignment("seconds", Time.seconds(100))
    )
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    stream = env.from_source(kafka_driving.builder(topic).build(), strategy, "seconds").uid("seconds")
    with JobHarness(stream) as job:
        (source,) = job.operators("seconds")
        assert isinstance(source, SourceOperator)
        aligner = source._aligner
        assert aligner is not None
        job.wait_until(lambda: bool(aligner.waiting) and after <= source.records, "the fast partition to wait")
        job.wait_until(lambda: source._trackers[f"{topic}-1"].watermark == (after - 1) * 1_000 - 1, "the slow one")
        read = source.records
        for _ in range(200):
            job.run()
        assert source.records == read < fast, "paused is paused"
        broker.produce(topic, [("k", f"slow:{fast + 1_000}")], 1)
        job.wait_until(lambda: source.records == fast + after + 1, "all records")
        job.checkpoint()
        for name in ("fast", "slow"):
            own = [int(value.split(":")[1]) for value in job.results if value.startswith(name)]
            assert own == sorted(own)
            assert len(own) == (fast if name == "fast" else after + 1)
