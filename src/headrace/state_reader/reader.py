"""Read the state of one checkpoint or savepoint."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from headrace.backends.table import timers_of_rows
from headrace.checkpoint.handles import StateShape
from headrace.checkpoint.metadata.model import CheckpointMetadata, OperatorRecord
from headrace.checkpoint.places import find_place
from headrace.checkpoint.storage.base import CheckpointStorage
from headrace.errors import RestoreError
from headrace.state.key_groups import key_group
from headrace.state.keys import raw_key, stored_form
from headrace.state_reader.entries import EntryDecoder, KeyedEntry, OperatorElement, StateInfo, TimerEntry
from headrace.state_reader.pieces import Piece, pieces_of, read_piece

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.types.information import TypeLike

OPERATOR_KINDS = ("operator-list", "operator-union", "broadcast")


class StateReader:
    """Keyed state, operator state and timers of the checkpoint or savepoint at `path`; of a job, of its newest.

    Nothing of the job runs, and nothing is written. Files are read as the entries are asked for, and checked then.
    `allow_pickle`: read states that the program keeps pickled, too; only for checkpoints of your own.
    """

    def __init__(self, path: str, *, allow_pickle: bool = False) -> None:
        found = find_place(path).one()
        self.path = f"{found.storage.location}/{found.checkpoint.path}".removesuffix("/_metadata")
        """Absolute, so that it means the same in another process."""
        self.metadata: CheckpointMetadata = found.whole
        self.storage: CheckpointStorage = found.storage
        self.allow_pickle = allow_pickle
        self._store = self.storage.file_store("read")

    def states(self) -> list[StateInfo]:
        """Every state of every operator, timers included."""
        found: dict[tuple[str, StateShape], StateInfo] = {}
        for record in self.metadata.operators:
            for subtask in record.subtasks:
                shapes = [share.shape for share in subtask.operator_state]
                for shape in [*(subtask.keyed.shapes if subtask.keyed is not None else ()), *shapes]:
                    found[record.uid, shape] = StateInfo(
                        record.uid, record.name, shape.name, shape.kind, shape.type, shape.codec
                    )
        return list(found.values())

    def keyed(self, uid: str, state: str, *, key: Any = None, groups: range | None = None) -> Iterator[KeyedEntry]:
        """All entries of a keyed state, by key group; only those of one `key` or of some key `groups` if asked for."""
        record = self.operator(uid)
        stored = None if key is None else stored_form(key)
        if stored is not None:
            group = key_group(stored, record.max_parallelism)
            groups = range(group, group + 1)
        decoder = self.decoder(uid, state)
        for piece in pieces_of(record, 1, groups):
            for _, rows in read_piece(record, piece, self._store, state):
                if stored is not None and stored not in rows.keys:
                    continue
                for entry in decoder.entries(rows):
                    if stored is None or stored_form(entry.key) == stored:
                        yield entry

    def timers(self, uid: str, domain: str = "event") -> Iterator[TimerEntry]:
        """All registered timers of `"event"` or `"processing"` time; sorted by time within a key group."""
        record = self.operator(uid)
        self._shape(record, domain, ("timers",))
        for piece in pieces_of(record, 1):
            for _, rows in read_piece(record, piece, self._store, domain):
                for time_ms, key, namespace in timers_of_rows(rows):
                    yield TimerEntry(raw_key(key), namespace, time_ms)

    def operator_state(self, uid: str, state: str) -> Iterator[OperatorElement]:
        """All elements of an operator state by subtask; of broadcast state, one copy."""
        record = self.operator(uid)
        shape = self._shape(record, state, OPERATOR_KINDS)
        decoder = EntryDecoder(shape, allow_pickle=self.allow_pickle)
        for subtask in record.subtasks:
            for share in subtask.operator_state:
                if share.shape.name == state:
                    yield from decoder.elements(share, subtask.subtask)
                    if shape.kind == "broadcast":
                        return

    def batches(self, uid: str, state: str, *, key_type: TypeLike | None = None) -> Iterator[pa.RecordBatch]:
        """A keyed state as Arrow batches, by key group; see `headrace.state_reader.frames` for the columns."""
        from headrace.state_reader.frames import FrameShape

        shape = FrameShape.of(self, uid, state, key_type)
        for piece in pieces_of(self.operator(uid), 1):
            yield from self.piece_batches(shape, piece)

    def piece_batches(self, shape: Any, piece: Piece) -> Iterator[pa.RecordBatch]:
        """The Arrow batches of one piece; `shape` is a `FrameShape`."""
        record = self.operator(shape.uid)
        decoder = self.decoder(shape.uid, shape.state)
        for _, rows in read_piece(record, piece, self._store, shape.state):
            yield shape.batch(list(decoder.entries(rows)), record.max_parallelism)

    def dataframe(self, spark: Any, uid: str, state: str, *, key_type: TypeLike | None = None) -> Any:
        """A keyed state as a Spark DataFrame, read by Spark's tasks in parallel, by key group.

        The storage must be reachable from every executor. Read lazily, as any DataFrame: each action reads it again.
        """
        from headrace.state_reader.frames import read_dataframe

        return read_dataframe(spark, self, uid, state, key_type)

    # Looking up

    def operator(self, uid: str) -> OperatorRecord:
        """The record of an operator; `RestoreError` names those there are."""
        for record in self.metadata.operators:
            if record.uid == uid:
                return record
        known = ", ".join(sorted(record.uid for record in self.metadata.operators))
        raise RestoreError(f"{self.path} has no operator with uid {uid}. It has: {known}.")

    def decoder(self, uid: str, state: str) -> EntryDecoder:
        """How entries of a keyed state are decoded."""
        kinds = ("value", "list", "map", "reducing", "aggregating")
        return EntryDecoder(self._shape(self.operator(uid), state, kinds), allow_pickle=self.allow_pickle)

    def kind_of(self, uid: str, state: str) -> str:
        """The kind of a state; `RestoreError` if there is none of that name."""
        return self._shape(self.operator(uid), state, ()).kind

    def _shape(self, record: OperatorRecord, state: str, kinds: tuple[str, ...]) -> StateShape:
        named: dict[str, StateShape] = {}
        for subtask in record.subtasks:
            for shape in [
                *(share.shape for share in subtask.operator_state),
                *(subtask.keyed.shapes if subtask.keyed is not None else ()),
            ]:
                named[shape.name] = shape
        found = named.get(state)
        if found is None:
            known = ", ".join(sorted(named)) or "none"
            raise RestoreError(f'Operator {record.uid} has no state "{state}" in {self.path}. Its states: {known}.')
        if kinds and found.kind not in kinds:
            ways = {"timers": "timers()", **dict.fromkeys(OPERATOR_KINDS, "operator_state()")}
            raise RestoreError(
                f'"{state}" of operator {record.uid} is of kind {found.kind}. Read it with '
                f"{ways.get(found.kind, 'keyed()')}."
            )
        return found
