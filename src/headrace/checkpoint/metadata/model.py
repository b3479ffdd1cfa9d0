"""What `_metadata` holds. Plain data: no class names to import, no code, no secrets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, TypeAlias

import msgspec

from headrace.checkpoint.handles import (
    AttemptId,
    ChannelSnapshot,
    CheckpointId,
    EdgeRecord,
    StateFile,
    SubtaskSnapshot,
    TaskSnapshot,
)

CheckpointKind: TypeAlias = Literal["checkpoint", "savepoint"]
"""A savepoint was asked for by a person: complete, self-contained, never expired, always aligned."""

FORMAT_VERSION = 2
"""1: every file is an object of its own. 2: it may be a part of a pack."""


class OperatorRecord(msgspec.Struct, frozen=True):
    """One operator with the snapshots of its subtasks, in order of their index."""

    uid: str
    name: str
    parallelism: int
    max_parallelism: int
    subtasks: tuple[SubtaskSnapshot, ...]


class TaskTiming(msgspec.Struct, frozen=True, array_like=True):
    """How long one task took for its part, for those who look at a checkpoint later."""

    level: int
    slot: int
    alignment_ms: int = 0
    """From its first barrier to its snapshot."""
    sync_ms: int = 0
    """How long its mailbox stood still."""
    async_ms: int = 0
    """How long files were written in the background."""
    bytes_total: int = 0
    bytes_uploaded: int = 0


class CheckpointMetadata(msgspec.Struct, frozen=True):
    """One complete checkpoint. A field that is later added must have a default, so that older files decode."""

    job_id: str
    job_name: str
    run: int
    attempt: AttemptId
    checkpoint_id: CheckpointId
    kind: CheckpointKind
    mode: str
    """How barriers were handled: `aligned`, `unaligned`, `at-least-once`."""
    created_ms: int
    duration_ms: int
    operators: tuple[OperatorRecord, ...]
    enumerators: dict[str, bytes] = {}
    """State of each source's enumerator by uid, taken in the same step in which the checkpoint was triggered."""
    channels: tuple[ChannelSnapshot, ...] = ()
    edge_records: tuple[EdgeRecord, ...] = ()
    """All edges of the program, if there are channels. Checkpoints of older releases have none."""
    bytes_total: int = 0
    bytes_uploaded: int = 0
    format_version: int = FORMAT_VERSION
    tasks: tuple[TaskTiming, ...] = ()
    """In order of level and slot."""
    history: str = ""
    """Which job directory numbered attempt and checkpoint: numbers of two directories say nothing about each other."""


def operators_of(snapshots: Iterable[TaskSnapshot], names: Mapping[str, str]) -> tuple[OperatorRecord, ...]:
    """Gather the acknowledgements of all tasks by operator; `names` gives each uid its display name."""
    by_uid: dict[str, list[SubtaskSnapshot]] = {}
    for task in snapshots:
        for subtask in task.subtasks:
            by_uid.setdefault(subtask.uid, []).append(subtask)
    return tuple(
        OperatorRecord(
            uid=uid,
            name=names.get(uid, uid),
            parallelism=subtasks[0].parallelism,
            max_parallelism=subtasks[0].max_parallelism,
            subtasks=tuple(sorted(subtasks, key=lambda subtask: subtask.subtask)),
        )
        for uid, subtasks in sorted(by_uid.items())
    )


def channels_of(snapshots: Iterable[TaskSnapshot]) -> tuple[ChannelSnapshot, ...]:
    """The cells in flight of all tasks that saved any."""
    return tuple(task.channels for task in snapshots if task.channels is not None)


def timings_of(snapshots: Iterable[TaskSnapshot]) -> tuple[TaskTiming, ...]:
    """What each task's acknowledgement says about its own time and bytes."""
    return tuple(
        TaskTiming(s.level, s.slot, s.alignment_ms, s.sync_ms, s.async_ms, s.bytes_total, s.bytes_uploaded)
        for s in sorted(snapshots, key=lambda s: (s.level, s.slot))
    )


def state_files(metadata: CheckpointMetadata) -> Iterator[StateFile]:
    """Every handle in the metadata, inline ones too."""
    for operator in metadata.operators:
        for subtask in operator.subtasks:
            yield from subtask_files(subtask)
    for channel in metadata.channels:
        yield channel.cells


def subtask_files(subtask: SubtaskSnapshot) -> Iterator[StateFile]:
    """The handles of one subtask: keyed state, and prepared output that lies in files."""
    if subtask.keyed is not None:
        yield from subtask.keyed.files
    yield from (item.file for item in subtask.prepared if item.file is not None)


def task_files(snapshot: TaskSnapshot) -> Iterator[StateFile]:
    """Every handle in one task's acknowledgement, inline ones too."""
    for subtask in snapshot.subtasks:
        yield from subtask_files(subtask)
    if snapshot.channels is not None:
        yield snapshot.channels.cells


def files_of(metadata: CheckpointMetadata) -> set[str]:
    """Paths of all files that the checkpoint needs; what is inline has none."""
    return {file.path for file in state_files(metadata) if file.path}


def shared_files_of(metadata: CheckpointMetadata) -> frozenset[str]:
    """Paths of its shared files: what tasks of the next checkpoint need not store again."""
    return frozenset(file.path for file in state_files(metadata) if file.shared and file.path)
