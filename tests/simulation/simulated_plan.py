"""What a simulated job looks like: its levels, edges, input and the mode of its checkpoints, all drawn from a seed.

level 0            level 1            level 2
source "a" ──0──▶ operator ──1──▶ operator, sink        one to three levels; the last one has the sink
    └───────────────10──────────▶ operator              perhaps an edge that skips a level
                  source "b" ─20▶ operator              perhaps tasks with a source and inputs; with two
                                                        levels "b" writes straight into the sink
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import Any, NamedTuple

from headrace.plan.graph import Chain, Edge, Hash, JobPlan, KeySpec, Level, Node, StreamGraph
from headrace.runtime.task.gate import GateMode
from headrace.state.key_groups import key_group

MAX_PARALLELISM = 16
RELAYED = 10
DEEP = 20


class Record(NamedTuple):
    """One record, traceable from its split to the sink. `way` tells copies on different edges apart."""

    way: str
    split: str
    position: int
    key: str


class Mode(Enum):
    ALIGNED = "aligned"
    UNALIGNED = "unaligned"
    TIMEOUT = "aligned with timeout"
    AT_LEAST_ONCE = "at least once"

    @property
    def gate(self) -> GateMode:
        return GateMode.AT_LEAST_ONCE if self is Mode.AT_LEAST_ONCE else GateMode.EXACTLY_ONCE


@dataclass(frozen=True)
class Scenario:
    """Everything that a run does not decide step by step."""

    mode: Mode
    slots: tuple[int, ...]
    relayed: bool
    deep_source: bool
    splits: dict[str, dict[str, tuple[str, ...]]]
    """By source: the keys of the records of each split."""
    concurrent: int
    timeout_ms: int
    interval_ms: int
    alignment_timeout_s: float
    aside_limit: int
    spills: bool
    read_ahead: int
    room: int
    """Cells in one channel above which its producer processes no further record."""
    speeds: tuple[float, ...]
    control_speeds: tuple[float, ...]
    crashes: int
    tolerable_failures: int
    retain: int
    savepoints: int
    write_failures: float = 0.02
    storage_speed: float = 1.0
    """How often storage gets on when it could."""
    fixed: frozenset[int] = frozenset()
    """Edges with a fixed route: none of their records may be in flight in a checkpoint."""

    @property
    def levels(self) -> int:
        return len(self.slots)

    @property
    def last(self) -> int:
        return len(self.slots) - 1

    @property
    def exact(self) -> bool:
        return self.mode is not Mode.AT_LEAST_ONCE

    def readers(self, level: int) -> tuple[str, ...]:
        """Sources that run in the tasks of a level."""
        if level == 0:
            return ("a",)
        return ("b",) if self.deep_source and level == 1 else ()

    def source_tasks(self) -> list[tuple[int, int]]:
        return [(level, s) for level, n in enumerate(self.slots) for s in range(n) if self.readers(level)]

    def edges_of_source(self, source: str) -> tuple[tuple[int, str], ...]:
        """(edge, way) on which each record of the source leaves."""
        if source == "b":
            return ((DEEP, "b"),) if self.levels == 3 else ()
        main = ((0, "a"),) if self.levels > 1 else ()
        return (*main, (RELAYED, "relayed")) if self.relayed else main

    def inputs(self, level: int) -> list[int]:
        """Edges that end at the operator of a level."""
        edges = [level - 1] if level else []
        if level == 2:
            edges += [RELAYED] * self.relayed + [DEEP] * self.deep_source
        return edges

    def fixed_through(self, level: int) -> set[int]:
        return {e for e in self.fixed if self.level_of_producer(e) < level <= self.level_of_target(e)}

    def level_of_producer(self, edge: int) -> int:
        return {RELAYED: 0, DEEP: 1}.get(edge, edge)

    def level_of_target(self, edge: int) -> int:
        return 2 if edge in (RELAYED, DEEP) else edge + 1

    def target(self, edge: int, key: str) -> int:
        return key_group(key, MAX_PARALLELISM) * self.slots[self.level_of_target(edge)] // MAX_PARALLELISM


def draw(seed: int) -> Scenario:
    """The scenario of a seed. The scheduler has a generator of its own, so that both can change alone."""
    rng = Random(f"scenario {seed}")
    levels = rng.choice((1, 2, 2, 3, 3, 3))
    slots = tuple(rng.randint(1, 3) for _ in range(levels))
    deep_source = levels > 1 and rng.random() < 0.35
    mode = rng.choice(list(Mode))
    keys = [f"k{n}" for n in range(rng.randint(1, 4))]
    longest = rng.choice((3, 12, 30))
    splits = {
        source: {
            # One split in four is long: its reader is still busy when the others have ended.
            f"{source}{n}": tuple(
                rng.choice(keys) for _ in range(rng.randint(0, longest * (3 if rng.random() < 0.25 else 1)))
            )
            for n in range(rng.randint(0 if source == "b" else 1, 4))
        }
        for source in (("a", "b") if deep_source else ("a",))
    }
    return Scenario(
        mode=mode,
        slots=slots,
        relayed=levels == 3 and rng.random() < 0.5,
        deep_source=deep_source,
        splits=splits,
        concurrent=rng.choice((1, 1, 2, 3)),
        timeout_ms=rng.choice((150, 500, 5_000)),
        interval_ms=rng.choice((1, 5, 20)),
        alignment_timeout_s=rng.choice((0.0, 0.002, 0.01)),
        aside_limit=rng.choice((150, 1_000, 1 << 20, 1 << 20)),
        spills=rng.random() < 0.04,
        read_ahead=rng.choice((1, 150, 2_000)),
        room=rng.choice((1, 4, 12)),
        speeds=tuple(rng.choice((0.15, 1.0, 1.0)) for _ in range(sum(slots))),
        control_speeds=tuple(rng.choice((0.05, 0.4, 1.0, 1.0, 1.0)) for _ in range(sum(slots))),
        crashes=rng.choice((0, 1, 1, 2, 3)),
        tolerable_failures=rng.choice((0, 3, 100)),
        retain=rng.choice((1, 1, 2)),
        savepoints=rng.choice((0, 0, 0, 2)),
        # From a generator of its own: seeds that once found something stay what they are.
        storage_speed=Random(f"storage {seed}").choice((0.03, 0.3, 1.0, 1.0)),
        fixed=frozenset(Random(f"fixed {seed}").choice(((), (), (0,), (1, RELAYED), (RELAYED,), (0, DEEP)))),
    )


def plan_of(scenario: Scenario) -> JobPlan:
    """The same as the engine's own plan, so that its router says where cells go."""
    nowhere: Any = None
    by_key = Hash(KeySpec(lambda record: record.key))
    nodes, chains = [], []

    def node(node_id: int, name: str, level: int) -> None:
        slots = scenario.slots[level]
        nodes.append(Node(node_id, name, name, nowhere, slots, MAX_PARALLELISM))
        chains.append(Chain(len(chains), level, (node_id,), slots, tuple(range(slots))))

    node(0, "a", 0)
    for level in range(1, scenario.levels):
        node(level, f"operator {level}", level)
    edges = [Edge(n, n, n + 1, partitioning=by_key) for n in range(scenario.last)]
    if scenario.relayed:
        edges.append(Edge(RELAYED, 0, 2, partitioning=by_key))
    if scenario.deep_source:
        node(9, "b", 1)
        if scenario.levels == 3:
            edges.append(Edge(DEEP, 9, 2, partitioning=by_key))
    levels = tuple(
        Level(index, slots, tuple(c.id for c in chains if c.level == index))
        for index, slots in enumerate(scenario.slots)
    )
    graph = StreamGraph("simulated", tuple(nodes), tuple(edges))
    return JobPlan(graph, tuple(chains), levels, frozenset(e.id for e in edges))
