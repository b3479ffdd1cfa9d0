"""Timers, under the name of `pyflink.datastream.timerservice`."""

from headrace.operators.functions import TimerService

__all__ = [
    "TimerService",
]
