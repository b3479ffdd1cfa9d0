"""Patterns mid-match through crashes and changes of width: every match and every timeout once, on both backends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from checkpoints import opened, published, timers_in
from ledger import Ledger, LedgerSink, LedgerSource

from headrace import OutputTag, WatermarkStrategy
from headrace.cep import CEP, Pattern, PatternProcessFunction, TimedOutPartialMatchHandler

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

OVER = OutputTag("over")


def ends_in(*digits: int) -> Any:
    return lambda record: record[1] % 10 in digits


class Telling(PatternProcessFunction, TimedOutPartialMatchHandler):
    """Key and numbers of each match, and of each partial match that timed out."""

    def process_match(self, match: dict[str, list[Any]], ctx: Any) -> Iterator[Any]:
        yield self._line("match", match, ctx)

    def process_timed_out_match(self, match: dict[str, list[Any]], ctx: Any) -> Iterator[Any]:
        yield OVER, self._line("over", match, ctx)

    def _line(self, kind: str, match: dict[str, list[Any]], ctx: Any) -> Any:
        events = [event for found in match.values() for event in found]
        return (kind, events[0][0], ctx.timestamp(), *(number for _, number in events))


def one_three_six_eight() -> Pattern:
    """Begun at a 1 it is a match with 3, 6 and 8 of the same ten; begun at a 5 it takes 6 and 13 and never ends."""
    pattern = Pattern.begin("first").where(ends_in(1, 5)).followed_by("middle").where(ends_in(3, 6)).times(2)
    return pattern.followed_by("last").where(ends_in(8)).within(9)


def expected_of(ledger: Ledger) -> Counter[tuple[Any, ...]]:
    lines: Counter[tuple[Any, ...]] = Counter()
    for key in range(ledger.keys):
        for ten in range(0, ledger.length, 10):
            lines["match", key, ten + 8, ten + 1, ten + 3, ten + 6, ten + 8] += 1
            taken = [ten + 5, ten + 6] + ([ten + 13] if ten + 13 <= ledger.length else [])
            lines["over", key, ten + 14, *taken] += 1
    return lines


@pytest.mark.parametrize(("backend", "mode"), [("heap", "unaligned"), ("rocksdb", "aligned")])
def test_matches_and_timeouts_come_once_through_crashes_and_a_change_of_width(
    bench: Any, faults: Any, start: Any, backend: str, mode: str
) -> None:
    go = bench.directory / "go"
    ledger = Ledger(length=400, rate=4_000, faults=1, fault_log=str(go))
    sink = LedgerSink(bench.directory / "out")

    def launch(parallelism: int) -> Any:
        env = bench.env(parallelism=parallelism, backend=backend, mode=mode, interval=50)
        event_time = WatermarkStrategy.for_monotonous_timestamps()
        records = env.from_source(LedgerSource(ledger), event_time, "ledger").uid("src")
        found = CEP.pattern(records.key_by(lambda r: r[0]), one_three_six_eight()).process(Telling()).uid("pattern")
        found.union(found.get_side_output(OVER)).sink_to(sink).uid("sink")
        return start(env)

    first = launch(2)
    first.wait_for("checkpoint", lambda checkpoint: checkpoint["checkpoint_id"] >= 4)
    first.suspend()
    if backend == "heap":
        assert timers_in(opened(bench, int(published(bench)[-1].name[4:])), "pattern") > 0, "it is in mid-match"

    faults.plan("before_ack=kill@2#1.2", "record=kill@15#1.0")
    second = launch(3)
    second.wait_for("restarting")
    go.mkdir()
    (go / "on").touch()
    second.finish()

    assert len(faults.happened) >= 1
    assert Counter(sink.lines()) == expected_of(ledger)
