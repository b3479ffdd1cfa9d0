"""I/O of a coordinator, away from its thread: a few lanes, each of which does one thing after the other.

    PUBLISH     metadata of checkpoints and savepoints; the lifecycle has one under way at a time
    REMOVE      checkpoints, shared files, leftovers; the coordinator has one removal under way and gathers the rest
    SOURCES     the program's enumerators: all their methods, on one thread
    HAND_OVER   the program's functions that take output as DataFrames

Each piece of work gives one event, which comes back to the coordinator like any other.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Protocol, TypeAlias

from headrace.checkpoint.handles import AttemptId
from headrace.runtime.coordinator.events import Event, WorkFailed

Work: TypeAlias = Callable[[], Event | None]


class Lane(Enum):
    """What is done in order, on a thread of its own."""

    PUBLISH = "publish"
    REMOVE = "remove"
    SOURCES = "sources"
    HAND_OVER = "hand-over"


class Executor(Protocol):
    """Where a coordinator's I/O runs."""

    def submit(self, lane: Lane, work: Work) -> None:
        """Do this after what the lane was given before. Never waits. What it raises comes back as `WorkFailed`."""


class ManualExecutor:
    """Does each piece of work when its owner says so, on the owner's thread: for harnesses and simulations."""

    def __init__(self, attempt: AttemptId) -> None:
        self._attempt = attempt
        self.lanes: dict[Lane, deque[Work]] = {lane: deque() for lane in Lane}

    def submit(self, lane: Lane, work: Work) -> None:
        self.lanes[lane].append(work)

    @property
    def busy(self) -> list[Lane]:
        """Lanes with something to do."""
        return [lane for lane, work in self.lanes.items() if work]

    def step(self, lane: Lane) -> Event | None:
        """Do what is next on the lane."""
        return _result(self._attempt, self.lanes[lane].popleft())


class ThreadedExecutor:
    """A daemon thread for each lane that is used. `deliver` is called with each result, from those threads."""

    def __init__(self, attempt: AttemptId, deliver: Callable[[Event], None]) -> None:
        self._attempt = attempt
        self._deliver = deliver
        self._changed = threading.Condition()
        self._queues: dict[Lane, deque[Work]] = {}
        self._idle: dict[Lane, bool] = {}
        self._closed = False

    def submit(self, lane: Lane, work: Work) -> None:
        with self._changed:
            if self._closed:
                return
            if lane not in self._queues:
                self._queues[lane] = deque()
                name = f"{lane.value}-{self._attempt}"
                threading.Thread(target=self._run, args=(lane,), name=name, daemon=True).start()
            self._queues[lane].append(work)
            self._changed.notify_all()

    def close(self, limit_s: float, *, drop_queued: bool = False) -> list[Lane]:
        """Take no more work, wait for what is under way, and give the lanes that were not done after `limit_s`.

        `drop_queued`: begin nothing more that others can see, because a newer attempt exists.
        What such a lane has under way cannot be stopped: its result comes to nobody, and nothing else begins on it.
        """
        deadline = time.monotonic() + limit_s
        with self._changed:
            self._closed = True
            if drop_queued:
                self._clear(Lane.PUBLISH, Lane.REMOVE, Lane.HAND_OVER)
            self._changed.notify_all()
            while (stuck := self._stuck()) and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)
            self._clear(*Lane)
            return stuck

    def _stuck(self) -> list[Lane]:
        return [lane for lane, queue in self._queues.items() if queue or not self._idle.get(lane, True)]

    def _clear(self, *lanes: Lane) -> None:
        for lane in lanes:
            self._queues.get(lane, deque()).clear()

    def _run(self, lane: Lane) -> None:
        queue = self._queues[lane]
        while True:
            with self._changed:
                self._idle[lane] = True
                self._changed.notify_all()
                self._changed.wait_for(lambda: queue or self._closed)
                if not queue:
                    return
                work = queue.popleft()
                self._idle[lane] = False
            event = _result(self._attempt, work)
            if event is not None:
                self._deliver(event)


def _result(attempt: AttemptId, work: Work) -> Event | None:
    try:
        return work()
    except Exception as error:
        return WorkFailed(attempt, error)
