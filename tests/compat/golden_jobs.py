"""A small job with every kind of state, saved by the real backends and read back: what the golden checkpoints hold.

Nothing here depends on chance or time, so what is saved can be compared with what should be in it, by this version
and by every later one. `scripts/make_golden_checkpoints.py` writes it; never change a value that a stored one has.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headrace.backends.heap.backend import HeapBackend
from headrace.backends.heap.options import HeapOptions
from headrace.backends.rocksdb.backend import RocksDBBackend
from headrace.checkpoint.handles import (
    ChannelSnapshot,
    KeyedSnapshot,
    OperatorStateShare,
    PreparedItem,
    SubtaskSnapshot,
)
from headrace.checkpoint.job_directory import JobDirectory
from headrace.checkpoint.metadata.model import CheckpointMetadata, OperatorRecord, TaskTiming, shared_files_of
from headrace.checkpoint.savepoint import SavepointDirectory
from headrace.checkpoint.storage.base import CheckpointStorage
from headrace.state.backend import BackendContext, FileStore, KeyedStateBackend
from headrace.state.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from headrace.state.key_groups import group_range, key_group
from headrace.state.keys import stored_form
from headrace.state.operator_state import OperatorStates
from headrace.types.information import Types
from headrace.types.rows import Row

MAX_PARALLELISM = 16
UID = "per-user"
JOB = "golden"
WINDOW = b"\x01window"

COUNT = ValueStateDescriptor("count", Types.LONG())
PROFILE = ValueStateDescriptor("profile", Types.ROW_NAMED(["name", "score"], [Types.STRING(), Types.DOUBLE()]))
SEEN = ListStateDescriptor("seen", Types.STRING())
BY_ITEM = MapStateDescriptor("by-item", Types.STRING(), Types.DOUBLE())
TOTAL = ReducingStateDescriptor("total", lambda a, b: a + b, Types.LONG())
PENDING = ListStateDescriptor("pending", Types.LONG())
RULES = MapStateDescriptor("rules", Types.STRING(), Types.LONG())


class Mean:
    """An aggregate function whose accumulator is a pair."""

    def create_accumulator(self) -> list[float]:
        return [0.0, 0.0]

    def add(self, value: float, accumulator: list[float]) -> list[float]:
        return [accumulator[0] + value, accumulator[1] + 1]

    def get_result(self, accumulator: list[float]) -> float:
        return accumulator[0] / accumulator[1]


MEAN = AggregatingStateDescriptor("mean", Mean(), Types.LIST(Types.DOUBLE()))

KEYS: list[Any] = [*(f"user-{n}" for n in range(40)), *range(40), b"raw", 1.5, True, ("pair", 7), "", -(2**70)]
"""Of every kind that a key may have."""


def expected(key: Any, place: int) -> dict[str, Any]:
    """What each state holds under the key; `place` is its index in `KEYS`."""
    return {
        "count": place,
        "profile": Row(name=f"n{place}", score=place / 4) if place % 3 else None,
        "seen": [f"s{place}-{n}" for n in range(place % 4)],
        "by-item": {f"i{n}": place + n / 8 for n in range(place % 3)},
        "total": place * 3,
        "mean": place / 2,
    }


@dataclass(frozen=True)
class Shape:
    """How a checkpoint of the job is taken."""

    backend: str = "heap"
    kind: str = "checkpoint"
    parallelism: int = 2
    checkpoint_id: int = 3
    attempt: int = 1
    extra_keys: int = 0
    """Further integer keys with nothing but a count, to make files that do not fit into `_metadata`."""
    extra_totals: bool = False
    """Whether those keys have a total as well, so that there are several such files."""
    compression: bool = False


class Job:
    """The subtasks of the keyed operator, filled, with everything else a checkpoint has."""

    def __init__(self, local: Path, shape: Shape) -> None:
        self.shape = shape
        self.local = local
        self.backends = [self._backend(subtask) for subtask in range(shape.parallelism)]
        for place, key in enumerate(KEYS):
            self.fill(key, place)
        for n in range(shape.extra_keys):
            self.set_count(10_000 + n, n)
            if shape.extra_totals:
                self.at(10_000 + n).state(TOTAL).add(2 * n)

    def _backend(self, subtask: int) -> KeyedStateBackend:
        shape = self.shape
        local = self.local / f"local-{shape.backend}-{subtask}"
        local.mkdir(parents=True)
        groups = group_range(subtask, shape.parallelism, MAX_PARALLELISM)
        context = BackendContext(UID, subtask, groups, MAX_PARALLELISM, local)
        if shape.backend == "heap":
            return HeapBackend(context, HeapOptions(compression=shape.compression))
        return RocksDBBackend(context)

    def at(self, key: Any) -> KeyedStateBackend:
        """The backend that owns the key, scoped to it."""
        stored = stored_form(key)
        owner = key_group(stored, MAX_PARALLELISM) * self.shape.parallelism // MAX_PARALLELISM
        backend = self.backends[owner]
        backend.key_context.key = stored
        return backend

    def set_count(self, key: Any, count: int) -> None:
        self.at(key).state(COUNT).update(count)

    def fill(self, key: Any, place: int) -> None:
        backend, wanted = self.at(key), expected(key, place)
        backend.state(COUNT).update(wanted["count"])
        if wanted["profile"] is not None:
            backend.state(PROFILE).update(wanted["profile"])
        backend.state(SEEN).add_all(wanted["seen"])
        backend.state(BY_ITEM).put_all(wanted["by-item"])
        backend.state(TOTAL).add(place)
        backend.state(TOTAL).add(2 * place)
        backend.state(MEAN).add(float(place))
        backend.state(MEAN).add(0.0)
        if place % 5 == 0:
            windowed = backend.state(COUNT)
            windowed.set_namespace(WINDOW)
            windowed.update(1000 + place)
            windowed.set_namespace(b"")
            backend.timers("event").register(60_000 + place, stored_form(key), WINDOW)
        if place % 7 == 0:
            backend.timers("processing").register(-place, stored_form(key))

    def subtasks(self, store: FileStore) -> tuple[SubtaskSnapshot, ...]:
        shape = self.shape
        return tuple(
            SubtaskSnapshot(
                UID,
                subtask,
                shape.parallelism,
                MAX_PARALLELISM,
                keyed=backend.snapshot(shape.checkpoint_id, canonical=shape.kind == "savepoint").write(store),
                operator_state=operator_shares(subtask),
                prepared=(PreparedItem(shape.checkpoint_id, b"staged"),),
                watermark=50_000 + subtask,
            )
            for subtask, backend in enumerate(self.backends)
        )

    def metadata(self, store: FileStore) -> CheckpointMetadata:
        shape = self.shape
        subtasks = self.subtasks(store)
        source = tuple(
            SubtaskSnapshot("numbers", n, shape.parallelism, 128, splits=(b"split-%d" % n,))
            for n in range(shape.parallelism)
        )
        channels = ()
        if shape.kind == "checkpoint":
            cells = store.write("cells", [b"\x00\x00\x00\x00\x01\x00\x00\x00\x02"])
            channels = (ChannelSnapshot(1, 0, cells, 1),)
        files = [file for subtask in subtasks if subtask.keyed is not None for file in subtask.keyed.files]
        return CheckpointMetadata(
            job_id=JOB,
            job_name="golden job",
            run=1,
            attempt=shape.attempt,
            checkpoint_id=shape.checkpoint_id,
            kind="savepoint" if shape.kind == "savepoint" else "checkpoint",
            mode="unaligned" if channels else "aligned",
            created_ms=1_700_000_000_000 + shape.checkpoint_id,
            duration_ms=120,
            operators=(
                OperatorRecord("numbers", "numbers", shape.parallelism, 128, source),
                OperatorRecord(UID, "counts per user", shape.parallelism, MAX_PARALLELISM, subtasks),
            ),
            enumerators={"numbers": b"enumerated"},
            channels=channels,
            bytes_total=sum(file.size for file in files),
            bytes_uploaded=sum(file.size for file in files),
            tasks=(TaskTiming(0, 0, 0, 1, 2, 0, 0), TaskTiming(1, 0, 30, 4, 50, 600, 500)),
        )

    def close(self) -> None:
        for backend in self.backends:
            backend.close()


def operator_shares(subtask: int) -> tuple[OperatorStateShare, ...]:
    """The operator state of one subtask, encoded by the code that a running job uses."""
    states = OperatorStates(UID)
    states.get_list_state(PENDING).add_all([subtask * 10, subtask * 10 + 1])
    states.get_union_list_state(replace(PENDING, name="offsets")).add(100 + subtask)
    states.get_broadcast_state(RULES).put_all({"limit": 5, "floor": -1})
    return states.snapshot()


@contextmanager
def job(shape: Shape) -> Iterator[Job]:
    """The job, filled; closed and its local files gone afterwards."""
    with tempfile.TemporaryDirectory() as local:
        made = Job(Path(local), shape)
        try:
            yield made
        finally:
            made.close()


class Publisher:
    """Publishes checkpoints of the job in a storage, as the driver of one attempt does."""

    def __init__(self, storage: CheckpointStorage) -> None:
        self.storage = storage
        self.directory = JobDirectory(storage, JOB)
        self.directory.open_run()
        self.attempt = self.directory.claim_attempt()
        newest = self.directory.newest()
        self.directory.record_restored(self.attempt, newest.checkpoint_id if newest else None)
        self.known: frozenset[str] = frozenset()

    def publish(self, made: Job, checkpoint_id: int) -> CheckpointMetadata:
        """One checkpoint; table files of the one before are named again where the backend shares them."""
        made.shape = replace(made.shape, checkpoint_id=checkpoint_id, attempt=self.attempt)
        metadata = made.metadata(self.store(checkpoint_id))
        self.directory.publish(metadata)
        for backend in made.backends:
            backend.checkpoint_complete(checkpoint_id)
        self.known = shared_files_of(metadata)
        return metadata

    def store(self, checkpoint_id: int) -> FileStore:
        return self.storage.file_store(self.directory.prefix_for(checkpoint_id, self.attempt), self.known)


def save_savepoint(storage: CheckpointStorage, made: Job) -> CheckpointMetadata:
    """A savepoint of the job in `storage`, whose root is the savepoint's directory."""
    directory = SavepointDirectory(storage)
    made.shape = replace(made.shape, kind="savepoint")
    store = storage.file_store(directory.prefix_for(made.shape.checkpoint_id, made.shape.attempt))
    metadata = made.metadata(store)
    directory.publish(metadata)
    return metadata


