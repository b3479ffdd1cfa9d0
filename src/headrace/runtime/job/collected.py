"""What `execute_and_collect` has collected: each item is taken once, whoever hands it over."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Any

from headrace.plan.graph import JobPlan
from headrace.state.object_batches import UNTYPED_PICKLES, BatchCodec, RecordPickles

_END = object()


class CollectedResults:
    """Results of all collectors of a job, in order of delivery."""

    def __init__(self, plan: JobPlan | None = None) -> None:
        """`plan`: says of which type the records of each collector are; without it they are untyped."""
        self._plan = plan
        self._queues: dict[str, queue.SimpleQueue[Any]] = {}
        self._newest: dict[tuple[str, str, int], int] = {}
        """The newest checkpoint of each subtask whose results were taken. Whoever delivers them does so in order."""
        self._elsewhere: dict[str, dict[tuple[str, str, int], int]] = {}
        """The same by origin, where checkpoints have other numbers than the job's own."""
        self._lock = threading.Lock()
        self._ended = False

    def take(
        self,
        collector: str,
        uid: str,
        subtask: int,
        checkpoint_id: int,
        payload: bytes,
        pickles: RecordPickles = UNTYPED_PICKLES,
        origin: str = "",
    ) -> None:
        """Records of one subtask and checkpoint; 0 stands for records that no checkpoint holds back.

        `origin`: the history whose numbers of checkpoints these are; empty for the job's own.

        Tasks' connections call it, each on a thread of its own, and so does a recovery, perhaps at the same time: what
        comes first is in the queue as a whole before the next begins, so each subtask's order stays. `pickles`: what a
        checkpoint may ask for; tasks of this very job send what they like.
        """
        values = self._codec(uid, pickles).decode(payload, f"the results that uid {uid} has collected")
        with self._lock:
            if checkpoint_id:
                key = (collector, uid, subtask)
                newest = self._elsewhere.setdefault(origin, {}) if origin else self._newest
                if checkpoint_id <= newest.get(key, 0):
                    return
                newest[key] = checkpoint_id
            target = self._queue(collector)
            for value in values:
                target.put(value)

    def end(self) -> None:
        """The job is over: iterators end behind what they have."""
        with self._lock:
            self._ended = True
            for target in self._queues.values():
                target.put(_END)

    def iterate(self, collector: str) -> Iterator[Any]:
        """Values as they come, until the job ends."""
        with self._lock:
            target = self._queue(collector)
            if self._ended:
                target.put(_END)
        while (value := target.get()) is not _END:
            yield value

    def _codec(self, uid: str, pickles: RecordPickles) -> BatchCodec:
        if self._plan is None:
            return BatchCodec(pickles=pickles)
        return BatchCodec(self._plan.graph.input_types(uid), pickles)

    def _queue(self, collector: str) -> queue.SimpleQueue[Any]:
        return self._queues.setdefault(collector, queue.SimpleQueue())
