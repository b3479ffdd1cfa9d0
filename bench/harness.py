"""Runs our job and the other side in turn, and judges what came out.

Runs are interleaved (ours, other, ours, other …), so that what the machine does meanwhile meets both sides alike. The
figure is the median of the paired ratios; lowest and highest pair and the number of pairs stand beside it. Records and
alerts of every run are compared with the dataset's own; a run that counts wrongly has no speed. What could not be
measured is reported as missing.

The command line of our own side
--------------------------------
`python -m bench.headrace_job`, run from the root of the repository, prints one JSON line on stdout (other output is
allowed before it; messages belong on stderr) and ends with code 0, or with another code and the reason on stderr.

    --workload W                 jumps | latency | two-inputs | recovery | memory
    --backend B                  heap | rocksdb
    --checkpoint-interval-ms N   0: no checkpoints
    --mode M                     exactly-once (aligned) | at-least-once | unaligned
    --scratch DIR                an empty directory for checkpoints, RocksDB and whatever else; the harness removes it
    --parallelism N              2 unless said otherwise, and never said otherwise here
    --data DIR                   jumps, recovery: a dataset (`dataset.py`): the job reads DIR/*.parquet
    --warm-up DIR                jumps, recovery: a dataset to run through first in the same session, not timed
    --operator-delay-us N        jumps: the keyed function waits so long at each record (default 0);
                                 two-inputs: a map on the second input does, before the keyed function
    --rate N                     latency, two-inputs: records a second of the (first) input
    --second-rate N              two-inputs: records a second of the second input
    --keys N                     latency, two-inputs, memory: number of keys
    --seconds S                  latency, two-inputs: how long to measure after the warm-up; of two, the last counts
    --warm-up-seconds S          latency, two-inputs: how long to run before samples count; of two, the last counts
    --value-bytes N              recovery, memory: the state of a key is padded to so many bytes
    --rows N                     memory: updates at random keys after every key was written once

Workloads:

- jumps: Parquet → key_by(id) → KeyedProcessFunction with ValueState, jumps above 1.7 → sink that counts.
- latency: a generator stamps each reading with `time.time()` at its creation → key_by → the same function, emitting
  every reading → a sink that stamps it again. All readings after the warm-up are samples.
- two-inputs: a fast and a slow source in one keyed function through an exchange each; samples are the readings of the
  first (fast) input only.
- recovery: jumps with padded state. When half the rows are read and a checkpoint has completed since, one Python
  worker is killed with SIGKILL. From the kill to the first record that a keyed function processes in the next attempt.
- memory: a generator writes every key once, then `--rows` random ones; then the resident memory of the largest
  worker (VmRSS) is read while it still runs, its RocksDB open.

The line (fields that do not apply are absent or null; nothing is estimated):

    {"peer": "headrace",
     "variant": str,                                    a word for the table, e.g. "rocksdb, unaligned, 1000 ms"
     "records": int,                                    rows of the dataset that were read; replayed ones count once
     "alerts": int | null,                              jumps, recovery: what the sink counted (and committed)
     "seconds_between_first_and_last_record": float,    first record read by a source to last record processed
     "startup_seconds": float,                          start of the process to the first record of its first job
     "latency_p50_ms", "latency_p99_ms": float, "latency_samples": int,
     "checkpoints": {"completed": int, "failed": int, "durations_ms": [float], "bytes": [int]},
                                                        trigger to completion in the driver, each completed one in the
                                                        timed part, without the final one at the end of bounded input
     "recovery_seconds": float, "state_bytes": int,
     "worker_resident_bytes": int,
     "versions": {"headrace": str, "pyspark": str}}
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any

from bench import machine, programs
from bench.measures import Figure, Measure, Quantity, Run

Tell = Callable[[str], None]


class Verdict(Enum):
    """What is known about a figure."""

    REACHED = "reached"
    MISSED = "missed"
    FOR_THE_RECORD = "for the record"
    MISSING = "missing"
    TOO_SHORT = "too short"
    SMOKE = "smoke"


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run of one side: the line of its best variant, or why there is none."""

    line: dict[str, Any] | None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Pair:
    """Ours and the other side's run next to it; `other` is None for measures of our own side only."""

    ours: Outcome
    other: Outcome | None


