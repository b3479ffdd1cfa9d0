"""What a crash does to a count: at most once, at least once, exactly once; and what alignment has to do with it."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ledger import Ledger, LedgerSink, LedgerSource
from saboteurs import Saboteur, kill_the_worker, raise_an_error
from tallies import COUNTED, SENT, KilledTally, SpillWatch, Tally, staged_inputs, truth, unequal_inputs

from headrace import WatermarkStrategy
from headrace.errors import UserFunctionError
from headrace.testing import run_until_done

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

FAST = Ledger(keys=6, length=800, splits=1, rate=3_000, reserve=100)
SLOW = Ledger(keys=2, length=20, splits=1, reserve=5)


def counted(bench: Any, faults: Any, mode: str, seed: int, *, calls: str = "") -> tuple[dict[int, int], int]:
    """The same crashing run in one mode: counts by key, and restarts.

    Kills fall on seeded records of the fast input, behind a first checkpoint.
    """
    chance = random.Random(seed)
    victims = {(chance.randrange(FAST.keys), chance.randrange(120, 600)) for _ in range(2)}
    faults.log = bench.directory / f"faults-{mode}-{seed}"
    faults.planned = len(victims)
    bench.directory = bench.directory.parent / f"{mode}-{seed}"
    marks = {victim: str(faults.log / f"{victim[0]}-{victim[1]}") for victim in victims}

    env = bench.env(mode=mode, interval=None if mode == "off" else 50)
    fast = replace(FAST.holding_for(faults), checkpoints="" if mode == "off" else str(bench.directory / "checkpoints"))
    records = unequal_inputs(env, fast, SLOW.holding_for(faults), pause=0.03)
    for victim, mark in marks.items():
        records = records.map(Saboteur(kill_the_worker, _is(victim), [mark])).uid(f"kill at {victim}")
    tally = records.key_by(lambda record: record[0]).process(Tally(calls)).uid("tally")
    outcome = run_until_done(tally, f"tally {mode}")
    assert len(faults.happened) == faults.planned
    counts = dict(outcome.committed)
    assert len(counts) == len(outcome.committed)
    return counts, outcome.restarts


def _is(victim: tuple[int, int]) -> Any:
    return lambda record: tuple(record[:2]) == victim


@pytest.mark.parametrize("seed", [11, 12])
def test_unequal_inputs_are_counted_exactly_once_and_at_least_once_on_the_same_seeds(
    bench: Any, faults: Any, seed: int
) -> None:
    exact, restarts = counted(bench, faults, "aligned", seed)
    assert exact == truth(FAST, SLOW)
    assert restarts >= 1

    unaligned, _ = counted(bench, faults, "unaligned", seed)
    assert unaligned == truth(FAST, SLOW)

    loose, _ = counted(bench, faults, "at-least-once", seed)
    assert loose.keys() == truth(FAST, SLOW).keys()
    assert all(loose[key] >= count for key, count in truth(FAST, SLOW).items())


@pytest.mark.parametrize("mode", ["aligned", "at-least-once"])
def test_records_between_the_barriers_of_two_inputs_count_twice_only_at_least_once(
    bench: Any, faults: Any, mode: str
) -> None:
    """The fast input's barrier stands behind number 120; the slow one's comes only when 400 are on their way."""
    exactly = mode == "aligned"
    marks = bench.directory / "marks"
    faults.log, faults.planned = marks / "kills", 1
    fast, slow = FAST.holding_for(faults), SLOW.holding_for(faults)
    env = bench.env(mode=mode, interval=50)
    env.get_checkpoint_config().set_min_pause_between_checkpoints(800)
    records = staged_inputs(env, fast, slow, str(marks), release=SENT if exactly else COUNTED)
    tally = records.key_by(lambda record: record[0]).process(KilledTally(str(marks))).uid("tally")

    outcome = run_until_done(tally, f"staged {mode}", restarts=1)

    counts, wanted = dict(outcome.committed), truth(fast, slow)
    assert len(faults.happened) == 1
    if exactly:
        assert counts == wanted
        return
    # 121 to 400 of each fast key were in the saved state, and came again from the saved position.
    assert all(counts[key] >= wanted[key] for key in wanted)
    assert sum(counts.values()) - sum(wanted.values()) >= (400 - 120) * fast.keys // 2


def test_exactly_once_calls_more_often_than_it_counts(bench: Any, faults: Any) -> None:
    calls = bench.directory / "calls"
    counts, restarts = counted(bench, faults, "aligned", 7, calls=str(calls))
    assert counts == truth(FAST, SLOW)
    assert restarts >= 1
    made = calls.read_text().splitlines()
    assert len(made) > sum(counts.values()), "nothing was processed again, so the crash proved nothing"
    assert len(set(made)) == sum(counts.values())


def test_without_checkpoints_a_restarted_job_counts_at_most_once_because_sources_do_not_go_back(
    bench: Any, faults: Any
) -> None:
    calls = bench.directory / "calls"
    counts, restarts = counted(bench, faults, "off", 7, calls=str(calls))
    assert restarts >= 1
    assert sum(counts.values()) < sum(truth(FAST, SLOW).values())
    assert all(counts.get(key, 0) <= count for key, count in truth(FAST, SLOW).items())
    assert max(Counter(calls.read_text().splitlines()).values()) == 1


def test_without_checkpoints_the_first_failure_ends_a_job_that_chose_no_strategy(bench: Any, start: Any) -> None:
    from headrace import StreamExecutionEnvironment

    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    records = env.from_source(LedgerSource(Ledger(length=100)), WatermarkStrategy.no_watermarks(), "ledger")
    mark = str(bench.directory / "marks" / "deed")
    records.map(Saboteur(raise_an_error, _is((3, 50)), [mark])).sink_to(LedgerSink(bench.directory / "out"))
    job = start(env)
    with pytest.raises(UserFunctionError):
        job.finish()
    assert job.report.restarts == 0
    assert Path(mark).exists()


def test_a_graph_of_maps_and_filters_stays_exact_even_at_least_once(bench: Any, faults: Any, start: Any) -> None:
    """It is one level: every task has one channel, its trigger, so there is nothing to align."""
    ledger = Ledger(length=300, rate=3_000, faults=2, fault_log=str(bench.directory / "marks"))
    faults.log, faults.planned = bench.directory / "marks", 2
    sink = LedgerSink(bench.directory / "out")
    env = bench.env(mode="at-least-once", interval=50)
    records = env.from_source(LedgerSource(ledger), WatermarkStrategy.no_watermarks(), "ledger").uid("src")
    for victim in ((3, 150), (8, 200)):
        records = records.map(Saboteur(kill_the_worker, _is(victim), [f"{faults.log}/{victim}"])).uid(f"kill {victim}")
    records.filter(lambda r: r[1] % 2 == 0).uid("even").map(lambda r: ("even", *r)).uid("told").sink_to(sink).uid("s")

    result = start(env).finish()

    assert len(faults.happened) == 2
    assert 1 <= result.restarts <= 2
    wanted = Counter(("even", key, number) for key in range(ledger.keys) for number in range(2, ledger.length + 1, 2))
    assert Counter(sink.lines()) == wanted


def test_cells_set_aside_beyond_memory_are_spilled_and_come_back_in_order(bench: Any, faults: Any) -> None:
    """The slow input's barrier waits for 40 MB that the fast one sends behind its own: they must go to disk."""
    spilled, marks = bench.directory / "spilled", bench.directory / "marks"
    faults.log, faults.planned = marks / "kills", 1
    fast = replace(FAST, rate=None, payload=24_576).holding_for(faults)
    slow = SLOW.holding_for(faults)
    env = bench.env(interval=50)
    env.get_checkpoint_config().set_min_pause_between_checkpoints(800)
    records = staged_inputs(env, fast, slow, str(marks), release=SENT)
    watched = records.filter(SpillWatch(str(spilled))).uid("watch")
    tally = watched.key_by(lambda record: record[0]).process(KilledTally(str(marks))).uid("tally")

    outcome = run_until_done(tally, "spilling", restarts=1)

    assert len(faults.happened) == 1
    assert dict(outcome.committed) == truth(fast, slow)
    assert spilled.exists(), "nothing was spilled, so nothing was shown"
