"""Panes: the pieces of time within which all timestamps lie in the same windows.

Tumbling windows are their own panes. Sliding ones begin and end at multiples of the greatest common divisor of size and
slide, so a pane of that width lies in each window as a whole or not at all.
"""

from __future__ import annotations

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


@dataclass(frozen=True)
class Panes:
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

    def times_of(self, operator: Operator, batch: pa.RecordBatch, times: pa.Array | None) -> Times:
        """Timestamps as numbers; an error that names the operator if the records have none."""
        if times is None:
            missing = JobDefinitionError(
                "The records have no timestamps, but the windows are windows of event time. Give them some by "
                "assign_timestamps_and_watermarks(...) before, or in from_source()."
            )
            raise failure_in(operator, shown(batch), missing)
        return times.to_numpy()  # type: ignore[no-any-return]

    def starts(self, times: Times) -> Times:
        """Where the pane of each time begins; before 1970 too."""
        return times - (times - self.offset) % self.width  # type: ignore[no-any-return]

    def last_of(self, pane: int) -> int:
        """The last timestamp of a pane: no window that holds it fires before."""
        return pane + self.width - 1

    def alive(self, times: Times, watermark: int) -> tuple[Times, Times]:
        """For each time, whether one of its windows is still open, and whether it has any."""
        latest = times - (times - self.offset) % self.slide + self.size
        return latest - 1 > watermark, latest > times

    def open_windows(self, pane: int, watermark: int) -> list[tuple[bytes, int]]:
        """(namespace, last timestamp) of each window of a pane that has not fired."""
        latest = pane - (pane - self.offset) % self.slide
        starts = range(latest, pane - self.size, -self.slide)
        found = [(encode_bounds(start, start + self.size), start + self.size - 1) for start in starts]
        return [(namespace, last) for namespace, last in found if last > watermark]
