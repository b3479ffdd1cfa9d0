"""Numbers that readers keep about their work. A job shows them in its status, by the uid of the source.

The names that Headrace's own sources use:

    recordsSkipped     records left out because they cannot be read
    filesSkipped       files left out because they are gone or cannot be read at all
    changedFilesRead   files read on although they changed after they were found
    tombstones         records of Kafka without a value, left out
    recordsLost        records of Kafka that were deleted before they could be read

They count from the start of the attempt: a record that is read again after a failure is counted again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Protocol

RECORDS_SKIPPED = "recordsSkipped"
FILES_SKIPPED = "filesSkipped"
CHANGED_FILES_READ = "changedFilesRead"
TOMBSTONES = "tombstones"
RECORDS_LOST = "recordsLost"

LOGGED_ONE_BY_ONE = 20
"""After so many of one kind, a reader logs sums."""
SUM_EVERY_S = 60.0


class Counter(Protocol):
    """A number that goes up. One thread at a time may count."""

    def inc(self, n: int = 1) -> None: ...

    def get_count(self) -> int: ...


class Metrics(Protocol):
    """Where a reader gets its counters. Asking twice for a name gives the same one."""

    def counter(self, name: str) -> Counter: ...


class OwnMetrics:
    """Counters of a reader that is driven by hand, outside a job."""

    def __init__(self) -> None:
        self._counters: dict[str, _OwnCounter] = {}

    def counter(self, name: str) -> Counter:
        return self._counters.setdefault(name, _OwnCounter())

    @property
    def counts(self) -> dict[str, int]:
        """What was counted so far, without zeros."""
        return {name: counter.count for name, counter in self._counters.items() if counter.count}


class _OwnCounter:
    def __init__(self) -> None:
        self.count = 0

    def inc(self, n: int = 1) -> None:
        self.count += n

    def get_count(self) -> int:
        return self.count


class Tally:
    """One kind of thing that a reader leaves out: counted for the status, and told in the log.

    The first ones are logged one by one, those that follow as a sum, once a minute and at the end: a producer gone bad
    must neither fill the log nor go unnoticed.
    """

    def __init__(
        self, what: str, counter: Counter, log: logging.Logger, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._what = what
        self._counter = counter
        self._log = log
        self._clock = clock
        self._one_by_one = 0
        self._untold = 0
        self._last = ""
        self._told_at = 0.0

    @property
    def count(self) -> int:
        return self._counter.get_count()

    def add(self, text: str) -> None:
        """One more; `text` says which and why."""
        self._counter.inc()
        if self._one_by_one < LOGGED_ONE_BY_ONE:
            self._one_by_one += 1
            self._told_at = self._clock()
            self._log.warning("%s: %s", self._what, text)
            return
        self._untold += 1
        self._last = text
        if self._clock() - self._told_at >= SUM_EVERY_S:
            self.tell()

    def tell(self) -> None:
        """Log the sum of what was not logged one by one, if there is any. Called at the end, too."""
        if self._untold:
            self._log.warning(
                "%s: %d more, %d in all. The last one: %s", self._what, self._untold, self.count, self._last
            )
            self._untold = 0
            self._told_at = self._clock()
