"""Pre-aggregation: sums per shop and minute first, and sums of these over all shops per hour.

    python examples/pre_aggregation.py

The first window runs in parallel and keeps one sum for each shop and minute. What it gives carries the last timestamp
of its window, so a second window by event time can stand behind it: the one subtask that sees all shops gets one
record for each shop and minute instead of every sale.
"""

from __future__ import annotations

from headrace import (
    NumberSequenceSource,
    StreamExecutionEnvironment,
    Time,
    TumblingEventTimeWindows,
    Types,
    WatermarkStrategy,
)

SHOPS = 4
HOURS = 2
SECONDS = HOURS * 3_600
"""A sale in every second, in one shop after the other, of as many coins as the number of the shop and one."""
SALE = Types.TUPLE([int, int, int])
"""Shop, coins, sales."""


def add(one: tuple[int, int, int], other: tuple[int, int, int]) -> tuple[int, int, int]:
    """Coins and sales together; the shop of the first."""
    return one[0], one[1] + other[1], one[2] + other[2]


def main(env: StreamExecutionEnvironment | None = None) -> list[tuple[int, int]]:
    """Run the job and give (coins, sales) of each hour, in order."""
    env = env or StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2)
    seconds = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda second, _: second * 1_000)
    sales = env.from_source(NumberSequenceSource(0, SECONDS - 1), seconds, "sales").map(
        lambda second: (second % SHOPS, second % SHOPS + 1, 1), output_type=SALE
    )
    per_minute = sales.key_by(0).window(TumblingEventTimeWindows.of(Time.minutes(1))).reduce(add)
    per_hour = (
        per_minute.window_all(TumblingEventTimeWindows.of(Time.hours(1)))
        .reduce(add)
        .map(lambda total: (total[1], total[2]), output_type=Types.TUPLE([int, int]))
    )
    with per_hour.execute_and_collect("pre-aggregation") as results:
        return sorted(results)


if __name__ == "__main__":
    for hour, (coins, sales) in enumerate(main()):
        print(f"hour {hour}: {coins} coins in {sales} sales")
