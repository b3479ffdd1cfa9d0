"""Restart strategies, under the names of `pyflink.common.restart_strategy`."""

from headrace.plan.restart import RestartStrategies
from headrace.plan.restart import RestartStrategy as RestartStrategyConfiguration

__all__ = [
    "RestartStrategies",
    "RestartStrategyConfiguration",
]