def contents(backends: list[KeyedStateBackend]) -> dict[str, dict[Any, Any]]:
    """Everything that restored backends hold: by state, by key in stored form."""
    found: dict[str, dict[Any, Any]] = {d.name: {} for d in (COUNT, PROFILE, SEEN, BY_ITEM, TOTAL, MEAN)}
    found |= {"windowed count": {}, "event": {}, "processing": {}}
    for backend in backends:
        for descriptor in (COUNT, PROFILE, SEEN, BY_ITEM, TOTAL, MEAN):
            state = backend.state(descriptor)
            for key in list(backend.keys(descriptor.name)):
                backend.key_context.key = key
                found[descriptor.name][key] = _reading(state)
        windowed = backend.state(COUNT)
        windowed.set_namespace(WINDOW)
        for key in list(backend.keys("count", WINDOW)):
            backend.key_context.key = key
            found["windowed count"][key] = windowed.value()
        windowed.set_namespace(b"")
        for domain in ("event", "processing"):
            queue = backend.timers(domain)
            while (timer := queue.pop_due(2**62)) is not None:
                found[domain][timer[1]] = (timer[0], timer[2])
    return found


def expected_contents(extra_keys: int = 0, *, extra_totals: bool = False) -> dict[str, dict[Any, Any]]:
    """What `contents` must give."""
    found: dict[str, dict[Any, Any]] = {d.name: {} for d in (COUNT, PROFILE, SEEN, BY_ITEM, TOTAL, MEAN)}
    found |= {"windowed count": {}, "event": {}, "processing": {}}
    for place, key in enumerate(KEYS):
        stored = stored_form(key)
        for name, value in expected(key, place).items():
            if value not in (None, [], {}):
                found[name][stored] = value
        if place % 5 == 0:
            found["windowed count"][stored] = 1000 + place
            found["event"][stored] = (60_000 + place, WINDOW)
        if place % 7 == 0:
            found["processing"][stored] = (-place, b"")
    found["count"].update({10_000 + n: n for n in range(extra_keys)})
    if extra_totals:
        found["total"].update({10_000 + n: 2 * n for n in range(extra_keys)})
    return found


