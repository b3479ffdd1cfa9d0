"""An environment with everything set: state backend, checkpoints, restart strategy.

    python examples/environment.py [CHECKPOINT_DIRECTORY]

Without a directory the checkpoints go to a temporary one, so that every run begins anew.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from headrace import (
    CheckpointingMode,
    EmbeddedRocksDBStateBackend,
    ExternalizedCheckpointRetention,
    NumberSequenceSource,
    RestartStrategies,
    StreamExecutionEnvironment,
    Time,
    WatermarkStrategy,
)


def configured(env: StreamExecutionEnvironment, directory: str) -> StreamExecutionEnvironment:
    """Durations are int milliseconds, `timedelta`, `Time` or `Duration`, all alike."""
    env.set_parallelism(2)
    env.enable_checkpointing(1_000, CheckpointingMode.EXACTLY_ONCE)
    env.set_state_backend(EmbeddedRocksDBStateBackend(enable_incremental_checkpointing=True))
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(60, Time.seconds(10)))
    checkpoints = env.get_checkpoint_config()
    checkpoints.set_checkpoint_storage(Path(directory).absolute().as_uri())
    checkpoints.set_min_pause_between_checkpoints(200)
    checkpoints.set_checkpoint_timeout(Time.minutes(1))
    checkpoints.set_num_retained_checkpoints(2)
    checkpoints.set_externalized_checkpoint_retention(ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION)
    return env


def main(env: StreamExecutionEnvironment | None = None, directory: str | None = None) -> dict[str, int]:
    """Count even and odd numbers with these settings."""
    env = env or StreamExecutionEnvironment.get_execution_environment()
    configured(env, directory or tempfile.mkdtemp(prefix="headrace-example-"))
    numbers = env.from_source(NumberSequenceSource(1, 10_001), WatermarkStrategy.no_watermarks(), "numbers")
    counts = numbers.key_by(lambda n: "even" if n % 2 == 0 else "odd").map_with_state(
        lambda n, count: (("even" if n % 2 == 0 else "odd", (count or 0) + 1), (count or 0) + 1), state_type=int
    )
    with counts.execute_and_collect("environment") as results:
        return dict(sorted(results))


if __name__ == "__main__":
    for parity, count in main(directory=sys.argv[1] if len(sys.argv) > 1 else None).items():
        print(f"{parity}: {count}")
