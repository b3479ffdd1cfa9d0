"""What user functions counted, as numbers for the status."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.operators.base import Operator
from headrace.operators.metrics import reading


def readings(operators: Iterable[Operator]) -> dict[str, float | int]:
    """`uid.name` → number, for all user metrics of a task."""
    found: dict[str, float | int] = {}
    for operator in operators:
        for name, metric in operator.context.metrics.items():
            value = reading(metric)
            if value is not None:
                found[f"{operator.context.uid}.{name}"] = value
    return found
