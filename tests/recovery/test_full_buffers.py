"""A slow operator behind full buffers: aligned, unaligned and in between; killed, and restored at other widths."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from checkpoints import channel_cells, opened, published
from ledger import Bookkeeper, Ledger, LedgerSink, LedgerSource

from headrace import WatermarkStrategy

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


class SlowBookkeeper(Bookkeeper):
    """Takes its time over every record; much more of it until there is a file at `go`, if one is named."""

    def __init__(self, window: int, go: str = "") -> None:
        super().__init__(window)
        self._go = go

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        time.sleep(0.02 if self._go and not os.path.exists(self._go) else 0.001)
        return super().process_element(value, ctx)


def slow_books(env: Any, ledger: Ledger, sink: LedgerSink, go: str = "", *, more: bool = False) -> None:
    """`more`: with edges and a level that are not in the program without it, so that all others have other numbers."""
    if more:
        other = env.from_collection([1]).uid("other").set_parallelism(1).rebalance().map(lambda n: n).uid("other-map")
        other.set_parallelism(2).key_by(lambda n: n).map(lambda n: n).uid("other-end").set_parallelism(1).print()
    records = env.from_source(LedgerSource(ledger), WatermarkStrategy.for_monotonous_timestamps(), "ledger").uid("src")
    books = records.key_by(lambda record: record[0]).process(SlowBookkeeper(ledger.window, go)).uid("books")
    books.sink_to(sink).uid("sink")


@pytest.mark.parametrize("mode", ["aligned", "unaligned", "timeout"])
@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_killed_with_full_buffers_the_books_stay_exact(
    bench: Any, faults: Any, start: Any, mode: str, backend: str
) -> None:
    faults.plan("before_ack=kill@2#1.0", "after_upload=kill@2#1.1", "barrier_injected=kill@3#1.0")
    ledger = Ledger(length=400).holding_for(faults)
    sink = LedgerSink(bench.directory / "out")
    env = bench.env(mode=mode, backend=backend, interval=50)
    slow_books(env, ledger, sink)

    job = start(env)
    result = job.finish()

    assert ledger.problems(sink.lines()) == []
    assert len(faults.happened) == faults.planned
    assert 1 <= result.restarts <= faults.planned
    in_flight = max(checkpoint["channel_bytes"] for checkpoint in job.kinds("checkpoint"))
    assert (in_flight > 0) == (mode != "aligned")


@pytest.mark.parametrize(
    ("mode", "width"),
    [
        ("unaligned", 3),
        ("unaligned", 1),
        pytest.param("timeout", 3, marks=pytest.mark.slow),
        pytest.param("timeout", 1, marks=pytest.mark.slow),
    ],
)
def test_records_in_flight_are_routed_again_when_restored_at_another_width_by_a_changed_program(
    bench: Any, faults: Any, start: Any, mode: str, width: int
) -> None:
    go = Path(bench.directory, "go")
    ledger = Ledger(length=400, faults=1, fault_log=str(go))
    sink = LedgerSink(bench.directory / "out")
    env = bench.env(mode=mode, interval=50)
    # So slow that buffers are still full at the last checkpoint, however long the machine takes over it.
    slow_books(env, ledger, sink, str(go))
    job = start(env)
    job.wait_for("checkpoint", lambda checkpoint: checkpoint["channel_bytes"] > 0)
    job.suspend()

    newest = opened(bench, int(published(bench)[-1].name[4:]))
    assert channel_cells(newest) > 0
    assert newest.metadata.mode == "unaligned"
    assert {("src", "books"), ("books", "sink")} == {(e.source, e.target) for e in newest.metadata.edge_records}

    faults.plan("before_ack=kill@2#1.0")
    env = bench.env(mode=mode, interval=50, parallelism=width)
    slow_books(env, ledger, sink, more=True)
    job = start(env)
    assert job.wait_for("running")["restored"] == newest.metadata.checkpoint_id
    job.wait_for("restarting")
    go.mkdir()
    (go / "now").touch()
    result = job.finish()

    assert ledger.problems(sink.lines()) == []
    assert len(faults.happened) == 1
    assert result.restarts == 1


def slowly(record: Any) -> Any:
    time.sleep(0.0015)
    return record


def books_on_fixed_routes(env: Any, ledger: Ledger, sink: LedgerSink) -> None:
    records = env.from_source(LedgerSource(ledger), WatermarkStrategy.for_monotonous_timestamps(), "ledger").uid("src")
    books = records.key_by(lambda record: record[0]).process(Bookkeeper(ledger.window)).uid("books")
    chosen = books.partition_custom(lambda key, n: hash(key) % n, lambda line: line[0]).map(slowly).uid("chosen")
    rescaled = chosen.rescale().map(slowly).uid("rescaled")
    rescaled.map(slowly).uid("forward").start_new_chain().sink_to(sink).uid("sink")


def test_what_waits_on_fixed_routes_is_in_no_checkpoint_so_that_any_restores_at_another_width(
    bench: Any, start: Any
) -> None:
    go = Path(bench.directory, "go")
    ledger = Ledger(length=400, faults=1, fault_log=str(go))
    sink = LedgerSink(bench.directory / "out")
    env = bench.env(mode="unaligned", interval=50)
    books_on_fixed_routes(env, ledger, sink)
    job = start(env)
    job.wait_for("checkpoint", lambda checkpoint: checkpoint["checkpoint_id"] >= 3)
    job.suspend()

    newest = opened(bench, int(published(bench)[-1].name[4:]))
    assert {edge for channel in newest.metadata.channels for edge in channel.edges} <= {0}, "only the one by key"

    go.mkdir()
    (go / "now").touch()
    env = bench.env(mode="unaligned", interval=50, parallelism=3)
    books_on_fixed_routes(env, ledger, sink)
    job = start(env)
    assert job.wait_for("running")["restored"] == newest.metadata.checkpoint_id
    job.finish()

    assert ledger.problems(sink.lines()) == []


def test_an_unaligned_checkpoint_does_not_wait_for_the_slow_operator(bench: Any, start: Any) -> None:
    in_flight: dict[str, list[int]] = {}
    for mode in ("aligned", "unaligned"):
        bench.directory = bench.directory.parent / mode
        env = bench.env(mode=mode, interval=50)
        sink = LedgerSink(bench.directory / "out")
        ledger = Ledger(length=250)
        go = bench.directory / "go"
        slow_books(env, ledger, sink, str(go) if mode == "unaligned" else "")
        job = start(env)
        if mode == "unaligned":
            job.wait_for("checkpoint", lambda checkpoint: checkpoint["channel_bytes"] > 0)
            go.touch()
        job.finish()
        assert ledger.problems(sink.lines()) == []
        in_flight[mode] = [c["channel_bytes"] for c in job.kinds("checkpoint")]
    # What an aligned barrier would have stood behind, the other one overtook: it is in the checkpoint instead.
    assert max(in_flight["unaligned"]) > 0
    assert max(in_flight["aligned"]) == 0
