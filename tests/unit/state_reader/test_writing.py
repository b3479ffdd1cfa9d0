"""Savepoints by hand: a job begins with state from elsewhere, a key is repaired, the rest stays as it was."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from golden_jobs import (
    BY_ITEM,
    COUNT,
    MAX_PARALLELISM,
    MEAN,
    PENDING,
    PROFILE,
    RULES,
    SEEN,
    TOTAL,
    UID,
    WINDOW,
    Publisher,
    Shape,
    expected_contents,
    job,
    restored,
    save_savepoint,
)

from headrace.checkpoint.handles import PreparedItem, SubtaskSnapshot
from headrace.checkpoint.location import open_checkpoint
from headrace.checkpoint.metadata.codec import files_of
from headrace.checkpoint.metadata.model import OperatorRecord
from headrace.checkpoint.places import find_place
from headrace.checkpoint.savepoint import SavepointDirectory
from headrace.checkpoint.storage.filesystem import FileSystemCheckpointStorage
from headrace.checkpoint.verification import verify
from headrace.errors import JobDefinitionError, RestoreError, StateConflictError, TypeMismatchError
from headrace.state.keys import stored_form
from headrace.state_reader import SavepointWriter, StateReader
from headrace.types.rows import Row


def read_back(path: str, tmp_path: Path, backend: str, parallelism: int) -> dict[str, dict[Any, Any]]:
    opened = open_checkpoint(path)
    assert opened.metadata.kind == "savepoint"
    assert verify(find_place(path).checkpoints()).findings == ()
    return restored(opened.metadata, opened.storage, tmp_path / f"{backend}-{parallelism}", backend, parallelism)


@pytest.mark.parametrize(("backend", "parallelism"), [("heap", 1), ("heap", 3), ("rocksdb", 1), ("rocksdb", 4)])
def test_a_job_begins_with_state_that_was_written_by_hand(backend: str, parallelism: int, tmp_path: Path) -> None:
    writer = SavepointWriter.new("counts")
    operator = writer.with_operator(UID, MAX_PARALLELISM, name="counts per user")
    operator.keyed_state(COUNT, ((f"u{n}", n) for n in range(500)))
    operator.keyed_state(COUNT, [("u1", -1)], namespace=WINDOW)
    operator.keyed_state(PROFILE, [("u1", Row(name="Ada", score=1.0))])
    operator.keyed_state(SEEN, [("u1", ["a", "b"]), ("u2", ["c"]), ("u3", [])])
    operator.keyed_state(BY_ITEM, [("u1", {"x": 1.0, "y": 2.0})])
    operator.keyed_state(TOTAL, [("u1", 42)]).keyed_state(MEAN, [(("pair", 1), [6.0, 4.0])])
    operator.timer("event", 99, "u1", namespace=WINDOW).timer("processing", 5, 7)
    location = writer.write(str(tmp_path / "first"))
    found = read_back(location, tmp_path, backend, parallelism)
    assert found == {
        "count": {f"u{n}": n for n in range(500)},
        "windowed count": {"u1": -1},
        "profile": {"u1": Row(name="Ada", score=1.0)},
        "seen": {"u1": ["a", "b"], "u2": ["c"]},
        "by-item": {"u1": {"x": 1.0, "y": 2.0}},
        "total": {"u1": 42},
        "mean": {stored_form(("pair", 1)): 1.5},
        "event": {"u1": (99, WINDOW)},
        "processing": {7: (5, b"")},
    }


@pytest.mark.parametrize("saved_by", ["heap", "rocksdb", "savepoint"])
@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_one_key_is_repaired_and_everything_else_stays(saved_by: str, backend: str, tmp_path: Path) -> None:
    root = tmp_path / "saved"
    storage = FileSystemCheckpointStorage(str(root), file_state_size_threshold=0)
    if saved_by == "savepoint":
        with job(Shape(kind="savepoint")) as made:
            save_savepoint(storage, made)
        path = str(root)
    else:
        with job(Shape(backend=saved_by)) as made:
            Publisher(storage).publish(made, 3)
        path = str(root / "golden")
    before = {file: file.read_bytes() for file in root.rglob("*") if file.is_file()}
    writer = SavepointWriter.from_existing(path)
    operator = writer.with_operator(UID)
    operator.keyed_state(COUNT, [("user-1", 1_000_000)]).keyed_state(SEEN, [("user-3", ["only"])])
    operator.keyed_state(TOTAL, [("user-5", -5)]).remove_key(BY_ITEM, "user-2").remove_key(PROFILE, ("pair", 7))
    operator.remove_timer("event", 60_005, "user-5", namespace=WINDOW)
    location = writer.write(str(tmp_path / "repaired"))
    assert {file: file.read_bytes() for file in root.rglob("*") if file.is_file()} == before
    # The new one stands alone.
    shutil.rmtree(root)
    wanted = expected_contents()
    wanted["count"]["user-1"] = 1_000_000
    wanted["seen"]["user-3"] = ["only"]
    wanted["total"]["user-5"] = -5
    del wanted["by-item"]["user-2"], wanted["profile"][stored_form(("pair", 7))], wanted["event"]["user-5"]
    assert read_back(location, tmp_path, backend, 3) == wanted
    metadata = open_checkpoint(location).metadata
    source = next(record for record in metadata.operators if record.uid == "numbers")
    assert [split for subtask in source.subtasks for split in subtask.splits] == [b"split-0", b"split-1"]
    assert metadata.enumerators == {"numbers": b"enumerated"}
    reader = StateReader(location)
    assert [e.value for e in reader.operator_state(UID, "pending")] == [0, 1, 10, 11]


def test_operator_state_is_replaced_by_name(tmp_path: Path) -> None:
    with job(Shape(kind="savepoint")) as made:
        save_savepoint(FileSystemCheckpointStorage(str(tmp_path / "sp")), made)
    writer = SavepointWriter.from_existing(str(tmp_path / "sp"))
    writer.with_operator(UID).list_state(PENDING, [7, 8, 9]).broadcast_state(RULES, {"limit": 6})
    reader = StateReader(writer.write(str(tmp_path / "new")))
    assert [e.value for e in reader.operator_state(UID, "pending")] == [7, 8, 9]
    assert [e.value for e in reader.operator_state(UID, "offsets")] == [100, 101]
    assert {e.key: e.value for e in reader.operator_state(UID, "rules")} == {"limit": 6}
    for subtask in reader.operator(UID).subtasks:
        assert [s.shape.name for s in subtask.operator_state].count("rules") == 1


def test_an_operator_is_left_out_and_all_others_are_copied_unchanged(tmp_path: Path) -> None:
    storage = FileSystemCheckpointStorage(str(tmp_path / "store"), file_state_size_threshold=0)
    with job(Shape(backend="rocksdb", extra_keys=8_000)) as made:
        Publisher(storage).publish(made, 3)
    copied = SavepointWriter.from_existing(str(tmp_path / "store")).write(str(tmp_path / "copy"))
    assert read_back(copied, tmp_path, "rocksdb", 2) == expected_contents(8_000)
    assert read_back(copied, tmp_path, "heap", 1) == expected_contents(8_000)
    assert not any("shared/" in path for path in files_of(open_checkpoint(copied).metadata))
    smaller = SavepointWriter.from_existing(copied).remove_operator(UID).write(str(tmp_path / "smaller"))
    assert [record.uid for record in open_checkpoint(smaller).metadata.operators] == ["numbers"]


@pytest.mark.parametrize("touched", [True, False])
def test_prepared_output_that_lies_in_files_is_copied(touched: bool, tmp_path: Path) -> None:
    storage = FileSystemCheckpointStorage(str(tmp_path / "sp"), file_state_size_threshold=0)
    directory = SavepointDirectory(storage)
    store = storage.file_store(directory.prefix_for(1, 1))
    item = PreparedItem(1, b"", store.write("prepared", [b"rows" * 100]))
    base = SavepointWriter.new("sink")._base
    subtask = SubtaskSnapshot("sink", 0, 1, 128, prepared=(item,))
    record = OperatorRecord("sink", "sink", 1, 128, (subtask,))
    directory.publish(msgspec.structs.replace(base, operators=(record,)))
    writer = SavepointWriter.from_existing(str(tmp_path / "sp"))
    if touched:
        writer.with_operator("sink").list_state(PENDING, [1])
    location = writer.write(str(tmp_path / "new"))
    shutil.rmtree(tmp_path / "sp")
    opened = open_checkpoint(location)
    (found,) = opened.metadata.operators[0].subtasks[0].prepared
    assert found.file is not None
    assert opened.storage.file_store("read").read(found.file) == b"rows" * 100


def test_values_and_names_that_cannot_be_are_refused(tmp_path: Path) -> None:
    with job(Shape(kind="savepoint")) as made:
        save_savepoint(FileSystemCheckpointStorage(str(tmp_path / "sp")), made)
    writer = SavepointWriter.from_existing(str(tmp_path / "sp"))
    with pytest.raises(JobDefinitionError, match="max parallelism 16"):
        writer.with_operator(UID, 128)
    operator = writer.with_operator(UID)
    with pytest.raises(TypeMismatchError):
        operator.keyed_state(COUNT, [("k", "many")])
    with pytest.raises(StateConflictError):
        operator.keyed_state(type(SEEN)("count", SEEN.elem_type_info), [("k", ["x"])])
    with pytest.raises(RestoreError, match="numbers"):
        writer.remove_operator("nobody")
    with pytest.raises(RestoreError, match="already"):
        writer.write(str(tmp_path / "sp"))
    assert verify(find_place(str(tmp_path / "sp")).checkpoints()).whole
