"""Checkpoint storage disappears under a running job, as a volume that is unmounted does, and comes back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ledger import Ledger, ledger_stream

from headrace import FileSink
from headrace.datastream.overrides import Overrides, overriding

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


def test_output_is_written_once_although_the_volume_was_away_and_the_job_was_started_again(
    bench: Any, start: Any
) -> None:
    go, out = bench.directory / "go", bench.directory / "out"
    ledger = Ledger(length=300, rate=300, faults=1, fault_log=str(go))
    volume, aside = bench.directory / "checkpoints", bench.directory / "unmounted"

    def launch(**asked: Any) -> Any:
        env = bench.env(interval=100)
        ledger_stream(env, ledger).map(list).sink_to(FileSink.json_lines(out)).uid("files")
        with overriding(Overrides(**asked)):
            return start(env)

    job = launch()
    job.wait_for("checkpoint", lambda checkpoint: checkpoint["checkpoint_id"] >= 3)
    volume.rename(aside)
    volume.mkdir()
    # Neither a new owner nor anything else that cannot pass: it is tolerated, and then restarted, as documented.
    job.wait_for("checkpoint-failed")
    job.wait_for("failure", lambda failure: "volume" in failure["message"] or "checkpoint" in failure["message"])
    assert list(volume.rglob("_metadata")) == [], "nothing is published below the mount point"
    job.suspend()
    for left in sorted(volume.rglob("*"), reverse=True):
        left.unlink() if left.is_file() else left.rmdir()
    volume.rmdir()
    aside.rename(volume)

    go.mkdir()
    (go / "now").touch()
    # The lease could not be given back: its process would be dead by now, or it would have expired.
    launch(take_over=True).finish()
    assert ledger.problems(lines(out)) == []


def lines(out: Path) -> list[tuple[Any, ...]]:
    return [tuple(json.loads(line)) for path in out.glob("part-*") for line in path.read_text().splitlines()]
