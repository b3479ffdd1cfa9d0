"""Which subtasks and slots an edge leads to: pure functions of the plan, the same in every task."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.checkpoint.channel_restore import KEYED_ROUTE
from headrace.checkpoint.handles import EdgeRecord
from headrace.plan.graph import (
    Broadcast,
    Custom,
    Edge,
    Forward,
    Hash,
    JobPlan,
    Partitioning,
    Rebalance,
    Rescale,
    Shuffle,
)

FIXED_ROUTES = (Broadcast, Forward, Rescale, Custom)
"""How a record may be routed so that it belongs to the subtask it was sent to, and to no other: of a broadcast each
subtask has a copy that goes with its own state; the others say that these records are dealt with there, and together.
Such records are kept out of checkpoints (see `gate`), so that every checkpoint restores at every parallelism."""

ROUTE_NAMES: dict[type[Partitioning], str] = {
    Hash: KEYED_ROUTE,
    Rebalance: "rebalance",
    Shuffle: "shuffle",
    Forward: "forward",
    Rescale: "rescale",
    Broadcast: "broadcast",
    Custom: "partition_custom",
}
"""Each way to route records by the stream method that asks for it."""


def edge_records(plan: JobPlan) -> tuple[EdgeRecord, ...]:
    """All edges as a checkpoint with records in flight names them, and as a restore looks for them."""
    found = []
    for edge in plan.graph.edges:
        chain = plan.chain_of(edge.target)
        how = edge.partitioning
        found.append(
            EdgeRecord(
                number=edge.id,
                source=plan.graph.node(edge.source).uid,
                output=edge.tag,
                target=plan.graph.node(edge.target).uid,
                input=edge.input,
                route=ROUTE_NAMES[type(how)],
                fixed=isinstance(how, FIXED_ROUTES),
                key_fields=how.key.fields if isinstance(how, Hash) else (),
                type=None if edge.type is None else str(edge.type),
                chained=edge.id not in plan.exchanged,
                level=chain.level,
                slots=chain.slots,
            )
        )
    return tuple(found)


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
