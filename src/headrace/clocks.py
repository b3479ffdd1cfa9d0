"""The driver's two clocks: one tells what time it is and may be set, the other only how much time has passed.

Whatever waits, repeats or expires within one process goes by the steady clock: somebody who sets the machine's clock an
hour back must not stop checkpoints for an hour. Whatever is stored or shown, and so read by others, is wall-clock time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


def wall_ms() -> int:
    """Milliseconds of the epoch: for what is stored or shown. It jumps, forward and back, when the clock is set."""
    return time.time_ns() // 1_000_000


def steady_ms() -> int:
    """Milliseconds since some moment in the past: never less than before, and of no meaning in another process."""
    return time.monotonic_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class Clocks:
    """Both, for those who need both: a test gives its own."""

    wall_ms: Callable[[], int] = wall_ms
    steady_ms: Callable[[], int] = steady_ms


SYSTEM_CLOCKS = Clocks()
"""Those of the machine."""
