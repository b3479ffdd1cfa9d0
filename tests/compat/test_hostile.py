"""A checkpoint that somebody prepared with ill intent: it may be refused, but it runs nothing, reads nothing else, and
takes no memory worth speaking of."""

from __future__ import annotations

import hashlib
import os
import pickle
import resource
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from golden_jobs import MAX_PARALLELISM, UID, Shape, job, restored, save_savepoint
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.backends.heap.backend import HeapBackend
from headrace.backends.rocksdb.database import Database
from headrace.backends.rocksdb.options import RocksDBOptions
from headrace.backends.table import TableIndex
from headrace.checkpoint.handles import StateFile
from headrace.checkpoint.location import open_checkpoint
from headrace.checkpoint.metadata.codec import decode_metadata, encode_metadata
from headrace.checkpoint.metadata.model import CheckpointMetadata
from headrace.checkpoint.storage.filesystem import FileSystemCheckpointStorage
from headrace.errors import (
    DamagedCheckpointError,
    RestoreError,
    StateConflictError,
    StorageError,
    UnsupportedFormatError,
)
from headrace.state.backend import BackendContext
from headrace.state.descriptors import ValueStateDescriptor
from headrace.types.information import Types

GOLDEN = Path(__file__).parent / "v0.1"


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> tuple[CheckpointMetadata, FileSystemCheckpointStorage]:
    storage = FileSystemCheckpointStorage(str(tmp_path_factory.mktemp("savepoint")), file_state_size_threshold=0)
    with job(Shape(parallelism=1)) as made:
        return save_savepoint(storage, made), storage


def changed(metadata: CheckpointMetadata, change: Callable[[Any], Any]) -> CheckpointMetadata:
    """The metadata with its keyed snapshot changed, well-formed otherwise."""
    operators = []
    for record in metadata.operators:
        subtasks = tuple(
            s if s.keyed is None else msgspec.structs.replace(s, keyed=change(s.keyed)) for s in record.subtasks
        )
        operators.append(msgspec.structs.replace(record, subtasks=subtasks))
    return msgspec.structs.replace(metadata, operators=tuple(operators))


def with_file(metadata: CheckpointMetadata, **fields: Any) -> CheckpointMetadata:
    def change(keyed: Any) -> Any:
        return msgspec.structs.replace(keyed, files=(msgspec.structs.replace(keyed.files[0], **fields),))

    return changed(metadata, change)


@pytest.mark.parametrize(
    "path", ["../../etc/passwd", "/etc/passwd", "a/../../b", "a//b", "a\\..\\b", "a\0b", ".", "", "chk/./x"]
)
def test_a_path_that_leaves_the_root_is_refused_when_metadata_is_read(
    good: tuple[CheckpointMetadata, FileSystemCheckpointStorage], path: str
) -> None:
    hostile = encode_metadata(with_file(good[0], path=path))
    with pytest.raises(DamagedCheckpointError, match="no path inside"):
        decode_metadata(hostile)


def test_a_link_to_a_file_outside_is_not_followed(tmp_path: Path) -> None:
    storage = FileSystemCheckpointStorage(str(tmp_path / "sp"), file_state_size_threshold=0)
    with job(Shape(parallelism=1)) as made:
        metadata = save_savepoint(storage, made)
    (file,) = (f for r in metadata.operators for s in r.subtasks if s.keyed for f in s.keyed.files)
    target = storage.root / file.path
    target.rename(tmp_path / "outside")
    target.symlink_to(tmp_path / "outside")
    with pytest.raises(DamagedCheckpointError, match="symbolic link"):
        restored(metadata, storage, tmp_path, "heap", 1)


@pytest.mark.parametrize("size", [2**63 - 1, 2**40, -1])
def test_a_huge_size_is_compared_with_the_file_and_never_allocated(
    good: tuple[CheckpointMetadata, FileSystemCheckpointStorage], size: int, tmp_path: Path
) -> None:
    with pytest.raises(DamagedCheckpointError):
        restored(with_file(good[0], size=size), good[1], tmp_path, "heap", 1)


