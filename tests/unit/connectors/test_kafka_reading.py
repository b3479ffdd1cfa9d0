"""Reading from Kafka, as far as it can be seen without a broker: who gets which split when, what belongs to whom."""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import pytest

from headrace.connectors.kafka import KafkaOffsetsInitializer, KafkaSource, KafkaTopicError, KafkaUnavailableError
from headrace.connectors.kafka import enumerator as enumerator_module
from headrace.connectors.kafka.client import kafka
from headrace.connectors.kafka.enumerator import Discovered, KafkaEnumerator, Subscription
from headrace.connectors.kafka.fetcher import Fetcher
from headrace.connectors.kafka.reader import KafkaReader
from headrace.connectors.kafka.settings import KafkaSettings
from headrace.connectors.kafka.split import KafkaSplit
from headrace.connectors.kafka.values import SimpleStringSchema
from headrace.connectors.metrics import OwnMetrics
from headrace.connectors.source import Boundedness, ReaderContext
from headrace.errors import ConfigurationError, HeadraceError

PATIENCE_S = 60.0
NOWHERE = KafkaSettings().with_property("bootstrap.servers", "127.0.0.1:1").with_property("log_level", "0")
LATEST = KafkaOffsetsInitializer.latest()


class Readers:
    """What an enumerator has sent."""

    parallelism = 1

    def __init__(self) -> None:
        self.splits: list[str] = []
        self.ended = False

    def assign(self, subtask: int, splits: Sequence[KafkaSplit]) -> None:
        self.splits += [split.split_id for split in splits]

    def no_more_splits(self, subtask: int) -> None:
        self.ended = True


