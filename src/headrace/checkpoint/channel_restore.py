"""Where the records in flight of an unaligned checkpoint go in the program that now runs. Pure: opens no file.

The cells of a checkpoint know their edge by a number, and tasks by level and slot. All three follow from the whole
program: an operator added anywhere may change them. So `_metadata` says what each edge connects (`EdgeRecord`), and an
edge is found again by (source uid, output, target uid, input). Its records go to the target's subtasks directly, also
those that were saved by a task that only relays them. What does not map to exactly one edge is refused by name.

Files come back in the order of levels, the last level first: what was logged further downstream left its producer
earlier, so each key keeps its order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.checkpoint.handles import ChannelSnapshot, EdgeRecord, RestoredEdge
from headrace.checkpoint.metadata.model import CheckpointMetadata
from headrace.errors import RestoreError

KEYED_ROUTE = "key_by"
_SAVEPOINT_INSTEAD = (
    "Restore it with the program that took it and take a savepoint, which never holds records in flight; then restore "
    "the savepoint with the new program."
)


class Width(NamedTuple):
    """An operator of the saved program or of the one that now runs."""

    name: str
    parallelism: int
    max_parallelism: int


class _Name(NamedTuple):
    """What an edge is known by in every program."""

    source: str
    output: str | None
    target: str
    input: int


@dataclass(frozen=True, slots=True)
class ChannelRestore:
    """The records in flight of a checkpoint, and the edge on which each of them goes on."""

    channels: tuple[ChannelSnapshot, ...] = ()
    """Those that hold cells, the last level first."""
    edges: tuple[RestoredEdge, ...] = ()
    left_behind: tuple[str, ...] = ()
    """Records whose target is gone, in words."""
    _saved: Mapping[int, EdgeRecord] = field(default_factory=dict, repr=False)
    _current: Mapping[int, EdgeRecord] = field(default_factory=dict, repr=False)

    def of_task(self, level: int, slot: int) -> tuple[ChannelSnapshot, ...]:
        """The files that may hold records for subtasks in that task."""
        return tuple(channel for channel in self.channels if self._concerns(channel, level, slot))

    def _concerns(self, channel: ChannelSnapshot, level: int, slot: int) -> bool:
        for restored in self.edges:
            if restored.edge is None or (channel.edges and restored.saved not in channel.edges):
                continue
            edge = self._current[restored.edge]
            if edge.level != level or slot not in edge.slots:
                continue
            saved = self._saved[restored.saved]
            if restored.dealt or channel.level != saved.level or len(saved.slots) != len(edge.slots):
                return True
            # The task of a target saved the records of its own subtasks only.
            if (channel.slot, slot) in zip(saved.slots, edge.slots, strict=True):
                return True
        return False


def plan_channels(
    metadata: CheckpointMetadata, edges: Sequence[EdgeRecord], operators: Mapping[str, Width]
) -> ChannelRestore:
    """Match the records in flight with the edges and operators (by uid) of the program that is about to run."""
    channels = sorted((c for c in metadata.channels if c.count), key=lambda c: (-c.level, c.slot))
    if not channels:
        return ChannelRestore()
    matching = _Matching(metadata, channels, edges, operators)
    left_behind: dict[str, None] = {}
    restored: list[RestoredEdge] = []
    for saved in matching.in_flight:
        if saved.target not in operators:
            left_behind[f"{matching.operator(saved.target)}: records in flight from {matching.output(saved)}"] = None
            restored.append(RestoredEdge(saved.number, None))
        else:
            restored.append(matching.match(saved))
    return ChannelRestore(
        channels=tuple(channels),
        edges=tuple(restored),
        left_behind=tuple(left_behind),
        _saved={edge.number: edge for edge in matching.saved},
        _current={edge.number: edge for edge in edges},
    )


class _Matching:
    """The edges of a checkpoint beside those of the program."""

    def __init__(
        self,
        metadata: CheckpointMetadata,
        channels: Sequence[ChannelSnapshot],
        edges: Sequence[EdgeRecord],
        operators: Mapping[str, Width],
    ) -> None:
        self._checkpoint = f"Checkpoint {metadata.checkpoint_id} of job {metadata.job_name}"
        self._before = {o.uid: Width(o.name, o.parallelism, o.max_parallelism) for o in metadata.operators}
        self._operators = operators
        self._by_name = _by_name(edges)
        self.saved = metadata.edge_records or self._assumed(channels, edges)
        self._saved_by_name = _by_name(self.saved)
        self.in_flight = self._in_flight(channels)

    def _in_flight(self, channels: Sequence[ChannelSnapshot]) -> list[EdgeRecord]:
        """Edges with records in flight; all edges if a file does not say which of them it holds."""
        if any(not channel.edges for channel in channels):
            return list(self.saved)
        by_number = {edge.number: edge for edge in self.saved}
        numbers = sorted({number for channel in channels for number in channel.edges})
        unknown = [number for number in numbers if number not in by_number]
        if unknown:
            raise RestoreError(
                f"{self._checkpoint} holds records in flight on edge {unknown[0]}, but does not say what that edge "
                "connects. It is damaged: restore from another checkpoint."
            )
        return [by_number[number] for number in numbers]

    def _assumed(self, channels: Sequence[ChannelSnapshot], edges: Sequence[EdgeRecord]) -> Sequence[EdgeRecord]:
        """A checkpoint of an older release has no edge records: its program must have been the same."""
        by_number = {edge.number: edge for edge in edges if not edge.chained}
        same = set(self._before) == set(self._operators) and all(
            number in by_number and channel.level <= by_number[number].level
            for channel in channels
            for number in channel.edges
        )
        if not same:
            raise RestoreError(
                f"{self._checkpoint} is unaligned and holds records in flight. The release that took it did not save "
                "which operators they travel between, and the program has changed since: they cannot be restored. "
                f"{_SAVEPOINT_INSTEAD}"
            )
        return list(by_number.values())

    def match(self, saved: EdgeRecord) -> RestoredEdge:
        """The one edge on which its records go on."""
        name = _name_of(saved)
        equal, now = self._saved_by_name[name], self._by_name.get(name, [])
        if not now:
            raise self._refusal(
                saved, "but the program no longer has such an edge. If an operator was renamed, give it its former uid"
            )
        if len(equal) != len(now):
            raise self._refusal(saved, f"on {len(equal)} such edge(s), but the program has {len(now)}")
        # Edges of one name differ in nothing but their order in the program, if in anything.
        edge = now[equal.index(saved)]
        if (saved.route == KEYED_ROUTE) != (edge.route == KEYED_ROUTE):
            raise self._refusal(saved, f"routed by {saved.route}, but the program now routes them by {edge.route}")
        if saved.key_fields and edge.key_fields and saved.key_fields != edge.key_fields:
            was, is_now = ", ".join(saved.key_fields), ", ".join(edge.key_fields)
            raise self._refusal(saved, f"keyed by {was}, but the program now keys them by {is_now}")
        if saved.type != edge.type:
            was, is_now = saved.type or "untyped", edge.type or "untyped"
            raise self._refusal(saved, f"of type {was}, but the program now sends {is_now}")
        if saved.fixed:
            self._refuse_other_subtasks(saved)
        return RestoredEdge(saved.number, edge.number, self._is_dealt(saved))

    def _is_dealt(self, edge: EdgeRecord) -> bool:
        now = self._operators[edge.target]
        before = self._before.get(edge.target, now)
        if before.parallelism != now.parallelism:
            return True
        return edge.route == KEYED_ROUTE and before.max_parallelism != now.max_parallelism

    def _refuse_other_subtasks(self, edge: EdgeRecord) -> None:
        """Records that belong to one old subtask have no place where the subtasks are others.

        Releases that kept such records out of checkpoints never get here. A broadcast record in flight was seen by some
        subtasks and not by others: no new one could stand for both. Forward, rescale and a partitioner of the
        program's own send a record where others of its kind went before it.
        """
        # Where a broadcast or a partitioner sends from does not matter, only where to.
        ends = (edge.target, edge.source) if edge.route in ("forward", "rescale") else (edge.target,)
        for uid in ends:
            now = self._operators.get(uid)
            before = self._before.get(uid)
            if now is not None and before is not None and now.parallelism != before.parallelism:
                raise RestoreError(
                    f"{self._checkpoint} is unaligned and holds records in flight on the {edge.route} edge to "
                    f"{self.operator(edge.target)}, so it restores only at the parallelism it was taken at: that of "
                    f"{self.operator(uid)} is {before.parallelism}, not {now.parallelism}. "
                    f"Restore it at {before.parallelism} and take a savepoint, or restore an aligned checkpoint."
                )

    def operator(self, uid: str) -> str:
        known = self._before.get(uid) or self._operators.get(uid)
        return f"uid {uid}" if known is None else f'"{known.name}" (uid {uid})'

    def output(self, edge: EdgeRecord) -> str:
        named = self.operator(edge.source)
        return named if edge.output is None else f'side output "{edge.output}" of {named}'

    def _refusal(self, edge: EdgeRecord, why: str) -> RestoreError:
        to = self.operator(edge.target) + (f", input {edge.input + 1}" if edge.input else "")
        return RestoreError(
            f"{self._checkpoint} is unaligned and holds records in flight from {self.output(edge)} to {to}, {why}. "
            f"{_SAVEPOINT_INSTEAD}"
        )


def _name_of(edge: EdgeRecord) -> _Name:
    return _Name(edge.source, edge.output, edge.target, edge.input)


def _by_name(edges: Iterable[EdgeRecord]) -> dict[_Name, list[EdgeRecord]]:
    found: dict[_Name, list[EdgeRecord]] = defaultdict(list)
    for edge in sorted(edges, key=lambda edge: edge.number):
        found[_name_of(edge)].append(edge)
    return found
