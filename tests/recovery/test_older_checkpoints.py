"""Whole jobs that are asked to begin from behind output that they have committed."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from checkpoints import published
from ledger import Ledger, ledger_stream

from headrace import ExternalizedCheckpointRetention, FileSink
from headrace.datastream.overrides import Overrides, overriding
from headrace.errors import CommittedOutputError

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


def test_an_older_checkpoint_is_refused_and_the_job_goes_on_from_its_newest_as_if_nobody_had_asked(
    bench: Any, start: Any
) -> None:
    go = bench.directory / "go"
    ledger = Ledger(length=400, faults=1, fault_log=str(go))
    out = bench.directory / "out"

    def launch(rate: float | None = None, **asked: Any) -> Any:
        env = bench.env(interval=50)
        config = env.get_checkpoint_config().set_num_retained_checkpoints(100)
        config.set_externalized_checkpoint_retention(ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION)
        paced = replace(ledger, rate=rate)
        ledger_stream(env, paced).map(list).sink_to(FileSink.json_lines(out)).uid("files")
        with overriding(Overrides(**asked)):
            return start(env)

    # So slow that there is something new in every checkpoint, however long it takes.
    job = launch(rate=100)
    # Two files a checkpoint at most: so some were committed behind the first one.
    job.wait_for("checkpoint", lambda _: len(list(out.glob("part-*"))) >= 6)
    job.suspend()
    kept = published(bench)
    before = {path: (path.stat().st_ino, path.read_bytes()) for path in out.glob("part-*")}

    with pytest.raises(CommittedOutputError, match=r"uid files\) has committed .* but checkpoint 1 .*--allow-dup"):
        launch(restore_from=str(kept[0])).finish()
    assert {path: (path.stat().st_ino, path.read_bytes()) for path in out.glob("part-*")} == before
    assert published(bench) == kept

    # Neither the newest one by name nor an ordinary start has become impossible by it.
    job = launch(restore_from=str(kept[-1]))
    assert job.wait_for("running")["restored"] == int(kept[-1].name[4:])
    job.wait_for("checkpoint")
    job.suspend()
    go.mkdir()
    (go / "now").touch()
    launch().finish()
    assert ledger.problems(lines(out)) == []


def test_what_is_allowed_is_written_again(bench: Any, start: Any) -> None:
    ledger = Ledger(length=100, checkpoints=f"{bench.directory}/checkpoints")
    out = bench.directory / "out"

    def launch(**asked: Any) -> Any:
        env = bench.env(interval=50)
        config = env.get_checkpoint_config().set_num_retained_checkpoints(100)
        config.set_externalized_checkpoint_retention(ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION)
        ledger_stream(env, ledger).map(list).sink_to(FileSink.json_lines(out)).uid("files")
        with overriding(Overrides(**asked)):
            return start(env)

    launch().finish()
    oldest = published(bench)[0]
    once = Counter(lines(out))
    job = launch(restore_from=str(oldest), allow_duplicates=True)
    assert job.wait_for("running")["restored"] == int(oldest.name[4:])
    job.finish()

    twice = Counter(lines(out))
    assert ledger.problems(once.elements()) == []
    assert set(twice) == set(once)
    assert twice.total() > once.total()


def lines(out: Path) -> list[tuple[Any, ...]]:
    return [tuple(json.loads(line)) for path in out.glob("part-*") for line in path.read_text().splitlines()]
