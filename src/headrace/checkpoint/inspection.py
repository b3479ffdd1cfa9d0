"""What a checkpoint holds, in numbers: for tables, for JSON, and to compare one with the one before.

Nothing here opens a state file; everything is told by `_metadata`.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from headrace.checkpoint.handles import StateFile, SubtaskSnapshot
from headrace.checkpoint.metadata.codec import encode_metadata
from headrace.checkpoint.metadata.model import (
    CheckpointMetadata,
    OperatorRecord,
    TaskTiming,
    state_files,
    subtask_files,
)
from headrace.checkpoint.places import FoundCheckpoint


class Bytes(msgspec.Struct, frozen=True):
    """Sizes of a set of state files."""

    total: int
    files: int
    """How many lie in storage by themselves; what is inline does not."""
    inline: int
    """Bytes that travel inside `_metadata`."""
    shared: int
    """Bytes of files named by content, which other checkpoints may use too."""


class StateReport(msgspec.Struct, frozen=True):
    """One state of one operator."""

    name: str
    kind: str
    type: str
    codec: str = "msgpack"
    elements: int | None = None
    """Of operator state, over all subtasks; keyed state is not counted without reading it."""


class OperatorReport(msgspec.Struct, frozen=True):
    """One operator of a checkpoint."""

    uid: str
    name: str
    parallelism: int
    max_parallelism: int
    formats: tuple[str, ...]
    bytes: Bytes
    keyed: tuple[StateReport, ...]
    operator_state: tuple[StateReport, ...]
    splits: int
    prepared: int
    watermark_ms: int | None
    ended: int
    """How many subtasks had come to the end of their input."""
    subtask_bytes: tuple[int, ...]
    """Keyed state by subtask: an uneven row shows skewed keys."""


class CheckpointReport(msgspec.Struct, frozen=True):
    """One checkpoint or savepoint."""

    path: str
    status: str
    """`complete`, `superseded` (published by an attempt that had been replaced), or `damaged`."""
    checkpoint_id: int
    run: int
    problem: str | None = None
    job_id: str = ""
    job_name: str = ""
    attempt: int = 0
    kind: str = ""
    mode: str = ""
    created_ms: int = 0
    duration_ms: int = 0
    alignment_ms: int = 0
    """The longest of all tasks; so are the next two."""
    sync_ms: int = 0
    async_ms: int = 0
    bytes: Bytes = Bytes(0, 0, 0, 0)
    bytes_uploaded: int = 0
    metadata_bytes: int = 0
    cells_in_flight: int = 0
    bytes_in_flight: int = 0
    operators: tuple[OperatorReport, ...] = ()
    tasks: tuple[TaskTiming, ...] = ()


class OperatorChange(msgspec.Struct, frozen=True):
    """How the state of one operator differs from the checkpoint before."""

    uid: str
    bytes_before: int
    bytes_now: int


class Change(msgspec.Struct, frozen=True):
    """What a checkpoint has in common with an earlier one. Files are compared by name, inline bytes by hash."""

    since: int
    """The id of the earlier one."""
    new_files: int
    new_bytes: int
    same_files: int
    same_bytes: int
    gone_files: int
    gone_bytes: int
    operators: tuple[OperatorChange, ...]
    """Only those that differ in size, appeared or vanished."""


def report_of(found: FoundCheckpoint) -> CheckpointReport:
    """All there is to say about one checkpoint."""
    checkpoint, metadata = found.checkpoint, found.checkpoint.metadata
    if metadata is None:
        problem = str(checkpoint.problem)
        return CheckpointReport(found.path, "damaged", checkpoint.checkpoint_id, found.run, problem)
    return CheckpointReport(
        path=found.path,
        status="complete" if checkpoint.counts else "superseded",
        checkpoint_id=metadata.checkpoint_id,
        run=found.run or metadata.run,
        job_id=metadata.job_id,
        job_name=metadata.job_name,
        attempt=metadata.attempt,
        kind=metadata.kind,
        mode=metadata.mode,
        created_ms=metadata.created_ms,
        duration_ms=metadata.duration_ms,
        alignment_ms=max((task.alignment_ms for task in metadata.tasks), default=0),
        sync_ms=max((task.sync_ms for task in metadata.tasks), default=0),
        async_ms=max((task.async_ms for task in metadata.tasks), default=0),
        bytes=_bytes(state_files(metadata)),
        bytes_uploaded=metadata.bytes_uploaded,
        metadata_bytes=len(encode_metadata(metadata)),
        cells_in_flight=sum(channel.count for channel in metadata.channels),
        bytes_in_flight=sum(channel.cells.size for channel in metadata.channels),
        operators=tuple(map(_operator, metadata.operators)),
        tasks=metadata.tasks,
    )


def change_since(before: CheckpointMetadata, now: CheckpointMetadata) -> Change:
    """What `now` stored anew, shares with `before`, and no longer needs of it."""
    old, new = _by_name(state_files(before)), _by_name(state_files(now))
    old_sizes = {record.uid: _bytes(_files_of(record)).total for record in before.operators}
    new_sizes = {record.uid: _bytes(_files_of(record)).total for record in now.operators}
    return Change(
        since=before.checkpoint_id,
        new_files=len(new.keys() - old.keys()),
        new_bytes=sum(new[name] for name in new.keys() - old.keys()),
        same_files=len(new.keys() & old.keys()),
        same_bytes=sum(new[name] for name in new.keys() & old.keys()),
        gone_files=len(old.keys() - new.keys()),
        gone_bytes=sum(old[name] for name in old.keys() - new.keys()),
        operators=tuple(
            OperatorChange(uid, old_sizes.get(uid, 0), new_sizes.get(uid, 0))
            for uid in sorted(old_sizes.keys() | new_sizes.keys())
            if old_sizes.get(uid) != new_sizes.get(uid)
        ),
    )


def predecessor_of(found: FoundCheckpoint, all_found: Iterable[FoundCheckpoint]) -> FoundCheckpoint | None:
    """The newest whole checkpoint of the same run before this one."""
    earlier = [
        other
        for other in all_found
        if other.run == found.run
        and other.checkpoint.metadata is not None
        and other.checkpoint.counts
        and other.checkpoint.checkpoint_id < found.checkpoint.checkpoint_id
    ]
    return max(earlier, key=lambda other: other.checkpoint.checkpoint_id, default=None)


def _operator(record: OperatorRecord) -> OperatorReport:
    subtasks = record.subtasks
    marks = [subtask.watermark for subtask in subtasks if subtask.watermark is not None]
    return OperatorReport(
        uid=record.uid,
        name=record.name,
        parallelism=record.parallelism,
        max_parallelism=record.max_parallelism,
        formats=tuple(sorted({subtask.keyed.format for subtask in subtasks if subtask.keyed is not None})),
        bytes=_bytes(_files_of(record)),
        keyed=_keyed_states(subtasks),
        operator_state=_operator_states(subtasks),
        splits=sum(len(subtask.splits) for subtask in subtasks),
        prepared=sum(len(subtask.prepared) for subtask in subtasks),
        watermark_ms=min(marks) if len(marks) == len(subtasks) and marks else None,
        ended=sum(subtask.ended for subtask in subtasks),
        subtask_bytes=tuple(sum(file.size for file in _keyed_files(subtask)) for subtask in subtasks),
    )


def _keyed_states(subtasks: tuple[SubtaskSnapshot, ...]) -> tuple[StateReport, ...]:
    shapes = {shape: None for subtask in subtasks if subtask.keyed is not None for shape in subtask.keyed.shapes}
    return tuple(StateReport(shape.name, shape.kind, shape.type, shape.codec) for shape in shapes)


def _operator_states(subtasks: tuple[SubtaskSnapshot, ...]) -> tuple[StateReport, ...]:
    counts: dict[str, StateReport] = {}
    for subtask in subtasks:
        for share in subtask.operator_state:
            shape = share.shape
            known = counts.get(shape.name)
            elements = len(share.elements) + (known.elements or 0 if known is not None else 0)
            counts[shape.name] = StateReport(shape.name, shape.kind, shape.type, shape.codec, elements)
    return tuple(counts.values())


def _keyed_files(subtask: SubtaskSnapshot) -> tuple[StateFile, ...]:
    return subtask.keyed.files if subtask.keyed is not None else ()


def _files_of(record: OperatorRecord) -> list[StateFile]:
    return [file for subtask in record.subtasks for file in subtask_files(subtask)]


def _bytes(files: Iterable[StateFile]) -> Bytes:
    # One shared file may be named by several subtasks; it takes its space once.
    found = {(file.path or id(file), file.offset): file for file in files}.values()
    return Bytes(
        total=sum(file.size for file in found),
        files=len({file.path for file in found if file.path}),
        inline=sum(file.size for file in found if not file.path),
        shared=sum(file.size for file in found if file.shared),
    )


def _by_name(files: Iterable[StateFile]) -> dict[str, int]:
    return {_name(file): file.size for file in files}


def _name(file: StateFile) -> str:
    if not file.path:
        return f"inline:{file.sha256}"
    return f"{file.path}@{file.offset}" if file.pack_size else file.path
