"""Panes: the pieces of time within which all timestamps lie in the same windows.

Tumbling windows are their own panes. Sliding ones begin and end at multiples of the greatest common divisor of size and
slide, so a pane of that width lies in each window as a whole or not at all. Sessions have no panes: where they begin
and end is up to the records.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import gcd
from typing import Any

import numpy.typing as npt
import pyarrow as pa

from headrace.errors import JobDefinitionError
from headrace.operators.base import Operator, failure_in
from headrace.operators.columns.batches import shown
from headrace.operators.windows.windows import encode_bounds

Times = npt.NDArray[Any]
"""int64, milliseconds since 1970."""


class TimePieces(ABC):
    """Pieces of event time, by which rows are grouped besides their key."""

    def times_of(self, operator: Operator, batch: pa.RecordBatch, times: pa.Array | None) -> Times:
        """Timestamps as numbers; an error that names the operator if the records have none."""
        if times is None:
            missing = JobDefinitionError(
                "The records have no timestamps, but the windows are windows of event time. Give them some by "
                "assign_timestamps_and_watermarks(...) before, or in from_source()."
            )
            raise failure_in(operator, shown(batch), missing)
        return times.to_numpy()  # type: ignore[no-any-return]

    @abstractmethod
    def starts(self, times: Times) -> Times:
        """Where the piece of each time begins."""

    @abstractmethod
    def last_of(self, start: int) -> int:
        """A watermark below this fires no window that rows of the piece that begins at `start` could change."""


@dataclass(frozen=True)
class Gaps(TimePieces):
    """Sessions, which end when no row of the key came for `gap`. Each row is a piece of its own."""

    gap: int

    def starts(self, times: Times) -> Times:
        return times

    def last_of(self, start: int) -> int:
        # A session that ends just where this one begins would grow by it, and is due one millisecond before.
        return start - 1


@dataclass(frozen=True)
class Panes(TimePieces):
    """Windows of one size that begin every `slide`."""

    size: int
    slide: int
    offset: int

    @property
    def width(self) -> int:
        return gcd(self.size, self.slide)

    @property
    def have_gaps(self) -> bool:
        """Some timestamps lie in no window."""
        return self.slide > self.size

    def starts(self, times: Times) -> Times:
        """Where the pane of each time begins; before 1970 too."""
        return times - (times - self.offset) % self.width  # type: ignore[no-any-return]

    def last_of(self, start: int) -> int:
        """The last timestamp of a pane: no window that holds it fires before."""
        return start + self.width - 1

    def alive(self, times: Times, horizon: int) -> tuple[Times, Times]:
        """For each time, whether one of its windows ends after the horizon, and whether it has any."""
        latest = times - (times - self.offset) % self.slide + self.size
        return latest - 1 > horizon, latest > times

    def open_windows(self, pane: int, horizon: int) -> list[tuple[bytes, int]]:
        """(namespace, last timestamp) of each window of a pane that ends after the horizon."""
        latest = pane - (pane - self.offset) % self.slide
        starts = range(latest, pane - self.size, -self.slide)
        found = [(encode_bounds(start, start + self.size), start + self.size - 1) for start in starts]
        return [(namespace, last) for namespace, last in found if last > horizon]
