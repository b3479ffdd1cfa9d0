"""The job of the demo, as a user would write it: an alert whenever a sensor's temperature jumps.

headrace run job.py --checkpoint-dir DIR -- OUTPUT READINGS RATE SEED START_MS
"""

import sys
from collections.abc import Iterator
from typing import Any

from headrace import (
    EmbeddedRocksDBStateBackend,
    FileSink,
    KeyedProcessFunction,
    RestartStrategies,
    Row,
    RuntimeContext,
    SensorSource,
    StreamExecutionEnvironment,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
)

SENSORS = 1_000
THRESHOLD = 1.7
ALERT = Types.ROW_NAMED(
    ["id", "timestamp", "temperature", "before"], [Types.STRING(), Types.LONG(), Types.DOUBLE(), Types.DOUBLE()]
)


class TemperatureAlert(KeyedProcessFunction):
    """Compares each reading of a sensor with the one before, which is kept as state."""

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold

    def open(self, runtime_context: RuntimeContext) -> None:
        self.last = runtime_context.get_state(ValueStateDescriptor("last temperature", Types.DOUBLE()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Row]:
        before = self.last.value()
        self.last.update(value.temperature)
        if before is not None and abs(value.temperature - before) > self.threshold:
            yield Row(id=value.id, timestamp=value.timestamp, temperature=value.temperature, before=before)


def sensors(readings: int, rate: float, seed: int, start_ms: int) -> SensorSource:
    """Readings whose event time goes as fast as the clock."""
    interval_ms = max(1, round(1_000 * SENSORS / rate))
    return SensorSource(readings, SENSORS, rate, seed, start_ms=start_ms, interval_ms=interval_ms)


def main(output: str, readings: int, rate: float, seed: int, start_ms: int) -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2)
    env.enable_checkpointing(1_000)
    env.set_state_backend(EmbeddedRocksDBStateBackend())
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(10, 200))

    source = sensors(readings, rate, seed, start_ms)
    stream = env.from_source(source, WatermarkStrategy.for_monotonous_timestamps(), "sensors")
    alerts = stream.key_by("id").process(TemperatureAlert(THRESHOLD), output_type=ALERT).name("alerts")
    alerts.sink_to(FileSink.json_lines(output)).name("files")
    env.execute("demo")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
