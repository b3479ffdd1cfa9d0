"""User metrics, under the names of `pyflink.metrics`."""

from headrace.operators.functions import Counter, Distribution, Meter, MetricGroup

__all__ = [
    "Counter",
    "Distribution",
    "Meter",
    "MetricGroup",
]
