"""A watched folder that is away for a while: nothing is found, nothing ends, and it is said once."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from headrace.connectors.files import FileSource
from headrace.errors import ConfigurationError
from headrace.testing.source_driver import SourceDriver


def look(driver: SourceDriver, times: int = 2) -> list[Any]:
    """What is new after so many looks."""
    for _ in range(times):
        driver.discover()
    before = len(driver.records)
    driver.run()
    return [record.value for record in driver.records[before:]]


def test_a_watched_folder_that_is_gone_for_some_looks_is_told_of_once_and_read_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, elsewhere, other = tmp_path / "in", tmp_path / "unmounted", tmp_path / "other"
    for path in (folder, other):
        path.mkdir()
    (folder / "a").write_text("1\n")
    driver = SourceDriver(FileSource.text(folder, other).monitor_continuously(10))
    assert look(driver) == ["1"]

    folder.rename(elsewhere)
    (other / "b").write_text("2\n")
    assert look(driver) == ["2"], "the other folder is not"
    assert look(driver) == []
    (elsewhere / "c").write_text("3\n")
    elsewhere.rename(folder)
    assert look(driver) == ["3"], "and nothing of before a second time"
    folder.rename(elsewhere)
    assert look(driver) == []

    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 2, "once for each time that it was gone"
    assert all(str(folder) in warning for warning in warnings)


def test_a_watched_folder_that_cannot_be_listed_for_a_while_is_no_end_of_the_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    driver = SourceDriver(FileSource.text(tmp_path).monitor_continuously(10))
    (tmp_path / "a").write_text("1\n")
    real = os.scandir

    def stale(path: Any) -> Any:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)

    monkeypatch.setattr(os, "scandir", stale)
    assert look(driver, 3) == []
    monkeypatch.setattr(os, "scandir", real)
    assert look(driver) == ["1"]
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert os.strerror(errno.ESTALE) in warning


def test_only_the_first_look_of_a_new_job_refuses_a_folder_that_is_not_there(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    source = FileSource.text(folder).monitor_continuously(10)
    with pytest.raises(ConfigurationError, match=f"{folder} does not exist"):
        SourceDriver(source)
    folder.mkdir()
    snapshot = SourceDriver(source).snapshot()
    folder.rmdir()

    restarted = SourceDriver(source, restored=snapshot)
    folder.mkdir()
    (folder / "a").write_text("1\n")

    assert look(restarted) == ["1"]


def test_a_first_look_that_is_not_allowed_says_what_is_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Any) -> Any:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(ConfigurationError, match=f"{tmp_path} cannot be looked at: .*Permission denied"):
        SourceDriver(FileSource.text(tmp_path))
