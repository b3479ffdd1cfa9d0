"""Write a savepoint by hand: start a job with state from elsewhere, or repair what a checkpoint holds.

    SavepointWriter.new("counts").with_operator("per-user").keyed_state(COUNT, rows).savepoint.write("savepoints/first")

The state of an operator that is touched goes through a database of its own (`keyed_part.py`) and comes out in the
canonical format, which both backends restore at any parallelism. What comes from a DataFrame is written by Spark's
tasks (`from_frames.py`). All other operators are copied file by file, with their hashes checked.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec

from headrace.checkpoint.handles import KeyedSnapshot, OperatorStateShare, StateFile, SubtaskSnapshot
from headrace.checkpoint.metadata.model import CheckpointMetadata, OperatorRecord, files_of, state_files
from headrace.checkpoint.places import find_place
from headrace.checkpoint.savepoint import SavepointDirectory
from headrace.checkpoint.storage.base import CheckpointStorage, FileStore, check_contents, storage_for
from headrace.clocks import wall_ms
from headrace.errors import DamagedCheckpointError, JobDefinitionError, RestoreError
from headrace.state.descriptors import ListStateDescriptor, MapStateDescriptor, StateDescriptor
from headrace.state.key_groups import DEFAULT_MAX_PARALLELISM
from headrace.state.operator_state import OperatorStates
from headrace.state_reader.from_frames import Earlier, Frame, SharedWork, write_shares
from headrace.state_reader.keyed_part import KeyedPart

_CHUNK = 1 << 20
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
        if any(writer._frames for writer in self._touched.values()):
            from headrace.runtime.job.exclusive_create import offer_exclusive_create

            # There is a Spark application: so its JVM may create `_metadata` where pyarrow cannot.
            offer_exclusive_create()
        try:
            if storage.exists("_metadata"):
                raise RestoreError(f"{path} holds a savepoint already. Name another directory; it was left as it is.")
            target = _Target(storage, directory.prefix_for(checkpoint_id, _ATTEMPT), checkpoint_id)
            copy = _Copier(self._source, target.store)
            operators = {uid: copy.record(r) for uid, r in self._records.items() if uid not in self._touched}
            # Records in flight know how many subtasks there were.
            fixed = any(channel.count for channel in self._base.channels)
            operators |= {
                uid: copy.output(writer._record(target, fixed=fixed)) for uid, writer in self._touched.items()
            }
            records = tuple(operators[uid] for uid in sorted(operators))
            metadata = msgspec.structs.replace(
                self._base,
                attempt=_ATTEMPT,
                kind="savepoint",
                created_ms=wall_ms(),
                duration_ms=0,
                operators=records,
                enumerators={uid: s for uid, s in self._base.enumerators.items() if uid in operators},
                channels=tuple(
                    msgspec.structs.replace(channel, cells=copy.file(channel.cells, "cells"))
                    for channel in self._base.channels
                ),
                tasks=(),
            )
            size = sum(file.size for file in state_files(metadata))
            metadata = msgspec.structs.replace(metadata, bytes_total=size, bytes_uploaded=size)
            target.sweep(files_of(metadata))
            directory.publish(metadata)
        finally:
            self.close()
        return storage.location

    def close(self) -> None:
        """Remove temporary files. `write` does it too."""
        for writer in self._touched.values():
            writer._close()
        self._cleanup.close()


class _Target:
    """The new savepoint, before it is published."""

    def __init__(self, storage: CheckpointStorage, prefix: str, checkpoint_id: int) -> None:
        self.storage = storage
        self.prefix = prefix
        self.checkpoint_id = checkpoint_id
        self.store: FileStore = storage.file_store(prefix)

    def sweep(self, named: set[str]) -> None:
        """Remove what lies there and is not part of it: in-between files, and those of tasks that Spark ran again."""
        for path in self.storage.list(f"{self.prefix}/"):
            if path not in named:
                self.storage.delete(path)


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
        self._source = source
        self._keyed_here: KeyedPart | None = None
        """What of its keyed state the driver has in its hands; None as long as nobody asked for any."""
        self._frames: list[Frame] = []
        """States that Spark's tasks write in the end."""
        self._operator_states = OperatorStates(uid)
        self._replaced: set[str] = set()

    @property
    def _saved(self) -> tuple[KeyedSnapshot, ...]:
        record = self._record_before
        return () if record is None else tuple(s.keyed for s in record.subtasks if s.keyed is not None)

    @property
    def _keyed(self) -> KeyedPart:
        if self._keyed_here is None:
            groups = range(self.max_parallelism)
            self._keyed_here = KeyedPart(self._uid, 0, groups, self.max_parallelism, self._folder)
            if self._saved and self._source is not None:
                self._keyed_here.load(self._saved, self._source.file_store("copy"))
        return self._keyed_here

    # Keyed state

    def keyed_state(
        self, descriptor: StateDescriptor, rows: Iterable[tuple[Any, Any]], *, namespace: bytes = b""
    ) -> OperatorWriter:
        """Set the state under each key of `rows`: pairs of a key and what the state is to hold there.

        That is a value; a list of elements for a list state; a dict for a map state; the folded value for a reducing
        state; the accumulator for an aggregating state. What was there under that key is replaced.
        """
        self._take_over(descriptor.name)
        self._keyed.put(descriptor, rows, namespace)
        return self

    def keyed_state_from_dataframe(
        self, descriptor: StateDescriptor, dataframe: Any, *, key: str = "key", value: str = "value"
    ) -> OperatorWriter:
        """The same from two columns of a Spark DataFrame, by Spark's tasks: each writes a share of the key groups.

        Keys must be unique: of several rows with one key any one stays. The DataFrame is read when the savepoint is
        written, so what does not fit the state is refused then. Where the savepoint goes, and what it is made from,
        must be reachable from every executor.
        """
        self._take_over(descriptor.name)
        self._frames.append(Frame(descriptor, dataframe.select(key, value)))
        return self

    def _take_over(self, state: str) -> None:
        """What comes later replaces what came before: a DataFrame that is followed by more is read here and now."""
        for frame in [frame for frame in self._frames if frame.descriptor.name == state]:
            self._frames.remove(frame)
            self._keyed.put(frame.descriptor, frame.rows())

    def remove_key(self, descriptor: StateDescriptor, key: Any, *, namespace: bytes = b"") -> OperatorWriter:
        """Forget what the state holds under one key."""
        self._take_over(descriptor.name)
        self._keyed.remove(descriptor, key, namespace)
        return self

    def timer(self, domain: str, time_ms: int, key: Any, *, namespace: bytes = b"") -> OperatorWriter:
        """Register a timer of `"event"` or `"processing"` time."""
        self._keyed.register_timer(domain, time_ms, key, namespace)
        return self

    def remove_timer(self, domain: str, time_ms: int, key: Any, *, namespace: bytes = b"") -> OperatorWriter:
        """Take a timer away; nothing happens if there is none."""
        self._keyed.delete_timer(domain, time_ms, key, namespace)
        return self

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

    def _record(self, target: _Target, *, fixed: bool) -> OperatorRecord:
        """The operator with its new state. `fixed`: the number of its subtasks must stay.

        Keyed state is divided by key groups, in whatever way: a restore deals them out again.
        """
        before = self._record_before
        new = self._operator_states.snapshot()
        if before is None or (not fixed and not any(map(_belongs_to_one, before.subtasks)) and self._frames):
            keyed = self._keyed_snapshots(target, None) or (None,)
            width = len(keyed)
            olds = () if before is None else before.subtasks
            marks = [old.watermark for old in olds if old.watermark is not None]
            subtasks = tuple(
                SubtaskSnapshot(
                    self._uid,
                    n,
                    width,
                    self.max_parallelism,
                    keyed=one,
                    operator_state=new if n == 0 else _copies(new),
                    ended=bool(olds) and all(old.ended for old in olds),
                    watermark=min(marks) if olds and len(marks) == len(olds) else None,
                )
                for n, one in enumerate(keyed)
            )
            return OperatorRecord(self._uid, self._name, width, self.max_parallelism, subtasks)
        # Everything but keyed state belongs to single subtasks, so their number stays.
        snapshots = self._keyed_snapshots(target, len(before.subtasks))
        changed = tuple(
            msgspec.structs.replace(
                subtask,
                keyed=snapshots[n] if n < len(snapshots) else None,
                operator_state=(*self._kept(subtask.operator_state), *(new if n == 0 else _copies(new))),
            )
            for n, subtask in enumerate(before.subtasks)
        )
        return msgspec.structs.replace(before, name=self._name, subtasks=changed)

    def _keyed_snapshots(self, target: _Target, shares: int | None) -> tuple[KeyedSnapshot, ...]:
        """`shares` of them, or one. If nobody says how many: as the DataFrames have partitions, and Spark has slots."""
        if not self._frames:
            if self._keyed_here is None and not self._saved:
                return ()
            return (self._keyed.save(target.checkpoint_id, target.store),)
        earlier = Earlier(self._saved, self._source)
        if self._keyed_here is not None:
            # What the driver has goes to the tasks through the savepoint's own directory.
            earlier = Earlier((self._keyed_here.save(target.checkpoint_id, target.store),), target.storage)
        slots = int(self._frames[0].dataframe.sparkSession.sparkContext.defaultParallelism)
        widest = max(frame.dataframe.rdd.getNumPartitions() for frame in self._frames)
        work = SharedWork(
            self._uid,
            self.max_parallelism,
            min(self.max_parallelism, shares or max(1, min(slots, widest))),
            target.checkpoint_id,
            target.storage,
            target.prefix,
            tuple(frame.descriptor for frame in self._frames),
            (earlier,) if earlier.snapshots else (),
        )
        return write_shares(work, self._frames)

    def _kept(self, shares: tuple[OperatorStateShare, ...]) -> Iterator[OperatorStateShare]:
        return (share for share in shares if share.shape.name not in self._replaced)

    def _close(self) -> None:
        if self._keyed_here is not None:
            self._keyed_here.close()


def _belongs_to_one(subtask: SubtaskSnapshot) -> bool:
    """Whether a subtask saved anything that is its own, besides keyed state."""
    return bool(subtask.operator_state or subtask.splits or subtask.prepared or subtask.extra)


def _copies(shares: Iterable[OperatorStateShare]) -> tuple[OperatorStateShare, ...]:
    """What every subtask has a copy of."""
    return tuple(share for share in shares if share.shape.kind == "broadcast")


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
