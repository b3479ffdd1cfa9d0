"""All queries by name, and those that look at one bid at a time."""

from __future__ import annotations

from collections.abc import Callable

from bench.nexmark.auction_queries import q3, q4, q6
from bench.nexmark.model import BID_TYPE
from bench.nexmark.streams import Events
from bench.nexmark.windowed_queries import q5, q7, q8, q11, q12
from headrace import DataStream, Types

EUROS = 0.908
EVERY = 123


def q0(events: Events) -> DataStream:
    """Pass through: every bid as it is. What all other queries pay before they begin."""
    return events.bids.map(lambda bid: bid, output_type=BID_TYPE)


def q1(events: Events) -> DataStream:
    """Currency conversion: every bid in euros, as (auction, bidder, price, when)."""
    return events.bids.map(
        lambda bid: (bid.auction, bid.bidder, bid.price * EUROS, bid.date_time),
        output_type=Types.TUPLE([Types.LONG(), Types.LONG(), Types.DOUBLE(), Types.LONG()]),
    )


def q2(events: Events) -> DataStream:
    """Selection: bids on every 123rd auction, as (auction, price)."""
    return events.bids.filter(lambda bid: bid.auction % EVERY == 0).map(
        lambda bid: (bid.auction, bid.price), output_type=Types.TUPLE([Types.LONG(), Types.LONG()])
    )


QUERIES: dict[str, Callable[[Events], DataStream]] = {
    query.__name__: query for query in (q0, q1, q2, q3, q4, q5, q6, q7, q8, q11, q12)
}
