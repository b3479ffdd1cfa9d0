"""The input gate when barriers overtake: what is in flight belongs to the checkpoint, and nothing else does."""

from __future__ import annotations

from pathlib import Path

import pytest
from gate_examples import FIXED_EDGE, Bench, cell

from headrace.runtime.task.cells import NUDGE_CELL, Address, Barrier, end_cell, idle_cell, watermark_cell
from headrace.runtime.task.gate import CONTROL, Deliver, TakeSnapshot

HERE = Address(0, 1, 0)
ONE = Barrier(1, unaligned=True)
TWO = Barrier(2, unaligned=True)


def unaligned(*channels: int) -> Bench:
    return Bench(*channels, timeout=0.0)


def test_the_snapshot_is_taken_at_the_first_barrier_with_all_that_is_queued_before_the_others() -> None:
    bench = unaligned(0, 1).arrive(0, "a1").arrive(1, "b1", "b2").arrive(0, ONE, "a2")
    assert bench.one() == "snapshot 1: a1 b1 b2 ..."
    assert bench.all() == ["a1", "b1", "b2", "a2"]


def test_cells_behind_a_barrier_are_never_logged_and_the_last_barrier_completes_the_log() -> None:
    bench = unaligned(0, 1, 2).arrive(0, ONE, "a1")
    assert bench.one() == "snapshot 1:  ..."
    bench.arrive(1, "b1", ONE, "b2").arrive(2, "c1").arrive(0, "a2").arrive(2, "c2", ONE, "c3")
    assert bench.one() == "log 1: b1 c1 c2"
    assert bench.all() == ["a1", "b1", "b2", "c1", "a2", "c2", "c3"]


def test_all_barriers_that_were_read_already_complete_the_log_at_once() -> None:
    bench = unaligned(0, 1).arrive(1, "b1", ONE, "b2").arrive(0, "a1", ONE, "a2")
    assert bench.all() == ["snapshot 1: b1 a1", "b1", "b2", "a1", "a2"]


@pytest.mark.parametrize("count", [1, 2, 7])
def test_no_channel_waits_for_another(count: int) -> None:
    bench = unaligned(*range(count)).arrive(0, ONE, "a1")
    assert bench.all() == ["snapshot 1: " if count == 1 else "snapshot 1:  ...", "a1"]
    assert not any(bench.gate.is_blocked(c) for c in range(count))


def test_a_trigger_starts_the_checkpoint_in_a_task_without_sources_before_any_barrier_comes() -> None:
    bench = unaligned(0, 1).arrive(0, "a1").control(ONE)
    assert bench.one() == "snapshot 1: a1 ..."
    assert bench.arrive(0, "a2", ONE).arrive(1, ONE, "b1").all() == ["log 1: a2", "a1", "a2", "b1"]


def test_a_trigger_that_comes_after_the_barriers_does_not_start_it_again() -> None:
    bench = unaligned(0, 1).arrive(0, ONE).arrive(1, ONE)
    assert bench.all() == ["snapshot 1: "]
    assert bench.control(ONE).all() == []


def test_a_trigger_that_comes_later_than_the_next_checkpoints_barrier_comes_too_late() -> None:
    """Else the sink would put records behind barrier 2 into an item for checkpoint 1, which 2 commits."""
    bench = unaligned(0, 1).arrive(0, TWO, "a1")
    assert bench.one() == "snapshot 2:  ..."
    assert bench.control(ONE).all() == ["a1"]
    assert bench.arrive(1, "b1", TWO).all() == ["log 2: b1", "b1"]


def test_a_late_trigger_does_not_hide_a_newer_barrier_that_was_noticed() -> None:
    bench = Bench(0, 1, timeout=5.0).arrive(0, "a1", 2).control(ONE)
    assert bench.all() == ["a1"]
    bench.clock.now = 5.0
    assert bench.all() == ["snapshot 2:  ..."]


