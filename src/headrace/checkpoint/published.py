"""What a run has published: `_metadata` of its checkpoints, and a marker beside each.

    <job_id>/run-000001/chk-000007/_metadata       exclusive create: the commit point
    <job_id>/run-000001/published-000003-000007    checkpoint 7 of attempt 3 was published; JSON: size and hash of it

The marker is created after `_metadata` and before any sink commits. It goes when its checkpoint is dropped, and the
newest stays, even after the run has ended. So a start knows from something else than the file itself which checkpoint
was published last, and never goes back silently because that one is gone.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from headrace.checkpoint.control_files import DamagedRecordError, decode_record, encode_record
from headrace.checkpoint.handles import AttemptId, CheckpointId
from headrace.checkpoint.metadata.model import CheckpointKind, CheckpointMetadata
from headrace.errors import RestoreError

_MARKER = re.compile(r"published-(?P<attempt>\d{1,18})-(?P<checkpoint>\d{1,18})")


@dataclass(frozen=True, slots=True)
class CheckpointRef:
    """A checkpoint that is complete and counts."""

    checkpoint_id: CheckpointId
    attempt: AttemptId
    kind: CheckpointKind
    path: str
    """Of its `_metadata`, in the job's storage."""
    created_ms: int

    @classmethod
    def of(cls, metadata: CheckpointMetadata, path: str) -> CheckpointRef:
        return cls(metadata.checkpoint_id, metadata.attempt, metadata.kind, path, metadata.created_ms)


@dataclass(frozen=True, slots=True)
class PublishedCheckpoint:
    """A `_metadata` that was found in a run."""

    checkpoint_id: CheckpointId
    path: str
    """Of its `_metadata`, in the job's storage."""
    metadata: CheckpointMetadata | None
    """None if it is damaged."""
    counts: bool
    """Whether a restore may take it: it is whole, and no later attempt began before it was published."""
    problem: RestoreError | None = None


@dataclass(frozen=True, slots=True, order=True)
class Marker:
    """Says that a checkpoint was published. Its name alone is enough for that."""

    checkpoint_id: CheckpointId
    attempt: AttemptId

    @property
    def name(self) -> str:
        return f"published-{self.attempt:06d}-{self.checkpoint_id:06d}"

    @classmethod
    def named(cls, name: str) -> Marker | None:
        match = _MARKER.fullmatch(name)
        return None if match is None else cls(int(match["checkpoint"]), int(match["attempt"]))

    def encode(self, metadata: bytes) -> bytes:
        """Its contents, for the bytes of `_metadata`."""
        return encode_record(
            {
                "checkpoint_id": self.checkpoint_id,
                "attempt": self.attempt,
                "size": len(metadata),
                "sha256": hashlib.sha256(metadata).hexdigest(),
            }
        )

    def check(self, data: bytes) -> None:
        """`DamagedRecordError` if `data` is not the contents of this marker."""
        record = decode_record(data, ())
        if (record.get("checkpoint_id"), record.get("attempt")) != (self.checkpoint_id, self.attempt):
            raise DamagedRecordError("it belongs to another checkpoint")

    def differs(self, data: bytes, metadata: bytes) -> bool:
        """Whether `data`, the contents of the marker, is whole and names other metadata than these."""
        try:
            self.check(data)
        except DamagedRecordError:
            return False  # the name alone counts then
        record = decode_record(data, ())
        return bool(record["sha256"] != hashlib.sha256(metadata).hexdigest())
