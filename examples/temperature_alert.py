"""The temperature alert as a rich function: the last temperature of each sensor is a value state.

python examples/temperature_alert.py
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from readings import ALERT, READING, READINGS

from headrace import RichFlatMapFunction, RuntimeContext, StreamExecutionEnvironment, ValueState, ValueStateDescriptor


class TemperatureAlert(RichFlatMapFunction):
    """Emits `(id, temperature, difference)` where a reading lies more than `threshold` from the sensor's last one."""

    last: ValueState[float]

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold

    def open(self, runtime_context: RuntimeContext) -> None:
        self.last = runtime_context.get_state(ValueStateDescriptor("last-temperature", float))

    def flat_map(self, value: Any) -> Iterator[tuple[str, float, float]]:
        last = self.last.value()
        self.last.update(value.temperature)
        # No last temperature: this is the sensor's first reading.
        if last is not None and abs(value.temperature - last) > self.threshold:
            yield value.id, value.temperature, abs(value.temperature - last)


def main(env: StreamExecutionEnvironment | None = None) -> list[tuple[str, float, float]]:
    """Run the job and give the alerts, sorted."""
    env = env or StreamExecutionEnvironment.get_execution_environment()
    readings = env.from_collection(READINGS, READING)
    alerts = readings.key_by("id").flat_map(TemperatureAlert(1.7), output_type=ALERT).uid("alerts")
    with alerts.execute_and_collect("temperature-alert") as results:
        return sorted(results)


if __name__ == "__main__":
    for sensor, temperature, difference in main():
        print(f"{sensor} jumped by {difference} to {temperature}")
