"""Lengths of time, under the names of `pyflink.common.time`."""

from __future__ import annotations

from headrace.durations import Duration, Time
from headrace.pyflink.absence import absent

__all__ = [
    "Duration",
    "Time",
]

__getattr__ = absent(
    __name__,
    {
        "Instant": "Types.INSTANT() takes a datetime.datetime with a time zone.",
    },
)
