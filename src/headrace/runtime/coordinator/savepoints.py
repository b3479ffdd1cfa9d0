"""Savepoints that somebody asked a running job for: from the order to the answer.

An order outlives attempts: asked for while the job restarts, it waits for the next attempt. One attempt at a time takes
it; if that attempt fails under it, the order has failed, and whoever gave it may ask again.
"""

from __future__ import annotations

import threading
import uuid
from concurrent.futures import Future
from dataclasses import dataclass, field

from headrace.checkpoint.metadata.model import CheckpointMetadata
from headrace.checkpoint.savepoint import SavepointDirectory
from headrace.checkpoint.storage.base import storage_for
from headrace.errors import SavepointError


@dataclass(frozen=True, slots=True)
class Savepoint:
    """A savepoint that is complete."""

    path: str
    checkpoint_id: int
    duration_ms: int
    size_bytes: int


@dataclass(eq=False)
class SavepointOrder:
    """One wish for a savepoint. The future is done when it is complete and, with `stop`, the job has stopped."""

    location: str
    stop: bool = False
    drain: bool = False
    request: str = field(default_factory=lambda: uuid.uuid4().hex)
    answer: Future[Savepoint] = field(default_factory=Future)
    progress: str = "waiting for its turn"
    """For people; written by the coordinator, read by anybody."""
    taken: bool = False
    """An attempt works on it."""
    may_exist: bool = False
    """Its metadata is published, or nobody knows: nothing of it may be removed."""
    published: Savepoint | None = None
    """Complete; a job that is to stop still has to commit its output."""
    acknowledged: int = 0

    @property
    def directory(self) -> SavepointDirectory:
        return SavepointDirectory(storage_for(self.location))


class SavepointOrders:
    """All orders of one job that have no answer yet. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[str, SavepointOrder] = {}
        self._over: str | None = None

    def add(self, order: SavepointOrder) -> bool:
        """False if the job has ended: then the order is answered already."""
        with self._lock:
            if self._over is None:
                self._open[order.request] = order
                return True
        order.answer.set_exception(SavepointError(self._over))
        return False

    def get(self, request: str | None) -> SavepointOrder | None:
        with self._lock:
            return self._open.get(request or "")

    @property
    def stopped(self) -> SavepointOrder | None:
        """The order whose savepoint is complete and which stops the job, if there is one."""
        with self._lock:
            return next((o for o in self._open.values() if o.stop and o.published is not None), None)

    def complete(self, order: SavepointOrder) -> None:
        """Answer: it is there, and the job has stopped if that was asked for."""
        assert order.published is not None
        with self._lock:
            self._open.pop(order.request, None)
        if not order.answer.done():
            order.answer.set_result(order.published)

    def fail(self, order: SavepointOrder, reason: str) -> None:
        with self._lock:
            self._open.pop(order.request, None)
        if not order.answer.done():
            going_on = " The job goes on from its last checkpoint." if order.stop else ""
            order.answer.set_exception(SavepointError(f"The savepoint at {order.location} failed: {reason}.{going_on}"))

    def end_attempt(self, reason: str) -> None:
        """The attempt is over: what it had taken and not answered has failed, except what stopped the job."""
        with self._lock:
            lost = [o for o in self._open.values() if o.taken and not (o.stop and o.published is not None)]
        for order in lost:
            self.fail(order, reason)

    def end(self, reason: str) -> None:
        """The job is over: nobody will answer what is still open, nor anything new."""
        with self._lock:
            self._over = reason
            left = list(self._open.values())
            self._open.clear()
        for order in left:
            if order.answer.done():
                continue
            text = reason
            if order.published is not None:
                text = f"{reason} The savepoint itself is complete: {order.published.path}"
            order.answer.set_exception(SavepointError(text))


def savepoint_of(order: SavepointOrder, metadata: CheckpointMetadata, duration_ms: int) -> Savepoint:
    """What whoever asked is told."""
    return Savepoint(order.location, metadata.checkpoint_id, duration_ms, metadata.bytes_total)
