"""How many users logged in during each hour, counted through a crash in one of three modes.

    python examples/login_count.py [exactly-once | at-least-once | at-most-once]

The task that counts fails once, in the middle of the run, and the job restarts by itself:

    exactly-once     checkpoints with aligned barriers: the count is the truth
    at-least-once    checkpoints without alignment: the count is the truth or more
    at-most-once     no checkpoints: state is gone and sources do not go back, so the count is the truth or less
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from headrace import (
    CheckpointingMode,
    FilterFunction,
    NumberSequenceSource,
    RestartStrategies,
    StreamExecutionEnvironment,
    WatermarkStrategy,
)

LOGINS = 6_000
PER_HOUR = 1_500
MODES = ("exactly-once", "at-least-once", "at-most-once")


class FailOnce(FilterFunction):
    """Lets every login pass, and fails at one of them, the first time it comes by."""

    def __init__(self, at: int, marker: str) -> None:
        self.at = at
        self.marker = marker

    def filter(self, value: int) -> bool:
        if value == self.at and not Path(self.marker).exists():
            Path(self.marker).touch()
            raise RuntimeError(f"failed on purpose at login {value}")
        return True


def count(login: int, so_far: int | None) -> tuple[tuple[int, int], int]:
    """The hour with its count, and the count as new state."""
    total = (so_far or 0) + 1
    return (login // PER_HOUR, total), total


def main(env: StreamExecutionEnvironment | None = None, mode: str = "exactly-once") -> dict[int, int]:
    """Run the job through its crash and give the last count of each hour."""
    env = env or StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2)
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(3, 100))
    if mode != "at-most-once":
        env.enable_checkpointing(100, CheckpointingMode(mode))
    marker = str(Path(tempfile.mkdtemp(prefix="headrace-example-")) / "failed")
    logins = env.from_source(
        NumberSequenceSource(0, LOGINS - 1, rate=4_000), WatermarkStrategy.no_watermarks(), "logins"
    )
    counts = (
        logins.rebalance()
        .filter(FailOnce(LOGINS // 4, marker))
        .key_by(lambda login: login // PER_HOUR)
        .map_with_state(count, state_type=int)
    )
    with counts.execute_and_collect(f"login-count-{mode}") as results:
        return dict(results)


if __name__ == "__main__":
    chosen = sys.argv[1] if len(sys.argv) > 1 else MODES[0]
    if chosen not in MODES:
        sys.exit(f"There is no mode {chosen!r}. Give one of {', '.join(MODES)}.")
    counted = main(mode=chosen)
    for hour, users in sorted(counted.items()):
        print(f"hour {hour}: {users} of {PER_HOUR} users")
    print(f"{chosen}: {sum(counted.values())} counted, {LOGINS} logged in")
