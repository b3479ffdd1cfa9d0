"""Small snapshots and metadata that the tests of this folder share."""

from __future__ import annotations

from headrace.checkpoint.handles import (
    ChannelSnapshot,
    EdgeRecord,
    KeyedSnapshot,
    OperatorStateShare,
    PreparedItem,
    StateFile,
    StateShape,
    SubtaskSnapshot,
    TaskSnapshot,
)
from headrace.checkpoint.metadata.model import CheckpointMetadata, OperatorRecord


def state_file(path: str, *, shared: bool = False) -> StateFile:
    return StateFile(size=30_000, sha256="ab" * 32, path=path, shared=shared)


def keyed(*files: StateFile, groups: range = range(128)) -> KeyedSnapshot:
    shapes = (StateShape("last", "value", "DOUBLE"),)
    return KeyedSnapshot("table", groups.start, groups.stop - 1, shapes, files)


def snapshot(level: int, slot: int, *files: StateFile) -> TaskSnapshot:
    """The acknowledgement of a task that runs one subtask of one keyed operator."""
    subtask = SubtaskSnapshot(f"op-{level}", slot, 2, 128, keyed=keyed(*files))
    return TaskSnapshot(level, slot, (subtask,))


def metadata(
    checkpoint_id: int = 7, attempt: int = 1, job_id: str = "job", *files: StateFile, run: int = 1
) -> CheckpointMetadata:
    subtask = SubtaskSnapshot(
        "per-key",
        0,
        1,
        128,
        keyed=keyed(*files),
        operator_state=(OperatorStateShare(StateShape("pending", "operator-list", "LONG"), (b"1", b"2")),),
        splits=(b"split",),
        prepared=(PreparedItem(checkpoint_id, b"staged"),),
        watermark=2**63 - 1,
        extra=b"\x90",
    )
    return CheckpointMetadata(
        job_id=job_id,
        job_name="alerts",
        run=run,
        attempt=attempt,
        checkpoint_id=checkpoint_id,
        kind="checkpoint",
        mode="aligned",
        created_ms=1_700_000_000_000,
        duration_ms=120,
        operators=(OperatorRecord("per-key", "alerts per key", 1, 128, (subtask,)),),
        enumerators={"sensors": b"enumerated"},
        channels=(ChannelSnapshot(1, 0, StateFile(size=1, sha256="cd" * 32, inline=b"c"), 1),),
        edge_records=(EdgeRecord(3, "sensors", None, "per-key", 0, "key_by", key_fields=("id",), level=1, slots=(0,)),),
        bytes_total=30_000,
        bytes_uploaded=30_000,
    )
