"""What a task hands to the coordinator at a checkpoint, and what `_metadata` keeps of it.

Everything here travels over the control plane and into `_metadata` as plain msgpack: no class
names to import, no code. Structs are frozen; a field that is later added must have a default, so
that older files still decode.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import msgspec

CheckpointId: TypeAlias = int
"""Grows by one with every checkpoint or savepoint of a job, over all its attempts."""

AttemptId: TypeAlias = int
"""Numbers the lives of a job; what an older attempt writes is never taken for the newer one's."""


class HistoryPoint(NamedTuple):
    """A moment in the life of a job. Only moments of one history can be put in order."""

    history: str
    """The job directory whose numbers these are."""
    attempt: AttemptId
    checkpoint_id: CheckpointId


class StateFile(msgspec.Struct, frozen=True, array_like=True):
    """Bytes that belong to a checkpoint: a file under the job's directory, or the bytes themselves."""

    size: int
    sha256: str
    path: str = ""
    """Relative to the root of the job's storage, with forward slashes; empty when inline."""
    inline: bytes | None = None
    """Small contents travel inside `_metadata`; also the only form of coordinator-memory storage."""
    shared: bool = False
    """Named by content and possibly used by several checkpoints; removed by set difference only."""
    offset: int = 0
    """Where it begins in the object at `path`, if that is a pack."""
    pack_size: int = 0
    """Size of the stored object of which this is a part; 0: an object of its own. See `checkpoint.packs`."""


class RestoredBytes(msgspec.Struct, frozen=True, array_like=True):
    """Where restored state came from. What travels inside `_metadata` is in neither number."""

    local: int = 0
    """From copies on the task's own host; see `checkpoint.local_copies`."""
    from_store: int = 0
    damaged: int = 0
    """Copies that were found and could not be used."""

    def as_json(self) -> dict[str, int]:
        """Plain data for events and the status file."""
        return {"local": self.local, "from_store": self.from_store, "damaged": self.damaged}

    def __add__(self, other: RestoredBytes) -> RestoredBytes:
        return RestoredBytes(self.local + other.local, self.from_store + other.from_store, self.damaged + other.damaged)


class StateShape(msgspec.Struct, frozen=True):
    """Name, kind and type of one state, so that a changed program is refused before it reads a byte."""

    name: str
    kind: str
    """value | list | map | reducing | aggregating | timers | operator-list | operator-union | broadcast"""
    type: str
    """The text form of its TypeInformation, e.g. `DOUBLE` or `ROW<id STRING, temperature DOUBLE>`."""
    codec: str = "msgpack"


class KeyedSnapshot(msgspec.Struct, frozen=True):
    """Keyed state and timers of one subtask, for the key groups `first_group..last_group` inclusive."""

    format: str
    """`table` (heap, savepoints: one file ordered by key group) or `rocksdb` (SST files of one database)."""
    first_group: int
    last_group: int
    shapes: tuple[StateShape, ...]
    files: tuple[StateFile, ...]
    details: bytes = b""
    """Msgpack that only the backend reads: group offsets of a table, file names of a database."""


class PreparedItem(msgspec.Struct, frozen=True, array_like=True):
    """Output of a sink that is durable but not yet visible; committed when its checkpoint completes."""

    checkpoint_id: int
    payload: bytes
    """What the sink's committer needs, in the sink's own msgpack encoding. Empty where it lies in `file`."""
    file: StateFile | None = None
    """The payload of an item too large for `_metadata`: a file of the first checkpoint that holds the item, and one
    shared file in all later ones."""


class OperatorStateShare(msgspec.Struct, frozen=True):
    """One named operator state of one subtask: an ordered list of encoded elements."""

    shape: StateShape
    elements: tuple[bytes, ...]


class SubtaskSnapshot(msgspec.Struct, frozen=True):
    """All that one subtask of one operator saved at one barrier."""

    uid: str
    subtask: int
    parallelism: int
    max_parallelism: int
    keyed: KeyedSnapshot | None = None
    operator_state: tuple[OperatorStateShare, ...] = ()
    splits: tuple[bytes, ...] = ()
    """Source splits with the position after the last record that belongs to the checkpoint."""
    prepared: tuple[PreparedItem, ...] = ()
    watermark: int | None = None
    ended: bool = False
    """Its input has ended and whatever it emits at the end of input was emitted."""
    extra: bytes = b""
    """Msgpack that only the operator itself reads (e.g. a writer's counter)."""


class ChannelSnapshot(msgspec.Struct, frozen=True):
    """Cells in flight on the channels of one task at an unaligned checkpoint, in order of arrival."""

    level: int
    slot: int
    cells: StateFile
    count: int
    edges: tuple[int, ...] = ()
    """Edges of the job that have records among them."""


class EdgeRecord(msgspec.Struct, frozen=True):
    """An edge of the program, by what it connects. Records in flight find their way back by it."""

    number: int
    """The edge's number in the cells of this checkpoint. Another program numbers its edges differently."""
    source: str
    """Uid of the operator that sends."""
    output: str | None
    """Name of the side output; None for the main output."""
    target: str
    """Uid of the operator that receives."""
    input: int
    """Which input of the target it feeds."""
    route: str
    """How records are routed: the name of the stream method, e.g. `key_by`."""
    fixed: bool = False
    """A record on it belongs to the one subtask it was sent to."""
    key_fields: tuple[str, ...] = ()
    """The fields that `key_by` uses, where they are known."""
    type: str | None = None
    """The text form of the records' TypeInformation; None if untyped."""
    chained: bool = False
    """Both ends run in one task: nothing is in flight on it, unless an earlier program saved it."""
    level: int = 0
    """The level of the target."""
    slots: tuple[int, ...] = ()
    """The slot of each subtask of the target on that level."""


class RestoredEdge(msgspec.Struct, frozen=True, array_like=True):
    """Where records that were in flight on an edge of the saved program go in the program that now runs."""

    saved: int
    """The edge's number in the cells of the checkpoint."""
    edge: int | None
    """Its number in the program; None: its target is gone, and its records may be left behind."""
    dealt: bool = False
    """The target has other subtasks than before: records are dealt out again, by key or in turn."""


class TaskSnapshot(msgspec.Struct, frozen=True):
    """The acknowledgement of one task: the snapshots of all its subtasks, taken at one moment."""

    level: int
    slot: int
    subtasks: tuple[SubtaskSnapshot, ...]
    channels: ChannelSnapshot | None = None
    alignment_ms: int = 0
    sync_ms: int = 0
    async_ms: int = 0
    bytes_total: int = 0
    bytes_uploaded: int = 0
