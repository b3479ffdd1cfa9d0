"""Where everything runs: operators into chains, chains into levels, subtasks onto slots."""

from __future__ import annotations

from collections import defaultdict

from headrace.plan.graph import Chain, Chaining, Edge, Forward, JobPlan, Level, Node, StreamGraph
from headrace.plan.validation import validate


def plan_job(graph: StreamGraph) -> JobPlan:
    """Check the graph and lay it out. The same graph always gives the same plan.

    1. An operator joins the chain of the one before it if a forward edge is its only input (see `_chains`).
    2. A chain stands one level after the last of those that feed it; one that starts with a source stands as late
       as its consumers allow, so that its records skip no level.
    3. A level has as many slots as its widest chain; narrower chains take the slots with the least on them.
    """
    validate(graph)
    head_of = _chains(graph)
    exchanged = frozenset(e.id for e in graph.edges if head_of[e.source] != head_of[e.target])
    members: dict[int, list[int]] = defaultdict(list)
    for node in graph.nodes:
        members[head_of[node.id]].append(node.id)
    level_of = _levels(graph, head_of, exchanged)
    heads = sorted(members, key=lambda head: (level_of[head], head))
    chains: list[Chain] = []
    levels: list[Level] = []
    for index in range(max(level_of.values()) + 1):
        own = [head for head in heads if level_of[head] == index]
        width = {head: graph.node(head).parallelism for head in own}
        slots = max(width.values())
        placed = _place(width, slots)
        first = len(chains)
        chains += [
            Chain(first + i, index, tuple(members[head]), width[head], placed[head]) for i, head in enumerate(own)
        ]
        levels.append(Level(index, slots, tuple(range(first, len(chains)))))
    return JobPlan(graph, tuple(chains), tuple(levels), exchanged)


def _chains(graph: StreamGraph) -> dict[int, int]:
    """For each operator the head of its chain. Operators come in topological order."""
    nodes = {node.id: node for node in graph.nodes}
    inputs: dict[int, list[Edge]] = defaultdict(list)
    for edge in graph.edges:
        inputs[edge.target].append(edge)
    head_of: dict[int, int] = {}
    for node in graph.nodes:
        edges = inputs[node.id]
        joins = len(edges) == 1 and _chainable(nodes[edges[0].source], node, edges[0])
        head_of[node.id] = head_of[edges[0].source] if joins else node.id
    return head_of


def _chainable(source: Node, target: Node, edge: Edge) -> bool:
    return (
        isinstance(edge.partitioning, Forward)
        and source.parallelism == target.parallelism
        and source.chaining is not Chaining.NEVER
        and target.chaining is Chaining.ALWAYS
        and not target.factory.keyed
    )


def _levels(graph: StreamGraph, head_of: dict[int, int], exchanged: frozenset[int]) -> dict[int, int]:
    """For each chain, by its head, the level it stands on."""
    crossing = [(head_of[e.source], head_of[e.target]) for e in graph.edges if e.id in exchanged]
    producers: dict[int, list[int]] = defaultdict(list)
    consumers: dict[int, list[int]] = defaultdict(list)
    for source, target in crossing:
        producers[target].append(source)
        consumers[source].append(target)
    level_of: dict[int, int] = {}
    for head in dict.fromkeys(head_of.values()):
        # Heads come in topological order, and only a head has inputs from other chains.
        level_of[head] = 1 + max((level_of[p] for p in producers[head]), default=-1)
    for head in list(level_of):
        if not producers[head] and consumers[head]:
            level_of[head] = min(level_of[c] for c in consumers[head]) - 1
    return level_of


def _place(width: dict[int, int], slots: int) -> dict[int, tuple[int, ...]]:
    load = [0] * slots
    placed: dict[int, tuple[int, ...]] = {}
    # The wide ones leave no choice, so they go first.
    for head in sorted(width, key=lambda h: (-width[h], h)):
        chosen = sorted(sorted(range(slots), key=lambda slot: (load[slot], slot))[: width[head]])
        for slot in chosen:
            load[slot] += 1
        placed[head] = tuple(chosen)
    return placed
