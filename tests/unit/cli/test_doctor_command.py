"""`headrace doctor` on machines where something is missing, and on one where nothing is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from headrace.cli.main import main
from headrace.runtime.spark import java as java_module


def doctor(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["doctor", "--no-spark", *arguments], env={"COLUMNS": "200"})


@pytest.fixture
def old_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine whose only Java is of 2014."""
    home = tmp_path / "jdk8"
    (home / "bin").mkdir(parents=True)
    java = home / "bin" / "java"
    java.write_text("#!/bin/sh\necho 'java version \"1.8.0_20\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(java_module, "_SYSTEM_JVMS", tmp_path / "none")
    monkeypatch.setattr(java_module, "_wheel_home", lambda: None)
    return home


def test_all_is_well_on_a_machine_that_has_everything() -> None:
    result = doctor()
    assert result.exit_code == 0, result.output
    for checked in ("Python", "Java", "PySpark", "rocksdict", "Checkpoint storage"):
        assert f"✓  {checked}" in result.output
    assert "survives the loss of a task, not of this process" in result.output
    assert "All is well." in result.output


def test_it_fits_on_one_screen() -> None:
    assert len(doctor().output.splitlines()) < 24


def test_an_old_java_is_named_with_both_ways_out(old_java: Path) -> None:
    result = doctor()
    assert result.exit_code == 1
    assert f"{old_java} is Java 8" in result.output
    assert 'pip install "headrace[java]"' in result.output
    assert "apt install" in result.output


def test_the_same_text_stops_a_job_at_its_start(old_java: Path, tmp_path: Path) -> None:
    job = tmp_path / "job.py"
    job.write_text(
        "from headrace import StreamExecutionEnvironment\n"
        "env = StreamExecutionEnvironment.get_execution_environment()\n"
        "env.from_collection([1]).print()\n"
        "env.execute('one')\n"
    )
    # A process of its own: in this one Spark may run already, and then no Java is looked for.
    program = (
        "from pathlib import Path\n"
        "from headrace.cli.main import main\n"
        "from headrace.runtime.spark import java\n"
        f"java._SYSTEM_JVMS, java._wheel_home = Path({str(tmp_path / 'none')!r}), lambda: None\n"
        f"main(['run', {str(job)!r}])\n"
    )
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 3
    assert f"{old_java} is Java 8" in result.stderr
    assert 'pip install "headrace[java]"' in result.stderr
    assert "Traceback" not in result.stderr


def test_storage_is_tried_and_its_reach_is_told(tmp_path: Path) -> None:
    result = doctor("--checkpoint-dir", str(tmp_path / "ck"))
    assert result.exit_code == 0
    assert "survives the loss of a task and of this process" in " ".join(result.output.split())
    assert list((tmp_path / "ck").iterdir()) == []


def test_storage_that_cannot_be_written_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    result = doctor("--checkpoint-dir", str(tmp_path / "file" / "ck"))
    assert result.exit_code == 1
    assert "Checkpoint storage: Make it writable, or choose another place." in result.output


def test_storage_of_an_unknown_kind_is_wrong() -> None:
    result = doctor("--checkpoint-dir", "gopher://old/place")
    assert result.exit_code == 1
    assert "gopher" in result.output
