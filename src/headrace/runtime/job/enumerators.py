"""The enumerators of all sources of a job: they live in the driver, on a thread of their own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from headrace.connectors.source import Source, SplitEnumerator
from headrace.errors import RestoreError
from headrace.operators.factories import SourceFactory
from headrace.plan.graph import JobPlan, Node
from headrace.runtime.control.messages import Announced, AssignSplits, Message, SplitRequest
from headrace.runtime.coordinator.outcomes import SourcePositions
from headrace.runtime.job.users_code import in_code_of

log = logging.getLogger(__name__)


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

    def __init__(
        self,
        plan: JobPlan,
        send: Callable[[str, int, Message], None],
        state: Callable[[str], bytes | None] = lambda uid: None,
        splits: Callable[[str], Sequence[bytes]] = lambda uid: (),
        *,
        keeps_positions: bool = True,
    ) -> None:
        """`state` and `splits`: what each source goes on from, by uid.

        `keeps_positions`: remember every split that a reader has; only for a job whose checkpoints do not.
        """
        self._keeps_positions = keeps_positions
        self._send = send
        self._nodes = {n.uid: n for n in plan.graph.nodes if isinstance(n.factory, SourceFactory)}
        self._given = {uid: (state(uid), splits(uid)) for uid in self._nodes}
        """State and splits of the enumerators that have not taken theirs yet."""
        self._enumerators: dict[str, SplitEnumerator[Any]] = {}
        self._next_discovery: dict[str, int] = {}
        self._answered: set[tuple[str, int]] = set()
        """Readers that got something since they last asked."""
        self.positions: dict[tuple[str, int], dict[str, bytes]] = {}
        """Last known position of every assigned split, by reader and split id: where sources go on if the job
        restarts without checkpoints."""

    def restore(self) -> None:
        """Create every enumerator, and give back the splits that readers had."""
        for uid, node in self._nodes.items():
            source = self._source(node)
            saved, back = self._given[uid]
            with in_code_of(node, "create_enumerator()"):
                enumerator = source.create_enumerator(_SourceContext(self, node), saved)
            self._enumerators[uid] = enumerator
            if back:
                decoded = self._decoded(node, back)
                with in_code_of(node, "add_splits_back()"):
                    enumerator.add_splits_back(decoded)
            del self._given[uid]

    def start(self, now_ms: int) -> None:
        for uid, enumerator in self._enumerators.items():
            with in_code_of(self._nodes[uid], "start()"):
                enumerator.start()
                if enumerator.discovery_interval_ms is not None:
                    self._next_discovery[uid] = now_ms + enumerator.discovery_interval_ms

    def hear(self, message: SplitRequest | Announced) -> None:
        """What the task of a reader says."""
        match message:
            case SplitRequest(uid, subtask):
                self.request(uid, subtask)
            case Announced(uid, subtask, splits):
                self.announced(uid, subtask, splits)

    def request(self, uid: str, subtask: int) -> None:
        """A reader asks for a split. If the enumerator has none for it, the reader is told that there is none now."""
        self._answered.discard((uid, subtask))
        enumerator = self._enumerators[uid]
        with in_code_of(self._nodes[uid], "handle_split_request()"):
            enumerator.handle_split_request(subtask)
            held_back = enumerator.holds_back(subtask)
        if (uid, subtask) not in self._answered and not held_back:
            self._send(uid, subtask, AssignSplits(uid, subtask, (), last=False))

    def assign(self, node: Node, subtask: int, splits: Sequence[Any], *, last: bool) -> None:
        encoded = tuple(msgspec.msgpack.encode(split) for split in splits)
        self._answered.add((node.uid, subtask))
        if self._keeps_positions:
            known = self.positions.setdefault((node.uid, subtask), {})
            known.update({split.split_id: data for split, data in zip(splits, encoded, strict=True)})
        self._send(node.uid, subtask, AssignSplits(node.uid, subtask, encoded, last))

    def announced(self, uid: str, subtask: int, splits: Sequence[bytes]) -> None:
        """A reader is about to emit records up to these positions; splits it does not name are finished."""
        decoded = self._decoded(self._nodes[uid], splits)
        self.positions[uid, subtask] = {split.split_id: data for split, data in zip(decoded, splits, strict=True)}

    def snapshot(self) -> dict[str, bytes]:
        """The state of all enumerators, in the same step in which a checkpoint is triggered."""
        return {uid: self._snapshot(uid) for uid in self._enumerators}

    def standing(self) -> SourcePositions:
        """Where sources stand when the attempt is over, for a restart without checkpoints."""
        states: dict[str, bytes] = {}
        splits: dict[str, list[bytes]] = {}
        for uid in self._nodes:
            # One that could not be created still stands where it was to go on from.
            saved, back = self._given[uid] if uid in self._given else (self._snapshot(uid), ())
            if saved is not None:
                states[uid] = saved
            splits[uid] = list(back)
        for (uid, _), known in self.positions.items():
            splits[uid].extend(known.values())
        return SourcePositions(states, splits)

    def discover(self, now_ms: int) -> None:
        """Look for new splits where that is due."""
        for uid, due in list(self._next_discovery.items()):
            if due <= now_ms:
                self.look(uid)
                interval_ms = self._enumerators[uid].discovery_interval_ms
                assert interval_ms is not None
                self._next_discovery[uid] = now_ms + interval_ms

    def look(self, uid: str) -> None:
        """There may be something new for this source to discover."""
        with in_code_of(self._nodes[uid], "discover()"):
            self._enumerators[uid].discover()

    def close(self) -> None:
        """The attempt is over, however it ended: what goes wrong here changes nothing about that."""
        for uid, enumerator in self._enumerators.items():
            try:
                enumerator.close()
            except Exception:
                log.warning('Source "%s" (uid "%s") failed in close().', self._nodes[uid].name, uid, exc_info=True)

    def _snapshot(self, uid: str) -> bytes:
        with in_code_of(self._nodes[uid], "snapshot_state()"):
            return self._enumerators[uid].snapshot_state()

    def _decoded(self, node: Node, splits: Sequence[bytes]) -> list[Any]:
        with in_code_of(node, "split_type"):
            kind = self._source(node).split_type
            decoder = msgspec.msgpack.Decoder(kind)
        try:
            return [decoder.decode(split) for split in splits]
        except msgspec.DecodeError as error:
            raise RestoreError(
                f'Source "{node.name}" (uid "{node.uid}") has saved splits that cannot be read as {kind.__name__}: '
                f"{error}. Give fields that were added to it a default, or give the source a new uid to begin anew."
            ) from error

    @staticmethod
    def _source(node: Node) -> Source[Any]:
        assert isinstance(node.factory, SourceFactory)
        return node.factory.source
