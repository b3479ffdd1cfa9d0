"""The input gate, aligned and at-least-once: what waits, what goes on, and in which order it comes back."""

from __future__ import annotations

from pathlib import Path

import pytest
from gate_examples import Bench, cell

from headrace.runtime.task.cells import NUDGE_CELL, Barrier
from headrace.runtime.task.gate import CONTROL, REMEMBERED, GateMode, TakeSnapshot

AT_LEAST_ONCE = GateMode.AT_LEAST_ONCE


@pytest.mark.parametrize("count", [1, 2, 7])
def test_the_snapshot_is_taken_at_the_last_barrier_and_no_later_record_is_in_it(count: int) -> None:
    bench = Bench(*range(count))
    for channel in range(count):
        bench.arrive(channel, f"before{channel}", 1, f"after{channel}")
    befores = [f"before{c}" for c in range(count)]
    afters = [f"after{c}" for c in range(count)]
    assert bench.all() == [*befores, "snapshot 1", *afters]


@pytest.mark.parametrize("count", [2, 7])
def test_nothing_is_snapshotted_while_one_barrier_is_missing(count: int) -> None:
    bench = Bench(*range(count))
    for channel in range(count - 1):
        bench.arrive(channel, 1, f"early{channel}")
    assert bench.all() == []
    assert [bench.gate.is_blocked(c) for c in range(count)] == [True] * (count - 1) + [False]
    bench.arrive(count - 1, "last", 1)
    assert bench.all() == ["last", "snapshot 1", *(f"early{c}" for c in range(count - 1))]
    assert not any(bench.gate.is_blocked(c) for c in range(count))


def test_what_was_set_aside_comes_back_in_its_order_before_new_input() -> None:
    bench = Bench(0, 1).arrive(0, 1, "a1", "a2").arrive(1, "b1").arrive(0, "a3")
    assert bench.all() == ["b1"]
    bench.arrive(1, 1, "b2").arrive(0, "a4")
    assert bench.all() == ["snapshot 1", "a1", "a2", "a3", "b2", "a4"]


def test_barriers_of_the_next_checkpoint_wait_behind_the_one_under_way() -> None:
    bench = Bench(0, 1).arrive(0, 1, "a1", 2, "a2", 3, "a3")
    assert bench.all() == []
    assert bench.arrive(1, 1, "b1").all() == ["snapshot 1", "a1", "b1"]
    assert bench.arrive(1, 2, "b2").all() == ["snapshot 2", "a2", "b2"]
    assert bench.arrive(1, 3).all() == ["snapshot 3", "a3"]


def test_nudges_are_set_aside_like_any_cell() -> None:
    bench = Bench(0, 1).arrive(0, 1)
    bench.gate.arrive(0, NUDGE_CELL)
    assert bench.all() == []
    bench.arrive(1, 1)
    assert bench.one() == "snapshot 1"
    event = bench.gate.take()
    assert event is not None
    assert event.item == NUDGE_CELL  # type: ignore[union-attr]


def test_the_time_between_first_and_last_barrier_is_reported() -> None:
    bench = Bench(0, 1).arrive(0, 1)
    assert bench.one() is None
    bench.clock.now = 2.5
    event = bench.arrive(1, 1).gate.take()
    assert isinstance(event, TakeSnapshot)
    assert event.alignment_s == 2.5


# -- late, repeated, superseding, aborted


def test_a_barrier_that_comes_again_counts_once() -> None:
    bench = Bench(0, 1).arrive(0, 1).arrive(0, 1, "a1")
    assert bench.all() == []
    assert bench.arrive(1, 1, 1, "b1").all() == ["snapshot 1", "a1", "b1"]


def test_late_barriers_of_finished_and_aborted_checkpoints_are_dropped() -> None:
    bench = Bench(0, 1).arrive(0, 5).arrive(1, 5)
    assert bench.all() == ["snapshot 5"]
    bench.gate.abort(6)
    assert bench.arrive(0, 4, 5, 6, "a1").arrive(1, 6, 5, "b1").all() == ["a1", "b1"]
    assert bench.arrive(0, 7).arrive(1, 7).all() == ["snapshot 7"]


def test_a_newer_barrier_on_an_open_channel_gives_the_older_checkpoint_up() -> None:
    bench = Bench(0, 1).arrive(0, 1, "a1").arrive(1, "b1", 2, "b2")
    assert bench.all() == ["b1", "give up 1", "a1"]
    assert bench.arrive(0, "a2", 2, "a3").all() == ["a2", "snapshot 2", "b2", "a3"]
    assert bench.arrive(1, 1, "b3").all() == ["b3"]


