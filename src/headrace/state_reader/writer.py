"""Write a savepoint by hand: start a job with state from elsewhere, or repair what a checkpoint holds.

    SavepointWriter.new("counts").with_operator("per-user").keyed_state(COUNT, rows).savepoint.write("savepoints/first")

The state of an operator that is touched goes through a RocksDB database of its own in a temporary directory, with the
same checks as in a running job, and comes out in the canonical format: so it may be larger than memory, and both
backends restore it at any parallelism. All other operators are copied file by file, with their hashes checked.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec

from headrace.backends.rocksdb.backend import RocksDBBackend
from headrace.checkpoint.handles import KeyedSnapshot, OperatorStateShare, StateFile, StateShape, SubtaskSnapshot
from headrace.checkpoint.metadata.model import CheckpointMetadata, OperatorRecord
from headrace.checkpoint.places import find_place
from headrace.checkpoint.savepoint import SavepointDirectory
from headrace.checkpoint.storage.base import CheckpointStorage, FileStore, check_contents, storage_for
from headrace.errors import DamagedCheckpointError, JobDefinitionError, RestoreError
from headrace.state.backend import BackendContext
from headrace.state.descriptors import ListStateDescriptor, MapStateDescriptor, StateDescriptor, ValueStateDescriptor
from headrace.state.key_groups import DEFAULT_MAX_PARALLELISM
from headrace.state.keys import stored_form
from headrace.state.operator_state import OperatorStates
from headrace.types.kinds import ListType, MapType, RowType, TupleType, TypeInformation
from headrace.types.rows import row_class

_CHUNK = 1 << 20
_FOLDED = ("reducing", "aggregating")
_ATTEMPT = 1


class SavepointWriter:
    """Collects what the new savepoint is to hold; `write` makes it. Use once, and `close` if it is not written."""

    def __init__(self, base: CheckpointMetadata, source: CheckpointStorage | None) -> None:
        """Made by `new` or `from_existing`."""
        self._base = base
        self._source = source
        self._records = {record.uid: record for record in base.operators}
        self._touched: dict[str, OperatorWriter] = {}
        self._cleanup = ExitStack()

    @classmethod
    def new(cls, job_id: str) -> SavepointWriter:
        """An empty savepoint; `job_id` is for people, any job may restore it."""
        return cls(
            CheckpointMetadata(
                job_id=job_id,
                job_name=job_id,
                run=1,
                attempt=_ATTEMPT,
                checkpoint_id=1,
                kind="savepoint",
                mode="aligned",
                created_ms=0,
                duration_ms=0,
                operators=(),
            ),
            None,
        )

    @classmethod
    def from_existing(cls, path: str) -> SavepointWriter:
        """Everything that the checkpoint or savepoint at `path` holds, to be changed. The original stays as it is."""
        found = find_place(path).one()
        return cls(found.whole, found.storage)

    def with_operator(self, uid: str, max_parallelism: int | None = None, name: str | None = None) -> OperatorWriter:
        """The operator of that uid, as it was saved or new.

        `max_parallelism` must be that of the operator in the program (128 unless the program says otherwise).
        """
        known = self._touched.get(uid)
        record = self._records.get(uid)
        saved = known.max_parallelism if known is not None else record.max_parallelism if record is not None else None
        if saved is not None and max_parallelism not in (None, saved):
            raise JobDefinitionError(
                f"Operator {uid} has max parallelism {saved}, not {max_parallelism}: its keys would no longer be found."
            )
        if known is None:
            folder = Path(self._cleanup.enter_context(tempfile.TemporaryDirectory(prefix="headrace-savepoint-")))
            wanted = saved if saved is not None else max_parallelism or DEFAULT_MAX_PARALLELISM
            known = OperatorWriter(self, uid, wanted, record, self._source, folder, name)
            self._touched[uid] = known
        return known

    def remove_operator(self, uid: str) -> SavepointWriter:
        """Leave out all that the operator saved."""
        if self._records.pop(uid, None) is None and uid not in self._touched:
            known = ", ".join(sorted(self._records)) or "none"
            raise RestoreError(f"There is no operator with uid {uid} to remove. Operators: {known}.")
        writer = self._touched.pop(uid, None)
        if writer is not None:
            writer._close()
        return self

    def write(self, path: str) -> str:
        """Write the savepoint into the directory `path`, which must not hold one yet; gives its location."""
        storage = storage_for(path)
        directory = SavepointDirectory(storage)
        checkpoint_id = self._base.checkpoint_id
        try:
            if storage.exists("_metadata"):
                raise RestoreError(f"{path} holds a savepoint already. Name another directory; it was left as it is.")
            store = storage.file_store(directory.prefix_for(checkpoint_id, _ATTEMPT))
            copy = _Copier(self._source, store)
            operators = {uid: copy.record(r) for uid, r in self._records.items() if uid not in self._touched}
            operators |= {
                uid: copy.output(writer._record(checkpoint_id, store)) for uid, writer in self._touched.items()
            }
            records = tuple(operators[uid] for uid in sorted(operators))
            sizes = [f.size for r in records for s in r.subtasks if s.keyed is not None for f in s.keyed.files]
            metadata = msgspec.structs.replace(
                self._base,
                attempt=_ATTEMPT,
                kind="savepoint",
                created_ms=time.time_ns() // 1_000_000,
                duration_ms=0,
                operators=records,
                enumerators={uid: s for uid, s in self._base.enumerators.items() if uid in operators},
                channels=tuple(
                    msgspec.structs.replace(channel, cells=copy.file(channel.cells, "cells"))
                    for channel in self._base.channels
                ),
                bytes_total=sum(sizes),
                bytes_uploaded=sum(sizes),
                tasks=(),
            )
            directory.publish(metadata)
        finally:
            self.close()
        return storage.location

    def close(self) -> None:
        """Remove temporary files. `write` does it too."""
        for writer in self._touched.values():
            writer._close()
        self._cleanup.close()


class OperatorWriter:
    """The state of one operator. Each method gives the writer back, so that calls can be strung together."""

    def __init__(
        self,
        savepoint: SavepointWriter,
        uid: str,
        max_parallelism: int,
        record: OperatorRecord | None,
        source: CheckpointStorage | None,
        folder: Path,
        name: str | None,
    ) -> None:
        self.savepoint = savepoint
        self.max_parallelism = max_parallelism
        self._uid = uid
        self._record_before = record
        self._name = name or (record.name if record is not None else uid)
        self._folder = folder
        groups = range(max_parallelism)
        self._backend = RocksDBBackend(BackendContext(uid, 0, groups, max_parallelism, folder))
        self._kinds: dict[str, str] = {}
        """Kinds of states that are kept here as plain values: their functions are not known, and nothing is folded."""
        self._operator_states = OperatorStates(uid)
        self._replaced: set[str] = set()
        self._has_keyed = False
        if record is not None and source is not None:
            self._load(record, source)

    def _load(self, record: OperatorRecord, source: CheckpointStorage) -> None:
        snapshots = [self._unfolded(s.keyed) for s in record.subtasks if s.keyed is not None]
        self._has_keyed = bool(snapshots)
        if snapshots:
            self._backend.restore(snapshots, source.file_store("copy"))

    def _unfolded(self, keyed: KeyedSnapshot) -> KeyedSnapshot:
        shapes = []
        for shape in keyed.shapes:
            if shape.kind in _FOLDED:
                self._kinds[shape.name] = shape.kind
                shape = msgspec.structs.replace(shape, kind="value")
            shapes.append(shape)
        return msgspec.structs.replace(keyed, shapes=tuple(shapes))

    # Keyed state

    def keyed_state(
        self, descriptor: StateDescriptor, rows: Iterable[tuple[Any, Any]], *, namespace: bytes = b""
    ) -> OperatorWriter:
        """Set the state under each key of `rows`: pairs of a key and what the state is to hold there.

        That is a value; a list of elements for a list state; a dict for a map state; the folded value for a reducing
        state; the accumulator for an aggregating state. What was there under that key is replaced.
        """
        state = self._state(descriptor)
        state.set_namespace(namespace)
        put: Callable[[Any], None] = {"list": _put_list, "map": _put_map}.get(descriptor.KIND, _put_value)(state)
        context = self._backend.key_context
        for key, value in rows:
            context.key = stored_form(key)
            put(value)
        context.key = None
        return self

    def keyed_state_from_dataframe(
        self, descriptor: StateDescriptor, dataframe: Any, *, key: str = "key", value: str = "value"
    ) -> OperatorWriter:
        """The same from two columns of a Spark DataFrame, read partition by partition through the driver.

        Keys must be unique: of several rows with one key the last one stays.
        """
        convert = _from_spark(_whole_type(descriptor))
        rows = dataframe.select(key, value).toLocalIterator()
        return self.keyed_state(descriptor, ((_key_from_spark(row[0]), convert(row[1])) for row in rows))

    def remove_key(self, descriptor: StateDescriptor, key: Any, *, namespace: bytes = b"") -> OperatorWriter:
        """Forget what the state holds under one key."""
        state = self._state(descriptor)
        state.set_namespace(namespace)
        self._backend.key_context.key = stored_form(key)
        state.clear()
        self._backend.key_context.key = None
        return self

    def timer(self, domain: str, time_ms: int, key: Any, *, namespace: bytes = b"") -> OperatorWriter:
        """Register a timer of `"event"` or `"processing"` time."""
        self._has_keyed = True
        self._backend.timers(domain).register(time_ms, stored_form(key), namespace)
        return self

    def remove_timer(self, domain: str, time_ms: int, key: Any, *, namespace: bytes = b"") -> OperatorWriter:
        """Take a timer away; nothing happens if there is none."""
        self._backend.timers(domain).delete(time_ms, stored_form(key), namespace)
        return self

    def _state(self, descriptor: StateDescriptor) -> Any:
        self._has_keyed = True
        if descriptor.KIND not in _FOLDED:
            return self._backend.state(descriptor)
        known = self._kinds.setdefault(descriptor.name, descriptor.KIND)
        if known != descriptor.KIND:
            raise JobDefinitionError(
                f'State "{descriptor.name}" of operator "{self._uid}" is {known}, not {descriptor.KIND}.'
            )
        plain = ValueStateDescriptor(descriptor.name, descriptor.element_type)
        if descriptor.active_ttl is not None:
            plain.enable_time_to_live(descriptor.active_ttl)
        return self._backend.state(plain)

    # Operator state

    def list_state(self, descriptor: ListStateDescriptor, elements: Iterable[Any]) -> OperatorWriter:
        """Set an operator list state; a restore deals the elements out to all subtasks."""
        self._replaced.add(descriptor.name)
        self._operator_states.get_list_state(descriptor).update(elements)
        return self

    def union_list_state(self, descriptor: ListStateDescriptor, elements: Iterable[Any]) -> OperatorWriter:
        """Set a union list state; a restore gives all elements to every subtask."""
        self._replaced.add(descriptor.name)
        self._operator_states.get_union_list_state(descriptor).update(elements)
        return self

    def broadcast_state(self, descriptor: MapStateDescriptor, entries: Mapping[Any, Any]) -> OperatorWriter:
        """Set a broadcast state."""
        self._replaced.add(descriptor.name)
        state = self._operator_states.get_broadcast_state(descriptor)
        state.clear()
        for key, value in entries.items():
            state.put(key, value)
        return self

    # Writing

    def _record(self, checkpoint_id: int, store: FileStore) -> OperatorRecord:
        """The operator as one subtask with all key groups; a restore deals them out again."""
        before = self._record_before
        keyed = None
        if self._has_keyed:
            keyed = self._refolded(self._backend.snapshot(checkpoint_id, canonical=True).write(store))
        new = self._operator_states.snapshot()
        if before is None:
            subtask = SubtaskSnapshot(self._uid, 0, 1, self.max_parallelism, keyed=keyed, operator_state=new)
            return OperatorRecord(self._uid, self._name, 1, self.max_parallelism, (subtask,))
        # Everything but keyed state belongs to single subtasks, so their number stays.
        first, *others = before.subtasks
        subtasks = [
            msgspec.structs.replace(first, keyed=keyed, operator_state=(*self._kept(first.operator_state), *new)),
            *(
                msgspec.structs.replace(
                    other,
                    keyed=None,
                    operator_state=(
                        *self._kept(other.operator_state),
                        # Every subtask has a copy of broadcast state.
                        *(share for share in new if share.shape.kind == "broadcast"),
                    ),
                )
                for other in others
            ),
        ]
        return msgspec.structs.replace(before, name=self._name, subtasks=tuple(subtasks))

    def _kept(self, shares: tuple[OperatorStateShare, ...]) -> Iterator[OperatorStateShare]:
        return (share for share in shares if share.shape.name not in self._replaced)

    def _refolded(self, keyed: KeyedSnapshot) -> KeyedSnapshot:
        def shape_of(shape: StateShape) -> StateShape:
            kind = self._kinds.get(shape.name) if shape.kind == "value" else None
            return shape if kind is None else msgspec.structs.replace(shape, kind=kind)

        return msgspec.structs.replace(keyed, shapes=tuple(map(shape_of, keyed.shapes)))

    def _close(self) -> None:
        self._backend.close()
        shutil.rmtree(self._folder, ignore_errors=True)


class _Copier:
    """Copies the files of operators that nobody touched."""

    def __init__(self, source: CheckpointStorage | None, target: FileStore) -> None:
        self._source = None if source is None else source.file_store("copy")
        self._location = "" if source is None else source.location
        self._target = target

    def record(self, record: OperatorRecord) -> OperatorRecord:
        return msgspec.structs.replace(record, subtasks=tuple(map(self._subtask, record.subtasks)))

    def _subtask(self, subtask: SubtaskSnapshot) -> SubtaskSnapshot:
        subtask = self._with_output(subtask)
        if subtask.keyed is None:
            return subtask
        files = tuple(self.file(file, f"keyed-{subtask.subtask}") for file in subtask.keyed.files)
        return msgspec.structs.replace(subtask, keyed=msgspec.structs.replace(subtask.keyed, files=files))

    def output(self, record: OperatorRecord) -> OperatorRecord:
        """Only the prepared output of an operator whose state was written anew."""
        return msgspec.structs.replace(record, subtasks=tuple(map(self._with_output, record.subtasks)))

    def _with_output(self, subtask: SubtaskSnapshot) -> SubtaskSnapshot:
        items = tuple(
            item if item.file is None else msgspec.structs.replace(item, file=self.file(item.file, "prepared"))
            for item in subtask.prepared
        )
        return msgspec.structs.replace(subtask, prepared=items)

    def file(self, file: StateFile, name: str) -> StateFile:
        """The same bytes in the new savepoint, which shares nothing with anything outside."""
        if self._source is None:
            raise DamagedCheckpointError("There is nothing to copy files from.")
        with self._source.open(file) as stream:
            copied = self._target.write(name, iter(lambda: stream.read(_CHUNK), b""))
        check_contents(file, copied.size, copied.sha256, f"{self._location}/{file.path}")
        return copied


def _put_value(state: Any) -> Callable[[Any], None]:
    return state.update  # type: ignore[no-any-return]


def _put_list(state: Any) -> Callable[[Any], None]:
    return state.update  # type: ignore[no-any-return]


def _put_map(state: Any) -> Callable[[Any], None]:
    def put(entries: Mapping[Any, Any]) -> None:
        state.clear()
        state.put_all(entries)

    return put


def _whole_type(descriptor: StateDescriptor) -> TypeInformation:
    """The type of what a state holds under one key."""
    if isinstance(descriptor, MapStateDescriptor):
        return MapType(descriptor.key_type, descriptor.element_type)
    return ListType(descriptor.element_type) if isinstance(descriptor, ListStateDescriptor) else descriptor.element_type


def _from_spark(type_info: TypeInformation) -> Callable[[Any], Any]:
    """From what Spark gives for a column to what a state of that type takes: structs to rows and tuples."""
    match type_info:
        case RowType(names=names, types=types):
            parts = [_from_spark(t) for t in types]
            make = row_class(tuple(names))
            return lambda v: None if v is None else make(*[p(x) for p, x in zip(parts, v, strict=True)])
        case TupleType(types=types):
            tuple_parts = [_from_spark(t) for t in types]
            return lambda v: None if v is None else tuple(p(x) for p, x in zip(tuple_parts, v, strict=True))
        case ListType(element=element) if not type_info.is_bytes:
            one = _from_spark(element)
            return lambda v: None if v is None else [one(x) for x in v]
        case MapType(key=key, value=value):
            key_part, value_part = _from_spark(key), _from_spark(value)
            return lambda v: None if v is None else {key_part(k): value_part(x) for k, x in v.items()}
    return lambda v: bytes(v) if isinstance(v, bytearray) else v


def _key_from_spark(key: Any) -> Any:
    """A struct as a tuple of its fields, as `key_by` sees a tuple."""
    if isinstance(key, bytearray):
        return bytes(key)
    return tuple(map(_key_from_spark, key)) if isinstance(key, tuple) else key
