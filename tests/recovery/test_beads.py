"""Counting beads: the program of the tutorial, step by step, with a crash after the last bead."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from checkpoints import opened, restored_by_attempt, values_of

from headrace import ExternalizedCheckpointRetention, WatermarkStrategy
from headrace.testing import CHECKPOINT, CRASH, TestSource, WaitUntil, run_until_done
from headrace.testing.scripted import ScriptSplit

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


def lines_of(log: str) -> list[str]:
    return Path(log).read_text().splitlines() if Path(log).exists() else []


def test_beads_are_counted_from_the_band_on_after_a_crash(bench: Any) -> None:
    log = str(bench.directory / "calls")

    def count(bead: Any, total: int | None) -> tuple[Any, int]:
        color, number = bead
        now = (total or 0) + number
        with open(log, "a") as file:
            file.write(f"{color}{number}\n")
        return (color, now), now

    beads = TestSource(
        [
            *(("b", 2), ("b", 3), ("c", 1)),
            CHECKPOINT,
            *(("a", 2), ("a", 2), ("c", 2)),
            WaitUntil(lambda: len(lines_of(log)) >= 6),
            CRASH,
        ]
    )
    # Long enough for the source to be given its script before the one checkpoint.
    env = bench.env(parallelism=3, interval=2_500)
    config = env.get_checkpoint_config()
    config.set_min_pause_between_checkpoints(3_600_000)  # one band in each life, and the one at the end
    config.set_num_retained_checkpoints(1_000)
    config.set_externalized_checkpoint_retention(ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION)
    source = env.from_source(beads, WatermarkStrategy.no_watermarks(), "beads").uid("beads")
    sums = source.key_by(lambda bead: bead[0]).map_with_state(count, state_type=int).uid("sums")

    outcome = run_until_done(sums, "beads", restarts=1)

    # The checkpoint that was restored: the source stands behind the third bead, the maps hold b=5 and c=1.
    (restored,) = [c for c in restored_by_attempt(bench, "beads").values() if c is not None]
    checkpoint = opened(bench, restored, "beads")
    (split,) = [s for o in checkpoint.metadata.operators if o.uid == "beads" for t in o.subtasks for s in t.splits]
    assert msgspec.msgpack.decode(split, type=ScriptSplit).position == 3
    assert next(o.parallelism for o in checkpoint.metadata.operators if o.uid == "sums") == 3
    shapes = [s for o in checkpoint.metadata.operators for t in o.subtasks if t.keyed for s in t.keyed.shapes]
    (state,) = {shape.name for shape in shapes if shape.kind == "value"}
    assert values_of(checkpoint, "sums", state) == {"b": 5, "c": 1}

    # Before the crash all six were counted; after it exactly the last three came again.
    calls = lines_of(log)
    assert Counter(calls[:6]) == Counter(["b2", "b3", "c1", "a2", "a2", "c2"])
    assert Counter(calls[6:]) == Counter(["a2", "a2", "c2"])

    assert beads.crashes == 1
    assert sorted(outcome.committed) == [("a", 2), ("a", 4), ("b", 2), ("b", 5), ("c", 1), ("c", 3)]
    final = {color: max(n for c, n in outcome.committed if c == color) for color in "abc"}
    assert final == {"a": 4, "b": 5, "c": 3}
