"""The three kinds of records and how event numbers become them.

Of 50 events in a row the first is a new person, the next 3 are auctions and the other 46 are bids. Event number *n*
happens *n* / rate seconds after `START_MS`, so the records of each kind are in order of time, and so are those of all.

What the suite calls `extra`, padding up to a size in bytes, is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from headrace.types.information import TypeInformation, Types

Ints = npt.NDArray[np.int64]

START_MS = 1_700_000_000_000
RATE = 10_000
"""Events a second of event time."""
EPOCH = 50
"""Events until the kinds repeat."""

FIRST_PERSON = 1_000
FIRST_AUCTION = 1_000
FIRST_CATEGORY = 10
CATEGORIES = 5
AUCTIONS_IN_FLIGHT = 100
ACTIVE_PEOPLE = 1_000

PERSON_TYPE = Types.ROW_NAMED(
    ["id", "name", "email", "credit_card", "city", "state", "date_time"],
    [Types.LONG(), *[Types.STRING()] * 5, Types.LONG()],
)
AUCTION_TYPE = Types.ROW_NAMED(
    [
        *("id", "item_name", "description", "initial_bid", "reserve"),
        *("date_time", "expires", "seller", "category"),
    ],
    [Types.LONG(), Types.STRING(), Types.STRING(), *[Types.LONG()] * 6],
)
BID_TYPE = Types.ROW_NAMED(
    ["auction", "bidder", "price", "channel", "url", "date_time"],
    [*[Types.LONG()] * 3, Types.STRING(), Types.STRING(), Types.LONG()],
)


@dataclass(frozen=True, slots=True)
class Share:
    """Where records of one kind lie among the events."""

    first: int
    """Place of the first one within an epoch."""
    count: int
    """How many of each epoch."""
    type: TypeInformation

    def total(self, events: int) -> int:
        """Records of this kind among the first `events` events."""
        full, rest = divmod(events, EPOCH)
        return full * self.count + min(max(rest - self.first, 0), self.count)

    def numbers(self, records: Ints) -> Ints:
        """Event numbers of the records with these numbers."""
        epochs, places = np.divmod(records, self.count)
        return epochs * EPOCH + self.first + places


class Kind(Enum):
    """A kind of record."""

    PERSON = Share(0, 1, PERSON_TYPE)
    AUCTION = Share(1, 3, AUCTION_TYPE)
    BID = Share(4, 46, BID_TYPE)


@dataclass(frozen=True, slots=True)
class Course:
    """What makes one stream of events: two of the same course are the same."""

    seed: int = 42
    rate: int = RATE

    def times(self, numbers: Ints) -> Ints:
        """When events happen, in milliseconds."""
        return START_MS + numbers * 1_000 // self.rate


def last_person(numbers: Ints) -> Ints:
    """The newest person as of these events, counted from 0."""
    return numbers // EPOCH


def last_auction(numbers: Ints) -> Ints:
    """The newest auction as of these events, counted from 0; at the very first event the one that is to come."""
    epochs, places = np.divmod(numbers, EPOCH)
    return np.maximum(epochs * 3 + np.minimum(places, 3) - 1, 0)
