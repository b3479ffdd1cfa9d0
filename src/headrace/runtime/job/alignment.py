"""The driver's part of watermark alignment: the floor of every group that has several subtasks.

Each subtask reports how far its slowest split is, and is told how far the slowest of the *others* is when that has
changed: of itself it knows more than the driver. One that has not reported yet holds nobody up: it may have no split
at all.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.operators.factories import SourceFactory
from headrace.operators.watermarks import MAX_WATERMARK
from headrace.plan.graph import JobPlan
from headrace.runtime.control.messages import AlignTo, Message, Reached


class Alignments:
    """Made for one attempt, used by the coordinator's thread. `send(uid, subtask, message)` reaches a source task."""

    def __init__(self, plan: JobPlan, send: Callable[[str, int, Message], None]) -> None:
        self._send = send
        self._members: dict[str, list[tuple[str, int]]] = {}
        self._groups: dict[str, str] = {}
        for node in plan.graph.nodes:
            alignment = node.factory.strategy.alignment if isinstance(node.factory, SourceFactory) else None
            if alignment is not None:
                self._groups[node.uid] = alignment.group
                members = self._members.setdefault(alignment.group, [])
                members += [(node.uid, subtask) for subtask in range(node.parallelism)]
        self._reached: dict[tuple[str, int], int] = {}
        self._told: dict[tuple[str, int], int] = {}

    def take(self, reached: Reached) -> None:
        """A subtask has reported; whoever must know is told."""
        group = self._groups[reached.uid]
        members = self._members[group]
        if len(members) < 2:
            return  # alone it knows everything by itself, and sooner
        self._reached[reached.uid, reached.subtask] = reached.watermark
        known = sorted((self._reached[member], member) for member in members if member in self._reached)
        for member in members:
            floor = next((watermark for watermark, other in known[:2] if other != member), MAX_WATERMARK)
            if floor != self._told.get(member, MAX_WATERMARK):
                self._told[member] = floor
                self._send(*member, AlignTo(*member, floor))
