"""A ledger into a sink under test, with a crash before and after every step between the barrier and the commit."""

from __future__ import annotations

from typing import Any

from ledger import Ledger, ledger_stream

from headrace.connectors.sink import Sink

WRITERS = 4
AROUND_THE_COMMIT = (
    "record=kill@9#1.0",
    "barrier_aligned=kill@2#1.3",
    "sink_prepared=kill@2#1.1",
    "before_ack=kill@3#1.0",
    "after_all_acks=raise@4",
    "before_sink_commit=kill@2#1.1",
    "sink_committed=exit@2#1.0.0",
    "before_publish=raise@3",
    "after_publish=raise@5",
)
IN_SHORT = tuple(fault for fault in AROUND_THE_COMMIT if "sink_commit" in fault)
"""Published and not committed, committed and nobody told."""


def run_through(faults: Any, bench: Any, start: Any, sink: Sink) -> Ledger:
    """Run a job to its end through the planned faults; each must happen. The output is the caller's to check."""
    ledger = Ledger(length=300, rate=2_000).holding_for(faults)
    env = bench.env(interval=60, parallelism=WRITERS)
    ledger_stream(env, ledger).sink_to(sink).uid("sink")
    result = start(env).finish()
    assert len(faults.happened) == faults.planned
    # Two faults of one moment may end one attempt together.
    assert result.restarts >= min(3, faults.planned // 2)
    return ledger
