"""Small files of a snapshot lie together in storage: few objects, none kept for a few bytes, and each byte checked."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from backend_workshop import COUNT, Workshop, at, contents

from headrace.backends.rocksdb.backend import RocksDBBackend
from headrace.backends.rocksdb.options import RocksDBOptions
from headrace.checkpoint.handles import KeyedSnapshot, StateFile, SubtaskSnapshot
from headrace.checkpoint.job_directory import JobDirectory
from headrace.checkpoint.metadata.codec import decode_metadata, encode_metadata
from headrace.checkpoint.metadata.model import CheckpointMetadata, OperatorRecord, shared_files_of
from headrace.checkpoint.packs import SMALL_FILE, to_pack, worth_keeping, write_pack
from headrace.checkpoint.places import find_place
from headrace.checkpoint.storage.base import INLINE_THRESHOLD
from headrace.checkpoint.storage.filesystem import FileSystemCheckpointStorage
from headrace.checkpoint.storage.parts import PartReader
from headrace.checkpoint.verification import Damage, verify
from headrace.errors import DamagedCheckpointError
from headrace.state.backend import BackendContext

STATES = [replace(COUNT, name=f"count-{n}") for n in range(12)]
MAX_PARALLELISM = 16


class PackedJob:
    """One subtask on RocksDB with many small states, and the driver that publishes its checkpoints."""

    def __init__(self, root: Path, **options: Any) -> None:
        self.storage = FileSystemCheckpointStorage(str(root / "checkpoints"))
        self.directory = JobDirectory(self.storage, "job", grace_ms=0)
        self.directory.open_run()
        self.attempt = self.directory.claim_attempt()
        self.directory.record_restored(self.attempt, None)
        local = root / "packed-job"
        local.mkdir()
        self.backend = RocksDBBackend(
            BackendContext("op", 0, range(MAX_PARALLELISM), MAX_PARALLELISM, local), RocksDBOptions(**options)
        )
        self.known: frozenset[str] = frozenset()
        self.wanted: dict[str, dict[str, int]] = {state.name: {} for state in STATES}

    def write(self, state: Any, keys: range, value: int) -> None:
        held = self.backend.state(state)
        for key in keys:
            # Hardly compressible, so that files have a size.
            name = random.Random(key).randbytes(24).hex()
            at(self.backend, name)
            held.update(value * 1_000_003 + key)
            self.wanted[state.name][name] = value * 1_000_003 + key

    def publish(self, checkpoint_id: int) -> CheckpointMetadata:
        store = self.storage.file_store(self.directory.prefix_for(checkpoint_id, self.attempt), self.known)
        keyed = self.backend.snapshot(checkpoint_id).write(store)
        metadata = metadata_of(keyed, checkpoint_id, self.attempt)
        self.directory.publish(metadata)
        self.backend.checkpoint_complete(checkpoint_id)
        self.known = shared_files_of(metadata)
        return metadata

    def drop_all_but(self, kept: CheckpointMetadata) -> None:
        """What the driver does when a checkpoint is complete and one is retained."""
        older = [ref.checkpoint_id for ref in self.directory.completed() if ref.checkpoint_id != kept.checkpoint_id]
        self.directory.drop(older)
        self.directory.collect_shared([kept], self.attempt, known_shared=self.known)

    def objects(self) -> list[str]:
        """State files in storage."""
        return [
            path
            for folder in ("chk-", "shared/")
            for path in self.storage.list(f"job/run-000001/{folder}")
            if not path.endswith("/_metadata")
        ]


def metadata_of(keyed: KeyedSnapshot, checkpoint_id: int, attempt: int) -> CheckpointMetadata:
    subtask = SubtaskSnapshot("op", 0, 1, MAX_PARALLELISM, keyed=keyed)
    return CheckpointMetadata(
        job_id="job",
        job_name="job",
        run=1,
        attempt=attempt,
        checkpoint_id=checkpoint_id,
        kind="checkpoint",
        mode="aligned",
        created_ms=1,
        duration_ms=1,
        operators=(OperatorRecord("op", "op", 1, MAX_PARALLELISM, (subtask,)),),
    )


def keyed_of(metadata: CheckpointMetadata) -> KeyedSnapshot:
    keyed = metadata.operators[0].subtasks[0].keyed
    assert keyed is not None
    return keyed


@pytest.fixture
def job(tmp_path: Path) -> Iterator[PackedJob]:
    job = PackedJob(tmp_path)
    yield job
    job.backend.close()


def held_by(keyed: KeyedSnapshot, storage: FileSystemCheckpointStorage, root: Path, flavour: str) -> Any:
    shop = Workshop(flavour, root / flavour)
    backend = shop.backend()
    try:
        backend.restore([keyed], storage.file_store("restore"))
        return {state.name: contents(backend, backend.state(state), state.name) for state in STATES}
    finally:
        shop.close()


def test_a_checkpoint_of_many_states_is_a_few_objects_and_restores(job: PackedJob, tmp_path: Path) -> None:
    for state in STATES:
        job.write(state, range(800), 1)
    metadata = job.publish(1)
    files = keyed_of(metadata).files
    parts = [file for file in files if file.pack_size]
    assert len(parts) >= len(STATES)
    assert len(job.objects()) <= 3
    for flavour in ("rocksdb", "heap"):
        assert held_by(keyed_of(metadata), job.storage, tmp_path, flavour) == job.wanted
    assert verify(find_place(str(tmp_path / "checkpoints/job/run-000001/chk-000001")).checkpoints()).whole


def test_without_merging_every_file_is_an_object(tmp_path: Path) -> None:
    job = PackedJob(tmp_path, merge_small_files=False)
    for state in STATES:
        job.write(state, range(800), 1)
    assert not any(file.pack_size for file in keyed_of(job.publish(1)).files)
    assert len(job.objects()) >= len(STATES)
    job.backend.close()


@pytest.mark.thorough
def test_over_many_increments_objects_stay_few_and_packs_mostly_alive(job: PackedJob, tmp_path: Path) -> None:
    for state in STATES:
        job.write(state, range(800), 0)
    for checkpoint_id in range(1, 14):
        for state in STATES:
            job.write(state, range(400), checkpoint_id)
        metadata = job.publish(checkpoint_id)
        job.drop_all_but(metadata)
        files = keyed_of(metadata).files
        # However late compaction is: one pack for each checkpoint at most, where each has a dozen new files.
        assert len(job.objects()) <= checkpoint_id + 2
        alive: dict[str, int] = {}
        for file in files:
            if file.pack_size:
                alive[file.path] = alive.get(file.path, 0) + file.size
        for file in files:
            assert not file.pack_size or 2 * alive[file.path] >= file.pack_size
        assert set(job.objects()) == {file.path for file in files if file.path}
    assert held_by(keyed_of(metadata), job.storage, tmp_path, "rocksdb") == job.wanted


def test_a_pack_lives_as_long_as_a_checkpoint_names_any_part_of_it(job: PackedJob) -> None:
    for state in STATES:
        job.write(state, range(800), 1)
    first = job.publish(1)
    packs = {file.path for file in keyed_of(first).files if file.pack_size and file.shared}
    assert packs
    job.write(STATES[0], range(800), 2)
    second = job.publish(2)
    job.drop_all_but(second)
    assert packs <= set(job.objects()), "most parts are still in use"
    # When the first files are compacted away is RocksDB's choice; it accepts no more than some 36 before it does.
    for checkpoint_id in range(3, 60):
        for state in STATES:
            # Half of them by turns: what changes every time would be saved beside the database.
            job.write(state, range(400) if checkpoint_id % 2 else range(400, 800), checkpoint_id)
        job.drop_all_but(job.publish(checkpoint_id))
        if not packs & set(job.objects()):
            return
    raise AssertionError("the first packs are still there after all their keys were written 28 times")


def test_parts_of_a_pack_that_is_mostly_dead_are_stored_anew() -> None:
    def part(path: str, size: int, offset: int = 0) -> StateFile:
        return StateFile(size, "ab", path, shared=True, offset=offset, pack_size=100)

    known = {"1": part("p", 30), "2": part("p", 40, 30), "3": part("q", 10), "4": part("q", 90, 10)}
    known["5"] = StateFile(1_000, "cd", "whole", shared=True)
    assert worth_keeping(known, ["1", "2", "3", "5", "6"]).keys() == {"1", "2", "5"}
    assert worth_keeping(known, ["2", "4"]).keys() == {"4"}


def test_only_small_files_are_packed_and_a_few_tiny_ones_stay_in_the_metadata(tmp_path: Path) -> None:
    def file(name: str, size: int) -> Path:
        path = tmp_path / name
        path.write_bytes(bytes(size))
        return path

    tiny = [file(f"tiny-{n}", INLINE_THRESHOLD) for n in range(6)]
    small = [file(f"small-{n}", INLINE_THRESHOLD + 1) for n in range(3)]
    large = file("large", SMALL_FILE + 1)
    ((*packed,),) = to_pack([*tiny, *small, large])
    assert set(small) < set(packed)
    assert len(set(tiny) - set(packed)) == 4
    assert large not in packed
    assert to_pack(small[:1]) == [], "a pack of one would be a file by another name"
    many = [file(f"many-{n}", SMALL_FILE) for n in range(40)]
    assert [len(pack) for pack in to_pack(many)] == [16, 16, 8]


@pytest.mark.parametrize("threshold", [0, 1 << 20])
def test_each_part_is_read_by_itself(tmp_path: Path, threshold: int) -> None:
    storage = FileSystemCheckpointStorage(str(tmp_path / "storage"), file_state_size_threshold=threshold)
    paths = []
    for n in range(4):
        paths.append(tmp_path / f"file-{n}")
        paths[-1].write_bytes(bytes([n]) * 1000 * n)
    store = PartReader(storage.file_store("chk-000001/attempt-000001"))
    parts = write_pack(store, "pack", paths)
    assert len({part.path for part in parts}) == 1
    for part, path in zip(parts, paths, strict=True):
        assert store.read(part) == path.read_bytes()
        with store.open(part) as stream:
            stream.seek(len(path.read_bytes()) // 2)
            assert stream.read() == path.read_bytes()[len(path.read_bytes()) // 2 :]
        store.fetch(part, tmp_path / "fetched")
        assert (tmp_path / "fetched").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("damage", ["changed", "cut off", "grown", "gone"])
def test_a_damaged_pack_is_found_by_name(job: PackedJob, damage: str, tmp_path: Path) -> None:
    for state in STATES:
        job.write(state, range(800), 1)
    keyed = keyed_of(job.publish(1))
    part = next(file for file in keyed.files if file.pack_size and file.shared)
    pack = tmp_path / "checkpoints" / part.path
    data = bytearray(pack.read_bytes())
    match damage:
        case "changed":
            data[part.offset] ^= 1
        case "cut off":
            del data[-1]
        case "grown":
            data.append(0)
    pack.write_bytes(data) if damage != "gone" else pack.unlink()
    found = verify(find_place(str(tmp_path / "checkpoints/job/run-000001/chk-000001")).checkpoints())
    wanted = {
        "changed": Damage.CHANGED,
        "cut off": Damage.TRUNCATED,
        "grown": Damage.LONGER,
        "gone": Damage.MISSING,
    }
    (finding,) = found.findings
    assert finding.damage is wanted[damage]
    assert part.path in finding.path
    with pytest.raises(DamagedCheckpointError, match=pack.name):
        held_by(keyed, job.storage, tmp_path, "rocksdb")


@pytest.mark.parametrize(
    "place",
    [
        {"offset": -1},
        {"offset": 2**62},
        {"size": 2**62},
        {"size": -1},
        {"pack_size": 1},
        {"pack_size": -5},
        {"pack_size": 0, "offset": 7},
    ],
)
def test_a_part_that_lies_outside_of_its_pack_is_refused_when_metadata_is_read(place: dict[str, int]) -> None:
    good = StateFile(10, "ab" * 32, "shared/ab/x.pack", shared=True, offset=5, pack_size=20)
    for file, refused in ((good, False), (msgspec.structs.replace(good, **place), True)):
        data = encode_metadata(metadata_of(KeyedSnapshot("rocksdb", 0, 15, (), (file,)), 1, 1))
        if refused:
            with pytest.raises(DamagedCheckpointError):
                decode_metadata(data)
        else:
            decode_metadata(data)
