"""What a job promises end to end: the weakest of source, processing and sink, on every way from a source to a sink.

    part         at-most-once                at-least-once                        exactly-once
    source       cannot be replayed                                               can be replayed
    processing   checkpointing is off        AT_LEAST_ONCE, where barriers        EXACTLY_ONCE; AT_LEAST_ONCE where
                                             of several channels meet             every task has one input channel
    sink                                     plain; write-ahead with a marker     idempotent; write-ahead with its
                                             of its own                           marker; two-phase commit

Exactly-once means that every event affects the result once; on replay it may be processed again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, IntEnum

from headrace.connectors.sink import SinkGuarantee
from headrace.operators.factories import CollectFactory, SinkFactory, SourceFactory
from headrace.plan.graph import JobPlan, Node
from headrace.plan.settings import CheckpointingMode, CheckpointSettings


class Guarantee(IntEnum):
    """How often an event counts after failures. Ordered: the smaller is the weaker."""

    AT_MOST_ONCE = 0
    AT_LEAST_ONCE = 1
    EXACTLY_ONCE = 2

    def __str__(self) -> str:
        return self.name.lower().replace("_", "-")


class Part(Enum):
    """Which part of a path promises something."""

    SOURCE = "source"
    PROCESSING = "processing"
    SINK = "sink"


@dataclass(frozen=True, slots=True)
class Promise:
    """What one part of a path gives, and what would make it better."""

    part: Part
    guarantee: Guarantee
    reason: str
    remedy: str | None = None


@dataclass(frozen=True, slots=True)
class PathGuarantee:
    """What holds for records that go from this source to this sink."""

    source: Node
    sink: Node
    guarantee: Guarantee
    limits: tuple[Promise, ...]
    """The weakest parts, all of them: each must change before the path gets better. Empty if it is exactly-once."""
    note: str | None = None
    """What exactly-once rests on, or how it looks from outside."""


@dataclass(frozen=True, slots=True)
class JobGuarantee:
    """The whole job: as good as its weakest path."""

    guarantee: Guarantee
    state: Guarantee
    """What holds for state alone, whatever the sinks do."""
    limits: tuple[Promise, ...]
    paths: tuple[PathGuarantee, ...]


def guarantees(plan: JobPlan, checkpointing: CheckpointSettings) -> JobGuarantee:
    """Work out what the job promises with these checkpoint settings."""
    nodes = {node.id: node for node in plan.graph.nodes}
    paths = []
    for source_id in [n.id for n in plan.graph.nodes if isinstance(n.factory, SourceFactory)]:
        reached = _reached(plan, source_id)
        for sink_id in [i for i in sorted(reached) if isinstance(nodes[i].factory, SinkFactory | CollectFactory)]:
            between = reached & _reaching(plan, sink_id)
            processing = _processing_promise(plan, between, checkpointing)
            paths.append(_path(nodes[source_id], processing, nodes[sink_id]))
    whole = _processing_promise(plan, set(nodes), checkpointing)
    sources = [_source_promise(n) for n in plan.graph.nodes if isinstance(n.factory, SourceFactory)]
    state = _weakest([*sources, whole])
    state_guarantee = state[0].guarantee if state else Guarantee.EXACTLY_ONCE
    if not paths:
        return JobGuarantee(state_guarantee, state_guarantee, state, ())
    worst = min(path.guarantee for path in paths)
    limits = tuple(dict.fromkeys(p for path in paths if path.guarantee == worst for p in path.limits))
    return JobGuarantee(worst, state_guarantee, limits, tuple(paths))


def _path(source: Node, processing: Promise, sink: Node) -> PathGuarantee:
    promises = [_source_promise(source), processing, _sink_promise(sink)]
    limits = _weakest(promises)
    guarantee = limits[0].guarantee if limits else Guarantee.EXACTLY_ONCE
    note = promises[-1].reason if guarantee is Guarantee.EXACTLY_ONCE else None
    return PathGuarantee(source, sink, guarantee, limits, note)


def _weakest(promises: list[Promise]) -> tuple[Promise, ...]:
    least = min(p.guarantee for p in promises)
    return () if least is Guarantee.EXACTLY_ONCE else tuple(p for p in promises if p.guarantee == least)


def _source_promise(node: Node) -> Promise:
    assert isinstance(node.factory, SourceFactory)
    if node.factory.source.replayable:
        return Promise(Part.SOURCE, Guarantee.EXACTLY_ONCE, f'source "{node.name}" goes back to its saved position')
    return Promise(
        Part.SOURCE,
        Guarantee.AT_MOST_ONCE,
        f'source "{node.name}" cannot go back: what was under way at a failure is lost',
        "put a log that can be replayed (files, Kafka) before the job",
    )


def _processing_promise(plan: JobPlan, between: set[int], checkpointing: CheckpointSettings) -> Promise:
    if not checkpointing.enabled:
        return Promise(
            Part.PROCESSING,
            Guarantee.AT_MOST_ONCE,
            "checkpointing is off: after a failure sources do not go back and state is gone",
            "call env.enable_checkpointing(interval)",
        )
    if checkpointing.mode is CheckpointingMode.EXACTLY_ONCE:
        return Promise(Part.PROCESSING, Guarantee.EXACTLY_ONCE, "checkpoints are exactly-once")
    meeting = _first_with_several_channels(plan, between)
    if meeting is None:
        return Promise(
            Part.PROCESSING,
            Guarantee.EXACTLY_ONCE,
            "no barriers meet, so there is nothing to align and at-least-once checkpoints are exact",
        )
    return Promise(
        Part.PROCESSING,
        Guarantee.AT_LEAST_ONCE,
        f'checkpoints are at-least-once, and at "{meeting.name}" barriers of several channels meet unaligned',
        "call set_checkpointing_mode(CheckpointingMode.EXACTLY_ONCE)",
    )


def _sink_promise(node: Node) -> Promise:
    promise = _promise_of_kind(node)
    words = node.factory.sink.guarantee_in_words() if isinstance(node.factory, SinkFactory) else None
    if words is None:
        return promise
    return replace(promise, reason=f'sink "{node.name}" {words[0]}', remedy=words[1])


def _promise_of_kind(node: Node) -> Promise:
    if isinstance(node.factory, CollectFactory):
        return Promise(
            Part.SINK, Guarantee.EXACTLY_ONCE, "collected results are handed over when their checkpoint completes"
        )
    assert isinstance(node.factory, SinkFactory)
    name = f'sink "{node.name}"'
    match node.factory.sink.guarantee:
        case SinkGuarantee.TWO_PHASE:
            return Promise(Part.SINK, Guarantee.EXACTLY_ONCE, f"{name} commits in two phases with the checkpoint")
        case SinkGuarantee.WRITE_AHEAD:
            return Promise(
                Part.SINK, Guarantee.EXACTLY_ONCE, f"{name} sends its write-ahead log and the marker in one transaction"
            )
        case SinkGuarantee.IDEMPOTENT:
            return Promise(
                Part.SINK,
                Guarantee.EXACTLY_ONCE,
                f"{name} writes idempotently; during recovery readers see it run back to older values first",
            )
        case SinkGuarantee.WRITE_AHEAD_UNMARKED:
            return Promise(
                Part.SINK,
                Guarantee.AT_LEAST_ONCE,
                f"{name} sends its write-ahead log apart from the marker, so a crash between them sends it again",
                "write data and marker in one transaction, or use a two-phase sink",
            )
        case SinkGuarantee.NONE:
            return Promise(
                Part.SINK,
                Guarantee.AT_MOST_ONCE,
                f"{name} does not wait until its output has arrived: what was under way at a failure is lost",
                "give it a delivery guarantee",
            )
        case _:
            return Promise(
                Part.SINK,
                Guarantee.AT_LEAST_ONCE,
                f"{name} shows output at once, so what is replayed after a failure is seen again",
                "use a two-phase, write-ahead or idempotent sink",
            )


def _first_with_several_channels(plan: JobPlan, between: set[int]) -> Node | None:
    """The head of the first chain on the path whose tasks wait for more than one barrier.

    A task takes one snapshot for all that runs in it, so all of its channels count: one from every slot of the level
    before, and the control connection if it reads a source as well.
    """
    nodes = {node.id: node for node in plan.graph.nodes}
    for chain in plan.chains:
        if chain.level == 0 or not between & set(chain.nodes):
            continue
        sources = [
            c
            for c in plan.chains
            if c.level == chain.level
            and isinstance(nodes[c.nodes[0]].factory, SourceFactory)
            and set(c.slots) & set(chain.slots)
        ]
        if plan.levels[chain.level - 1].slots + len(sources[:1]) > 1:
            return nodes[chain.nodes[0]]
    return None


def _reached(plan: JobPlan, start: int) -> set[int]:
    seen = {start}
    for edge in sorted(plan.graph.edges, key=lambda e: e.source):
        if edge.source in seen:
            seen.add(edge.target)
    return seen


def _reaching(plan: JobPlan, end: int) -> set[int]:
    seen = {end}
    for edge in sorted(plan.graph.edges, key=lambda e: e.target, reverse=True):
        if edge.target in seen:
            seen.add(edge.source)
    return seen