@pytest.mark.parametrize(
    "groups",
    [((0, 0, 2**62),), ((0, 2**62, 10),), ((0, 0, 8), (1, 4, 8)), ((0, -8, 8),), ((0, 0, -1),)],
)
def test_an_index_that_points_beyond_the_file_is_refused(
    good: tuple[CheckpointMetadata, FileSystemCheckpointStorage], groups: Any, tmp_path: Path
) -> None:
    index = msgspec.msgpack.encode(TableIndex(1, groups))
    hostile = changed(good[0], lambda keyed: msgspec.structs.replace(keyed, details=index))
    for backend in ("heap", "rocksdb"):
        with pytest.raises(DamagedCheckpointError):
            restored(hostile, good[1], tmp_path, backend, 1)


def test_a_block_that_claims_four_gigabytes_is_refused_by_its_header(
    good: tuple[CheckpointMetadata, FileSystemCheckpointStorage], tmp_path: Path
) -> None:
    body = struct.pack(">II", 0xFFFFFFFF, 0) + bytes(100)
    file = StateFile(len(body), hashlib.sha256(body).hexdigest(), inline=body)
    index = msgspec.msgpack.encode(TableIndex(1, ((0, 0, len(body)),)))
    hostile = changed(good[0], lambda keyed: msgspec.structs.replace(keyed, files=(file,), details=index))
    with pytest.raises(DamagedCheckpointError, match="claims"):
        restored(hostile, good[1], tmp_path, "heap", 1)


@pytest.mark.parametrize("version", [3, 999])
def test_a_newer_format_is_refused_by_its_version(
    good: tuple[CheckpointMetadata, FileSystemCheckpointStorage], version: int, tmp_path: Path
) -> None:
    data = bytearray(encode_metadata(good[0]))
    data[4:6] = version.to_bytes(2, "big")
    with pytest.raises(UnsupportedFormatError, match=f"format {version}"):
        decode_metadata(bytes(data))
    index = msgspec.msgpack.encode(TableIndex(version, ()))
    table = changed(good[0], lambda keyed: msgspec.structs.replace(keyed, details=index))
    with pytest.raises(UnsupportedFormatError, match=str(version)):
        restored(table, good[1], tmp_path, "heap", 1)
    other = changed(good[0], lambda keyed: msgspec.structs.replace(keyed, format="jar"))
    for backend in ("heap", "rocksdb"):
        with pytest.raises(UnsupportedFormatError, match="jar"):
            restored(other, good[1], tmp_path / "other", backend, 1)


