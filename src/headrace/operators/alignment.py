"""Watermark alignment in a source subtask: splits that are ahead of the others of their group wait for them.

A group is all splits of all sources that name it. A split waits while its watermark is more than the allowed drift
above the group's *floor*, the smallest watermark of a split that is neither idle nor read to its end. What a fast
partition has read too early would only lie in state, and in every checkpoint, until the slow ones have caught up.

Within a subtask this is exact: looked at after every batch. Between subtasks the floor goes over the driver, every
update interval: there a split may be ahead by the drift and what it reads until it hears of it, and wait until it hears
that it need not.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from headrace.connectors.source import SourceReader
from headrace.errors import JobDefinitionError
from headrace.operators.timestamps import WatermarkTracker
from headrace.operators.watermarks import MAX_WATERMARK, WatermarkAlignment


class SplitAligner:
    """Made for one source subtask. Used on the mailbox thread only."""

    def __init__(self, settings: WatermarkAlignment, report: Callable[[int], None]) -> None:
        """`report` gets this subtask's own floor, `MAX_WATERMARK` while nothing needs to wait for it."""
        self._settings = settings
        self._report = report
        self._group_floor = MAX_WATERMARK
        self._next_report_ms = 0
        self._ended = False
        self.waiting: frozenset[str] = frozenset()
        """Ids of the splits that wait."""

    def hear(self, floor: int) -> None:
        """How far the slowest other subtask of the group is, as of a moment ago."""
        self._group_floor = floor

    def align(self, reader: SourceReader[Any], trackers: dict[str, WatermarkTracker], active: set[str]) -> None:
        """Decide anew which splits wait, and tell the reader if others do. Splits that are over leave `active`."""
        # They are over when the reader says so; asked only where it matters, for that may cost something.
        if self.waiting or self._ahead(trackers, active):
            active &= {split.split_id for split in reader.snapshot()}
        for split in self.waiting & active:
            # It is silent because we made it so.
            trackers[split].seen()
        ahead = self._ahead(trackers, active)
        if ahead == self.waiting:
            return
        if len(active) > 1 and not reader.pauses_splits:
            raise JobDefinitionError(
                f"with_watermark_alignment() holds back {', '.join(sorted(ahead or self.waiting))}, but "
                f"{type(reader).__name__} reads {len(active)} splits at a time and cannot leave some of them out. "
                "Give its SourceReader pauses_splits = True and pause_splits(), or take the alignment off this source."
            )
        self.waiting = ahead
        if reader.pauses_splits:
            reader.pause_splits(ahead)
        if self.all_wait(active):
            # Others may wait for us: they need not until the interval is over.
            self._report(self._floor(trackers, active))

    def all_wait(self, active: set[str]) -> bool:
        """Whether there is nothing to read for now."""
        return bool(active) and self.waiting >= active

    def tell(self, now_ms: int, trackers: dict[str, WatermarkTracker], active: set[str]) -> None:
        """Report this subtask's floor if it is time."""
        if now_ms >= self._next_report_ms and not self._ended:
            self._next_report_ms = now_ms + self._settings.update_interval_ms
            self._report(self._floor(trackers, active))

    def end(self) -> None:
        """All is read: nobody waits for this subtask from now on."""
        if not self._ended:
            self._ended = True
            self._report(MAX_WATERMARK)

    def _ahead(self, trackers: dict[str, WatermarkTracker], active: set[str]) -> frozenset[str]:
        floor = min(self._group_floor, self._floor(trackers, active))
        limit = floor + self._settings.max_drift_ms
        return frozenset(split for split in active if trackers[split].watermark > limit)

    @staticmethod
    def _floor(trackers: dict[str, WatermarkTracker], active: set[str]) -> int:
        now = time.monotonic()
        return min(
            (trackers[split].advance() for split in active if not trackers[split].is_idle(now)), default=MAX_WATERMARK
        )
