"""A count per key, from two inputs of very unequal speed: what the three consistency levels are told apart by."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

from ledger import THE_END, Ledger, LedgerSource

from headrace import KeyedProcessFunction, MapFunction, Types, ValueStateDescriptor, WatermarkStrategy


class Tally(KeyedProcessFunction):
    """Counts the records of each key and tells the count at the end of the input. Logs every call if asked to."""

    def __init__(self, calls: str = "") -> None:
        self._calls = calls

    def open(self, runtime_context: Any) -> None:
        self._count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> None:
        if self._calls:
            log(self._calls, f"{value[0]} {value[1]}")
        self._count.update((self._count.value() or 0) + 1)
        ctx.timer_service().register_event_time_timer(THE_END)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield (ctx.get_current_key(), self._count.value())


def log(path: str, line: str) -> None:
    """One whole line, whoever else writes at the same time."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{line}\n".encode())
    os.close(file)


class Sluggish(MapFunction):
    """Takes its time over every record: work that is slow, not a wait for anything."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def map(self, value: Any) -> Any:
        time.sleep(self._seconds)
        return value


def renamed(offset: int) -> Any:
    """Gives the keys of the second input names of their own."""
    return lambda record: (record[0] + offset, record[1])


def unequal_inputs(env: Any, fast: Ledger, slow: Ledger, pause: float) -> Any:
    """Two sources on channels of their own, one much slower than the other, as one stream.

    A third, empty one makes the level two slots wide, so that the other two stand on one each.
    """
    event_time = WatermarkStrategy.for_monotonous_timestamps()
    wide = env.from_source(LedgerSource(Ledger(keys=0)), event_time, "empty").uid("empty").set_parallelism(2)
    quick = env.from_source(LedgerSource(fast), event_time, "fast").uid("fast").set_parallelism(1)
    lazy = env.from_source(LedgerSource(slow), event_time, "slow").uid("slow").set_parallelism(1)
    lazy = lazy.map(Sluggish(pause)).uid("sluggish").set_parallelism(1)
    lazy = lazy.map(renamed(fast.keys)).uid("renamed").set_parallelism(1)
    return quick.union(lazy, wide)


def truth(fast: Ledger, slow: Ledger) -> dict[int, int]:
    """What an undisturbed run counts."""
    counts = {key: fast.length for key in range(fast.keys)}
    return counts | {fast.keys + key: slow.length for key in range(slow.keys)}
