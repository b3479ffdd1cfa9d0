"""Guarantees, under the name of `pyflink.datastream.checkpointing_mode`."""

from headrace.plan.settings import CheckpointingMode

__all__ = [
    "CheckpointingMode",
]
