"""A savepoint: a directory of its own that can be moved, copied and restored anywhere.

    <root>/chk-000012/attempt-000003/...     state files, never shared with anything outside
    <root>/_metadata                         exclusive create; names files relative to <root>

The storage is rooted at the savepoint itself, so no path in it says where it lies.
"""

from __future__ import annotations

from headrace.checkpoint.handles import AttemptId, CheckpointId
from headrace.checkpoint.metadata.codec import decode_metadata, encode_metadata
from headrace.checkpoint.metadata.model import CheckpointMetadata
from headrace.checkpoint.publication import publish_exclusively
from headrace.checkpoint.storage.base import CheckpointStorage, MissingFileError
from headrace.checkpoint.storage.paths import WriterScope
from headrace.errors import RestoreError


class SavepointDirectory:
    """One savepoint in `storage`, whose root is the savepoint's directory. Kept until a person disposes of it."""

    def __init__(self, storage: CheckpointStorage) -> None:
        self.storage = storage

    def prefix_for(self, checkpoint_id: CheckpointId, attempt: AttemptId) -> str:
        """Where tasks store its files: the argument of `storage.file_store`."""
        return WriterScope("", checkpoint_id, attempt).prefix

    def publish(self, metadata: CheckpointMetadata) -> None:
        """Make it complete; errors mean the same as in `JobDirectory.publish`."""
        publish_exclusively(self.storage, "_metadata", encode_metadata(metadata))

    def load(self) -> CheckpointMetadata:
        """Its metadata, checked by hash."""
        where = f"{self.storage.location}/_metadata"
        try:
            return decode_metadata(self.storage.read("_metadata"), where)
        except MissingFileError as error:
            raise RestoreError(
                f"{self.storage.location} holds no savepoint: _metadata is missing. Name the directory that has it."
            ) from error

    def dispose(self) -> None:
        """Delete it. Metadata first, so that an interrupted disposal leaves no half savepoint."""
        self.storage.delete("_metadata")
        for path in self.storage.list(""):
            self.storage.delete(path)
