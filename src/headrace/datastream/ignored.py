"""Options that mean something to Flink and nothing here: accepted, so that a ported program runs, and said once."""

from __future__ import annotations

import sys
import warnings

_said: set[str] = set()


class HeadraceIgnoredOption(UserWarning):
    """A call or setting that has no effect here. Told once for each name in a process; the program goes on."""


def ignored(name: str, reason: str) -> None:
    """Say once that `name` does nothing, and why. The warning stands at the user's own line."""
    if name in _said:
        return
    _said.add(name)
    level = 2
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("headrace."):
        frame, level = frame.f_back, level + 1
    warnings.warn(f"{name} has no effect: {reason}", HeadraceIgnoredOption, stacklevel=level)
