"""Directories of tasks on their host: gone with their task, or removed by the next one if that was killed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.runtime.task.local_directory import LocalDirectory, remove_abandoned

OWNER = """
import sys, time
from pathlib import Path
from headrace.runtime.task.local_directory import LocalDirectory

made = LocalDirectory(sys.argv[1], 1, 0, root=Path(sys.argv[2]))
(made.path / "state").write_text("a gigabyte")
print(made.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process with a directory of job "tides", whose path it prints."""
    command = [sys.executable, "-c", OWNER, "tides", str(tmp_path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    yield process
    process.kill()
    process.communicate()


def path_of(owner: subprocess.Popen[str]) -> Path:
    assert owner.stdout is not None
    return Path(owner.stdout.readline().strip())


def test_a_directory_goes_with_its_task(tmp_path: Path) -> None:
    made = LocalDirectory("tides", 0, 1, root=tmp_path)
    (made.path / "node-0-1").mkdir()
    made.close()
    made.close()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_task_left_is_removed_by_the_next_one_of_its_job(
    tmp_path: Path, owner: subprocess.Popen[str]
) -> None:
    left = path_of(owner)
    owner.kill()
    owner.wait()
    assert (left / "state").exists()
    assert remove_abandoned("waves", root=tmp_path) == []
    assert remove_abandoned("tides", root=tmp_path) == [left]
    assert list(tmp_path.iterdir()) == []


def test_the_directory_of_a_task_that_lives_is_left_alone(tmp_path: Path, owner: subprocess.Popen[str]) -> None:
    theirs = path_of(owner)
    mine = LocalDirectory("tides", 1, 1, root=tmp_path)
    assert remove_abandoned("tides", root=tmp_path) == []
    assert (theirs / "state").exists()
    assert mine.path.exists()
    mine.close()


def test_one_that_is_just_being_made_is_left_alone(tmp_path: Path) -> None:
    made = tmp_path / "headrace-tides-0-0-abc"
    made.mkdir()
    assert remove_abandoned("tides", root=tmp_path) == []
    assert made.exists()


def test_a_place_that_cannot_be_read_is_nothing_to_tidy(tmp_path: Path) -> None:
    assert remove_abandoned("tides", root=tmp_path / "nowhere") == []
