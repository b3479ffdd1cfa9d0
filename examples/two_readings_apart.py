"""Two readings of a sensor, one right after the other, that lie 20 degrees apart within a minute.

    python examples/two_readings_apart.py

Twice the same: as a process function, which keeps the last reading and sets a timer to forget it, and as a pattern,
which says what is looked for and leaves the rest to the library. Both keep one reading for each sensor, for a minute.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headrace import (
    KeyedProcessFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
    Time,
    Types,
    ValueState,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from headrace.cep import CEP, ConditionContext, Pattern

MINUTE = 60_000
APART = 20.0

READING = Types.ROW_NAMED(["sensor", "at", "temperature"], [str, int, float])
JUMP = Types.TUPLE([str, float, float])
"""Sensor, temperature before, temperature after."""

READINGS = [
    ("oven", 0, 20.0),
    ("roof", 5_000, 15.0),
    ("oven", 30_000, 45.0),
    ("roof", 40_000, 17.0),
    ("oven", 50_000, 50.0),
    ("roof", 100_000, 40.0),
    ("oven", 109_999, 90.0),
    ("roof", 130_000, 19.5),
]
"""Time in milliseconds. The roof's jump from 17 to 40 degrees takes a whole minute, which is too long."""

EXPECTED = [("oven", 20.0, 45.0), ("oven", 50.0, 90.0), ("roof", 40.0, 19.5)]


class ReadingsApart(KeyedProcessFunction):
    """Compares each reading with the last one, if that is less than a minute old."""

    last: ValueState[Any]

    def open(self, runtime_context: RuntimeContext) -> None:
        self.last = runtime_context.get_state(ValueStateDescriptor("last-reading", READING))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[tuple[str, float, float]]:
        timers, last = ctx.timer_service(), self.last.value()
        if last is not None:
            timers.delete_event_time_timer(last.at + MINUTE)
            if value.at - last.at < MINUTE and abs(value.temperature - last.temperature) >= APART:
                yield value.sensor, last.temperature, value.temperature
        self.last.update(value)
        timers.register_event_time_timer(value.at + MINUTE)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> None:
        self.last.clear()


def is_far_from_first(reading: Any, ctx: ConditionContext) -> bool:
    """An iterative condition: it looks at what the match has taken before."""
    (first,) = ctx.get_events_for_pattern("first")
    return bool(abs(reading.temperature - first.temperature) >= APART)


def readings_apart() -> Pattern:
    return Pattern.begin("first").next("second").where(is_far_from_first).within(Time.minutes(1))


def jump_of(match: dict[str, list[Any]]) -> tuple[str, float, float]:
    (first,), (second,) = match["first"], match["second"]
    return second.sensor, first.temperature, second.temperature


def main(env: StreamExecutionEnvironment | None = None, form: str = "pattern") -> list[tuple[str, float, float]]:
    """Run the job in one of its forms, "process" or "pattern", and give the jumps, sorted."""
    env = env or StreamExecutionEnvironment.get_execution_environment()
    event_time = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda reading, _: reading.at)
    by_sensor = env.from_collection(READINGS, READING).assign_timestamps_and_watermarks(event_time).key_by("sensor")
    if form == "pattern":
        jumps = CEP.pattern(by_sensor, readings_apart()).select(jump_of, JUMP)
    else:
        jumps = by_sensor.process(ReadingsApart(), JUMP)
    with jumps.execute_and_collect(f"two-readings-apart-{form}") as results:
        return sorted(results)


if __name__ == "__main__":
    by_hand, by_pattern = main(form="process"), main(form="pattern")
    for sensor, before, after in by_pattern:
        print(f"{sensor} went from {before} to {after} degrees")
    print("process function and pattern agree" if by_hand == by_pattern else "process function and pattern differ")
