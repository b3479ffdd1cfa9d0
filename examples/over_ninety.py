"""A stateless alert: every reading is judged alone, and one over 90 degrees passes.

python examples/over_ninety.py
"""

from __future__ import annotations

from headrace import StreamExecutionEnvironment, Types

READINGS = [
    ("boiler", 71.0),
    ("boiler", 90.0),
    ("boiler", 93.5),
    ("pump", 22.0),
    ("pump", 104.2),
]
READING = Types.ROW_NAMED(["id", "temperature"], [str, float])


def main(env: StreamExecutionEnvironment | None = None) -> list[str]:
    """Run the job and give the alerts in order of their text."""
    env = env or StreamExecutionEnvironment.get_execution_environment()
    alerts = (
        env.from_collection(READINGS, READING)
        .filter(lambda reading: reading.temperature > 90)
        .map(lambda reading: f"{reading.id} is at {reading.temperature} degrees", output_type=str)
    )
    with alerts.execute_and_collect("over-ninety") as results:
        return sorted(results)


if __name__ == "__main__":
    print("\n".join(main()))
