"""Clocks of timers, under the name of `pyflink.datastream.time_domain`."""

from headrace.operators.functions import TimeDomain

__all__ = [
    "TimeDomain",
]
