"""The average temperature of each sensor in each hour, by the time of the readings and not by when they come.

    python examples/hourly_average.py

The readings are out of order by up to a few minutes. A window waits for them: it closes when the watermark, which stays
ten minutes behind the latest reading, has passed its end. One accumulator is kept for each sensor and hour, not the
readings.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from headrace import (
    AggregateFunction,
    Duration,
    StreamExecutionEnvironment,
    Time,
    TimeWindow,
    TumblingEventTimeWindows,
    Types,
    WatermarkStrategy,
)

READING = Types.ROW_NAMED(["sensor", "minute", "temperature"], [str, int, float])
READINGS = [
    ("roof", 5, 20.0),
    ("cellar", 7, 11.0),
    ("roof", 58, 24.0),
    ("roof", 61, 30.0),
    ("roof", 55, 22.0),
    ("cellar", 64, 12.0),
    ("cellar", 59, 13.0),
    ("roof", 119, 32.0),
]
"""Minutes since midnight; the readings at 55 and 59 come after some of the next hour."""


class Average(AggregateFunction):
    """Sum and count are all that an average needs."""

    def create_accumulator(self) -> tuple[float, int]:
        return 0.0, 0

    def add(self, value: tuple[str, int, float], accumulator: tuple[float, int]) -> tuple[float, int]:
        return accumulator[0] + value[2], accumulator[1] + 1

    def get_result(self, accumulator: tuple[float, int]) -> float:
        return accumulator[0] / accumulator[1]

    def merge(self, acc1: tuple[float, int], acc2: tuple[float, int]) -> tuple[float, int]:
        return acc1[0] + acc2[0], acc1[1] + acc2[1]


def with_hour(sensor: str, window: TimeWindow, averages: Iterable[float]) -> Iterator[tuple[str, int, float]]:
    """The window function: gets the one result of the aggregate, and knows key and window."""
    for average in averages:
        yield sensor, window.start // 3_600_000, average


def main(env: StreamExecutionEnvironment | None = None) -> list[tuple[str, int, float]]:
    """Run the job and give (sensor, hour, average) in order."""
    env = env or StreamExecutionEnvironment.get_execution_environment()
    event_time = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_minutes(10))
    averages = (
        env.from_collection(READINGS, READING)
        .assign_timestamps_and_watermarks(event_time.with_timestamp_assigner(lambda r, _: r.minute * 60_000))
        .key_by("sensor")
        .window(TumblingEventTimeWindows.of(Time.hours(1)))
        .aggregate(
            Average(),
            with_hour,
            accumulator_type=Types.TUPLE([float, int]),
            output_type=Types.TUPLE([str, int, float]),
        )
    )
    with averages.execute_and_collect("hourly-average") as results:
        return sorted(results)


if __name__ == "__main__":
    for sensor, hour, average in main():
        print(f"{sensor}, hour {hour}: {average:.1f} degrees")