def test_a_task_with_sources_waits_for_its_trigger_even_if_a_barrier_may_overtake() -> None:
    bench = unaligned(CONTROL, 0, 1).arrive(0, ONE, "a1").arrive(1, "b1")
    assert bench.all() == ["b1"]
    assert bench.gate.is_blocked(0)
    assert bench.control("split 1", ONE, "split 2").all() == ["split 1", "snapshot 1:  ...", "split 2", "a1"]


def test_the_overtaking_barrier_is_found_while_a_cell_is_in_hand() -> None:
    bench = unaligned(0, 1).arrive(1, "b1")
    assert bench.one() == "b1"
    bench.arrive(0, ONE)
    assert bench.urgent == 1
    event = bench.gate.take_urgent()
    assert isinstance(event, TakeSnapshot)
    assert event.logged == []
    assert bench.gate.take_urgent() is None


def test_control_and_cells_are_not_mixed_up_by_take_urgent() -> None:
    bench = unaligned(CONTROL, 0).arrive(0, "a1").control("split 1")
    assert bench.gate.take_urgent() is not None
    assert bench.gate.take_urgent() is None
    assert bench.all() == ["a1"]


def test_an_abort_while_logging_drops_the_log() -> None:
    bench = unaligned(0, 1).arrive(0, ONE)
    assert bench.one() == "snapshot 1:  ..."
    bench.arrive(1, "b1")
    bench.gate.abort(1)
    assert bench.arrive(1, ONE, "b2").all() == ["b1", "b2"]
    assert bench.arrive(0, TWO).arrive(1, TWO).all() == ["snapshot 2: "]


def test_the_next_barrier_gives_up_a_checkpoint_that_still_logs() -> None:
    bench = unaligned(0, 1).arrive(0, ONE)
    assert bench.one() == "snapshot 1:  ..."
    bench.arrive(1, "b1", TWO, "b2")
    assert bench.all() == ["give up 1", "snapshot 2: b1 ...", "b1", "b2"]
    assert bench.arrive(0, "a1", TWO).all() == ["log 2: a1", "a1"]


def test_a_late_barrier_does_not_bring_back_a_checkpoint_that_a_newer_one_has_passed() -> None:
    bench = unaligned(0, 1).arrive(0, ONE, TWO)
    assert bench.one() == "snapshot 2:  ..."
    assert bench.arrive(1, "b1", ONE, "b2").all() == ["b1", "b2"]
    assert bench.arrive(1, TWO).all() == ["log 2: b1 b2"]


def test_a_barrier_of_the_next_checkpoint_inside_the_queue_is_not_taken_for_this_one() -> None:
    bench = unaligned(0, 1).arrive(0, Barrier(3, unaligned=True))
    bench.gate.abort(3)
    bench.arrive(1, Barrier(3, unaligned=True), "b1").arrive(0, Barrier(4, unaligned=True))
    assert bench.one() == "snapshot 4: b1 ..."


def test_restored_cells_are_in_flight_too() -> None:
    bench = unaligned(0, 1)
    bench.gate.put_back([(0, cell("a1")), (1, cell("b1"))])
    bench.arrive(0, "a2", ONE)
    assert bench.one() == "snapshot 1: a1 b1 a2 ..."
    assert bench.arrive(1, ONE).all() == ["log 1: ", "a1", "b1", "a2"]


def test_reading_goes_on_beyond_the_limit_while_a_checkpoint_logs_and_the_log_has_a_cap() -> None:
    size = len(cell("b1"))
    bench = Bench(0, 1, timeout=0.0, limit=3 * size).arrive(1, "b1", "b2").arrive(0, ONE)
    assert not bench.gate.may_read_on(size)
    assert bench.one() == "snapshot 1: b1 b2 ..."
    assert bench.gate.may_read_on(size)
    bench.arrive(1, "b3")
    assert not bench.gate.may_read_on(size), "above its cap the checkpoint goes at the operator's pace"
    bench.arrive(1, ONE)
    assert bench.one() == "log 1: b3"
    assert not bench.gate.may_read_on(size)


