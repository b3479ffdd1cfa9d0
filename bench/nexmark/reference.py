"""The answers of the queries by plain Python over lists of records: no stream, no state, no engine.

Each function takes all people, auctions and bids as dicts and gives what the query should emit, in any order.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.nexmark.generator import DEFAULT, columns_of
from bench.nexmark.model import Course, Kind

Record = dict[str, Any]


@dataclass(frozen=True)
class House:
    """Everything that happened."""

    people: list[Record]
    auctions: list[Record]
    bids: list[Record]


def house(events: int, course: Course = DEFAULT) -> House:
    """The records among the first `events` events."""
    found = []
    for kind in (Kind.PERSON, Kind.AUCTION, Kind.BID):
        records = np.arange(kind.value.total(events), dtype=np.int64)
        found.append(columns_of(kind, course, records, kind.value.numbers(records)).to_pylist())
    return House(*found)


def q0(house: House) -> list[Any]:
    return [tuple(bid.values()) for bid in house.bids]


def q1(house: House) -> list[Any]:
    return [(bid["auction"], bid["bidder"], bid["price"] * 0.908, bid["date_time"]) for bid in house.bids]


def q2(house: House) -> list[Any]:
    return [(bid["auction"], bid["price"]) for bid in house.bids if bid["auction"] % 123 == 0]


def q3(house: House) -> list[Any]:
    people = {person["id"]: person for person in house.people if person["state"] in ("OR", "ID", "CA")}
    sold = [auction for auction in house.auctions if auction["category"] == 10 and auction["seller"] in people]
    return [
        (*(people[auction["seller"]][field] for field in ("name", "city", "state")), auction["id"]) for auction in sold
    ]


def sales(house: House) -> list[Any]:
    """(auction, seller, category, price, when it closed) of every auction that was bid for."""
    bids = defaultdict(list)
    for bid in house.bids:
        bids[bid["auction"]].append(bid)
    found = []
    for auction in house.auctions:
        prices = [
            bid["price"]
            for bid in bids[auction["id"]]
            if auction["date_time"] <= bid["date_time"] <= auction["expires"]
        ]
        if prices:
            found.append((auction["id"], auction["seller"], auction["category"], max(prices), auction["expires"]))
    return found


def q4(house: House) -> list[Any]:
    """Only the last answer for each category: in which order auctions of one moment close is open."""
    prices = defaultdict(list)
    for _, _, category, price, _ in sales(house):
        prices[category].append(price)
    return [(category, sum(found) / len(found)) for category, found in prices.items()]


def q5(house: House) -> list[Any]:
    counts: dict[int, Counter[int]] = defaultdict(Counter)
    for bid in house.bids:
        last = bid["date_time"] // 2_000 * 2_000
        for start in range(last - 8_000, last + 1, 2_000):
            counts[start][bid["auction"]] += 1
    return [
        (auction, start, count)
        for start, found in counts.items()
        for auction, count in found.items()
        if count == max(found.values())
    ]


def q6(house: House) -> list[Any]:
    prices = defaultdict(list)
    answers = []
    for _, seller, _, price, _ in sorted(sales(house), key=lambda sale: (sale[4], sale[0])):
        prices[seller].append(price)
        last = prices[seller][-10:]
        answers.append((seller, sum(last) / len(last)))
    return answers


def q7(house: House) -> list[Any]:
    windows = defaultdict(list)
    for bid in house.bids:
        windows[bid["date_time"] // 10_000].append((-bid["price"], bid["date_time"], bid["auction"], bid["bidder"]))
    return [(-price, *rest) for price, *rest in map(min, windows.values())]


def q8(house: House) -> list[Any]:
    sellers = {(auction["seller"], auction["date_time"] // 10_000) for auction in house.auctions}
    return [
        (person["id"], person["name"], person["date_time"] // 10_000 * 10_000)
        for person in house.people
        if (person["id"], person["date_time"] // 10_000) in sellers
    ]


def q11(house: House) -> list[Any]:
    times = defaultdict(list)
    for bid in house.bids:
        times[bid["bidder"]].append(bid["date_time"])
    answers = []
    for bidder, found in times.items():
        first, count, last = found[0], 0, found[0]
        for at_ms in sorted(found):
            if at_ms > last + 10_000:
                answers.append((bidder, count, first, last + 10_000))
                first, count = at_ms, 0
            count, last = count + 1, at_ms
        answers.append((bidder, count, first, last + 10_000))
    return answers


def q12(house: House) -> list[Any]:
    """If the whole input falls into one window of the clock."""
    return list(Counter(bid["bidder"] for bid in house.bids).items())


ANSWERS: dict[str, Callable[[House], list[Any]]] = {
    answer.__name__: answer for answer in (q0, q1, q2, q3, q4, q5, q6, q7, q8, q11, q12)
}