class ToldAnswers(KafkaEnumerator):
    """Hears from brokers what the test says, and when it says it."""

    def __init__(self, readers: Readers, *, stopping: KafkaOffsetsInitializer | None = None) -> None:
        self.answers: queue.SimpleQueue[Discovered | Exception] = queue.SimpleQueue()
        saved = KafkaSplit("pay", 0, 40, -1 if stopping is None else 90, "first life")
        super().__init__(
            readers,
            settings=NOWHERE,
            subscription=Subscription(pattern="pay.*"),
            starting=KafkaOffsetsInitializer.earliest(),
            stopping=stopping,
            discovery_ms=1,
            read_committed=True,
            restored=msgspec.msgpack.encode(
                {"waiting": [], "known": [("pay", 0)], "topic_ids": {"pay": saved.topic_id}}
            ),
        )
        self.add_splits_back([saved])

    def _look(self, initializer: KafkaOffsetsInitializer) -> Discovered:
        answer = self.answers.get(timeout=PATIENCE_S)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def discover_until(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not done():
            assert time.monotonic() < deadline
            self.discover()
            time.sleep(0.001)


def life(topic_id: str, *partitions: int) -> Discovered:
    found = tuple(("pay", partition) for partition in (0, *partitions))
    return Discovered(found, {"pay": topic_id}, {("pay", partition): 0 for partition in partitions}, {})


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The start does not wait for brokers."""
    monkeypatch.setattr(enumerator_module, "FIRST_ANSWER_WITHIN_S", 0.0, raising=False)
    monkeypatch.setattr(enumerator_module, "ASK_AGAIN_MS", 1, raising=False)


@pytest.mark.parametrize("stopping", [None, LATEST], ids=["unbounded", "bounded"])
def test_restored_splits_wait_until_brokers_have_said_that_the_topic_is_the_same(
    impatient: None, stopping: KafkaOffsetsInitializer | None
) -> None:
    readers = Readers()
    enumerator = ToldAnswers(readers, stopping=stopping)
    enumerator.start()
    enumerator.handle_split_request(0)
    enumerator.discover()
    assert (readers.splits, readers.ended) == ([], False)
    assert enumerator.holds_back(0), "event time waits for it"
    assert b"pay" in enumerator.snapshot_state(), "a checkpoint taken meanwhile has it"
    enumerator.answers.put(life("first life"))
    enumerator.discover_until(lambda: bool(readers.splits))
    assert readers.splits == ["pay-0"]
    assert readers.ended is (stopping is not None)
    assert not enumerator.holds_back(0)
    enumerator.close()


def test_no_split_of_a_topic_made_anew_is_ever_given_out(impatient: None) -> None:
    readers = Readers()
    enumerator = ToldAnswers(readers)
    enumerator.start()
    enumerator.handle_split_request(0)
    enumerator.answers.put(life("second life"))
    with pytest.raises(KafkaTopicError, match="Topic pay was deleted and made anew"):
        enumerator.discover_until(lambda: False)
    assert readers.splits == []
    enumerator.close()


def test_a_topic_that_is_gone_is_named_before_its_splits_are_given_out(impatient: None) -> None:
    readers = Readers()
    enumerator = ToldAnswers(readers)
    enumerator.start()
    enumerator.handle_split_request(0)
    enumerator.answers.put(Discovered((), {}, {}, {}, frozenset({"pay"})))
    with pytest.raises(KafkaTopicError, match="Topic pay is gone"):
        enumerator.discover_until(lambda: False)
    assert readers.splits == []
    enumerator.close()


def test_brokers_that_are_away_are_asked_again_and_splits_follow(
    impatient: None, caplog: pytest.LogCaptureFixture
) -> None:
    readers = Readers()
    enumerator = ToldAnswers(readers)
    for _ in range(3):
        enumerator.answers.put(KafkaUnavailableError("nobody there"))
    enumerator.start()
    enumerator.handle_split_request(0)
    enumerator.answers.put(life("first life", 1))
    enumerator.discover_until(lambda: len(readers.splits) == 2)
    assert readers.splits == ["pay-0", "pay-1"], "what was restored, and what is new"
    assert caplog.text.count("nobody there") == 1
    enumerator.close()


def test_what_goes_wrong_in_an_unforeseen_way_is_raised_and_does_not_leave_readers_waiting(impatient: None) -> None:
    enumerator = ToldAnswers(Readers())
    enumerator.start()
    enumerator.answers.put(ValueError("unforeseen"))
    with pytest.raises(HeadraceError, match=r"Looking for topics like pay\.\* in Kafka failed: ValueError: unforeseen"):
        enumerator.discover_until(lambda: False)
    enumerator.close()


def test_the_start_takes_the_answer_that_came_while_tasks_were_being_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enumerator_module, "FIRST_ANSWER_WITHIN_S", PATIENCE_S, raising=False)
    readers = Readers()
    enumerator = ToldAnswers(readers)
    enumerator.answers.put(life("first life"))
    enumerator.start()
    enumerator.handle_split_request(0)
    assert readers.splits == ["pay-0"], "at once, without another look"
    enumerator.close()
    anew = ToldAnswers(Readers())
    anew.answers.put(life("second life"))
    with pytest.raises(KafkaTopicError, match="made anew"):
        anew.start()
    anew.close()


# The thread that fetches: a client of its own, which never finds a broker


@pytest.fixture
def fetcher() -> Iterator[Fetcher]:
    config = {**NOWHERE.merged({}, {}), "group.id": "g", "enable.auto.commit": False}
    fetcher = Fetcher(config, NOWHERE, on_data_loss="skip", wake=lambda: None, lost=OwnMetrics().counter("lost"))
    yield fetcher
    fetcher.close()


def in_its_thread(fetcher: Fetcher, call: Callable[[], Any]) -> Any:
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    fetcher._orders.append(lambda: answers.put(call()))
    return answers.get(timeout=PATIENCE_S)


def messages(partition: int, *offsets: int) -> list[Any]:
    kind = kafka("the test").Message
    return [kind(topic="pay", partition=partition, offset=offset, value=b"x") for offset in offsets]


def test_messages_of_a_partition_that_was_given_up_are_not_taken_for_those_of_the_one_left(fetcher: Fetcher) -> None:
    fetcher.assign({("pay", 0): 0, ("pay", 1): 0})
    fetcher.unassign(("pay", 0))
    mixed = [*messages(0, 700), *messages(1, 0, 1), *messages(0, 701), *messages(1, 2), *messages(0, 702)]
    chunks = in_its_thread(fetcher, lambda: fetcher._runs(mixed))
    assert [(chunk.partition, [m.offset() for m in chunk.messages]) for chunk in chunks] == [
        (("pay", 1), [0, 1]),
        (("pay", 1), [2]),
    ]


def test_messages_of_an_only_partition_are_handed_over_as_they_came(fetcher: Fetcher) -> None:
    fetcher.assign({("pay", 1): 0})
    come = messages(1, 0, 1, 2)
    (chunk,) = in_its_thread(fetcher, lambda: fetcher._runs(come))
    assert chunk.messages is come, "without a look at each of them"


def test_a_group_that_cannot_be_told_is_mentioned_once_until_it_can(
    fetcher: Fetcher, caplog: pytest.LogCaptureFixture
) -> None:
    library = kafka("the test")
    refused, told = library.TopicPartition("pay", 0, 5), library.TopicPartition("pay", 0, 6)
    error = library.KafkaError(library.KafkaError.GROUP_AUTHORIZATION_FAILED, "not for you")

    def said() -> int:
        return caplog.text.count("Offsets could not be told to the group")

    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            in_its_thread(fetcher, lambda: fetcher._committed(error, [refused]))
        assert (said(), "not for you" in caplog.text) == (1, True)
        in_its_thread(fetcher, lambda: fetcher._committed(None, [told]))
        in_its_thread(fetcher, lambda: fetcher._committed(error, [refused]))
        assert said() == 2


# What the builder says


def source_builder() -> Any:
    builder = KafkaSource.builder().set_bootstrap_servers("broker:9092").set_topics("in")
    return builder.set_value_only_deserializer(SimpleStringSchema())


def test_the_client_of_each_subtask_has_an_id_with_the_prefix() -> None:
    source = source_builder().set_client_id_prefix("balances").build()
    reader = source.create_reader(ReaderContext(2, 4))
    assert isinstance(reader, KafkaReader)
    assert reader.client_settings()["client.id"] == "balances-2"
    plain = source_builder().build().create_reader(ReaderContext(2, 4))
    assert "client.id" not in plain.client_settings()


def test_a_source_is_unbounded_unless_it_was_bounded_and_can_be_unbounded_again() -> None:
    builder = source_builder()
    assert builder.build().boundedness is Boundedness.UNBOUNDED
    assert builder.set_bounded(LATEST).build().boundedness is Boundedness.BOUNDED
    assert builder.set_unbounded().build().boundedness is Boundedness.UNBOUNDED
    with pytest.raises(ConfigurationError, match="use set_bounded"):
        builder.set_unbounded(LATEST)