def test_only_records_are_in_flight_because_producers_say_watermarks_and_ends_again() -> None:
    """After a restore the producer may be given another's split: its old END or watermark would be a lie."""
    bench = unaligned(0, 1)
    said = (watermark_cell(HERE, 5), idle_cell(HERE, True), end_cell(HERE), NUDGE_CELL)
    for data in said:
        bench.gate.arrive(1, data)
    bench.arrive(1, "b1").arrive(0, ONE)
    assert bench.one() == "snapshot 1: b1 ..."
    for data in said:
        bench.gate.arrive(1, data)
    bench.arrive(1, "b2", ONE)
    assert bench.one() == "log 1: b2"
    delivered = []
    while (event := bench.gate.take()) is not None:
        assert isinstance(event, Deliver)
        delivered.append(event.item)
    assert delivered == [*said, cell("b1"), *said, cell("b2")]


# -- aligned with timeout


def test_before_the_timeout_a_checkpoint_is_aligned_and_after_it_overtakes() -> None:
    bench = Bench(0, 1, timeout=1.0).arrive(0, 1, "a1").arrive(1, "b1")
    assert bench.all() == ["b1"]
    assert bench.gate.deadline() == 1.0
    bench.arrive(1, "b2")
    bench.clock.now = 1.0
    assert bench.one() == "snapshot 1: b2 ..."
    assert bench.gate.deadline() is None
    assert bench.all() == ["a1", "b2"]
    assert bench.arrive(1, "b3", 1, "b4").all() == ["log 1: b3", "b3", "b4"]


def test_a_checkpoint_that_aligns_in_time_logs_nothing() -> None:
    bench = Bench(0, 1, timeout=1.0).arrive(0, 1, "a1").arrive(1, "b1", 1)
    assert bench.all() == ["b1", "snapshot 1", "a1"]
    assert bench.gate.deadline() is None


def test_the_timeout_runs_from_the_moment_a_barrier_was_read_not_from_its_turn() -> None:
    bench = Bench(0, 1, timeout=1.0).arrive(0, "a1", "a2", 1, "a3")
    assert bench.one() == "a1"
    bench.clock.now = 1.0
    assert bench.one() == "snapshot 1: a2 ..."
    assert bench.all() == ["a2", "a3"]


def test_a_savepoint_never_overtakes_and_asks_for_no_wake_up() -> None:
    bench = Bench(0, 1, timeout=0.0).arrive(0, Barrier(1, canonical=True), "a1")
    bench.clock.now = 99.0
    assert bench.all() == []
    assert bench.gate.deadline() is None
    assert bench.arrive(1, "b1", Barrier(1, canonical=True)).all() == ["b1", "snapshot 1", "a1"]


def test_without_its_trigger_a_task_with_sources_asks_for_no_wake_up() -> None:
    bench = Bench(CONTROL, 0, timeout=1.0).arrive(0, 1)
    assert bench.all() == []
    assert bench.gate.deadline() is None


def test_spilled_cells_are_logged_from_disk(tmp_path: Path) -> None:
    bench = Bench(0, 1, timeout=0.0, spill_dir=tmp_path, memory=10)
    bench.gate.put_back([(1, cell(f"b{n}")) for n in range(4)])
    assert bench.gate.spilled == 4
    assert bench.arrive(0, ONE).one() == "snapshot 1: b0 b1 b2 b3 ..."
    assert bench.all() == ["b0", "b1", "b2", "b3"]
    bench.gate.close()


def fixed(*channels: int, timeout: float = 0.0, limit: int = 1 << 20) -> Bench:
    """Cells in capitals come on an edge with a fixed route."""
    return Bench(*channels, timeout=timeout, limit=limit, fixed=True)


