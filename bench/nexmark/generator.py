"""The source of events: every record is a pure function of (course, event number), so it can be replayed from anywhere.

As in the suite, half of the bids are on the auction that is hot, three quarters of them by the bidder that is hot, and
three quarters of the auctions by the hot seller; the hot ones change with every 100 new auctions or people. All others
are drawn from what is recent: 100 auctions, 1,000 people. Prices are spread evenly over six orders of magnitude.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bench.nexmark.model import (
    ACTIVE_PEOPLE,
    AUCTIONS_IN_FLIGHT,
    CATEGORIES,
    EPOCH,
    FIRST_AUCTION,
    FIRST_CATEGORY,
    FIRST_PERSON,
    Course,
    Ints,
    Kind,
    last_auction,
    last_person,
)
from headrace.connectors.queue_enumerator import Dealing, QueueEnumerator
from headrace.connectors.sensors import mix64
from headrace.connectors.source import (
    EnumeratorContext,
    PollStatus,
    ReaderContext,
    Source,
    SourceBatch,
    SourceReader,
    SplitEnumerator,
)
from headrace.errors import ConfigurationError
from headrace.types.information import TypeInformation

Draws = npt.NDArray[np.uint64]

DEFAULT = Course()
HOT_EVERY = 100
"""A new hot auction, seller and bidder with so many new ones."""
MAX_BATCH = 16_384

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
_CITIES = ("Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Redmond", "Seattle", "Kent", "Cody")
_FIRST_NAMES = ("Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter")
_LAST_NAMES = ("Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris")
_CHANNELS = ("Google", "Facebook", "Baidu", "Apple", *(f"channel-{i}" for i in range(60)))
_WORDS = ("amber", "brass", "cedar", "delft", "ebony", "felt", "glass", "horn", "ivory", "jade", "kelp", "lace")


class NexmarkSplit(msgspec.Struct):
    """The records `offset`, `offset + stride`, … of one kind, from number `position` on."""

    offset: int
    stride: int
    position: int

    @property
    def split_id(self) -> str:
        return f"events-{self.offset}-of-{self.stride}"


class NexmarkSource(Source[NexmarkSplit]):
    """The records of one kind among the first `events` events of a course, with their timestamps."""

    split_type = NexmarkSplit

    def __init__(self, kind: Kind, events: int, course: Course = DEFAULT) -> None:
        if events < 1:
            raise ConfigurationError(f"NexmarkSource needs at least one event, not {events}.")
        self.kind = kind
        self.events = events
        self.course = course
        self.records = kind.value.total(events)

    @property
    def produced_type(self) -> TypeInformation:
        return self.kind.value.type

    def create_enumerator(self, context: EnumeratorContext, restored: bytes | None) -> SplitEnumerator[NexmarkSplit]:
        return QueueEnumerator(
            context,
            NexmarkSplit,
            first=lambda: [NexmarkSplit(i, context.parallelism, i) for i in range(context.parallelism)],
            restored=restored,
            # All at once: a split that waits for its turn would hold event time back.
            dealing=Dealing.ALL_AT_ONCE,
        )

    def create_reader(self, context: ReaderContext) -> SourceReader[NexmarkSplit]:
        return _NexmarkReader(self)

    def describe(self) -> str:
        return f"{self.records} Nexmark records: {self.kind.name.lower()}"


class _NexmarkReader(SourceReader[NexmarkSplit]):
    """Takes its splits in turn, so that their event times stay together."""

    def __init__(self, source: NexmarkSource) -> None:
        self._source = source
        self._splits: deque[NexmarkSplit] = deque()
        self._no_more = False

    def add_splits(self, splits: Sequence[NexmarkSplit]) -> None:
        self._splits.extend(msgspec.structs.replace(split) for split in splits)

    def no_more_splits(self) -> None:
        self._no_more = True

    def poll(self, limit: int) -> SourceBatch | PollStatus:
        source = self._source
        while self._splits:
            split = self._splits.popleft()
            if split.position >= source.records:
                continue
            self._splits.append(split)
            stop = min(split.position + min(limit, MAX_BATCH) * split.stride, source.records)
            records = np.arange(split.position, stop, split.stride, dtype=np.int64)
            split.position = int(records[-1]) + split.stride
            numbers = source.kind.value.numbers(records)
            batch = columns_of(source.kind, source.course, records, numbers)
            return SourceBatch(split.split_id, columns=batch, timestamps=source.course.times(numbers).tolist())
        return PollStatus.ENDED if self._no_more else PollStatus.NEEDS_SPLIT

    def snapshot(self) -> list[NexmarkSplit]:
        return [msgspec.structs.replace(s) for s in self._splits if s.position < self._source.records]


def columns_of(kind: Kind, course: Course, records: Ints, numbers: Ints) -> pa.RecordBatch:
    """The records of that kind with these numbers among their kind and among all events."""
    dice = _Dice(course, numbers)
    make = {Kind.PERSON: _people, Kind.AUCTION: _auctions, Kind.BID: _bids}[kind]
    return pa.RecordBatch.from_pydict(make(dice, records, numbers))


class _Dice:
    """As many independent draws for each event as are asked for, in a fixed order."""

    def __init__(self, course: Course, numbers: Ints) -> None:
        self.course = course
        start = mix64(np.array([course.seed & 0xFFFF_FFFF_FFFF_FFFF], dtype=np.uint64) + _GOLDEN)
        self._events: Draws = mix64(start + numbers.astype(np.uint64) * _GOLDEN)
        self._throws = 0

    def throw(self) -> Draws:
        self._throws += 1
        return mix64(self._events + np.uint64(self._throws * int(_GOLDEN) % 2**64))

    def below(self, bound: int | Ints) -> Ints:
        """Whole numbers from 0 up to the bound, without it."""
        drawn: Ints = ((self.throw() >> np.uint64(33)).astype(np.int64)) % bound
        return drawn

    def one_in(self, count: int) -> npt.NDArray[np.bool_]:
        return self.below(count) == 0

    def price(self) -> Ints:
        """In cents, from one to a million."""
        exponent = (self.throw() >> np.uint64(11)).astype(np.float64) * 2.0**-53 * 6
        return np.round(10.0**exponent * 100).astype(np.int64)

    def word(self, words: tuple[str, ...]) -> Any:
        return _texts(words).take(pa.array(self.below(len(words))))


@cache
def _texts(words: tuple[str, ...]) -> Any:
    return pa.array(words, type=pa.string())


@cache
def _names() -> tuple[str, ...]:
    return tuple(f"{first} {last}" for first in _FIRST_NAMES for last in _LAST_NAMES)


@cache
def _emails() -> tuple[str, ...]:
    return tuple(f"{first.lower()}.{last.lower()}@example.com" for first in _FIRST_NAMES for last in _LAST_NAMES)


@cache
def _cards() -> tuple[str, ...]:
    return tuple(
        f"{i:04d} {(i * 7919) % 10_000:04d} {(i * 104_729) % 10_000:04d} {i * i % 10_000:04d}" for i in range(500)
    )


@cache
def _items() -> tuple[str, ...]:
    return tuple(f"{one} {other}" for one in _WORDS for other in _WORDS)


@cache
def _descriptions() -> tuple[str, ...]:
    return tuple(f"a {one} thing with {other} and {third}" for one in _WORDS for other in _WORDS for third in _WORDS)


@cache
def _urls() -> tuple[str, ...]:
    return tuple(f"https://www.example.com/{one}/{other}/item.htm?query=1" for one in _WORDS for other in _WORDS)


def _people(dice: _Dice, records: Ints, numbers: Ints) -> dict[str, Any]:
    return {
        "id": FIRST_PERSON + records,
        "name": dice.word(_names()),
        "email": dice.word(_emails()),
        "credit_card": dice.word(_cards()),
        "city": dice.word(_CITIES),
        "state": dice.word(_STATES),
        "date_time": dice.course.times(numbers),
    }


def _auctions(dice: _Dice, records: Ints, numbers: Ints) -> dict[str, Any]:
    initial_bid = dice.price()
    # Long enough that about as many auctions as the suite wants are open at once.
    longest = max(1, 2 * AUCTIONS_IN_FLIGHT * EPOCH // 3 * 1_000 // dice.course.rate)
    opened = dice.course.times(numbers)
    return {
        "id": FIRST_AUCTION + records,
        "item_name": dice.word(_items()),
        "description": dice.word(_descriptions()),
        "initial_bid": initial_bid,
        "reserve": initial_bid + dice.price(),
        "date_time": opened,
        "expires": opened + 1 + dice.below(longest),
        "seller": FIRST_PERSON + _person(dice, numbers, 0),
        "category": FIRST_CATEGORY + dice.below(CATEGORIES),
    }


def _bids(dice: _Dice, records: Ints, numbers: Ints) -> dict[str, Any]:
    newest = last_auction(numbers)
    recent = np.maximum(newest - AUCTIONS_IN_FLIGHT, 0)
    cold = recent + dice.below(newest - recent + 1)
    auction = np.where(dice.one_in(2), cold, newest // HOT_EVERY * HOT_EVERY)
    return {
        "auction": FIRST_AUCTION + auction,
        # Next to the hot seller, so that nobody bids for what they sell themselves.
        "bidder": FIRST_PERSON + _person(dice, numbers, 1),
        "price": dice.price(),
        "channel": dice.word(_CHANNELS),
        "url": dice.word(_urls()),
        "date_time": dice.course.times(numbers),
    }


def _person(dice: _Dice, numbers: Ints, shift: int) -> Ints:
    """A person as of these events, counted from 0: the hot one, `shift` places on, or a recent one."""
    newest = last_person(numbers)
    recent = np.maximum(newest - ACTIVE_PEOPLE, 0)
    cold = recent + dice.below(newest - recent + 1)
    hot = np.minimum(newest // HOT_EVERY * HOT_EVERY + shift, newest)
    return np.where(dice.one_in(4), cold, hot)
