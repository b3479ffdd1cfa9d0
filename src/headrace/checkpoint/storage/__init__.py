"""Checkpoint storage by URI scheme: `file:` and plain paths, `memory:` for the coordinator's memory."""

from headrace.checkpoint.storage.base import register_storage
from headrace.checkpoint.storage.filesystem import FileSystemCheckpointStorage
from headrace.checkpoint.storage.memory import JobManagerCheckpointStorage

register_storage("file", FileSystemCheckpointStorage)
register_storage("memory", lambda uri: JobManagerCheckpointStorage())
