"""What a watched folder's source remembers: enough to read no file twice, and no more than that."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.clocks import Clocks
from headrace.connectors.files.enumerator import FileEnumerator
from headrace.connectors.files.seen_files import FORGET_AFTER_MS, SeenFiles
from headrace.connectors.files.split import FileSplit, Fingerprint
from headrace.errors import RestoreError

HOUR_MS = 3_600_000


class Readers:
    """One reader that is always ready for the next file."""

    parallelism = 1

    def __init__(self) -> None:
        self.read: list[str] = []

    def assign(self, subtask: int, splits: Sequence[Any]) -> None:
        self.read += [Path(split.path).name for split in splits]

    def no_more_splits(self, subtask: int) -> None:
        raise AssertionError("a watched folder has no end")


class Watch:
    """A watched folder under a clock that the test moves."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now_ms = 1_000_000
        self.readers = Readers()
        self.restart(None)

    def restart(self, state: bytes | None) -> None:
        clocks = Clocks(wall_ms=lambda: self.now_ms)
        self.enumerator = FileEnumerator(self.readers, [str(self.folder)], 10, state, clocks)
        self.enumerator.start()

    def look(self) -> list[str]:
        """What is read after two more listings."""
        before = len(self.readers.read)
        for _ in range(2):
            self.enumerator.discover()
            self.enumerator.handle_split_request(0)
        return self.readers.read[before:]


def test_state_holds_what_the_folder_holds_and_a_week_of_removed_files_not_the_history(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    sizes = []
    for hour in range(24 * 28):
        (tmp_path / f"{hour:06d}").write_text("x\n")
        assert watch.look() == [f"{hour:06d}"]
        (tmp_path / f"{hour:06d}").unlink()
        watch.now_ms += HOUR_MS
        sizes.append(len(watch.enumerator.snapshot_state()))
        if hour % 100 == 0:
            watch.restart(watch.enumerator.snapshot_state())

    assert max(sizes[24 * 8 :]) <= max(sizes[: 24 * 8]), "after a week it stops growing"


def test_a_folder_that_is_empty_for_a_moment_has_no_file_read_twice(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "in", tmp_path / "unmounted"
    folder.mkdir()
    (folder / "a").write_text("1\n")
    watch = Watch(folder)
    assert watch.look() == ["a"]

    folder.rename(elsewhere)
    folder.mkdir()
    watch.now_ms += FORGET_AFTER_MS - 1
    assert watch.look() == []
    watch.restart(watch.enumerator.snapshot_state())
    folder.rmdir()
    elsewhere.rename(folder)

    assert watch.look() == []
    watch.now_ms += 2 * FORGET_AFTER_MS
    assert watch.look() == [], "it is there again, so its time as a missing file is over"


def test_a_name_that_was_gone_for_more_than_a_week_is_a_new_file(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    (tmp_path / "a").write_text("1\n")
    assert watch.look() == ["a"]
    (tmp_path / "a").unlink()
    watch.look()
    watch.now_ms += FORGET_AFTER_MS
    watch.look()
    (tmp_path / "a").write_text("2\n")

    assert watch.look() == ["a"]
    assert watch.enumerator.rewritten == 0


def test_time_in_which_a_folder_cannot_be_listed_does_not_count_as_missing(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "in", tmp_path / "unmounted"
    folder.mkdir()
    (folder / "a").write_text("1\n")
    watch = Watch(folder)
    assert watch.look() == ["a"]
    folder.rename(elsewhere)
    for _ in range(3):
        watch.now_ms += FORGET_AFTER_MS
        assert watch.look() == []
    elsewhere.rename(folder)

    assert watch.look() == []


def test_state_written_with_whole_paths_is_still_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1\n")
    looks = Fingerprint.of((tmp_path / "a").stat())
    old = {
        "waiting": [FileSplit("/gone/b", 1, 2)],
        "known": {str(tmp_path / "a"): looks, "/gone/b": Fingerprint(1, 2)},
        "rewritten": 3,
    }
    watch = Watch(tmp_path)
    watch.restart(msgspec.msgpack.encode(old))

    assert watch.look() == ["b"], "the one that was waiting, and not the one that was read"
    assert watch.enumerator.rewritten == 3


def test_a_damaged_list_of_files_is_refused() -> None:
    seen = SeenFiles()
    seen.put("a", Fingerprint(1, 2))

    with pytest.raises(RestoreError, match=r"35 bytes.*damaged"):
        SeenFiles(seen.encode()[:-1])
