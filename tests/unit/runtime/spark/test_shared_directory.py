"""A file that the driver writes and every executor looks for: what one look says, and what all of them mean."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.checkpoint.storage.filesystem import FileSystemCheckpointStorage
from headrace.checkpoint.storage.memory import JobManagerCheckpointStorage
from headrace.runtime.job.reach import reach_of_executors
from headrace.runtime.spark.errors import PreflightError
from headrace.runtime.spark.machine import require
from headrace.runtime.spark.shared_directory import Look, judge, look, token_below


def test_the_drivers_file_is_seen_below_its_directory_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with token_below(tmp_path) as (path, token):
        assert look(str(path), token).trouble == ""
        assert path.parent == tmp_path
        assert path.stat().st_mode & 0o777 == 0o600, "as open as the files of a checkpoint"
    assert list(tmp_path.iterdir()) == []
    assert look(str(path), token, patience_s=0).trouble == "the driver's file is not there"


def test_nothing_is_left_behind_when_asking_fails(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), token_below(tmp_path):
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_a_directory_of_the_same_name_elsewhere_is_not_the_drivers(tmp_path: Path) -> None:
    """Two roots stand for two machines: both have the directory, only one has the file, or the same bytes in it."""
    here, there = tmp_path / "driver", tmp_path / "executor"
    here.mkdir()
    there.mkdir()
    with token_below(here) as (path, token):
        assert look(str(there / path.name), token, patience_s=0).trouble == "the driver's file is not there"
        (there / path.name).write_bytes(b"of another start")
        assert "other bytes" in look(str(there / path.name), token).trouble
        assert look(str(there / "none" / path.name), token, patience_s=0).trouble, "a directory that is missing"
        assert look(str(there / path.name / "x"), token, patience_s=0).trouble, "a file where a directory should be"
        os.symlink("loop", there / "loop")
        assert look(str(there / "loop"), token).trouble == os.strerror(40), "what cannot be opened is no reason to wait"


def test_a_file_that_a_mount_shows_a_moment_later_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "late"

    class Clock:
        """Each time it is asked is another look; at the third the file has come."""

        asked = 0

        def __call__(self) -> float:
            self.asked += 1
            if self.asked == 3:
                path.write_bytes(b"token")
            return 0.0

    assert look(str(path), b"token", clock=Clock()).trouble == ""


def test_every_executor_must_see_it() -> None:
    directory = Path("/data/jobs")
    well = judge(directory, [Look("one"), Look("two"), Look("two")])
    assert well.ok
    assert "seen by 3 executors on 2 hosts" in well.found
    blind = judge(directory, [Look("one"), Look("two", "the driver's file is not there")])
    with pytest.raises(PreflightError) as refusal:
        require([blind])
    text = str(refusal.value)
    assert "file:///data/jobs is not seen by 1 of 2 executors (two: the driver's file is not there)" in text
    assert "Mount one file system at /data/jobs" in text
    assert "s3://" in text
    assert "hdfs://" in text


def test_an_answer_of_nobody_is_no_proof_and_many_answers_are_cut_short() -> None:
    assert not judge(Path("/data"), []).ok
    many = judge(Path("/data"), [Look(f"host-{n}", "no") for n in range(9)])
    assert "9 of 9 executors" in many.found
    assert "and 4 more" in many.found


@pytest.mark.parametrize("is_local", [True, False])
def test_only_directories_are_asked_for_and_only_where_executors_are_elsewhere(tmp_path: Path, is_local: bool) -> None:
    """A handle that can do nothing: asking Spark would fail."""
    handle: Any = SimpleNamespace(is_local=is_local)
    assert reach_of_executors(handle, JobManagerCheckpointStorage()) == []
    if is_local:
        assert reach_of_executors(handle, FileSystemCheckpointStorage(str(tmp_path))) == []
        assert list(tmp_path.iterdir()) == []
