"""Seeded simulations of coordinator, tasks and channels, with crashes, against an oracle that knows only the input.

HEADRACE_SIM_SEEDS=500     run so many seeds in the ordinary tier; the slow one goes on to 10,000
HEADRACE_SIM_SEED=17       run this seed alone
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from broken_builds import BROKEN, scenario_for
from cut_oracle import Violation
from simulated_job import SimulatedJob, simulate
from simulated_plan import Mode, Scenario, draw
from simulated_task import OutOfOrder, TiedToOneWidth

SEEDS = int(os.environ.get("HEADRACE_SIM_SEEDS", "200"))
ONE_SEED = os.environ.get("HEADRACE_SIM_SEED")
BATCH = 50
ALL_SEEDS = 10_000
SLOW_BATCH = 700
ENOUGH_FOR_A_BROKEN_BUILD = 300
ONCE_FOUND_SOMETHING = (
    688,  # a split dealt to another reader sent its records over another relay, past those in flight
    7757,  # an END in flight was restored, and its producer was given a split: the job ended too early
)


def batches() -> Iterator[Any]:
    if ONE_SEED is not None:
        yield range(int(ONE_SEED), int(ONE_SEED) + 1)
        return
    for first in range(0, SEEDS, BATCH):
        yield range(first, min(first + BATCH, SEEDS))
    for first in range(SEEDS, ALL_SEEDS, SLOW_BATCH):
        seeds = range(first, min(first + SLOW_BATCH, ALL_SEEDS))
        yield pytest.param(seeds, marks=[pytest.mark.slow, pytest.mark.timeout(900)])


def run(seed: int, scenario: Scenario, spill_dir: Path) -> SimulatedJob:
    try:
        return simulate(scenario, seed, spill_dir=spill_dir)
    except Exception as error:
        error.add_note(f"Replay with HEADRACE_SIM_SEED={seed}. {scenario}")
        raise


@pytest.mark.parametrize("seeds", list(batches()), ids=lambda seeds: f"seeds {seeds[0]} to {seeds[-1]}")
def test_every_record_is_in_exactly_one_checkpoint_and_committed_once_whatever_happens(
    seeds: range, tmp_path: Path
) -> None:
    for seed in seeds:
        run(seed, draw(seed), tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("seed", ONCE_FOUND_SOMETHING)
def test_seeds_that_once_found_something_pass(seed: int, tmp_path: Path) -> None:
    run(seed, draw(seed), tmp_path)


def test_the_seeds_reach_every_mode_and_recover_from_checkpoints_in_the_middle(tmp_path: Path) -> None:
    """A simulation that never restores, logs or spills would prove nothing."""
    reached: Counter[str] = Counter()
    for seed in range(40):
        scenario = draw(seed)
        job = run(seed, scenario, tmp_path)
        reached[scenario.mode.value] += 1
        reached["restored"] += any(job.storage.attempts.values())
        reached["several attempts"] += job.attempt > 1
        reached["several checkpoints"] += job.completed > 2
        reached["relayed"] += scenario.relayed
        reached["sources with inputs"] += scenario.deep_source
        reached["concurrent"] += scenario.concurrent > 1
        reached["fixed routes"] += bool(scenario.fixed)
    expected = {m.value for m in Mode} | {"restored", "several attempts", "several checkpoints", "relayed"}
    expected |= {"sources with inputs", "concurrent", "fixed routes"}
    assert {name for name, count in reached.items() if count >= 3} >= expected


@pytest.mark.thorough
def test_at_least_once_counts_twice_on_some_seeds_where_exactly_once_never_does(tmp_path: Path) -> None:
    twice = exact = 0
    for seed in range(30):
        scenario = replace(draw(seed), crashes=3)
        twice += run(seed, replace(scenario, mode=Mode.AT_LEAST_ONCE), tmp_path).counted_twice
        exact += run(seed, replace(scenario, mode=Mode.ALIGNED), tmp_path).counted_twice
    assert twice >= 2, "at-least-once mode must show what it does not promise"
    assert exact == 0


def test_at_least_once_is_exact_where_no_task_has_a_second_channel(tmp_path: Path) -> None:
    """Without a second channel there is nothing to align: maps and filters in a row stay exact."""
    for seed in range(20):
        drawn = draw(seed)
        lonely = replace(
            drawn,
            mode=Mode.AT_LEAST_ONCE,
            slots=(1,) * drawn.levels,
            speeds=drawn.speeds[: drawn.levels],
            control_speeds=drawn.control_speeds[: drawn.levels],
            deep_source=False,
            splits={"a": drawn.splits["a"]},
            crashes=3,
        )
        assert run(seed, lonely, tmp_path).counted_twice is False


@pytest.mark.parametrize("name", BROKEN)
def test_the_oracle_notices_a_build_that(name: str, tmp_path: Path) -> None:
    for seed in range(ENOUGH_FOR_A_BROKEN_BUILD):
        try:
            simulate(scenario_for(name, seed), seed, BROKEN[name], tmp_path)
        except (Violation, OutOfOrder, TiedToOneWidth):
            return
    pytest.fail(f"{name} ran {ENOUGH_FOR_A_BROKEN_BUILD} seeds without being noticed: {BROKEN[name]}")
