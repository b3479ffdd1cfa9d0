"""Counting beads: running sums at parallelism 3, a checkpoint after the third bead, a crash after the sixth.

    python examples/beads.py

    [b,2] [b,3] [c,1] ‖checkpoint‖ [a,2] [a,2] [c,2] ✕

The source of this program hands out one bead at a time. After the third it waits for a checkpoint, after the sixth it
waits until all six are counted, and fails. So the story is the same in every run, and nothing in it sleeps.
`docs/tutorials/beads.md` tells it with a picture of each step.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace import RestartStrategies, StreamExecutionEnvironment, TypeInformation, Types, WatermarkStrategy
from headrace.connectors.queue_enumerator import QueueEnumerator
from headrace.connectors.source import (
    EnumeratorContext,
    PollStatus,
    ReaderContext,
    Source,
    SourceBatch,
    SourceReader,
    SplitEnumerator,
)

BEADS = [("b", 2), ("b", 3), ("c", 1), ("a", 2), ("a", 2), ("c", 2)]
BAND_AFTER = 3
BEAD = Types.TUPLE([str, int])


class Ledger:
    """What happened, line by line, in a file that all tasks of this machine add to. It outlives the crash."""

    def __init__(self, path: str) -> None:
        self.path = path

    def add(self, line: str) -> None:
        with open(self.path, "a") as file:
            file.write(line + "\n")

    def lines(self) -> list[str]:
        return Path(self.path).read_text().splitlines() if os.path.exists(self.path) else []

    def counted(self) -> int:
        return sum(line.startswith("counted") for line in self.lines())


@dataclass
class BeadSplit:
    """The whole string of beads, from `position` on."""

    position: int

    @property
    def split_id(self) -> str:
        return "beads"


class BeadSource(Source[BeadSplit]):
    """Hands out the beads one by one, with the two pauses of the story."""

    split_type = BeadSplit

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    @property
    def produced_type(self) -> TypeInformation:
        return BEAD

    def create_enumerator(self, context: EnumeratorContext, restored: bytes | None) -> SplitEnumerator[BeadSplit]:
        return QueueEnumerator(context, BeadSplit, first=lambda: [BeadSplit(0)], restored=restored)

    def create_reader(self, context: ReaderContext) -> SourceReader[BeadSplit]:
        return BeadReader(self.ledger)


class BeadReader(SourceReader[BeadSplit]):
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._split: BeadSplit | None = None
        self._no_more = False
        self._band_is_on = False
        self._saved_at_band = False

    def add_splits(self, splits: Sequence[BeadSplit]) -> None:
        [self._split] = splits
        # A split that does not begin at 0 comes out of a checkpoint.
        self._band_is_on = self._split.position == BAND_AFTER
        self._ledger.add(f"source starts at {self._split.position}")

    def no_more_splits(self) -> None:
        self._no_more = True

    def poll(self, limit: int) -> SourceBatch | PollStatus:
        split = self._split
        if split is None:
            return PollStatus.ENDED if self._no_more else PollStatus.NEEDS_SPLIT
        if split.position == BAND_AFTER and not self._band_is_on:
            return PollStatus.IDLE
        if split.position == len(BEADS):
            return self._crash_once()
        bead = BEADS[split.position]
        split.position += 1
        return SourceBatch(split.split_id, values=[bead])

    def _crash_once(self) -> PollStatus:
        if "crash" in self._ledger.lines():
            self._split = None
            return PollStatus.NEEDS_SPLIT
        if self._ledger.counted() < len(BEADS):
            return PollStatus.IDLE
        self._ledger.add("crash")
        raise RuntimeError("the string of beads tore, on purpose")

    def idle_until(self) -> float:
        return time.monotonic() + 0.01

    def snapshot(self) -> list[BeadSplit]:
        if self._split is None:
            return []
        self._saved_at_band = self._split.position == BAND_AFTER
        return [BeadSplit(self._split.position)]

    def checkpoint_complete(self, checkpoint_id: int) -> None:
        # The band is on when a checkpoint is complete whose snapshot lies behind the third bead.
        if self._saved_at_band and not self._band_is_on:
            self._band_is_on = True
            self._ledger.add("checkpoint complete")


@dataclass(frozen=True)
class Story:
    """What `main` gives."""

    sums: dict[str, int]
    """The last sum of every colour."""
    results: list[tuple[str, int]]
    """Every running sum that left the job, by colour."""
    ledger: list[str]


def main(env: StreamExecutionEnvironment | None = None) -> Story:
    """Count the beads through the crash."""
    env = env or StreamExecutionEnvironment.get_execution_environment()
    ledger = Ledger(os.path.join(tempfile.mkdtemp(prefix="headrace-example-"), "ledger"))

    def add(bead: tuple[str, int], total: int | None) -> tuple[tuple[str, int], int]:
        colour, number = bead
        new_total = (total or 0) + number
        ledger.add(f"counted [{colour},{number}]: {colour}={new_total}")
        return (colour, new_total), new_total

    env.set_parallelism(3)
    env.enable_checkpointing(500)
    # One checkpoint before the crash and no second one, which would come in the middle of the last three beads.
    env.get_checkpoint_config().set_min_pause_between_checkpoints(30_000)
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(1, 100))
    beads = env.from_source(BeadSource(ledger), WatermarkStrategy.no_watermarks(), "beads").set_parallelism(1)
    sums = beads.key_by(0).map_with_state(add, state_type=int, output_type=BEAD)
    with sums.execute_and_collect("beads") as collected:
        results = sorted(collected, key=lambda result: result[0])
    return Story(dict(results), results, ledger.lines())


if __name__ == "__main__":
    story = main()
    print("\n".join(story.ledger))
    print(", ".join(f"{colour}={total}" for colour, total in story.sums.items()))
