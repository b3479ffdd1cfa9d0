"""The temperature alert once more, in one function: state comes in as an argument and goes out with the results.

python examples/temperature_alert_with_state.py
"""

from __future__ import annotations

from typing import Any

from readings import ALERT, READING, READINGS

from headrace import StreamExecutionEnvironment

THRESHOLD = 1.7


def alert(reading: Any, last: float | None) -> tuple[list[tuple[str, float, float]], float]:
    """`last` is None at a sensor's first reading. The second part of the pair is the new state."""
    if last is None or abs(reading.temperature - last) <= THRESHOLD:
        return [], reading.temperature
    return [(reading.id, reading.temperature, abs(reading.temperature - last))], reading.temperature


def main(env: StreamExecutionEnvironment | None = None) -> list[tuple[str, float, float]]:
    """Run the job and give the alerts, sorted."""
    env = env or StreamExecutionEnvironment.get_execution_environment()
    readings = env.from_collection(READINGS, READING)
    alerts = readings.key_by("id").flat_map_with_state(alert, state_type=float, output_type=ALERT).uid("alerts")
    with alerts.execute_and_collect("temperature-alert-with-state") as results:
        return sorted(results)


if __name__ == "__main__":
    for sensor, temperature, difference in main():
        print(f"{sensor} jumped by {difference} to {temperature}")
