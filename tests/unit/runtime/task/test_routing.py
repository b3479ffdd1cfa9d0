"""Where an edge leads: the same answer in every task."""

from __future__ import annotations

import pytest
from edge_examples import edge_of, plan_with

from headrace.plan.graph import Broadcast, Edge, Forward, Hash, KeySpec, Partitioning, Rebalance, Rescale, Shuffle
from headrace.runtime.task.routing import Router, consumers, producers_of

ALL: list[Partitioning] = [Hash(KeySpec(str)), Rebalance(), Rescale(), Shuffle(), Broadcast()]


@pytest.mark.parametrize("partitioning", ALL, ids=lambda p: type(p).__name__)
@pytest.mark.parametrize("producers", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("targets", [1, 2, 3, 5, 8])
def test_producers_and_consumers_agree(partitioning: Partitioning, producers: int, targets: int) -> None:
    edge = edge_of(partitioning=partitioning)
    forwards = {(p, c) for p in range(producers) for c in consumers(edge, p, producers, targets)}
    backwards = {(p, c) for c in range(targets) for p in producers_of(edge, c, producers, targets)}
    assert forwards == backwards
    assert {p for p, _ in forwards} == set(range(producers)), "every producer can send"
    assert {c for _, c in forwards} == set(range(targets)), "every consumer is sent to"


def test_forward_leads_to_the_subtask_of_the_same_number() -> None:
    edge = edge_of(partitioning=Forward())
    assert [list(consumers(edge, p, 4, 4)) for p in range(4)] == [[0], [1], [2], [3]]
    assert producers_of(edge, 2, 4, 4) == [2]


@pytest.mark.parametrize(("producers", "targets"), [(2, 6), (6, 2), (3, 3)])
def test_rescale_stays_near(producers: int, targets: int) -> None:
    edge = edge_of(partitioning=Rescale())
    counts = {len(consumers(edge, p, producers, targets)) for p in range(producers)}
    assert counts == {max(1, targets // producers)}


def test_a_cell_for_the_next_level_goes_to_the_slot_of_its_target() -> None:
    edge = Edge(0, 0, 1, partitioning=Rebalance())
    router = Router(plan_with([edge], {0: 2, 1: 3}, {0: 0, 1: 1}))
    assert router.target_level(0) == 1
    assert [router.next_slot(0, 0, 1, target) for target in range(3)] == [0, 1, 2]


def test_all_cells_for_one_subtask_are_relayed_over_one_slot_whoever_sent_them() -> None:
    """A split may be another reader's after a restore: its new records must not overtake those in flight."""
    skipping = Edge(7, 0, 2, partitioning=Rebalance())
    router = Router(plan_with([skipping], {0: 3, 1: 2, 2: 4}, {0: 0, 1: 1, 2: 2}))
    assert router.target_level(7) == 2
    for target in range(4):
        ways = {router.next_slot(0, 7, producer, target) for producer in range(3)}
        assert len(ways) == 1
        assert ways <= {0, 1}
        assert router.next_slot(1, 7, 0, target) == target
    assert {router.next_slot(0, 7, 0, target) for target in range(4)} == {0, 1}, "the load is shared"
