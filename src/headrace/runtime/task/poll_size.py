"""How many records a source is asked for at once."""

from __future__ import annotations

from typing import Final

AIM_S: Final = 0.005
"""A poll takes about so long of the processor: a trigger does not wait much longer for a source."""
MOST_WAIT: Final = 4
"""By the clock it may take so many times as long, on a busy machine or where it waits for something. Polls that shrink
because others hold the processor make each record dearer, which holds the processor for longer still."""
FIRST: Final = 256
MOST: Final = 16_384


class PollSize:
    """The limit of the next poll, learned from those before."""

    __slots__ = ("limit",)

    def __init__(self) -> None:
        self.limit = FIRST

    def polled(self, records: int, busy_s: float, by_clock_s: float) -> None:
        """A poll, with all that is chained to the source, gave so many records; what it took of the processor and of
        the clock."""
        took_s = max(busy_s, by_clock_s / MOST_WAIT)
        if took_s > 0:
            self.limit = int(max(1, min(MOST, 0.5 * self.limit + 0.5 * AIM_S * records / took_s)))