class Bomb:
    """Runs code when it is unpickled."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.proof),)


def test_a_pickle_is_not_loaded_for_a_state_that_the_program_did_not_declare_as_pickled(tmp_path: Path) -> None:
    proof = tmp_path / "it-ran"
    storage = FileSystemCheckpointStorage(str(tmp_path / "sp"))
    local = tmp_path / "local"
    local.mkdir()
    context = BackendContext(UID, 0, range(MAX_PARALLELISM), MAX_PARALLELISM, local)
    writer = HeapBackend(context)
    writer.key_context.key = "k"
    writer.state(ValueStateDescriptor("count", Types.PICKLED_BYTE_ARRAY())).update(Bomb(proof))
    store = storage.file_store("chk-000001/attempt-000001")
    snapshot = writer.snapshot(1).write(store)
    proof.rmdir() if proof.exists() else None
    reader = HeapBackend(context)
    reader.restore([snapshot], store)
    with pytest.raises(StateConflictError, match="pickle"):
        reader.state(ValueStateDescriptor("count", Types.LONG()))
    # The same bytes under the label of a plain type: they are no value of it.
    shapes = tuple(msgspec.structs.replace(s, type="LONG", codec="msgpack") for s in snapshot.shapes[:1])
    relabelled = msgspec.structs.replace(snapshot, shapes=(*shapes, *snapshot.shapes[1:]))
    reader = HeapBackend(context)
    reader.restore([relabelled], store)
    with pytest.raises(DamagedCheckpointError):
        reader.state(ValueStateDescriptor("count", Types.LONG()))
    assert not proof.exists()


def test_a_database_in_the_mode_that_pickles_is_refused(tmp_path: Path) -> None:
    import rocksdict

    proof = tmp_path / "it-ran"
    options = rocksdict.Options(raw_mode=False)
    options.create_if_missing(True)
    database = rocksdict.Rdict(str(tmp_path / "db"), options)
    family = database.create_column_family("state:count", rocksdict.Options(raw_mode=False))
    family[b"key"] = Bomb(proof)
    family.close()
    database.close()
    for read_only in (True, False):
        with pytest.raises(StorageError, match="comparator"):
            Database(tmp_path / "db", RocksDBOptions(), read_only=read_only)
    assert not proof.exists()


def test_metadata_that_is_a_pickle_is_no_checkpoint(tmp_path: Path) -> None:
    proof = tmp_path / "it-ran"
    (tmp_path / "_metadata").write_bytes(pickle.dumps(Bomb(proof)))
    with pytest.raises(RestoreError, match="not a Headrace checkpoint"):
        open_checkpoint(str(tmp_path))
    assert not proof.exists()


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_metadata_with_any_bytes_changed_is_refused_with_a_type(data: st.DataObject) -> None:
    good = (GOLDEN / "savepoint/_metadata").read_bytes()
    kind = data.draw(st.sampled_from(["flip", "cut", "grow", "splice"]))
    at = data.draw(st.integers(0, len(good) - 1))
    match kind:
        case "flip":
            bad = good[:at] + bytes([good[at] ^ data.draw(st.integers(1, 255))]) + good[at + 1 :]
        case "cut":
            bad = good[:at]
        case "grow":
            bad = good + data.draw(st.binary(min_size=1, max_size=20))
        case _:
            bad = good[:at] + data.draw(st.binary(min_size=1, max_size=20)) + good[at:]
    with pytest.raises(RestoreError):
        decode_metadata(bad)


@settings(max_examples=200, deadline=None)
@given(body=st.binary(max_size=200) | st.binary(max_size=50).map(lambda tail: b"\xdf\xff\xff\xff\xff" + tail))
def test_any_body_under_a_valid_hash_is_refused_with_a_type(body: bytes) -> None:
    """Somebody who writes the hash too: what msgpack announces is not believed either."""
    header = struct.pack(">4sHQ", b"HRCP", 1, len(body))
    digest = hashlib.sha256(header + body).digest()
    with pytest.raises(RestoreError):
        decode_metadata(header + digest + body)


def test_lengths_of_nonsense_take_no_memory() -> None:
    """In a process whose memory is bounded: huge arrays, deep nesting, a sparse terabyte."""
    program = """
import hashlib, os, struct, sys, tempfile
from headrace.checkpoint.metadata.codec import decode_metadata
from headrace.checkpoint.location import open_checkpoint
from headrace.errors import HeadraceError
refused = 0
most = b"\\xff" * 4
for body in (b"\\xdd" + most, b"\\xc6" + most, b"\\x91" * 100_000, b"\\xdb" + most):
    header = struct.pack(">4sHQ", b"HRCP", 1, len(body))
    try:
        decode_metadata(header + hashlib.sha256(header + body).digest() + body)
    except HeadraceError:
        refused += 1
with tempfile.TemporaryDirectory() as folder:
    with open(os.path.join(folder, "_metadata"), "wb") as file:
        file.truncate(1 << 40)
    try:
        open_checkpoint(folder)
    except HeadraceError:
        refused += 1
print(refused)
"""
    limit = 1 << 30
    run = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit, limit)),
    )
    assert run.stdout.strip() == "5", run.stderr
