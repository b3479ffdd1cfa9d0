"""The ledger's own checks must be able to fail: each is shown a broken engine and has to report it."""

from __future__ import annotations

from typing import Any

import pytest
from ledger import ImpatientSink, Ledger, LedgerSink, ledger_stream


def test_an_undisturbed_output_has_no_problems() -> None:
    ledger = Ledger(keys=3, length=120)
    assert ledger.problems(ledger.expected().elements()) == []


def test_a_lost_a_doubled_and_a_wrong_line_are_each_reported() -> None:
    ledger = Ledger(keys=3, length=120)
    lines = list(ledger.expected().elements())
    assert ledger.problems(lines[1:]) == [f"lost: {lines[0]} × 1"]
    assert ledger.problems([*lines, lines[0]]) == [f"too much: {lines[0]} × 1"]
    assert ledger.problems([*lines, ("alert", 1, 4, 6)]) == ["alert: ('alert', 1, 4, 6)"]
    final = next(line for line in lines if line[0] == "final")
    wrong = [(*line[:3], 121, *line[4:]) if line == final else line for line in lines]
    assert len(ledger.problems(wrong)) == 2


@pytest.mark.spark
@pytest.mark.timeout(400)
def test_a_sink_that_commits_when_it_prepares_is_caught(bench: Any, faults: Any, start: Any) -> None:
    faults.plan("before_ack=kill@2#1.0")
    # Not so fast that all has been read before the second checkpoint: it must hold something.
    ledger = Ledger(length=300, rate=1_500).holding_for(faults)
    sink = ImpatientSink(bench.directory / "out")
    env = bench.env(interval=50)
    ledger_stream(env, ledger).sink_to(sink).uid("sink")

    start(env).finish()

    assert len(faults.happened) == 1
    problems = ledger.problems(sink.lines())
    assert problems
    assert all(problem.startswith("too much: ") for problem in problems)


@pytest.mark.spark
@pytest.mark.timeout(400)
def test_state_that_is_not_rolled_back_is_caught(
    bench: Any, faults: Any, start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine is broken on purpose: sources begin anew while state stays where it was."""
    from headrace.checkpoint.restore import RestorePlan

    monkeypatch.setattr(RestorePlan, "splits", lambda self, uid: [])
    monkeypatch.setattr(RestorePlan, "enumerator", lambda self, uid: None)
    faults.plan("before_sink_commit=kill@2#1.0")
    ledger = Ledger(length=300, rate=3_000).holding_for(faults)
    sink = LedgerSink(bench.directory / "out")
    env = bench.env(interval=50)
    ledger_stream(env, ledger).sink_to(sink).uid("sink")

    start(env).finish()

    assert len(faults.happened) == 1
    assert any(problem.startswith("alert") for problem in ledger.problems(sink.lines()))
