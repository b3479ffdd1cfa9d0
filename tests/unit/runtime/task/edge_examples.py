"""Small edges and plans for tests of what lies between two operators."""

from __future__ import annotations

from typing import Any

from headrace.operators.base import Block
from headrace.plan.graph import Chain, Edge, Hash, JobPlan, KeySpec, Level, Node, Partitioning, StreamGraph
from headrace.runtime.task.cells import RECORDS, RECORDS_HEADER, read_records_header
from headrace.runtime.task.records import EdgeCodec
from headrace.types.information import TypeInformation, Types

SENSOR = Types.ROW_NAMED(["id", "reading"], [Types.STRING(), Types.DOUBLE()])


def edge_of(
    type_info: TypeInformation | None = None, partitioning: Partitioning | None = None, edge_id: int = 3
) -> Edge:
    return Edge(edge_id, 0, 1, type=type_info, **({} if partitioning is None else {"partitioning": partitioning}))


def by_field(name: str) -> Hash:
    return Hash(KeySpec(lambda row: getattr(row, name), (name,)))


def plan_with(edges: list[Edge], parallelism: dict[int, int], levels: dict[int, int]) -> JobPlan:
    """`levels[node]` is the level of a node; every node is a chain of its own and has the slots 0, 1, 2, …"""
    nothing: Any = None
    nodes = tuple(Node(n, f"uid{n}", f"node {n}", nothing, parallelism[n], 128) for n in sorted(levels))
    chains = tuple(
        Chain(i, levels[n.id], (n.id,), n.parallelism, tuple(range(n.parallelism))) for i, n in enumerate(nodes)
    )
    slots = [max(c.parallelism for c in chains if c.level == at) for at in range(max(levels.values()) + 1)]
    of_level = tuple(Level(at, count, tuple(c.id for c in chains if c.level == at)) for at, count in enumerate(slots))
    return JobPlan(StreamGraph("job", nodes, tuple(edges)), chains, of_level, frozenset(e.id for e in edges))


def block_of(codec: EdgeCodec, data: bytes) -> Block:
    assert data[0] == RECORDS
    _, flags, _, count = read_records_header(data)
    block = codec.decode(flags, memoryview(data)[RECORDS_HEADER:])
    assert len(block.values) == count
    return block