def test_an_older_barrier_behind_a_newer_one_changes_nothing() -> None:
    bench = Bench(0, 1).arrive(0, 2, "a1").arrive(1, 1, "b1", 2)
    assert bench.all() == ["b1", "snapshot 2", "a1"]


def test_an_abort_before_the_snapshot_lets_everything_go_on_in_order() -> None:
    bench = Bench(0, 1).arrive(0, 1, "a1", "a2").arrive(1, "b1")
    assert bench.all() == ["b1"]
    bench.gate.abort(1)
    assert bench.arrive(0, "a3").arrive(1, 1, "b2").all() == ["a1", "a2", "a3", "b2"]


def test_an_abort_after_the_snapshot_is_harmless() -> None:
    bench = Bench(0, 1).arrive(0, 1).arrive(1, 1)
    assert bench.all() == ["snapshot 1"]
    bench.gate.abort(1)
    assert bench.arrive(0, 2).arrive(1, 2, "b1").all() == ["snapshot 2", "b1"]


def test_an_abort_that_overtakes_the_first_barrier_drops_them_all() -> None:
    bench = Bench(0, 1)
    bench.gate.abort(1)
    assert bench.arrive(0, 1, "a1").arrive(1, "b1", 1).all() == ["a1", "b1"]


def test_the_abort_of_a_newer_checkpoint_leaves_the_older_one_and_its_cells_alone() -> None:
    bench = Bench(0, 1).arrive(0, 1, "a1", 2, "a2")
    assert bench.all() == []
    bench.gate.abort(2)
    assert bench.all() == []
    assert bench.arrive(1, "b1", 1, 2, "b2").all() == ["b1", "snapshot 1", "a1", "a2", "b2"]
    assert bench.arrive(0, 3).arrive(1, 3).all() == ["snapshot 3"]


def test_a_thousand_aborts_are_not_remembered_one_by_one() -> None:
    bench = Bench(0, 1)
    for checkpoint_id in range(1, 3 * REMEMBERED):
        bench.gate.abort(checkpoint_id)
    assert len(bench.gate._dropped) <= REMEMBERED
    assert bench.arrive(0, 1, 2 * REMEMBERED, "a1").all() == ["a1"]


# -- control


def test_a_task_with_sources_snapshots_at_its_trigger() -> None:
    bench = Bench(CONTROL).control("split 1", 1, "split 2")
    assert bench.all() == ["split 1", "snapshot 1", "split 2"]
    assert bench.urgent == 3


def test_a_task_with_sources_never_snapshots_before_its_trigger() -> None:
    bench = Bench(CONTROL, 0).arrive(0, "a1", 1, "a2")
    assert bench.all() == ["a1"]
    bench.control("split 1")
    assert bench.all() == ["split 1"]
    bench.control(1, "split 2")
    assert bench.all() == ["snapshot 1", "split 2", "a2"]


@pytest.mark.parametrize("mode", list(GateMode))
def test_assignments_after_the_trigger_wait_for_the_snapshot_in_every_mode(mode: GateMode) -> None:
    bench = Bench(CONTROL, 0, mode=mode).control("split 1", 1, "split 2")
    assert bench.all() == ["split 1"]
    assert not bench.gate.has_input
    assert bench.arrive(0, "a1").all() == ["a1"]
    assert bench.arrive(0, 1).gate.has_input
    assert bench.all() == ["snapshot 1", "split 2"]


def test_sources_rest_between_trigger_and_snapshot_unless_nothing_is_set_aside() -> None:
    for mode, blocked in ((GateMode.EXACTLY_ONCE, True), (AT_LEAST_ONCE, False)):
        bench = Bench(CONTROL, 0, mode=mode).control(1)
        assert bench.all() == []
        assert bench.gate.is_blocked(CONTROL) is blocked


def test_an_abort_hands_out_the_assignments_that_waited() -> None:
    bench = Bench(CONTROL, 0).control(1, "split 1")
    assert bench.all() == []
    bench.gate.abort(1)
    assert bench.all() == ["split 1"]


def test_a_newer_trigger_gives_the_older_checkpoint_up() -> None:
    bench = Bench(CONTROL, 0).arrive(0, 1, "a1")
    assert bench.all() == []
    assert bench.control(2).all() == ["give up 1", "a1"]
    assert bench.arrive(0, 2).all() == ["snapshot 2"]


def test_control_messages_go_before_cells() -> None:
    assert Bench(CONTROL, 0).arrive(0, "a1").control("split 1").all() == ["split 1", "a1"]


# -- at least once


def test_at_least_once_sets_nothing_aside_and_snapshots_at_the_last_barrier() -> None:
    bench = Bench(0, 1, mode=AT_LEAST_ONCE).arrive(0, 1, "a1")
    assert bench.all() == ["a1"]
    assert not bench.gate.is_blocked(0)
    assert bench.arrive(1, "b1", 1, "b2").all() == ["b1", "snapshot 1", "b2"]


