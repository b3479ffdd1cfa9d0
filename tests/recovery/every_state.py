"""A job that keeps every kind of state there is, and what must come out of it, reckoned from its input alone.

events ─ key_by ─▶ ledger    value, list, map, reducing and aggregating state; timers of both clocks
       ─ key_by ─▶ windows   contents of event-time windows
       ─ key_by ─▶ judge     keyed state beside broadcast state  ◀─ broadcast ─ rules
       ─ rebalance ▶ holder  operator list state and union list state
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from headrace import (
    AggregateFunction,
    AggregatingStateDescriptor,
    CheckpointedFunction,
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapFunction,
    MapStateDescriptor,
    ProcessWindowFunction,
    ReducingStateDescriptor,
    Time,
    TumblingEventTimeWindows,
    Types,
    ValueStateDescriptor,
)

EVENT = Types.TUPLE([Types.STRING(), Types.LONG()])
"""The key and a number that no other event has."""
TIME_OF_ONE_MS = 100
"""Event time between two numbers."""
WINDOW_MS = 1_500
IN_THE_END_MS = 1 << 40
"""Event time that only the end of all input reaches."""
LATER_MS = 3_600_000

COUNT = ValueStateDescriptor("count", Types.LONG())
SEEN = ListStateDescriptor("seen", Types.LONG())
PARITY = MapStateDescriptor("parity", Types.STRING(), Types.LONG())
SUM = ReducingStateDescriptor("sum", lambda a, b: a + b, Types.LONG())
JUDGED = ValueStateDescriptor("judged", Types.LONG())
RULES = MapStateDescriptor("rules", Types.STRING(), Types.LONG())
HELD = ListStateDescriptor("held", Types.LONG())
EVERYWHERE = ListStateDescriptor("everywhere", Types.STRING())


class Extent(AggregateFunction):
    """The smallest and the largest number."""

    def create_accumulator(self) -> list[int]:
        return []

    def add(self, value: int, accumulator: list[int]) -> list[int]:
        return [min([*accumulator, value]), max([*accumulator, value])]

    def get_result(self, accumulator: list[int]) -> list[int]:
        return accumulator

    def merge(self, acc1: list[int], acc2: list[int]) -> list[int]:
        return [min(acc1 + acc2), max(acc1 + acc2)]


EXTENT = AggregatingStateDescriptor("extent", Extent(), Types.LIST(Types.LONG()))


class Ledger(KeyedProcessFunction):
    """Tells of every event how many there were under its key, and of every key in the end all that it kept."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(COUNT)
        self.seen = runtime_context.get_list_state(SEEN)
        self.parity = runtime_context.get_map_state(PARITY)
        self.sum = runtime_context.get_reducing_state(SUM)
        self.extent = runtime_context.get_aggregating_state(EXTENT)

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        key, number = value
        count = (self.count.value() or 0) + 1
        if count == 1:
            timers = ctx.timer_service()
            timers.register_event_time_timer(IN_THE_END_MS)
            timers.register_processing_time_timer(timers.current_processing_time() + LATER_MS)
        self.count.update(count)
        self.seen.add(number)
        parity = "odd" if number % 2 else "even"
        self.parity.put(parity, (self.parity.get(parity) or 0) + 1)
        self.sum.add(number)
        self.extent.add(number)
        yield "counted", key, number, count

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        key = ctx.get_current_key()
        if timestamp != IN_THE_END_MS:
            yield "later", key
            return
        kept = (tuple(self.seen.get()), tuple(sorted(self.parity.items())), self.sum.get(), tuple(self.extent.get()))
        yield "kept", key, self.count.value(), *kept


class Contents(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Any) -> Iterator[Any]:
        yield "window", key, context.window().start, tuple(sorted(number for _, number in elements))


class Judge(KeyedBroadcastProcessFunction):
    """Tells what the rules say, and which event of its key it is."""

    def open(self, runtime_context: Any) -> None:
        self.judged = runtime_context.get_state(JUDGED)

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        key, number = value
        self.judged.update((self.judged.value() or 0) + 1)
        yield "judged", key, number, self.judged.value(), tuple(sorted(ctx.get_broadcast_state(RULES).items()))

    def process_broadcast_element(self, value: Any, ctx: Any) -> None:
        name, limit = value
        ctx.get_broadcast_state(RULES).put(name, limit)


class Holder(MapFunction, CheckpointedFunction):
    """Holds all numbers in list state, and notes in union list state which subtasks there have been."""

    def initialize_state(self, context: Any) -> None:
        store = context.get_operator_state_store()
        self.list = store.get_list_state(HELD)
        self.union = store.get_union_list_state(EVERYWHERE)
        self.held = list(self.list)
        self.known = set(self.union)

    def open(self, runtime_context: Any) -> None:
        n, of = runtime_context.get_index_of_this_subtask(), runtime_context.get_number_of_parallel_subtasks()
        self.known.add(f"{n} of {of}")

    def map(self, value: Any) -> Any:
        self.held.append(value[1])
        return "held", *value

    def snapshot_state(self, context: Any) -> None:
        self.list.update(self.held)
        self.union.update(sorted(self.known))


def same(value: Any) -> Any:
    return value


def key_of(event: Any) -> str:
    return event[0]  # type: ignore[no-any-return]


def everything(events: Any, rules: Any) -> Any:
    """All results of the job in one stream. Nothing but keyed, broadcast and rebalanced edges."""
    ledger = events.key_by(key_of, key_type=Types.STRING()).process(Ledger()).uid("ledger")
    windows = (
        events.key_by(key_of, key_type=Types.STRING())
        .window(TumblingEventTimeWindows.of(Time.milliseconds(WINDOW_MS)))
        .process(Contents())
        .uid("windows")
    )
    judged = events.key_by(key_of, key_type=Types.STRING()).connect(rules.broadcast(RULES)).process(Judge())
    held = events.rebalance().map(Holder()).uid("holder")
    return ledger.union(windows, judged.uid("judge"), held).rebalance().map(same).uid("all")


def expected(events: list[tuple[str, int]], rules: dict[str, int]) -> list[Any]:
    """What all stages together must have put out, in any order."""
    by_key: dict[str, list[int]] = defaultdict(list)
    windows: dict[tuple[str, int], list[int]] = defaultdict(list)
    out: list[Any] = []
    told = tuple(sorted(rules.items()))
    for key, number in events:
        by_key[key].append(number)
        windows[key, number * TIME_OF_ONE_MS // WINDOW_MS * WINDOW_MS].append(number)
        n = len(by_key[key])
        out += [("counted", key, number, n), ("judged", key, number, n, told), ("held", key, number)]
    out += [("window", key, start, tuple(numbers)) for (key, start), numbers in windows.items()]
    for key, numbers in by_key.items():
        parity = [(name, sum(n % 2 == bit for n in numbers)) for name, bit in (("even", 0), ("odd", 1))]
        kept = (tuple(numbers), tuple(p for p in parity if p[1]), sum(numbers), (min(numbers), max(numbers)))
        out += [("later", key), ("kept", key, len(numbers), *kept)]
    return out
