"""`execute_and_collect`: records go to the driver, once per completed checkpoint, or at once without checkpoints.

A write-ahead sink whose log is the checkpoint itself: what was collected since the last barrier is a
prepared item; the driver takes an item once, whether a task or a recovery hands it over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.checkpoint.handles import PreparedItem
from headrace.operators.base import BackgroundWork, Operator, SubtaskWork
from headrace.operators.sink import SinkWork

SEND_AT = 1_000
SEND_AFTER_MS = 5


@dataclass(frozen=True, slots=True)
class Collected:
    """Records on their way to the driver. `checkpoint_id` is 0 for records sent without checkpoints."""

    collector: str
    uid: str
    subtask: int
    checkpoint_id: int
    payload: bytes


class CollectOperator(Operator):
    """Keeps what came since the last barrier and sends it when its checkpoint is complete."""

    def __init__(self, collector: str) -> None:
        super().__init__()
        self._collector = collector
        self._values: list[Any] = []
        self._send_at_ms = 0
        self.records = 0
        self._prepared: list[PreparedItem] = []

    def process(self, value: Any, timestamp: int | None) -> None:
        self.records += 1
        if not self._values:
            self._send_at_ms = self.context.now_ms() + SEND_AFTER_MS
        self._values.append(value)
        if len(self._values) >= SEND_AT and not self.context.exactly_once_output:
            self.send_now()

    def next_processing_time(self) -> int | None:
        # Without checkpoints, records leave soon after they came.
        return self._send_at_ms if self._values and not self.context.exactly_once_output else None

    def processing_time(self, now_ms: int) -> None:
        self.send_now()

    def finish(self) -> None:
        if not self.context.exactly_once_output:
            self.send_now()

    def send_now(self) -> None:
        if self._values:
            payload = self.context.input_records.encode(self._values)
            self._values = []
            self._send(PreparedItem(0, payload))

    def prepare_snapshot(self, checkpoint_id: int) -> None:
        if self._values and self.context.exactly_once_output:
            self._prepared.append(PreparedItem(checkpoint_id, self.context.input_records.encode(self._values)))
            self._values = []
        elif self._values:
            self.send_now()

    def prepared(self) -> Sequence[PreparedItem]:
        return self._prepared

    def snapshot(self, checkpoint_id: int, *, canonical: bool) -> SubtaskWork:
        work = super().snapshot(checkpoint_id, canonical=canonical)
        return SinkWork(work.snapshot, work.keyed, 0 if canonical else checkpoint_id)

    def complete(self, checkpoint_id: int) -> BackgroundWork | None:
        due = [item for item in self._prepared if item.checkpoint_id <= checkpoint_id]

        def send() -> Callable[[], None]:
            for item in due:
                self._send(item)
            return delivered

        def delivered() -> None:
            # Not before: a snapshot that is taken meanwhile must hold them, or a failure of the delivery would lose
            # them. What is handed over twice is taken once.
            self._prepared = [item for item in self._prepared if item.checkpoint_id > checkpoint_id]

        return send if due else None

    def _send(self, item: PreparedItem) -> None:
        context = self.context
        context.notify(Collected(self._collector, context.uid, context.subtask, item.checkpoint_id, item.payload))
