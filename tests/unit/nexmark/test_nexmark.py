"""The Nexmark generator, and every query against plain Python over the same records."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from bench.nexmark.generator import NexmarkSource, NexmarkSplit, _NexmarkReader, columns_of
from bench.nexmark.model import Course, Kind
from bench.nexmark.queries import QUERIES
from bench.nexmark.reference import ANSWERS, house
from bench.nexmark.streams import Events

from headrace import EmbeddedRocksDBStateBackend, StreamExecutionEnvironment
from headrace.connectors.source import PollStatus, ReaderContext, SourceBatch
from headrace.testing import JobHarness

COURSE = Course(seed=7, rate=100)
EVENTS = 4_000
"""At the rate of the course, 40 s of event time."""


def answers_of(name: str, parallelism: int, backend: str = "heap") -> list[Any]:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(parallelism)
    if backend == "rocksdb":
        env.set_state_backend(EmbeddedRocksDBStateBackend())
    stream = QUERIES[name](Events(env, EVENTS, COURSE))
    with JobHarness(stream) as harness:
        if name == "q12":
            # By the clock: it stands still while the records come, then the window is over. It must be over before the
            # input ends: after that no timer of the clock fires.
            with pytest.MonkeyPatch.context() as patch:
                read = _NexmarkReader.poll

                def poll(self: _NexmarkReader, limit: int) -> SourceBatch | PollStatus:
                    found = read(self, limit)
                    return PollStatus.IDLE if found is PollStatus.ENDED else found

                patch.setattr(_NexmarkReader, "poll", poll)
                harness.run()
                harness.advance(20_000)
        return harness.run_to_end()


def comparable(name: str, answers: list[Any]) -> Any:
    if name == "q4":
        # The average of a category changes with every sale; the last one is what all agree on.
        return {category: pytest.approx(average) for category, average in answers}
    return Counter(tuple(answer) for answer in answers)


@pytest.mark.parametrize("name", QUERIES)
def test_a_query_gives_what_plain_python_gives(name: str) -> None:
    found, wanted = answers_of(name, parallelism=2), ANSWERS[name](house(EVENTS, COURSE))
    assert wanted
    assert comparable(name, found) == comparable(name, wanted)


@pytest.mark.parametrize("name", ["q3", "q4", "q5", "q6", "q8", "q11"])
def test_a_query_with_state_gives_the_same_on_rocksdb(name: str) -> None:
    found, wanted = answers_of(name, 1, "rocksdb"), ANSWERS[name](house(EVENTS, COURSE))
    assert comparable(name, found) == comparable(name, wanted)


def test_fifty_events_are_one_person_three_auctions_and_forty_six_bids() -> None:
    for events in (50, 5_000, 5_003):
        assert sum(kind.value.total(events) for kind in Kind) == events
    assert [kind.value.total(50) for kind in Kind] == [1, 3, 46]
    numbers = [kind.value.numbers(np.arange(kind.value.total(103), dtype=np.int64)).tolist() for kind in Kind]
    assert sorted(number for found in numbers for number in found) == list(range(103))


def read(source: NexmarkSource, splits: list[NexmarkSplit], limit: int = 100, polls: int = 10**6) -> tuple[Any, Any]:
    reader = source.create_reader(ReaderContext(0, 1))
    reader.add_splits(splits)
    reader.no_more_splits()
    rows: list[Any] = []
    while polls and isinstance(batch := reader.poll(limit), SourceBatch):
        assert batch.columns is not None
        assert batch.timestamps == batch.columns["date_time"].to_pylist() == sorted(batch.timestamps)
        rows += batch.columns.to_pylist()
        polls -= 1
    return rows, reader.snapshot()


@pytest.mark.parametrize("kind", Kind)
def test_the_same_records_come_whole_in_parts_and_after_a_restore(kind: Kind) -> None:
    source = NexmarkSource(kind, 5_000, COURSE)
    whole, left = read(source, [NexmarkSplit(0, 1, 0)])
    assert left == []
    assert len(whole) == source.records
    parts = [read(source, [NexmarkSplit(i, 3, i)])[0] for i in range(3)]
    assert [whole[i::3] for i in range(3)] == parts
    begun, left = read(source, [NexmarkSplit(0, 1, 0)], limit=17, polls=2)
    assert begun + read(source, left)[0] == whole


def test_another_seed_is_another_house_with_the_same_people() -> None:
    one, other = house(500, Course(seed=1)), house(500, Course(seed=2))
    assert [p["id"] for p in one.people] == [p["id"] for p in other.people]
    assert one.bids != other.bids


def test_records_speak_of_people_and_auctions_that_are_there() -> None:
    found = house(20_000)
    people = {p["id"]: p["date_time"] for p in found.people}
    auctions = {a["id"]: a["date_time"] for a in found.auctions}
    assert all(people[a["seller"]] <= a["date_time"] < a["expires"] for a in found.auctions)
    assert all(people[b["bidder"]] <= b["date_time"] >= auctions[b["auction"]] for b in found.bids)
    hot = Counter(b["auction"] for b in found.bids).most_common(5)
    assert all(auction % 100 == 0 for auction, _ in hot)
    for kind in Kind:
        names = columns_of(kind, COURSE, np.arange(3), kind.value.numbers(np.arange(3))).schema.names
        assert tuple(names) == kind.value.type.names
