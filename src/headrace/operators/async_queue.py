"""Records in flight of an async operator, in the order in which their results may leave. Pure: no thread, no clock.

*Marks* (watermarks and the like) keep their place among the records in both queues: no result overtakes a mark, and no
mark a result.

    ordered      results leave in the order of their records
    unordered    results leave as they come, within the *segment* between two marks
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

Mark: TypeAlias = Callable[[], None]
"""Called when its turn has come."""


class InFlight:
    """One record whose results have not left yet."""

    __slots__ = ("attempt", "due_ms", "results", "task", "timestamp", "value")

    def __init__(self, value: Any, timestamp: int | None) -> None:
        self.value = value
        self.timestamp = timestamp
        self.results: list[Any] | None = None
        """None while they are waited for."""
        self.attempt = 0
        """Number of the call whose answer counts; -1 once the time is over."""
        self.due_ms: int | None = None
        self.task: Any = None
        """The running call. Touched by the loop's thread only."""


class InFlightQueue(ABC):
    """What both queues do."""

    count = 0
    """Records that have not left yet."""

    @abstractmethod
    def add(self, record: InFlight) -> None: ...

    @abstractmethod
    def mark(self, mark: Mark) -> None: ...

    @abstractmethod
    def done(self, record: InFlight) -> None:
        """Its results are there."""

    @abstractmethod
    def leaving(self) -> Iterator[InFlight | Mark]:
        """Take out all that may leave now, in order."""

    @abstractmethod
    def records(self) -> Iterator[InFlight]:
        """All records that have not left, in order of arrival."""

    @property
    @abstractmethod
    def empty(self) -> bool:
        """Neither record nor mark is left."""


class OrderedQueue(InFlightQueue):
    """Everything leaves in the order in which it came."""

    def __init__(self) -> None:
        self._items: deque[InFlight | Mark] = deque()

    def add(self, record: InFlight) -> None:
        self._items.append(record)
        self.count += 1

    def mark(self, mark: Mark) -> None:
        self._items.append(mark)

    def done(self, record: InFlight) -> None:
        """Its place in the queue says the rest."""

    def leaving(self) -> Iterator[InFlight | Mark]:
        items = self._items
        while items:
            first = items[0]
            if isinstance(first, InFlight):
                if first.results is None:
                    return
                self.count -= 1
            items.popleft()
            yield first

    def records(self) -> Iterator[InFlight]:
        return (item for item in self._items if isinstance(item, InFlight))

    @property
    def empty(self) -> bool:
        return not self._items


class _Segment:
    """Records between two marks, and the marks that follow them."""

    __slots__ = ("done", "marks", "waiting")

    def __init__(self) -> None:
        self.waiting: dict[int, InFlight] = {}
        """All that have not left, by identity, in order of arrival."""
        self.done: list[InFlight] = []
        self.marks: list[Mark] = []


class UnorderedQueue(InFlightQueue):
    """Results overtake each other, but never a mark."""

    def __init__(self) -> None:
        self._segments: deque[_Segment] = deque([_Segment()])
        self._segment_of: dict[int, _Segment] = {}

    def add(self, record: InFlight) -> None:
        last = self._segments[-1]
        if last.marks:
            last = _Segment()
            self._segments.append(last)
        last.waiting[id(record)] = record
        self._segment_of[id(record)] = last
        self.count += 1

    def mark(self, mark: Mark) -> None:
        self._segments[-1].marks.append(mark)

    def done(self, record: InFlight) -> None:
        self._segment_of[id(record)].done.append(record)

    def leaving(self) -> Iterator[InFlight | Mark]:
        while True:
            first = self._segments[0]
            done, first.done = first.done, []
            for record in done:
                del first.waiting[id(record)], self._segment_of[id(record)]
                self.count -= 1
                yield record
            if first.waiting:
                return
            marks, first.marks = first.marks, []
            yield from marks
            if len(self._segments) == 1:
                return
            self._segments.popleft()

    def records(self) -> Iterator[InFlight]:
        return (record for segment in self._segments for record in segment.waiting.values())

    @property
    def empty(self) -> bool:
        return not self.count and not self._segments[0].marks
