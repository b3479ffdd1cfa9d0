"""Queries 3, 4 and 6: auctions with their sellers, and auctions with the bid that won them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.nexmark.model import AUCTION_TYPE, PERSON_TYPE
from bench.nexmark.streams import Events
from headrace import (
    DataStream,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    RuntimeContext,
    Types,
    ValueStateDescriptor,
)

LOCAL_STATES = ("OR", "ID", "CA")
LOCAL_CATEGORY = 10
LAST_SALES = 10

PAIR = Types.TUPLE([Types.LONG(), Types.LONG()])


Sale = tuple[int, int, int, int, int]
"""A closed auction: (auction, seller, category, price, when it closed)."""
SALE = Types.TUPLE([Types.LONG()] * 5)


class LocalItems(KeyedCoProcessFunction):
    """Meets auctions with their seller, whichever comes first. Keeps the seller, and auctions until they came."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._person = runtime_context.get_state(ValueStateDescriptor("person", PERSON_TYPE))
        self._auctions = runtime_context.get_list_state(ListStateDescriptor("auctions", Types.LONG()))

    def process_element1(self, auction: Any, ctx: Any) -> Iterator[tuple[str, str, str, int]]:
        person = self._person.value()
        if person is None:
            self._auctions.add(auction.id)
        else:
            yield person.name, person.city, person.state, auction.id

    def process_element2(self, person: Any, ctx: Any) -> Iterator[tuple[str, str, str, int]]:
        self._person.update(person)
        for auction in self._auctions.get():
            yield person.name, person.city, person.state, auction
        self._auctions.clear()


def q3(events: Events) -> DataStream:
    """Local item suggestion: who sells in category 10 in OR, ID or CA, as (name, city, state, auction)."""
    auctions = events.auctions.filter(lambda auction: auction.category == LOCAL_CATEGORY)
    people = events.people.filter(lambda person: person.state in LOCAL_STATES)
    return (
        auctions.connect(people)
        .key_by(lambda auction: auction.seller, lambda person: person.id, key_type=Types.LONG())
        .process(LocalItems(), output_type=Types.TUPLE([Types.STRING(), Types.STRING(), Types.STRING(), Types.LONG()]))
    )


class WinningBid(KeyedCoProcessFunction):
    """The highest bid between the opening and the end of an auction, told at its end.

    Bids wait as long as their auction is not known: the two come from sources of their own.
    """

    def open(self, runtime_context: RuntimeContext) -> None:
        self._auction = runtime_context.get_state(ValueStateDescriptor("auction", AUCTION_TYPE))
        self._price = runtime_context.get_state(ValueStateDescriptor("price", Types.LONG()))
        self._waiting = runtime_context.get_list_state(ListStateDescriptor("waiting", PAIR))

    def process_element1(self, auction: Any, ctx: Any) -> None:
        self._auction.update(auction)
        ctx.timer_service().register_event_time_timer(auction.expires)
        for price, at_ms in self._waiting.get():
            self._bid(auction, price, at_ms)
        self._waiting.clear()

    def process_element2(self, bid: Any, ctx: Any) -> None:
        auction = self._auction.value()
        if auction is not None:
            self._bid(auction, bid.price, bid.date_time)
        elif bid.date_time > ctx.timer_service().current_watermark():
            self._waiting.add((bid.price, bid.date_time))
            # The auction is older than its bids: if it is not there when time has come so far, it is over.
            ctx.timer_service().register_event_time_timer(bid.date_time)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Sale]:
        auction = self._auction.value()
        if auction is None:
            self._waiting.clear()
        elif timestamp == auction.expires:
            price = self._price.value()
            if price is not None:
                yield auction.id, auction.seller, auction.category, price, timestamp
            self._auction.clear()
            self._price.clear()

    def _bid(self, auction: Any, price: int, at_ms: int) -> None:
        if auction.date_time <= at_ms <= auction.expires and price > (self._price.value() or 0):
            self._price.update(price)


def sales(events: Events) -> DataStream:
    """Every auction that was bid for, when it closes; queries 4 and 6 begin with it."""
    return (
        events.auctions.connect(events.bids)
        .key_by(lambda auction: auction.id, lambda bid: bid.auction, key_type=Types.LONG())
        .process(WinningBid(), output_type=SALE)
    )


class RunningAverage(KeyedProcessFunction):
    """The average price so far, at every sale."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._sum = runtime_context.get_state(ValueStateDescriptor("sum", PAIR))

    def process_element(self, sale: Sale, ctx: Any) -> Iterator[tuple[int, float]]:
        _, _, category, price, _ = sale
        total, count = self._sum.value() or (0, 0)
        total, count = total + price, count + 1
        self._sum.update((total, count))
        yield category, total / count


def q4(events: Events) -> DataStream:
    """Average price for a category: of all auctions that have closed, as (category, average) at each that closes."""
    return (
        sales(events)
        .key_by(lambda sale: sale[2], key_type=Types.LONG())
        .process(RunningAverage(), output_type=Types.TUPLE([Types.LONG(), Types.DOUBLE()]))
    )


class LastSales(KeyedProcessFunction):
    """The average of a seller's last ten sales, in the order in which they closed."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._due = runtime_context.get_map_state(
            MapStateDescriptor("due", PAIR, Types.LONG())  # (closed, auction) -> price
        )
        self._prices = runtime_context.get_list_state(ListStateDescriptor("prices", Types.LONG()))

    def process_element(self, sale: Sale, ctx: Any) -> None:
        auction, _, _, price, closed_ms = sale
        self._due.put((closed_ms, auction), price)
        # Auctions close on several subtasks: only the watermark tells that all sales up to here are known.
        ctx.timer_service().register_event_time_timer(closed_ms)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[tuple[int, float]]:
        prices = list(self._prices.get())
        for key in sorted(key for key in self._due.keys() if key[0] == timestamp):  # noqa: SIM118 - no dict
            prices.append(self._due[key])
            self._due.remove(key)
            prices = prices[-LAST_SALES:]
            yield ctx.get_current_key(), sum(prices) / len(prices)
        self._prices.update(prices)


def q6(events: Events) -> DataStream:
    """Average selling price by seller: of the last ten auctions of each, as (seller, average) at each that closes."""
    return (
        sales(events)
        .key_by(lambda sale: sale[1], key_type=Types.LONG())
        .process(LastSales(), output_type=Types.TUPLE([Types.LONG(), Types.DOUBLE()]))
    )
