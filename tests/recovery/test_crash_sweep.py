"""Every failpoint once, on both backends, aligned and unaligned: the ledger ends exact and every fault happened."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from ledger import Ledger, LedgerSink, ledger_stream
from sweep import IN_TASKS, IN_THE_DRIVER, OF_DATAFRAMES, OF_KAFKA, OF_SAVEPOINTS, swapped

from headrace import failpoints

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


def test_the_sweep_names_every_failpoint() -> None:
    swept = {fault.partition("=")[0] for fault in (*IN_TASKS, *IN_THE_DRIVER)}
    assert swept | OF_SAVEPOINTS | OF_DATAFRAMES | OF_KAFKA == failpoints.NAMES


def test_both_sweeps_together_exit_and_kill_at_every_failpoint_of_a_task() -> None:
    swept = {fault.partition("@")[0] for fault in (*IN_TASKS, *swapped(IN_TASKS))}
    names = {fault.partition("=")[0] for fault in IN_TASKS}
    assert swept == {f"{name}={action}" for name in names for action in ("exit", "kill")}


@pytest.mark.parametrize(
    "in_tasks",
    [pytest.param(IN_TASKS, id="as planned"), pytest.param(swapped(IN_TASKS), id="swapped", marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
@pytest.mark.parametrize("mode", ["aligned", "unaligned"])
def test_ledger_is_exact_through_a_crash_at_every_failpoint(
    bench: Any, faults: Any, start: Any, backend: str, mode: str, in_tasks: Sequence[str]
) -> None:
    """Swapped: what was killed exits, and what exited is killed."""
    faults.plan(*in_tasks, *IN_THE_DRIVER)
    ledger = Ledger(length=600, rate=2_000).holding_for(faults)
    sink = LedgerSink(bench.directory / "out")
    env = bench.env(backend=backend, mode=mode, interval=50)
    ledger_stream(env, ledger).sink_to(sink).uid("sink")

    job = start(env)
    result = job.finish()

    assert ledger.problems(sink.lines()) == []
    assert len(faults.happened) == faults.planned
    # Two faults of one moment may end one attempt together, but no restart is without a fault.
    assert 8 <= result.restarts <= faults.planned
    assert result.restarts == len(job.kinds("failure"))
