"""Which subtasks and slots an edge leads to: pure functions of the plan, the same in every task."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.plan.graph import Broadcast, Custom, Edge, Forward, JobPlan, Rescale

FIXED_ROUTES = (Broadcast, Forward, Rescale, Custom)
"""How a record may be routed so that it belongs to the subtask it was sent to, and to no other: of a broadcast each
subtask has a copy that goes with its own state; the others say that these records are dealt with there, and together.
Such records are kept out of checkpoints (see `gate`). Where a changed program makes such an edge of another kind,
the driver refuses to restore what is in flight on it at another parallelism of either end."""


def consumers(edge: Edge, producer: int, producers: int, consumer_count: int) -> range:
    """Subtasks of the target that this producer may send to."""
    match edge.partitioning:
        case Forward():
            return range(producer, producer + 1)
        case Rescale():
            if producers <= consumer_count:
                return range(producer * consumer_count // producers, (producer + 1) * consumer_count // producers)
            nearest = producer * consumer_count // producers
            return range(nearest, nearest + 1)
        case _:
            return range(consumer_count)


def producers_of(edge: Edge, consumer: int, producers: int, consumer_count: int) -> list[int]:
    """Subtasks of the source that may send to this consumer."""
    return [p for p in range(producers) if consumer in consumers(edge, p, producers, consumer_count)]


def fixed_edges_through(plan: JobPlan, level: int) -> set[int]:
    """Edges with a fixed route whose cells come to the tasks of this level, to stay or to be relayed."""
    return {
        edge.id
        for edge in plan.graph.edges
        if edge.id in plan.exchanged
        and isinstance(edge.partitioning, FIXED_ROUTES)
        and plan.chain_of(edge.source).level < level <= plan.chain_of(edge.target).level
    }


class Router:
    """From (edge, producer, target) to the slot of the next level, relays included."""

    def __init__(self, plan: JobPlan) -> None:
        self._slots = [level.slots for level in plan.levels]
        self._target_level: dict[int, int] = {}
        self._target_slots: dict[int, Sequence[int]] = {}
        for edge in plan.graph.edges:
            if edge.id in plan.exchanged:
                chain = plan.chain_of(edge.target)
                self._target_level[edge.id] = chain.level
                self._target_slots[edge.id] = chain.slots

    def target_level(self, edge: int) -> int:
        return self._target_level[edge]

    def next_slot(self, level: int, edge: int, producer: int, target: int) -> int:
        """Where a cell that is at `level` goes next.

        The relay slot is a fixed function of (edge, target), so all cells for one subtask take one way and stay in
        order, and barriers cut them like any other record. The producer has no say in it: after a restore its split
        may be another's, and new records must not overtake those that were in flight.
        """
        if self._target_level[edge] == level + 1:
            return self._target_slots[edge][target]
        return (edge + target) % self._slots[level + 1]
