"""What becomes of checkpoints, under the name of PyFlink's module."""

from headrace.plan.settings import ExternalizedCheckpointRetention

__all__ = [
    "ExternalizedCheckpointRetention",
]
