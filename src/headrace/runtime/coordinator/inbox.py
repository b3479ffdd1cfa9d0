"""The coordinator's queue. It cannot grow without bound:

- a task joins, becomes ready, drains, fails and is lost once; it acknowledges and commits once for each checkpoint that
  the coordinator has open; each reader has one split request under way; each I/O lane answers what it was asked;
- what a task may repeat at any pace (how far its event time is, where its splits stand) and what a feeding query
  repeats is kept as its newest value only;
- progress and printed lines never come here.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Hashable

from headrace.runtime.control import messages as msg
from headrace.runtime.coordinator.events import AttemptEvent, Event, FeedAdvanced, TaskSaid


class Inbox:
    """Events in order. Any thread puts and never waits; one thread takes."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[Event | _Newest] = deque()
        self._newest: dict[_Newest, Event] = {}

    def __len__(self) -> int:
        with self._changed:
            return len(self._waiting)

    def put(self, event: Event) -> None:
        with self._changed:
            key = _repeats(event)
            if key is None:
                self._waiting.append(event)
            else:
                if key not in self._newest:
                    self._waiting.append(key)
                self._newest[key] = event
            self._changed.notify()

    def take(self, timeout_s: float) -> Event | None:
        """The oldest event; None if none comes in time."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while not self._waiting:
                left = deadline - time.monotonic()
                if left <= 0 or not self._changed.wait(left):
                    break
            if not self._waiting:
                return None
            found = self._waiting.popleft()
            return self._newest.pop(found) if isinstance(found, _Newest) else found

    def forget_attempts(self) -> list[AttemptEvent]:
        """Remove what stems from attempts, all of which are over; requests of people stay, in their order."""
        with self._changed:
            events = [self._newest.pop(e) if isinstance(e, _Newest) else e for e in self._waiting]
            over = [event for event in events if isinstance(event, AttemptEvent)]
            self._waiting = deque(event for event in events if not isinstance(event, AttemptEvent))
            return over


class _Newest(tuple[Hashable, ...]):
    """Stands in the queue for the newest event of its kind."""

    __slots__ = ()


def _repeats(event: Event) -> _Newest | None:
    """The same for all events of which only the newest counts."""
    match event:
        case TaskSaid(attempt, _, msg.Announced(uid, subtask)):
            return _Newest(("announced", attempt, uid, subtask))
        case TaskSaid(attempt, _, msg.Reached(uid, subtask)):
            return _Newest(("reached", attempt, uid, subtask))
        case FeedAdvanced(attempt, uid):
            return _Newest(("advanced", attempt, uid))
    return None
