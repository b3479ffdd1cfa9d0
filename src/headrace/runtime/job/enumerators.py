"""The enumerators of all sources of a job: they live in the driver's coordinator thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from headrace.connectors.source import Source, SplitEnumerator
from headrace.operators.factories import SourceFactory
from headrace.plan.graph import JobPlan, Node
from headrace.runtime.control.messages import Announced, AssignSplits, Message, Reached, SplitRequest
from headrace.runtime.job.alignment import Alignments


class _SourceContext:
    """How one enumerator talks to its readers."""

    def __init__(self, host: Enumerators, node: Node) -> None:
        self._host = host
        self._node = node

    @property
    def parallelism(self) -> int:
        return self._node.parallelism

    def assign(self, subtask: int, splits: Sequence[Any]) -> None:
        self._host.assign(self._node, subtask, splits, last=False)

    def no_more_splits(self, subtask: int) -> None:
        self._host.assign(self._node, subtask, (), last=True)


class Enumerators:
    """Made for one attempt. `send(uid, subtask, message)` reaches the task that runs the reader."""

    def __init__(self, plan: JobPlan, send: Callable[[str, int, Message], None]) -> None:
        self._send = send
        self._alignments = Alignments(plan, send)
        self._nodes = [n for n in plan.graph.nodes if isinstance(n.factory, SourceFactory)]
        self._enumerators: dict[str, SplitEnumerator[Any]] = {}
        self._next_discovery: dict[str, int] = {}
        self._answered: set[tuple[str, int]] = set()
        """Readers that got something since they last asked."""
        self.positions: dict[tuple[str, int], dict[str, bytes]] = {}
        """Last known position of every assigned split, by reader and split id: where sources go on if the job
        restarts without checkpoints."""

    def restore(self, state: Callable[[str], bytes | None], splits: Callable[[str], Sequence[bytes]]) -> None:
        """Create every enumerator, and give back the splits that readers had."""
        for node in self._nodes:
            source = self._source(node)
            enumerator = source.create_enumerator(_SourceContext(self, node), state(node.uid))
            self._enumerators[node.uid] = enumerator
            decoder = msgspec.msgpack.Decoder(source.split_type)
            back = [decoder.decode(split) for split in splits(node.uid)]
            if back:
                enumerator.add_splits_back(back)

    def start(self, now_ms: int) -> None:
        for uid, enumerator in self._enumerators.items():
            enumerator.start()
            if enumerator.discovery_interval_ms is not None:
                self._next_discovery[uid] = now_ms + enumerator.discovery_interval_ms

    def hear(self, message: SplitRequest | Announced | Reached) -> None:
        """What the task of a reader says."""
        match message:
            case SplitRequest(uid, subtask):
                self.request(uid, subtask)
            case Announced(uid, subtask, splits):
                self.announced(uid, subtask, splits)
            case Reached():
                self._alignments.take(message)

    def request(self, uid: str, subtask: int) -> None:
        """A reader asks for a split. If the enumerator gives no answer, the reader is told that there is none now."""
        self._answered.discard((uid, subtask))
        self._enumerators[uid].handle_split_request(subtask)
        if (uid, subtask) not in self._answered:
            self._send(uid, subtask, AssignSplits(uid, subtask, (), last=False))

    def assign(self, node: Node, subtask: int, splits: Sequence[Any], *, last: bool) -> None:
        encoded = tuple(msgspec.msgpack.encode(split) for split in splits)
        self._answered.add((node.uid, subtask))
        known = self.positions.setdefault((node.uid, subtask), {})
        known.update({split.split_id: data for split, data in zip(splits, encoded, strict=True)})
        self._send(node.uid, subtask, AssignSplits(node.uid, subtask, encoded, last))

    def announced(self, uid: str, subtask: int, splits: Sequence[bytes]) -> None:
        """A reader is about to emit records up to these positions; splits it does not name are finished."""
        node = next(n for n in self._nodes if n.uid == uid)
        decoder = msgspec.msgpack.Decoder(self._source(node).split_type)
        self.positions[uid, subtask] = {decoder.decode(data).split_id: data for data in splits}

    def snapshot(self) -> dict[str, bytes]:
        """The state of all enumerators, in the same step in which a checkpoint is triggered."""
        return {uid: enumerator.snapshot_state() for uid, enumerator in self._enumerators.items()}

    def discover(self, now_ms: int) -> int | None:
        """Run what is due; when to call again."""
        for uid, due in list(self._next_discovery.items()):
            if due <= now_ms:
                enumerator = self._enumerators[uid]
                enumerator.discover()
                assert enumerator.discovery_interval_ms is not None
                self._next_discovery[uid] = now_ms + enumerator.discovery_interval_ms
        return min(self._next_discovery.values(), default=None)

    def look(self, uid: str) -> None:
        """There is something new for this source to discover."""
        self._enumerators[uid].discover()

    def close(self) -> None:
        for enumerator in self._enumerators.values():
            enumerator.close()

    @staticmethod
    def _source(node: Node) -> Source[Any]:
        assert isinstance(node.factory, SourceFactory)
        return node.factory.source