def test_at_least_once_counts_several_checkpoints_at_a_time() -> None:
    bench = Bench(0, 1, 2, mode=AT_LEAST_ONCE).arrive(0, 1, 2, 3).arrive(1, 1, 2)
    assert bench.all() == []
    assert bench.arrive(2, 1, "c1", 2).all() == ["snapshot 1", "c1", "snapshot 2"]
    assert bench.arrive(1, 3).arrive(2, 3).all() == ["snapshot 3"]


def test_at_least_once_keeps_the_older_one_when_a_newer_one_is_aborted_and_the_other_way_round() -> None:
    bench = Bench(0, 1, mode=AT_LEAST_ONCE).arrive(0, 1, 2, 3)
    assert bench.all() == []
    bench.gate.abort(2)
    assert bench.arrive(1, 1, 2, 3).all() == ["snapshot 1", "snapshot 3"]


def test_at_least_once_does_not_let_a_barrier_overtake() -> None:
    bench = Bench(0, 1, mode=AT_LEAST_ONCE).arrive(0, "a1", Barrier(1, unaligned=True), "a2")
    assert bench.all() == ["a1", "a2"]


# -- limits


def test_cells_beyond_the_memory_limit_are_spilled_and_come_back_in_order(tmp_path: Path) -> None:
    bench = Bench(0, 1, spill_dir=tmp_path, memory=3 * len(cell("a0")))
    names = [f"a{n}" for n in range(9)]
    bench.arrive(0, 1, *names)
    assert bench.all() == []
    assert bench.gate.spilled == 6
    assert bench.arrive(1, 1, "b1").arrive(0, "a9").all() == ["snapshot 1", *names, "b1", "a9"]
    assert bench.gate.spilled == 0
    bench.gate.close()


def test_cells_set_aside_again_by_the_next_checkpoint_keep_their_order(tmp_path: Path) -> None:
    bench = Bench(0, 1, spill_dir=tmp_path, memory=30)
    bench.arrive(0, 1, "a1", 2, "a2", "a3").arrive(1, 1)
    assert bench.all() == ["snapshot 1", "a1"]
    assert bench.arrive(0, "a4").arrive(1, "b1", 2).all() == ["b1", "snapshot 2", "a2", "a3", "a4"]


def test_too_much_set_aside_makes_the_task_snapshot_now_and_log_the_rest() -> None:
    bench = Bench(0, 1, limit=2 * len(cell("a1"))).arrive(0, 1, "a1", "a2").arrive(1, "b1")
    assert bench.all() == ["b1"]
    bench.arrive(0, "a3").arrive(1, "b2")
    assert bench.all() == ["snapshot 1: b2 ...", "a1", "a2", "a3", "b2"]
    assert bench.arrive(1, "b3", 1, "b4").all() == ["log 1: b3", "b3", "b4"]


def test_a_savepoint_that_sets_too_much_aside_is_given_up_instead() -> None:
    bench = Bench(0, 1, limit=len(cell("a1"))).arrive(0, Barrier(1, canonical=True), "a1", "a2")
    assert bench.all() == ["give up 1", "a1", "a2"]
    assert bench.arrive(1, Barrier(1, canonical=True), "b1").all() == ["b1"]


def test_without_its_trigger_a_task_with_sources_gives_up_instead() -> None:
    bench = Bench(CONTROL, 0, 1, limit=len(cell("a1"))).arrive(0, 1, "a1", "a2")
    assert bench.all() == ["give up 1", "a1", "a2"]
    assert bench.control(1).all() == []


def test_reading_stops_at_the_limit_but_set_aside_cells_do_not_count() -> None:
    size = len(cell("a1"))
    bench = Bench(0, 1)
    assert bench.gate.may_read_on(2 * size)
    bench.arrive(1, "b1", "b2")
    assert not bench.gate.may_read_on(2 * size)
    assert bench.one() == "b1"
    assert bench.gate.may_read_on(2 * size)
    bench.all()
    bench.arrive(0, 1, *(f"a{n}" for n in range(8)))
    assert bench.all() == []
    assert bench.gate.inbox_bytes == 0
    assert bench.gate.may_read_on(2 * size), "the missing barrier could never arrive"


def test_restored_cells_come_before_anything_that_arrives() -> None:
    bench = Bench(0, 1).arrive(0, "a2")
    bench.gate.put_back([(0, cell("a1")), (1, cell("b1"))])
    bench.gate.put_back([(1, cell("b2"))])
    assert bench.gate.has_input
    assert bench.arrive(1, 1).arrive(0, 1).all() == ["a1", "b1", "b2", "a2", "snapshot 1"]
