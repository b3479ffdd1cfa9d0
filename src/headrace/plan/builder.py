"""Drafts of operators while the program is still speaking, and the graph made of them at the end.

A program names, sizes and chains an operator after it made it, so operators are drafts until `execute`. A draft holds
the drafts before it: a graph is what was declared since the last one, with everything that feeds it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from headrace.errors import JobDefinitionError
from headrace.operators.factory import OperatorFactory
from headrace.plan.graph import Chaining, Edge, Forward, Node, Partitioning, Rebalance, StreamGraph
from headrace.plan.settings import DEFAULT_MAX_PARALLELISM
from headrace.plan.uids import UidGenerator
from headrace.types.information import TypeInformation

_OWN_FRAMES = ("headrace.cep", "headrace.datastream", "headrace.plan", "headrace.pyflink")
_LONGEST_UID = 200


@dataclass(frozen=True, slots=True)
class Outlet:
    """An output of an operator, on its way to whatever comes next."""

    source: Draft
    partitioning: Partitioning | None = None
    """None: the program did not say; forward where the parallelisms allow it, else round robin."""
    tag: str | None = None
    type: TypeInformation | None = None


@dataclass(slots=True, eq=False)
class Draft:
    """An operator that may still be changed."""

    name: str
    factory: OperatorFactory
    inputs: tuple[tuple[Outlet, int], ...] = ()
    """Each with the number of the input that it feeds."""
    output_type: TypeInformation | None = None
    parallelism: int | None = None
    """None: the environment's."""
    max_parallelism: int | None = None
    uid: str | None = None
    chaining: Chaining = Chaining.ALWAYS
    declared_at: str = field(default_factory=lambda: declared_at())
    side_types: dict[str, TypeInformation | None] = field(default_factory=dict)

    def set_uid(self, uid: str) -> None:
        if not isinstance(uid, str) or not uid.strip() or len(uid) > _LONGEST_UID or not uid.isprintable():
            raise JobDefinitionError(
                f'The uid of operator "{self.name}" is {uid!r}. Give a printable str of 1 to {_LONGEST_UID} characters.'
            )
        self.uid = uid


def build_graph(
    name: str,
    declared: Iterable[Draft],
    *,
    parallelism: int,
    max_parallelism: int | None = None,
    chaining: bool = True,
) -> StreamGraph:
    """Freeze the drafts and all that feeds them. Defaults apply to operators that have no value of their own."""
    drafts = _with_inputs(declared)
    ids = {id(draft): i for i, draft in enumerate(drafts)}
    widths = [draft.parallelism if draft.parallelism is not None else parallelism for draft in drafts]
    uids = UidGenerator()
    nodes: list[Node] = []
    edges: list[Edge] = []
    for number, draft in enumerate(drafts):
        incoming = []
        for outlet, input_number in draft.inputs:
            source = ids[id(outlet.source)]
            partitioning = outlet.partitioning
            how = "default" if partitioning is None else type(partitioning).__name__
            incoming.append((nodes[source].uid, outlet.tag, input_number, how))
            if partitioning is None:
                partitioning = Forward() if widths[source] == widths[number] else Rebalance()
            edges.append(Edge(len(edges), source, number, input_number, partitioning, outlet.tag, outlet.type))
        generated = uids.generate(type(draft.factory).__name__, draft.name, incoming)
        nodes.append(
            Node(
                id=number,
                uid=draft.uid if draft.uid is not None else generated,
                name=draft.name,
                factory=draft.factory,
                parallelism=widths[number],
                max_parallelism=_max_parallelism(draft, max_parallelism),
                output_type=draft.output_type,
                chaining=draft.chaining if chaining else Chaining.NEVER,
                declared_at=draft.declared_at,
                uid_is_generated=draft.uid is None,
            )
        )
    return StreamGraph(name, tuple(nodes), tuple(edges))


def _max_parallelism(draft: Draft, default: int | None) -> int:
    if draft.max_parallelism is not None:
        return draft.max_parallelism
    return DEFAULT_MAX_PARALLELISM if default is None else default


def _with_inputs(declared: Iterable[Draft]) -> Sequence[Draft]:
    """All drafts, each after those that feed it, otherwise in the order of the program. Graphs may be deep."""
    ordered: dict[int, Draft] = {}
    for wanted in declared:
        stack = [wanted]
        while stack:
            draft = stack[-1]
            missing = [o.source for o, _ in draft.inputs if id(o.source) not in ordered]
            if missing:
                stack.extend(reversed(missing))
            else:
                stack.pop()
                ordered.setdefault(id(draft), draft)
    return list(ordered.values())


def declared_at() -> str:
    """The user's line that is speaking: the nearest one that is not ours, as `jobs/clicks.py:41`."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_OWN_FRAMES):
        frame = frame.f_back
    file = Path(frame.f_code.co_filename)
    # Enough to find it, without the machine's own directories.
    shown = Path(*file.parts[-2:]) if file.is_absolute() else file
    return f"{shown.as_posix()}:{frame.f_lineno}"
