"""Results of `execute_and_collect` come once, in order, although they travel beside the control plane."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import saboteurs
from ledger import Ledger, LedgerSource, ledger_stream

from headrace import WatermarkStrategy

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


def in_order(ledger: Ledger, lines: list[Any]) -> bool:
    """Whether the numbers of every key came one after the other."""
    numbers: dict[int, list[int]] = {}
    for line in lines:
        if line[0] == "seq":
            numbers.setdefault(line[1], []).append(line[2])
    return numbers == {key: list(range(1, ledger.length + 1)) for key in range(ledger.keys)}


def test_results_come_once_and_in_order_through_kills_before_and_after_their_delivery(bench: Any, faults: Any) -> None:
    faults.plan("before_sink_commit=kill@2#1.0", "sink_committed=kill@2#1.1.0", "before_ack=kill@4#1.0")
    ledger = Ledger(length=300, rate=3_000).holding_for(faults)
    env = bench.env(interval=50)
    with ledger_stream(env, ledger).execute_and_collect("ledger") as results:
        lines = list(results)

    assert len(faults.happened) == faults.planned
    assert ledger.problems(lines) == []
    assert in_order(ledger, lines)


def test_a_connection_for_results_that_is_cut_is_one_restart_and_costs_no_result(bench: Any, faults: Any) -> None:
    faults.planned = 1
    ledger = Ledger(length=300, rate=2_000).holding_for(faults)
    env = bench.env(interval=50, restarts=1)
    cut = saboteurs.Saboteur(
        saboteurs.cut_the_results_connection, lambda line: tuple(line[:3]) == ("seq", 3, 200), [str(faults.log / "cut")]
    )
    stream = ledger_stream(env, ledger).map(cut).uid("cut")
    with stream.execute_and_collect("ledger") as results:
        lines = list(results)

    assert faults.happened == ["cut"]
    assert ledger.problems(lines) == []
    assert in_order(ledger, lines)


def test_without_checkpoints_results_come_as_they_are_made_and_all_of_them_before_the_end(bench: Any) -> None:
    ledger = Ledger(length=2_000)
    env = bench.env(interval=None)
    records = env.from_source(LedgerSource(ledger), WatermarkStrategy.no_watermarks(), "ledger").uid("src")
    with records.map(lambda record: ("seq", *record)).uid("told").execute_and_collect("ledger") as results:
        lines = list(results)

    assert len(lines) == ledger.records
    assert set(Counter(lines).values()) == {1}
    assert in_order(ledger, lines)