def test_a_cell_on_a_fixed_route_is_processed_before_the_snapshot_and_the_rest_is_logged() -> None:
    bench = fixed(0, 1).arrive(0, "a1", "A2", "a3", ONE, "a4").arrive(1, "b1", ONE, "b2")
    assert bench.all() == ["a1", "A2", "snapshot 1: a3 b1", "a3", "a4", "b1", "b2"]


def test_with_fixed_routes_the_snapshot_waits_until_every_barrier_is_read() -> None:
    bench = fixed(0, 1).arrive(0, ONE, "a1").arrive(1, "b1")
    assert bench.all() == ["b1"], "channel 1 may still send a cell on a fixed route, and a1 is behind the barrier"
    bench.arrive(1, "b2", "B3", "b4", ONE, "b5")
    assert bench.all() == ["b2", "B3", "snapshot 1: b4", "a1", "b4", "b5"]


def test_without_cells_on_them_fixed_routes_cost_nothing_but_the_reading_of_the_barriers() -> None:
    bench = fixed(0, 1).arrive(0, "a1", "a2", ONE).arrive(1, "b1", ONE)
    assert bench.one() == "snapshot 1: a1 a2 b1"


def test_a_cell_behind_its_barrier_holds_nothing_up() -> None:
    bench = fixed(0, 1).arrive(0, "a1", ONE, "A2").arrive(1, "b1", ONE, "B2")
    assert bench.all() == ["snapshot 1: a1 b1", "a1", "A2", "b1", "B2"]


def test_a_cell_on_a_fixed_route_in_hand_is_finished_first() -> None:
    bench = fixed(0).arrive(0, "A1", "a2")
    assert bench.one() == "A1"
    bench.arrive(0, ONE)
    assert bench.gate.take_urgent() is None, "the rest of A1 would be in flight"
    assert bench.all() == ["snapshot 1: a2", "a2"]


def test_an_edge_that_is_fixed_for_what_was_put_back_alone_is_forgotten_with_it() -> None:
    bench = unaligned(0, 1)
    bench.gate.put_back([(0, cell("A1")), (0, cell("a2"))], (FIXED_EDGE,))
    bench.arrive(0, ONE, "a3").arrive(1, ONE, "b1")
    assert bench.all() == ["A1", "a2", "snapshot 1: ", "a3", "b1"]
    bench.arrive(0, "a4", TWO)
    assert bench.one() == "snapshot 2: a4 ...", "nothing waits for the other barrier"


def test_more_is_read_while_barriers_are_missing_and_no_more_once_they_are_read() -> None:
    bench = fixed(0, 1).arrive(0, ONE, "a" * 100)
    assert bench.gate.may_read_on(50)
    bench.arrive(1, "A", ONE)
    assert not bench.gate.may_read_on(50)
    plain = unaligned(0, 1).arrive(0, "a" * 100)
    assert not plain.gate.may_read_on(50)


def test_released_cells_go_before_the_next_early_snapshot() -> None:
    bench = fixed(0, 1, timeout=5.0).arrive(0, 1, "A1").arrive(1, "b1")
    assert bench.all() == ["b1"]
    assert bench.arrive(1, 1).one() == "snapshot 1"
    bench.arrive(0, TWO).arrive(1, TWO)
    assert bench.all() == ["A1", "snapshot 2: "]


def test_no_clock_runs_while_a_snapshot_that_is_due_waits_for_cells() -> None:
    bench = fixed(0, 1, timeout=5.0).arrive(0, 1)
    assert bench.gate.deadline() == 5.0
    bench.clock.now = 5.0
    assert bench.all() == []
    assert bench.gate.deadline() is None
    before = bench.urgent
    assert bench.arrive(1, "b1", 1).urgent > before
    assert bench.one() == "snapshot 1: b1"


def test_set_aside_beyond_the_limit_with_fixed_cells_to_come_is_declined() -> None:
    bench = fixed(0, 1, timeout=5.0, limit=200).arrive(0, 1, "a" * 150, "a" * 150).arrive(1, "B1")
    assert bench.all() == ["give up 1", "a" * 150, "a" * 150, "B1"]
