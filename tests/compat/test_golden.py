"""Checkpoints that earlier versions left behind are restored, exactly, by this one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from golden_in_flight import EXPECTED, results_after
from golden_jobs import UID, expected_contents, operator_shares, restored

from headrace.checkpoint.location import open_checkpoint
from headrace.checkpoint.metadata.codec import decode_metadata
from headrace.checkpoint.metadata.model import state_files
from headrace.checkpoint.places import find_place
from headrace.checkpoint.restore import OperatorTarget, plan_restore
from headrace.checkpoint.verification import verify
from headrace.state_reader.pieces import pieces_of, read_piece

HERE = Path(__file__).parent
VERSIONS = sorted(path.name for path in HERE.glob("v*"))
PLACES = {
    "heap-checkpoint": "heap-checkpoint/golden/run-000001/chk-000003",
    "rocksdb-checkpoint": "rocksdb-checkpoint/golden/run-000001/chk-000003",
    "savepoint": "savepoint",
}
RESTORES = [
    ("heap-checkpoint", "heap"),
    ("heap-checkpoint", "rocksdb"),
    ("rocksdb-checkpoint", "rocksdb"),
    ("rocksdb-checkpoint", "heap"),
    ("savepoint", "heap"),
    ("savepoint", "rocksdb"),
]


def test_there_is_one_set_for_this_version() -> None:
    assert "v0.1" in VERSIONS


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("place", PLACES)
def test_every_file_is_as_it_was_written(version: str, place: str) -> None:
    assert verify(find_place(str(HERE / version / PLACES[place])).checkpoints()).findings == ()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("parallelism", [1, 2, 3])
@pytest.mark.parametrize(("place", "backend"), RESTORES)
def test_all_keyed_state_and_timers_come_back(
    version: str, place: str, backend: str, parallelism: int, tmp_path: Path
) -> None:
    opened = open_checkpoint(str(HERE / version / PLACES[place]))
    assert restored(opened.metadata, opened.storage, tmp_path, backend, parallelism) == expected_contents()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("place", PLACES)
def test_everything_else_comes_back(version: str, place: str) -> None:
    metadata = open_checkpoint(str(HERE / version / PLACES[place])).metadata
    targets = [
        OperatorTarget("numbers", "numbers", 2, 128, is_source=True),
        OperatorTarget(UID, "counts", 2, 16, is_keyed=True, has_sink_state=True),
    ]
    plan = plan_restore(metadata, targets, (), allow_non_restored=False)
    assert plan.splits("numbers") == [b"split-0", b"split-1"]
    assert plan.enumerator("numbers") == b"enumerated"
    assert [item.payload for item in plan.prepared(UID)] == [b"staged", b"staged"]
    for subtask in (0, 1):
        share = plan.subtask(UID, subtask)
        own = {state.shape.name: state.elements for state in operator_shares(subtask)}
        found = {state.shape.name: state.elements for state in share.operator_state}
        assert found["pending"] == own["pending"]
        assert sorted(found["rules"]) == sorted(own["rules"])
        assert len(found["offsets"]) == 2
    assert plan.subtask(UID, 0).watermark == 50_000


SECOND = {
    "packed-checkpoint": ("packed-checkpoint/golden/run-000001/chk-000003", 5_000),
    "compressed-savepoint": ("compressed-savepoint", 0),
}
"""What format 2 brought: packs of small files, and compressed tables; each with its number of extra keys."""


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
@pytest.mark.parametrize("place", SECOND)
def test_packs_and_compressed_tables_come_back(place: str, backend: str, tmp_path: Path) -> None:
    path, extra = SECOND[place]
    opened = open_checkpoint(str(HERE / "format-2" / path))
    files = list(state_files(opened.metadata))
    details = [s.keyed.details for r in opened.metadata.operators for s in r.subtasks if s.keyed is not None]
    assert any(file.pack_size for file in files) == (place == "packed-checkpoint")
    assert all(detail.startswith(b"\x92\x02") for detail in details) == (place == "compressed-savepoint")
    assert verify(find_place(str(HERE / "format-2" / path)).checkpoints()).findings == ()
    wanted = expected_contents(extra, extra_totals=True)
    for parallelism in (1, 2, 3):
        folder = tmp_path / str(parallelism)
        assert restored(opened.metadata, opened.storage, folder, backend, parallelism) == wanted


@pytest.mark.parametrize("place", SECOND)
def test_packs_and_compressed_tables_can_be_read_as_rows(place: str) -> None:
    path, extra = SECOND[place]
    opened = open_checkpoint(str(HERE / "format-2" / path))
    record = next(record for record in opened.metadata.operators if record.uid == UID)
    store = opened.storage.file_store("read")
    pieces = pieces_of(record, 4)
    for state, wanted in expected_contents(extra, extra_totals=True).items():
        if state in ("count", "total", "profile"):
            found = {
                key
                for piece in pieces
                for _, rows in read_piece(record, piece, store, state)
                for key, space in zip(rows.keys, rows.namespaces or [b""] * len(rows.keys), strict=True)
                if not space
            }
            assert found == wanted.keys()


def test_a_savepoint_restores_from_a_read_only_copy_somewhere_else(tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    shutil.copytree(HERE / "v0.1/savepoint", moved)
    for path in [*moved.rglob("*"), moved]:
        path.chmod(0o500 if path.is_dir() else 0o400)
    opened = open_checkpoint(str(moved))
    for n in range(2):
        assert restored(opened.metadata, opened.storage, tmp_path / str(n), "heap", 1) == expected_contents()
    for path in [moved, *moved.rglob("*")]:
        path.chmod(0o700)


UNALIGNED = sorted(path.parent.name for path in HERE.glob("unaligned/*/_metadata"))


@pytest.mark.parametrize("width", [1, 2, 3])
@pytest.mark.parametrize("place", UNALIGNED)
def test_records_in_flight_come_back(place: str, width: int) -> None:
    data = (HERE / "unaligned" / place / "_metadata").read_bytes()
    assert results_after(data, width) == EXPECTED


def test_records_in_flight_of_releases_before_and_after_edge_records_are_golden() -> None:
    assert UNALIGNED == ["before-edge-records", "with-edge-records"]
    for place, has_records in zip(UNALIGNED, (False, True), strict=True):
        metadata = decode_metadata((HERE / "unaligned" / place / "_metadata").read_bytes())
        assert bool(metadata.edge_records) is has_records
        assert {edge for channel in metadata.channels for edge in channel.edges} == {0, 1}
