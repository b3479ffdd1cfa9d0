"""Whether the tasks of a job reach the storage that its checkpoints go to."""

from __future__ import annotations

from headrace.checkpoint.storage.base import CheckpointStorage
from headrace.checkpoint.storage.filesystem import FileSystemCheckpointStorage
from headrace.runtime.spark.machine import Finding
from headrace.runtime.spark.session import SparkHandle
from headrace.runtime.spark.shared_directory import seen_by_executors


def reach_of_executors(handle: SparkHandle, storage: CheckpointStorage) -> list[Finding]:
    """A finding where it could be otherwise: for a directory, if Spark's executors may be on other machines.

    Called once at the start of a job, before it writes anything, and by `headrace doctor`. A refusal leaves nothing
    behind.
    """
    if handle.is_local or not isinstance(storage, FileSystemCheckpointStorage):
        return []
    return [seen_by_executors(handle, storage.root)]
