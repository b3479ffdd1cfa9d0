"""Where checkpoints go, under the names of `pyflink.datastream.checkpoint_storage`."""

from __future__ import annotations

from headrace.checkpoint.storage.base import CheckpointStorage
from headrace.checkpoint.storage.filesystem import FileSystemCheckpointStorage
from headrace.checkpoint.storage.memory import JobManagerCheckpointStorage
from headrace.pyflink.absence import absent

__all__ = [
    "CheckpointStorage",
    "FileSystemCheckpointStorage",
    "JobManagerCheckpointStorage",
]

__getattr__ = absent(
    __name__,
    {
        "CustomCheckpointStorage": "it wraps a class of Java. Derive a storage from headrace.CheckpointStorage.",
    },
)