@dataclass(frozen=True, slots=True)
class Judged:
    """A figure with its value over all pairs that have it."""

    figure: Figure
    values: tuple[float, ...]
    verdict: Verdict

    @property
    def value(self) -> float | None:
        """The median of the pairs, or None where nothing was measured."""
        return statistics.median(self.values) if self.values else None


@dataclass(frozen=True, slots=True)
class Result:
    """Everything that one call of `measure` found out."""

    measure: Measure
    pairs: tuple[Pair, ...]
    figures: tuple[Judged, ...]
    machine: dict[str, Any]
    finished_at: str
    smoke: bool

    @property
    def problems(self) -> list[str]:
        """Why figures are missing, each reason once."""
        outcomes = [outcome for pair in self.pairs for outcome in (pair.ours, pair.other) if outcome]
        return list(dict.fromkeys(outcome.problem for outcome in outcomes if outcome.problem))


def measure(wanted: Measure, *, pairs: int, limits: programs.Limits, tell: Tell) -> Result:
    """Run a measure; never raises for a program that is absent, fails or counts wrongly: the result says so."""
    facts = machine.facts()
    done: list[Pair] = []
    for number in range(1, pairs + 1):
        tell(f"pair {number} of {pairs}: ours")
        ours = _run_side(wanted.ours, limits)
        other = None
        if wanted.other is not None:
            tell(f"pair {number} of {pairs}: {wanted.other.program}")
            other = _run_side(wanted.other, limits)
        done.append(Pair(ours, other))
    return Result(
        measure=wanted,
        pairs=tuple(done),
        figures=tuple(judge(figure, wanted, done, smoke=limits.smoke) for figure in wanted.figures),
        machine=facts,
        finished_at=datetime.now(UTC).isoformat(timespec="seconds"),
        smoke=limits.smoke,
    )


def _run_side(side: Run, limits: programs.Limits) -> Outcome:
    """Run all variants of a side; the one with the highest rate counts, a failed one fails the side."""
    lines = []
    for variant in side.variants:
        try:
            lines.append(programs.run(side, variant, limits))
        except (programs.MissingProgramError, programs.FailedRunError) as error:
            return Outcome(None, str(error))
    best = max(lines, key=lambda line: Quantity.RECORDS_PER_SECOND.read(line) or 0.0)
    if len(lines) > 1:
        rates = {line.get("variant", ""): Quantity.RECORDS_PER_SECOND.read(line) for line in lines}
        best = best | {"records_per_second_of_variants": rates}
    return Outcome(best)


def judge(figure: Figure, wanted: Measure, pairs: Sequence[Pair], *, smoke: bool) -> Judged:
    """Compute a figure over all pairs and compare it with its target.

    A figure is missing as soon as one pair lacks it: the median of the lucky pairs is not the figure.
    """
    found = [_value(figure, pair) for pair in pairs]
    values = tuple(value for value in found if value is not None)
    if len(values) < len(pairs) or not pairs:
        return Judged(figure, values, Verdict.MISSING)
    if smoke:
        return Judged(figure, values, Verdict.SMOKE)
    if figure.target is None or figure.bound is None:
        return Judged(figure, values, Verdict.FOR_THE_RECORD)
    if any(_seconds(pair.ours) < wanted.minimum_seconds for pair in pairs):
        return Judged(figure, values, Verdict.TOO_SHORT)
    reached = figure.bound.holds(statistics.median(values), figure.target)
    return Judged(figure, values, Verdict.REACHED if reached else Verdict.MISSED)


def _value(figure: Figure, pair: Pair) -> float | None:
    ours = figure.quantity.read(pair.ours.line) if pair.ours.line else None
    if not figure.ratio:
        return ours
    if pair.other is None or pair.other.line is None:
        return None
    theirs = figure.quantity.read(pair.other.line)
    return ours / theirs if ours is not None and theirs else None


def _seconds(outcome: Outcome) -> float:
    line = outcome.line or {}
    return float(line.get("seconds_between_first_and_last_record") or 0.0)
