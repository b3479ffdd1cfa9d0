"""The same crashes under every way to keep state, with several checkpoints at once, and at the very end."""

from __future__ import annotations

from typing import Any

import pytest
from ledger import Ledger, LedgerSink, ledger_stream

from headrace import HeapOptions, JobManagerCheckpointStorage, RocksDBOptions

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

CRASHES = ("record=kill@10#1.0", "before_ack=kill@3#1.1", "before_sink_commit=exit@2#1.0")


@pytest.mark.parametrize(
    "options",
    [
        HeapOptions(fork_threshold=0),
        HeapOptions(asynchronous_snapshots=False),
        RocksDBOptions(incremental=False),
        RocksDBOptions(cache_entries=4, dirty_limit=2),
    ],
    ids=["heap, every snapshot forked", "heap, synchronous", "rocksdb, full", "rocksdb, hardly any cache"],
)
def test_every_kind_of_backend_comes_through_the_same_crashes(
    bench: Any, faults: Any, start: Any, options: HeapOptions | RocksDBOptions
) -> None:
    faults.plan(*CRASHES)
    ledger = Ledger(length=300, rate=3_000).holding_for(faults)
    sink = LedgerSink(bench.directory / "out")
    env = bench.env(interval=50)
    env.set_state_backend(options)
    ledger_stream(env, ledger).sink_to(sink).uid("sink")

    result = start(env).finish()

    assert ledger.problems(sink.lines()) == []
    assert len(faults.happened) == faults.planned
    assert 1 <= result.restarts <= faults.planned


def test_checkpoints_in_the_coordinators_memory_survive_the_loss_of_tasks(bench: Any, faults: Any, start: Any) -> None:
    faults.plan(*CRASHES)
    ledger = Ledger(length=300, rate=3_000).holding_for(faults)
    sink = LedgerSink(bench.directory / "out")
    env = bench.env(interval=50)
    env.get_checkpoint_config().set_checkpoint_storage(JobManagerCheckpointStorage())
    ledger_stream(env, ledger).sink_to(sink).uid("sink")

    job = start(env)
    job.finish()

    assert ledger.problems(sink.lines()) == []
    assert len(faults.happened) == faults.planned
    # The kill before a sink's commit comes behind a complete checkpoint, so the attempt after it restored one.
    assert any(running["restored"] for running in job.kinds("running"))


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_several_checkpoints_under_way_at_once_do_not_disturb_each_other(
    bench: Any, faults: Any, start: Any, backend: str
) -> None:
    # The third snapshot is never written: of four at once the next ones go by it, or the twelfth could not begin.
    faults.plan("after_snapshot_local=hang@3#1.0", "before_ack=kill@12#1.1", "before_ack=kill@13#1.0")
    ledger = Ledger(length=600, rate=2_500).holding_for(faults)
    sink = LedgerSink(bench.directory / "out")
    env = bench.env(interval=40, backend=backend)
    env.get_checkpoint_config().set_max_concurrent_checkpoints(4)
    ledger_stream(env, ledger).sink_to(sink).uid("sink")

    job = start(env)
    job.finish()

    assert ledger.problems(sink.lines()) == []
    assert len(faults.happened) == faults.planned
    # It was overtaken: a newer one was complete while it was still being written.
    assert "a newer checkpoint completed first" in {failed["reason"] for failed in job.kinds("checkpoint-failed")}


@pytest.mark.parametrize("mode", ["aligned", "unaligned"])
def test_crashes_while_the_last_checkpoint_commits_neither_lose_nor_repeat_the_end(
    bench: Any, faults: Any, start: Any, mode: str
) -> None:
    """With an interval of an hour there is only the checkpoint at the end of the input, in every life."""
    faults.plan(
        "before_ack=kill@1#0.0",
        "before_sink_commit=kill@1#1.0",
        "after_publish=raise@2",
        "sink_committed=exit@1#1.1.0",
    )
    ledger = Ledger(length=300)
    sink = LedgerSink(bench.directory / "out")
    env = bench.env(interval=3_600_000, mode=mode)
    ledger_stream(env, ledger).sink_to(sink).uid("sink")

    result = start(env).finish()

    assert ledger.problems(sink.lines()) == []
    assert "00-before_ack" in faults.happened
    assert "01-before_sink_commit" in faults.happened
    assert 2 <= result.restarts <= faults.planned
