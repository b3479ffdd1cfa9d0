"""Queries 5, 7, 8, 11 and 12: bids, auctions and people in windows of time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from bench.nexmark.streams import Events
from headrace import (
    AggregateFunction,
    CoGroupFunction,
    DataStream,
    EventTimeSessionWindows,
    ProcessWindowFunction,
    SlidingEventTimeWindows,
    Time,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    Types,
    WindowFunction,
)

WINDOW_S = 10
SLIDE_S = 2
SHARDS = 16
"""Into so many parts query 7 cuts a window, so that more than one subtask looks for its highest bid."""

Bid = tuple[int, int, int, int]
"""(price, when, auction, bidder)."""
BID = Types.TUPLE([Types.LONG()] * 4)
COUNTED = Types.TUPLE([Types.LONG()] * 3)
SESSION = Types.TUPLE([Types.LONG()] * 4)
NEWCOMER = Types.TUPLE([Types.LONG(), Types.STRING(), Types.LONG()])


class Count(AggregateFunction):
    """How many."""

    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Any, accumulator: int) -> int:
        return accumulator + 1

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, acc1: int, acc2: int) -> int:
        return acc1 + acc2


class WithStart(WindowFunction):
    """The count of a key with the beginning of its window."""

    def apply(self, key: int, window: Any, inputs: Iterable[int]) -> Iterator[tuple[int, int, int]]:
        for count in inputs:
            yield key, window.start, count


class WithSpan(WindowFunction):
    """The count of a key with the beginning and the end of its window."""

    def apply(self, key: int, window: Any, inputs: Iterable[int]) -> Iterator[tuple[int, int, int, int]]:
        for count in inputs:
            yield key, count, window.start, window.end


class MostBids(WindowFunction):
    """Those of one window that have the highest count."""

    def apply(self, key: int, window: Any, inputs: Iterable[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
        counted = list(inputs)
        most = max(count for _, _, count in counted)
        return [found for found in counted if found[2] == most]


def q5(events: Events) -> DataStream:
    """Hot items: every two seconds the auctions with the most bids in the last ten, as (auction, since, bids)."""
    counted = (
        events.bids.key_by(lambda bid: bid.auction, key_type=Types.LONG())
        .window(SlidingEventTimeWindows.of(Time.seconds(WINDOW_S), Time.seconds(SLIDE_S)))
        .aggregate(Count(), WithStart(), accumulator_type=Types.LONG(), output_type=COUNTED)
    )
    # All counts of one window carry its last timestamp, and each two seconds hold one such timestamp.
    return (
        counted.key_by(lambda found: found[1], key_type=Types.LONG())
        .window(TumblingEventTimeWindows.of(Time.seconds(SLIDE_S)))
        .apply(MostBids(), output_type=COUNTED)
    )


def higher(one: Bid, other: Bid) -> Bid:
    """Of two bids the higher; of equal ones the earlier, then the one with smaller numbers."""
    return one if (-one[0], one[1:]) <= (-other[0], other[1:]) else other


def q7(events: Events) -> DataStream:
    """Highest bid of every ten seconds, as (price, when, auction, bidder)."""
    window = TumblingEventTimeWindows.of(Time.seconds(WINDOW_S))
    parts = (
        events.bids.map(lambda bid: (bid.price, bid.date_time, bid.auction, bid.bidder), output_type=BID)
        .key_by(lambda bid: bid[2] % SHARDS, key_type=Types.LONG())
        .window(window)
        .reduce(higher)
    )
    return parts.window_all(window).reduce(higher)


class NewSeller(CoGroupFunction):
    """A person with at least one auction."""

    def co_group(self, first: Iterable[Any], second: Iterable[Any]) -> Iterator[tuple[int, str, int]]:
        people, auctions = list(first), list(second)
        if auctions:
            for person in people:
                start = person.date_time - person.date_time % (WINDOW_S * 1_000)
                yield person.id, person.name, start


def q8(events: Events) -> DataStream:
    """Monitor new users: who opened an auction in the same ten seconds in which they came, as (id, name, window)."""
    return (
        events.people.co_group(events.auctions)
        .where(lambda person: person.id, key_type=Types.LONG())
        .equal_to(lambda auction: auction.seller)
        .window(TumblingEventTimeWindows.of(Time.seconds(WINDOW_S)))
        .apply(NewSeller(), output_type=NEWCOMER)
    )


def q11(events: Events) -> DataStream:
    """User sessions: how many bids a bidder makes until a pause of ten seconds, as (bidder, bids, start, end)."""
    return (
        events.bids.key_by(lambda bid: bid.bidder, key_type=Types.LONG())
        .window(EventTimeSessionWindows.with_gap(Time.seconds(WINDOW_S)))
        .aggregate(Count(), WithSpan(), accumulator_type=Types.LONG(), output_type=SESSION)
    )


class CountOfKey(ProcessWindowFunction):
    """The count of a key alone: by the clock, windows lie differently in every run."""

    def process(self, key: int, context: Any, elements: Iterable[int]) -> Iterator[tuple[int, int]]:
        for count in elements:
            yield key, count


def q12(events: Events) -> DataStream:
    """Processing time windows: how many bids a bidder makes in ten seconds by the clock, as (bidder, bids)."""
    return (
        events.bids.key_by(lambda bid: bid.bidder, key_type=Types.LONG())
        .window(TumblingProcessingTimeWindows.of(Time.seconds(WINDOW_S)))
        .aggregate(
            Count(), CountOfKey(), accumulator_type=Types.LONG(), output_type=Types.TUPLE([Types.LONG(), Types.LONG()])
        )
    )