def restored(
    metadata: CheckpointMetadata, storage: CheckpointStorage, local: Path, backend: str, parallelism: int
) -> dict[str, dict[Any, Any]]:
    """Restore the keyed operator into backends of that kind and read everything."""
    record = next(record for record in metadata.operators if record.uid == UID)
    snapshots: list[KeyedSnapshot] = [subtask.keyed for subtask in record.subtasks if subtask.keyed is not None]
    store = storage.file_store("restore")
    made: list[KeyedStateBackend] = []
    try:
        for subtask in range(parallelism):
            folder = local / f"restored-{backend}-{subtask}"
            folder.mkdir(parents=True)
            groups = group_range(subtask, parallelism, MAX_PARALLELISM)
            context = BackendContext(UID, subtask, groups, MAX_PARALLELISM, folder)
            one = HeapBackend(context) if backend == "heap" else RocksDBBackend(context)
            made.append(one)
            mine = [s for s in snapshots if s.first_group < groups.stop and groups.start <= s.last_group]
            one.restore(mine, store)
        return contents(made)
    finally:
        for one in made:
            one.close()


def _reading(state: Any) -> Any:
    if hasattr(state, "value"):
        return state.value()
    if hasattr(state, "items"):
        return dict(state.items())
    got = state.get()
    return list(got) if isinstance(got, list | tuple) else got
