"""Checkpoint settings, under the names of `pyflink.datastream.checkpoint_config`."""

from headrace.datastream.checkpointing import CheckpointConfig
from headrace.plan.settings import ExternalizedCheckpointRetention

__all__ = [
    "CheckpointConfig",
    "ExternalizedCheckpointRetention",
]
