"""Whose staged files are whose: jobs of one name with two checkpoint directories, moved outputs, lost files."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.connectors.files import FileSink
from headrace.connectors.files import local_staging as local
from headrace.connectors.files.staging import FileTransaction, PreparedFile
from headrace.connectors.sink import Committer, SinkWriter, WriterContext
from headrace.errors import DamagedCheckpointError, OutputLostError

OURS, THEIRS = "0a1b2c3d4e5f", "f5e4d3c2b1a0"


def writer_of(sink: FileSink, history: str = OURS, attempt: int = 1) -> SinkWriter:
    writer = sink.create_writer(WriterContext("job", "sink", 0, 1, attempt, history))
    writer.open()
    return writer


def prepared(sink: FileSink, value: Any, history: str = OURS, attempt: int = 1, checkpoint: int = 1) -> list[bytes]:
    writer = writer_of(sink, history, attempt)
    writer.write(value, None)
    return list(writer.prepare_commit(checkpoint))


def recover(sink: FileSink, history: str = OURS, attempt: int = 9, keep: Sequence[bytes] = ()) -> Committer:
    committer = sink.create_committer()
    committer.history = history
    committer.commit(keep)
    committer.abort_leftovers("job", "sink", attempt, keep)
    return committer


def lines(folder: Path) -> list[str]:
    files = (path for path in folder.rglob("*") if path.is_file() and ".staging" not in path.parts)
    return sorted(line for path in files for line in path.read_text().splitlines())


def staged(folder: Path) -> list[str]:
    files = (path for path in (folder / ".staging").rglob("*") if path.is_file())
    return sorted(path.name for path in files if path.suffix not in (".committed", ".owner"))


def transaction(item: bytes) -> FileTransaction:
    (txn,) = FileSink.text("unused").create_committer().transactions([item])  # type: ignore[attr-defined]
    assert isinstance(txn, FileTransaction)
    return txn


def without_history(sink: FileSink, value: Any, note: str, attempt: int = 1) -> list[bytes]:
    """An item as versions before wrote it: its names hold no history; its ledger does, after a commit."""
    writer = sink.create_writer(WriterContext("job", "sink", 0, 1, attempt, ""))
    writer.open()
    writer.write("committed before", None)
    (first,) = writer.prepare_commit(1)
    writer.write(value, None)
    (second,) = writer.prepare_commit(2)
    for item in (first, second):
        txn = transaction(item)
        txn.history = note
        if item is first:
            sink.staging.commit(txn)
    return [second]


# Histories


def test_recovery_removes_leftovers_of_its_own_history_only(tmp_path: Path) -> None:
    sink = FileSink.text(tmp_path)
    ours, theirs = prepared(sink, "ours"), prepared(sink, "theirs", THEIRS)
    recover(sink)
    assert [THEIRS in name for name in staged(tmp_path)] == [True]
    sink.create_committer().commit(theirs)
    with pytest.raises(OutputLostError):
        sink.create_committer().commit(ours)
    assert lines(tmp_path) == ["theirs"]


def test_both_ledgers_survive_recoveries_of_two_jobs_in_turn(tmp_path: Path) -> None:
    sink = FileSink.text(tmp_path)
    items = {history: prepared(sink, history, history) for history in (OURS, THEIRS)}
    for history, of_history in items.items():
        recover(sink, history, 2, of_history)
    for history in (OURS, THEIRS, OURS):
        recover(sink, history, 3)
    for path in tmp_path.glob("part-*"):
        path.unlink()
    for of_history in items.values():
        sink.create_committer().commit(of_history)
    assert lines(tmp_path) == [], "both know that a reader took the files away"


@pytest.mark.parametrize(("note", "left"), [(OURS, 0), (THEIRS, 1)])
def test_names_without_a_history_are_removed_where_their_ledger_shows_the_owner(
    tmp_path: Path, note: str, left: int
) -> None:
    sink = FileSink.text(tmp_path)
    without_history(sink, "old", note)
    recover(sink)
    assert len(staged(tmp_path)) == left


def test_an_item_without_a_history_in_its_names_is_still_committed(tmp_path: Path) -> None:
    sink = FileSink.text(tmp_path)
    items = without_history(sink, "old", OURS)
    recover(sink, keep=items)
    recover(sink, keep=items, attempt=10)
    assert lines(tmp_path) == ["committed before", "old"]
    assert staged(tmp_path) == []


def test_a_second_job_directory_is_noticed_by_both_and_an_own_restart_by_none(tmp_path: Path) -> None:
    sink = FileSink.text(tmp_path)
    assert recover(sink, OURS, 1).other_owner() == ""
    assert recover(sink, OURS, 2).other_owner() == ""
    noticed = recover(sink, THEIRS, 1).other_owner()
    assert "another checkpoint directory" in noticed
    assert f"attempt 2, process {os.getpid()}" in noticed
    assert "attempt 1" in recover(sink, OURS, 3).other_owner()


def test_an_owner_file_that_is_damaged_stops_nothing(tmp_path: Path) -> None:
    sink = FileSink.text(tmp_path)
    recover(sink, OURS, 1)
    (owner,) = (tmp_path / ".staging").rglob("*.owner")
    owner.write_text('{"history":')
    assert recover(sink, OURS, 2).other_owner() == ""


# Another path


def test_output_prepared_for_another_path_is_committed_there_and_new_output_here(tmp_path: Path) -> None:
    old, new = FileSink.text(tmp_path / "old"), FileSink.text(tmp_path / "new")
    items = prepared(old, "prepared")
    prepared(old, "never published")
    recover(new, keep=items)
    recover(new, keep=items, attempt=10)
    new.create_committer().commit(prepared(new, "later", attempt=10, checkpoint=2))
    assert lines(tmp_path / "old") == ["prepared"]
    assert lines(tmp_path / "new") == ["later"]
    assert staged(tmp_path / "old") == [], "leftovers of the own history are removed where it wrote before"


def test_a_copied_tree_is_committed_where_the_sink_writes_now(tmp_path: Path) -> None:
    old, new = FileSink.text(tmp_path / "old"), FileSink.text(tmp_path / "new")
    items = prepared(old, "a")
    shutil.copytree(tmp_path / "old", tmp_path / "new")
    recover(new, keep=items)
    assert lines(tmp_path / "new") == ["a"]
    assert lines(tmp_path / "old") == []


def test_what_was_committed_before_the_tree_was_moved_is_known_after_it(tmp_path: Path) -> None:
    items = prepared(FileSink.text(tmp_path / "old"), "a")
    FileSink.text(tmp_path / "old").create_committer().commit(items)
    (tmp_path / "old").rename(tmp_path / "new")
    for path in (tmp_path / "new").glob("part-*"):
        path.unlink()
    recover(FileSink.text(tmp_path / "new"), keep=items)
    assert not (tmp_path / "old").exists()


# Lost output


def test_prepared_output_whose_folder_is_gone_is_lost_and_nothing_is_created_in_its_place(tmp_path: Path) -> None:
    items = prepared(FileSink.text(tmp_path / "old"), "a")
    shutil.rmtree(tmp_path / "old")
    with pytest.raises(OutputLostError, match=r"Checkpoint 1 had .* --from"):
        recover(FileSink.text(tmp_path / "new"), keep=items)
    assert not (tmp_path / "old").exists()


def test_a_file_committed_long_ago_and_taken_away_is_known_though_its_own_note_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.connectors.files.commit_notes.NOTES_KEPT", 2)
    sink = FileSink.text(tmp_path)
    writer = writer_of(sink)
    items: list[list[bytes]] = []
    for checkpoint in range(1, 8):
        writer.write(checkpoint, None)
        items.append(list(writer.prepare_commit(checkpoint)))
        sink.create_committer().commit(items[-1])
    recover(sink)
    for path in tmp_path.glob("part-*"):
        path.unlink()
    for item in items:
        sink.create_committer().commit(item)
    assert lines(tmp_path) == []


def test_the_ledger_of_a_writer_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "LEDGER_BYTES", 4_000)
    monkeypatch.setattr(local, "NOTES_KEPT", 10)
    sink = FileSink.text(tmp_path)
    writer = writer_of(sink)
    items: list[bytes] = []
    for checkpoint in range(1, 200):
        writer.write(checkpoint, None)
        (item,) = writer.prepare_commit(checkpoint)
        sink.create_committer().commit([item])
        items.append(item)
    (ledger,) = (tmp_path / ".staging").rglob("*.committed")
    assert ledger.stat().st_size <= 4_200
    next(tmp_path.glob("part-0-1-0-*")).unlink()
    sink.create_committer().commit(items)
    assert len(lines(tmp_path)) == 198


@pytest.mark.parametrize(
    ("staged_path", "final"),
    [
        ("../x", "part-0"),
        (".staging/../../x", "part-0"),
        ("/etc/x", "part-0"),
        ("seen", "part-0"),
        (".staging/x", "../y"),
    ],
)
def test_a_checkpoint_cannot_name_files_outside_the_output(tmp_path: Path, staged_path: str, final: str) -> None:
    sink = FileSink.text(tmp_path / "out")
    (item,) = prepared(sink, "a")
    (tmp_path / "out" / "seen").write_text("a\n")
    _, mark, raw = msgspec.msgpack.decode(item)
    txn = msgspec.convert(raw, FileTransaction, strict=False)
    txn.files = [PreparedFile(staged_path, final, 2, b"")]
    hostile = msgspec.msgpack.encode([1, mark, txn])
    with pytest.raises(DamagedCheckpointError, match="not below the sink's path"):
        sink.create_committer().commit([hostile])
