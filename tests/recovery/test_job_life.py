"""From start to end of a job: retention, restoring by hand, new runs after the end, ownership and taking over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from checkpoints import job_home, published, restored_by_attempt
from ledger import Ledger, LedgerSink, ledger_stream

from headrace import ExternalizedCheckpointRetention
from headrace.datastream.overrides import Overrides, overriding
from headrace.errors import FencedError, JobFailedError, JobOwnedError, RestoreError

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

KEEP = ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION
DELETE = ExternalizedCheckpointRetention.DELETE_ON_CANCELLATION


def held(bench: Any, **sizes: Any) -> tuple[Ledger, Path]:
    """A ledger that does not end before the returned place exists."""
    go = bench.directory / "go"
    return Ledger(**({"length": 400, "rate": 3_000, "faults": 1, "fault_log": str(go)} | sizes)), go


def release(go: Path) -> None:
    go.mkdir(parents=True)
    (go / "now").touch()


@pytest.mark.parametrize("retention", [KEEP, DELETE], ids=["kept", "deleted"])
def test_cancel_applies_retention_and_a_kept_checkpoint_can_be_restored_by_hand(
    bench: Any, start: Any, retention: ExternalizedCheckpointRetention
) -> None:
    ledger, go = held(bench)
    sink = LedgerSink(bench.directory / "out")
    env = bench.env(interval=50)
    env.get_checkpoint_config().set_externalized_checkpoint_retention(retention)
    ledger_stream(env, ledger).sink_to(sink).uid("sink")
    job = start(env)
    job.wait_for("checkpoint", lambda checkpoint: checkpoint["checkpoint_id"] >= 3)
    job.client.cancel().result(180)
    with pytest.raises(JobFailedError, match="canceled"):
        job.finish()
    kept = published(bench)
    assert bool(kept) == (retention is KEEP)

    release(go)
    env = bench.env(interval=50, parallelism=3)
    fresh = LedgerSink(bench.directory / "fresh")
    ledger_stream(env, ledger).sink_to(sink if kept else fresh).uid("sink")
    if not kept:
        # Nothing to go back to: the same program begins a new run from the very beginning.
        assert start(env).finish().restarts == 0
        assert ledger.problems(fresh.lines()) == []
        assert job_home(bench, run=2).is_dir()
        return
    with overriding(Overrides(restore_from=f"file://{kept[-1]}")):
        job = start(env)
    assert job.wait_for("running")["restored"] == int(kept[-1].name[4:])
    job.finish()
    assert ledger.problems(sink.lines()) == []


def test_only_so_many_checkpoints_are_kept_as_was_asked(bench: Any, start: Any) -> None:
    ledger, go = held(bench)
    env = bench.env(interval=50)
    env.get_checkpoint_config().set_num_retained_checkpoints(2).set_externalized_checkpoint_retention(KEEP)
    ledger_stream(env, ledger).sink_to(LedgerSink(bench.directory / "out")).uid("sink")
    job = start(env)
    job.wait_for("checkpoint", lambda checkpoint: checkpoint["checkpoint_id"] >= 5)
    job.suspend()
    assert len(published(bench)) == 2
    release(go)


def test_after_finished_the_same_program_begins_a_new_run(bench: Any, start: Any) -> None:
    ledger = Ledger(length=100)
    for run in (1, 2):
        env = bench.env(interval=50)
        sink = LedgerSink(bench.directory / f"out-{run}")
        ledger_stream(env, ledger).sink_to(sink).uid("sink")
        job = start(env)
        job.finish()
        assert job.wait_for("running")["restored"] is None
        assert ledger.problems(sink.lines()) == []
        # Attempts count on over runs, so that what a sink names by attempt is named once.
        assert restored_by_attempt(bench, run=run) == {run: None}


def test_a_second_owner_is_refused_and_one_that_takes_over_fences_the_first_off(bench: Any, start: Any) -> None:
    ledger, go = held(bench)
    sink = LedgerSink(bench.directory / "out")

    def launch(**overrides: Any) -> Any:
        env = bench.env(interval=50)
        ledger_stream(env, ledger).sink_to(sink).uid("sink")
        with overriding(Overrides(**overrides)):
            return start(env)

    first = launch()
    first.wait_for("checkpoint")
    with pytest.raises(JobOwnedError, match="--take-over"):
        launch().finish()
    assert not first.kinds("failure")

    second = launch(take_over=True)
    second.wait_for("checkpoint")
    with pytest.raises(FencedError):
        first.finish()
    release(go)
    second.finish()
    assert ledger.problems(sink.lines()) == []


def test_restoring_from_a_place_without_a_checkpoint_says_what_is_wanted(bench: Any, start: Any) -> None:
    env = bench.env(interval=50)
    ledger_stream(env, Ledger(length=50)).sink_to(LedgerSink(bench.directory / "out")).uid("sink")
    with overriding(Overrides(restore_from=f"file://{bench.directory}/nowhere")):
        job = start(env)
    with pytest.raises(RestoreError, match="_metadata"):
        job.finish()


def test_state_that_no_operator_claims_is_refused_by_name(bench: Any, start: Any) -> None:
    ledger, _ = held(bench)
    env = bench.env(interval=50)
    ledger_stream(env, ledger).sink_to(LedgerSink(bench.directory / "out")).uid("sink")
    job = start(env)
    job.wait_for("checkpoint")
    job.suspend()

    env = bench.env(interval=50)
    books = ledger_stream(env, ledger)
    books.uid("renamed books")
    books.sink_to(LedgerSink(bench.directory / "out")).uid("sink")
    with pytest.raises(RestoreError, match=r'"books" \(uid books\): keyed state'):
        start(env).finish()
