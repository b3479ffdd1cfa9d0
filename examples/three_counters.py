"""A one-minute window over three counters of unequal speed.

    python examples/three_counters.py

Each counter ticks once for every second of event time, but the three are read at very different speeds. A window over
all of them closes only when the slowest has passed its end, because the watermark of a union is the smallest of its
inputs. So every minute holds sixty ticks of each counter, however far the fast one has run ahead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from headrace import (
    DataStream,
    NumberSequenceSource,
    StreamExecutionEnvironment,
    Time,
    TimeWindow,
    TumblingEventTimeWindows,
    Types,
    WatermarkStrategy,
)

RATES = {"fast": 6_000, "middling": 1_500, "slow": 600}
"""Ticks that are read in a second of real time."""
MINUTES = 5


def counter(env: StreamExecutionEnvironment, name: str) -> DataStream:
    """The ticks of one counter, as its name."""
    ticks = NumberSequenceSource(0, MINUTES * 60 - 1, rate=RATES[name])
    seconds = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda tick, _: tick * 1_000)
    return env.from_source(ticks, seconds, name).map(lambda _: name, output_type=str).set_parallelism(1)


def per_counter(window: TimeWindow, ticks: Iterable[str]) -> Iterator[tuple[int, int, int, int]]:
    """(minute, ticks of each counter in it)"""
    counts = Counter(ticks)
    yield window.start // 60_000, *(counts[name] for name in RATES)


def main(env: StreamExecutionEnvironment | None = None) -> list[tuple[int, int, int, int]]:
    """Run the job and give the minutes in order."""
    env = env or StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    fast, middling, slow = (counter(env, name) for name in RATES)
    minutes = (
        fast.union(middling, slow)
        .window_all(TumblingEventTimeWindows.of(Time.minutes(1)))
        .apply(per_counter, output_type=Types.TUPLE([int, int, int, int]))
    )
    with minutes.execute_and_collect("three-counters") as results:
        return sorted(results)


if __name__ == "__main__":
    for minute, *counts in main():
        print(f"minute {minute}: {', '.join(f'{n} {name}' for name, n in zip(RATES, counts, strict=True))}")
