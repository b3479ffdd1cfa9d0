"""The immutable graph of a job: what the program said, before anything is decided about where it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias

from headrace.operators.factory import OperatorFactory
from headrace.types.information import TypeInformation


class Chaining(Enum):
    """Whether an operator may run in the task of the operator before it."""

    ALWAYS = "always"
    HEAD = "head"
    """Starts a chain, but later operators may join it."""
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class KeySpec:
    """How `key_by` finds the key of a record."""

    selector: Callable[[Any], Any] = field(compare=False)
    fields: tuple[str, ...] = ()
    """Field names, where the key is one field or a tuple of fields of a typed row; else empty."""
    single: bool = True
    """The key is the one field itself, not a tuple of one."""
    key_type: TypeInformation | None = None


@dataclass(frozen=True, slots=True)
class Forward:
    """Subtask i sends to subtask i; only between operators of equal parallelism."""


@dataclass(frozen=True, slots=True)
class Hash:
    """To the subtask that owns the key group of the record's key."""

    key: KeySpec


@dataclass(frozen=True, slots=True)
class Rebalance:
    """Round robin over all subtasks."""


@dataclass(frozen=True, slots=True)
class Rescale:
    """Round robin over the few subtasks that stand nearest."""


@dataclass(frozen=True, slots=True)
class Shuffle:
    """To a random subtask."""


@dataclass(frozen=True, slots=True)
class Broadcast:
    """Every record to every subtask."""


@dataclass(frozen=True, slots=True)
class Custom:
    """To the subtask that the user's partitioner `(key, n) -> index` names."""

    partition: Callable[[Any, int], int] = field(compare=False)
    key: KeySpec


Partitioning: TypeAlias = Forward | Hash | Rebalance | Rescale | Shuffle | Broadcast | Custom


@dataclass(frozen=True, slots=True)
class Node:
    """An operator of the job."""

    id: int
    uid: str
    """Names its state in every checkpoint. Given by the user, or derived from its place in the graph."""
    name: str
    factory: OperatorFactory
    parallelism: int
    max_parallelism: int
    output_type: TypeInformation | None = None
    """None: any Python object."""
    chaining: Chaining = Chaining.ALWAYS
    declared_at: str = ""
    """`jobs/clicks.py:41`, for messages."""
    uid_is_generated: bool = True


@dataclass(frozen=True, slots=True)
class Edge:
    """From one operator to one input of another. Routing and watermarks belong to it."""

    id: int
    source: int
    target: int
    input: int = 0
    """Which input of a two-input operator it feeds."""
    partitioning: Partitioning = field(default_factory=Forward)
    tag: str | None = None
    """The side output it carries; None for the main output."""
    type: TypeInformation | None = None
    """Type of the records that travel on it."""


@dataclass(frozen=True, slots=True)
class StreamGraph:
    """All operators and edges of a job, in the order in which the program made them."""

    name: str
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]

    def node(self, node_id: int) -> Node:
        return next(n for n in self.nodes if n.id == node_id)

    def input_types(self, uid: str) -> list[TypeInformation | None]:
        """Of each edge into that operator; one that the program leaves untyped is None, and so is no edge at all."""
        node = next(n for n in self.nodes if n.uid == uid)
        return [edge.type for edge in self.edges if edge.target == node.id] or [None]

    def inputs(self, node_id: int) -> tuple[Edge, ...]:
        return tuple(e for e in self.edges if e.target == node_id)

    def outputs(self, node_id: int) -> tuple[Edge, ...]:
        return tuple(e for e in self.edges if e.source == node_id)


@dataclass(frozen=True, slots=True)
class Chain:
    """Operators that run in one task because nothing but forward edges joins them.

    `nodes[0]` is the head; the others follow in topological order and hang together by forward edges
    (a tree: one operator may feed several). Only the head has edges from other chains.
    """

    id: int
    level: int
    nodes: tuple[int, ...]
    parallelism: int
    slots: tuple[int, ...]
    """`slots[i]` is the slot of the level that runs subtask i."""


@dataclass(frozen=True, slots=True)
class Level:
    """All chains at the same distance from the sources: one Spark stage with `slots` tasks."""

    index: int
    slots: int
    chains: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class JobPlan:
    """Where everything runs. `exchanged` edges travel as cells between tasks; all others are calls."""

    graph: StreamGraph
    chains: tuple[Chain, ...]
    levels: tuple[Level, ...]
    exchanged: frozenset[int]

    def chain_of(self, node_id: int) -> Chain:
        return next(c for c in self.chains if node_id in c.nodes)

    @property
    def total_slots(self) -> int:
        return sum(level.slots for level in self.levels)

    @property
    def beside_queries(self) -> tuple[Node, ...]:
        """Sources that a Spark query feeds, and sinks whose output goes on into one."""
        return tuple(n for n in self.graph.nodes if getattr(n.factory.user_function, "needs_spark_slot", False))

    @property
    def needed_slots(self) -> int:
        """All slots of the job, and one that its Spark queries share, if it has any."""
        return self.total_slots + bool(self.beside_queries)

    @property
    def largest_level(self) -> int:
        return max(level.slots for level in self.levels)
