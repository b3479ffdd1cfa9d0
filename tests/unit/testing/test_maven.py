"""Jars from Maven: fetched once, whole or not at all, with a message that helps where they cannot be had."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headrace.errors import ConfigurationError, MissingDependencyError
from headrace.testing.maven import fetch

ARTIFACTS = ["org.example:pumps:1.2", "org.example:pipes:3.4"]
FETCHES = """
for argument in "$@"; do case "$argument" in
    -DoutputDirectory=*) out="${argument#*=}" ;;
    */pom.xml) pom="$argument" ;;
esac; done
mkdir "$out" && cp "$pom" "$out/pumps.jar"
"""
"""A Maven whose one jar is the list of what was asked for."""


def shown(directory: Path) -> list[str]:
    """What lies there, apart from the lock."""
    return [name for name in os.listdir(directory) if name != ".fetching"]


@pytest.fixture
def maven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Put a program called `mvn` before all others."""

    def make(script: str) -> None:
        (tmp_path / "bin").mkdir()
        program = tmp_path / "bin" / "mvn"
        program.write_text(f"#!/bin/sh\n{script}")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")

    return make


def test_what_is_there_is_not_fetched_again(tmp_path: Path, maven: Callable[[str], None]) -> None:
    maven("exit 1")
    (tmp_path / "cache" / "pumps-1.2").mkdir(parents=True)
    assert fetch(tmp_path / "cache", "pumps-1.2", ARTIFACTS) == tmp_path / "cache" / "pumps-1.2"


@pytest.mark.parametrize("alone", [False, True])
def test_the_jars_of_all_artifacts_are_asked_for_with_or_without_what_they_depend_on(
    tmp_path: Path, maven: Callable[[str], None], alone: bool
) -> None:
    maven(FETCHES)
    libs = fetch(tmp_path / "cache", "pumps-1.2", ARTIFACTS, alone=alone)
    assert shown(tmp_path / "cache") == [libs.name]
    asked = (libs / "pumps.jar").read_text()
    assert "<artifactId>pumps</artifactId><version>1.2</version>" in asked
    assert "<artifactId>pipes</artifactId><version>3.4</version>" in asked
    assert asked.count("<exclusion>") == (2 if alone else 0)


def test_a_maven_that_fails_is_quoted_and_leaves_nothing_behind(tmp_path: Path, maven: Callable[[str], None]) -> None:
    maven("echo 'no such version'; exit 1")
    with pytest.raises(ConfigurationError, match=r"could not fetch pumps-1\.2: no such version"):
        fetch(tmp_path / "cache", "pumps-1.2", ARTIFACTS)
    assert shown(tmp_path / "cache") == []


def test_of_several_that_fetch_at_once_one_does_it_and_the_others_wait(
    tmp_path: Path, maven: Callable[[str], None]
) -> None:
    calls = tmp_path / "calls"
    maven(f"echo call >> {calls}\nsleep 0.2\n{FETCHES}")
    with ThreadPoolExecutor(4) as threads:
        found = [threads.submit(fetch, tmp_path / "cache", "pumps-1.2", ARTIFACTS) for _ in range(4)]
        assert {future.result() for future in found} == {tmp_path / "cache" / "pumps-1.2"}
    assert calls.read_text().splitlines() == ["call"]
    assert shown(tmp_path / "cache") == ["pumps-1.2"]


def test_without_maven_the_message_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingDependencyError, match=r"pumps-1\.2 comes from Maven.*Install Maven"):
        fetch(tmp_path / "cache", "pumps-1.2", ARTIFACTS)
