"""A busy machine is no failure: Hypothesis runs here without a deadline per example."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("headrace", deadline=None)
settings.load_profile("headrace")
