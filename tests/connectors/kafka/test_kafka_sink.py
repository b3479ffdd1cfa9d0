"""The exactly-once Kafka sink against a real broker: whatever dies whenever, each record is seen once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
from sink_lives import Life, Output, numbers

from headrace.checkpoint.handles import HistoryPoint
from headrace.connectors.kafka.client import kafka
from headrace.errors import CommitOutcomeUnknownError, ConfigurationError, FencedError
from headrace.testing.kafka_broker import KafkaBroker

NewTopic = Callable[..., str]


@pytest.fixture
def output(kafka_broker: KafkaBroker, new_topic: NewTopic) -> Iterator[Output]:
    out = Output(kafka_broker, new_topic("out"))
    yield out
    out.close()


def test_records_are_written_at_once_and_seen_when_their_checkpoint_is_complete(output: Output) -> None:
    life = output.live(output.sink())
    output.wait_until_decided()
    first = numbers(500)
    life.write(*first)
    deadline = time.monotonic() + 90
    while len(output.seen(committed=False)) < 500:
        assert time.monotonic() < deadline
    assert output.open_transactions(), "the first record opens a transaction"
    assert output.seen() == []
    life.barrier(1)
    second = numbers(100, 500)
    life.write(*second)  # the next transaction begins before the first one is committed
    assert output.seen() == []
    life.complete(1)
    assert output.shows(*first)
    life.barrier(2)
    life.complete(2)
    assert output.shows(*first, *second)
    output.wait_until_decided()


def test_checkpoints_without_records_open_no_transaction(output: Output) -> None:
    life = output.live(output.sink())
    for checkpoint_id in (1, 2):
        assert life.barrier(checkpoint_id) == []
        life.complete(checkpoint_id)
    life.write("k-1")
    (item,) = life.barrier(3)
    assert life.barrier(4) == [item]
    life.complete(4)
    assert output.shows("k-1")


def test_a_task_that_ends_gives_up_what_was_not_committed(output: Output) -> None:
    life = output.live(output.sink())
    life.write(*numbers(10))
    life.barrier(1)
    life.write(*numbers(10, 10))
    life.close()
    output.wait_until_decided()
    assert output.seen() == []


@pytest.mark.parametrize(
    "death", ["while writing", "after the barrier", "before the commit", "after the commit", "after two checkpoints"]
)
def test_wherever_a_life_ends_the_next_one_brings_each_record_once(output: Output, death: str) -> None:
    sink = output.sink()
    records = numbers(60)
    first = output.live(sink, 1, parallelism=2)
    checkpoint: list[bytes] = []
    read = 0

    def write_some(life: Life) -> None:
        nonlocal read
        for n in range(20):
            life.write(records[read + n], subtask=n % 2)
        read += 20

    write_some(first)
    if death != "while writing":
        prepared = first.barrier(1)
        if death in ("before the commit", "after the commit", "after two checkpoints"):
            checkpoint = prepared
        if death in ("after the commit", "after two checkpoints"):
            first.complete(1)  # and nobody hears of it
        if death == "after two checkpoints":
            write_some(first)
            checkpoint = [*checkpoint, *first.barrier(2)]
    read = len([r for r in records if checkpoint and records.index(r) < (40 if "two" in death else 20)])
    # The first one is not closed: its transactions are open, as those of a dead process are.
    second = output.live(sink, 2, checkpoint, parallelism=2)
    assert output.shows_in_any_order(*records[:read])
    output.wait_until_decided()
    while read < len(records):
        write_some(second)
        second.barrier(3)
        second.complete(3)
    assert output.shows_in_any_order(*records)
    output.wait_until_decided()


def test_commits_asked_for_again_and_recoveries_repeated_change_nothing(output: Output) -> None:
    sink = output.sink()
    life = output.live(sink)
    life.write(*numbers(10))
    checkpoint = life.barrier(1)
    life.complete(1)
    life.committer.commit(checkpoint)
    for attempt in (2, 3):
        output.live(sink, attempt, checkpoint)
    assert output.shows(*numbers(10))


def test_a_life_that_was_taken_over_is_fenced_off_and_shows_nothing_more(output: Output) -> None:
    old = output.live(output.sink(), 1)
    old.write(*numbers(10))
    checkpoint = old.barrier(1)
    new = output.live(output.sink(), 2, checkpoint)
    assert output.shows(*numbers(10))
    # The old one wakes up: what it commits now was committed for it, and what it writes is never seen.
    with pytest.raises(FencedError, match="belong to attempt 2 of job job"):
        old.complete(1)
    old.write("k-zombie")
    new.write(*numbers(5, 10))
    new.barrier(2)
    new.complete(2)
    assert output.shows(*numbers(15))


def test_an_open_transaction_outlives_a_broker_that_is_killed_and_comes_back(output: Output) -> None:
    life = output.live(output.sink())
    life.write(*numbers(50))
    life.barrier(1)
    life.write(*numbers(50, 50))
    output.broker.kill()
    life.write(*numbers(50, 100))
    committing = threading.Thread(target=life.complete, args=(1,))
    committing.start()
    output.broker.start()
    committing.join(120)
    assert not committing.is_alive()
    life.barrier(2)
    life.complete(2)
    assert output.shows(*numbers(150))
    output.wait_until_decided()


def test_a_downtime_longer_than_the_transaction_timeout_loses_and_doubles_nothing(output: Output) -> None:
    sink = output.sink(timeout_ms=2_000)
    first = output.live(sink)
    first.write(*numbers(20))
    checkpoint = first.barrier(1)
    first.write(*numbers(5, 20))
    output.wait_until_decided()  # brokers have given both transactions up
    assert output.seen() == []
    second = output.live(sink, 2, checkpoint)
    assert output.shows(*numbers(20))
    second.write(*numbers(5, 20))
    second.barrier(2)
    second.complete(2)
    assert output.shows(*numbers(25))


def test_a_transaction_that_timed_out_before_its_commit_is_sent_again_by_its_owner(output: Output) -> None:
    life = output.live(output.sink(timeout_ms=2_000))
    life.write(*numbers(20))
    life.barrier(1)
    output.wait_until_decided()
    assert output.seen() == []
    life.write(*numbers(20, 20))  # in another transaction, and in the topic before the first ones come again
    life.complete(1)
    life.write(*numbers(20, 40))
    assert output.shows(*numbers(20)), "the one that was overtaken holds nobody up"
    life.barrier(2)
    life.complete(2)
    life.write(*numbers(20, 60))
    life.barrier(3)
    life.complete(3)
    assert output.shows(*numbers(80)), "in the order in which they were written"


def test_scaling_in_before_the_first_checkpoint_leaves_no_transaction_open(output: Output) -> None:
    sink = output.sink()
    wide = output.live(sink, 1, parallelism=5)
    for subtask in range(5):
        wide.write(*numbers(10, subtask * 10), subtask=subtask)
    narrow = output.live(sink, 2, parallelism=1)
    output.wait_until_decided()
    narrow.write(*numbers(50))
    narrow.barrier(1)
    narrow.complete(1)
    assert output.shows(*numbers(50))


def test_scaling_in_with_prepared_output_of_every_shard_brings_all_of_it(output: Output) -> None:
    sink = output.sink()
    wide = output.live(sink, 1, parallelism=4)
    for subtask in range(4):
        wide.write(*numbers(10, subtask * 10), subtask=subtask)
    checkpoint = wide.barrier(1)
    wide.committer.commit(checkpoint[:2])  # two of four got through
    output.live(sink, 2, checkpoint, parallelism=1)
    assert output.shows_in_any_order(*numbers(40))
    output.wait_until_decided()


def test_output_of_checkpoints_that_fail_goes_with_the_next_one_in_order(output: Output) -> None:
    """More of them than there are transactional ids: then records wait in the log alone."""
    life = output.live(output.builder().set_transactions_per_subtask(2).build())
    for checkpoint_id in range(1, 7):
        life.write(*numbers(10, (checkpoint_id - 1) * 10))
        life.barrier(checkpoint_id)
    assert output.seen() == []
    life.complete(6)
    assert output.shows(*numbers(60))
    life.write("k-after")
    life.barrier(7)
    life.complete(7)
    assert output.shows(*numbers(60), "k-after")
    output.wait_until_decided()


def test_lost_markers_are_an_error_until_somebody_decides(output: Output) -> None:
    first = output.live(output.sink())
    first.write(*numbers(10))
    checkpoint = first.barrier(1)
    first.complete(1)
    first.close()
    output.broker.delete_topic(output.markers)
    with pytest.raises(CommitOutcomeUnknownError, match=r"10 records of checkpoint 1 .* has lost its markers"):
        output.live(output.sink(), 2, checkpoint)
    # The error must not heal itself: the second try knows no more than the first.
    with pytest.raises(CommitOutcomeUnknownError, match="set_on_lost_markers"):
        output.live(output.sink(), 3, checkpoint)
    output.live(output.builder().set_on_lost_markers("leave").build(), 4, checkpoint)
    assert output.shows(*numbers(10))


def test_a_prefix_in_use_by_another_job_or_sink_is_refused(output: Output) -> None:
    builder = output.builder().set_transactional_id_prefix("shared")
    output.live(builder.build(), 1, job="payments", uid="alerts")
    with pytest.raises(ConfigurationError, match='"shared" belongs to sink "alerts" of job payments'):
        output.live(builder.build(), 1, job="orders", uid="alerts")
    with pytest.raises(ConfigurationError, match="set_transactional_id_prefix"):
        output.live(builder.build(), 1, job="payments", uid="totals")
    taken = output.live(builder.take_over_prefix().build(), 1, job="orders", uid="alerts")
    taken.write("k-1")
    taken.barrier(1)
    taken.complete(1)
    assert output.shows("k-1")


def test_a_job_begun_anew_without_its_checkpoints_is_not_held_by_the_markers_of_its_former_life(
    output: Output,
) -> None:
    sink = output.sink()
    for attempt in (1, 2, 3):
        old = output.live(sink, attempt)
        old.write(f"k-old-{attempt}")
        old.barrier(10 + attempt)
        old.complete(10 + attempt)
    fresh = output.live(sink, 1, history="elsewhere")
    fresh.write("k-new")
    checkpoint = fresh.barrier(1)
    output.live(sink, 2, checkpoint, history="elsewhere")  # the fresh one died before its commit
    assert output.shows("k-old-1", "k-old-2", "k-old-3", "k-new")


def test_a_marker_behind_another_jobs_open_transaction_is_waited_for(output: Output) -> None:
    sink = output.sink()
    life = output.live(sink)
    stranger = kafka("the test").Producer(
        {"bootstrap.servers": output.broker.bootstrap_servers, "transactional.id": f"stranger-{output.topic}"}
    )
    stranger.init_transactions(30)
    stranger.begin_transaction()
    stranger.produce(output.markers, b'{"attempt": 1, "checkpoint": 1}', b"shard:stranger:0")
    stranger.flush(30)
    life.write(*numbers(10))
    checkpoint = life.barrier(1)
    life.complete(1)  # its marker stands behind the stranger's, where readers of committed records do not get yet
    recovering = threading.Thread(target=lambda: output.live(sink, 2, checkpoint))
    recovering.start()
    recovering.join(1.0)
    assert recovering.is_alive(), "it must not take the marker for missing"
    stranger.abort_transaction(30)
    recovering.join(120)
    assert not recovering.is_alive()
    assert output.shows(*numbers(10))


def test_markers_tell_what_was_committed_behind_a_checkpoint_and_count_each_history_for_itself(output: Output) -> None:
    sink = output.sink()

    def since(attempt: int, checkpoint_id: int, history: str = "here") -> list[tuple[int, int]]:
        committer = sink.create_committer()
        assert committer is not None
        found = committer.committed_since("job", "sink", HistoryPoint(history, attempt, checkpoint_id))
        committer.close()
        return [(committed.attempt, committed.checkpoint_id) for committed in found]

    sink.preflight()
    assert since(1, 1) == [], "nobody has ever written"
    first = output.live(sink, parallelism=2)
    for checkpoint_id in (5, 6):
        first.write(*numbers(10), subtask=0)
        first.write("k-1", subtask=checkpoint_id % 2)
        first.barrier(checkpoint_id)
        first.complete(checkpoint_id)
    first.write("k-open")
    assert since(1, 4) == [(1, 5), (1, 6)]
    assert since(1, 5) == [(1, 6)]
    assert since(1, 6) == since(2, 1) == since(1, 4, "elsewhere") == []
    # What the dead one had open is ended by the question, and it cannot go on.
    output.wait_until_decided()
    checkpoint = [*first.barrier(7)]
    second = output.live(sink, 2, checkpoint, parallelism=2)
    assert since(1, 6) == [(1, 7)], "sent again by recovery, under the name of who wrote it"
    second.write("k-2")
    second.barrier(8)
    second.complete(8)
    assert since(1, 7) == [(2, 8)]
