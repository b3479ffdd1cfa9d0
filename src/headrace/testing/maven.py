"""Jars from Maven, fetched once and kept: the Kafka broker of tests and demos, Spark's Kafka connector, and others.

    libs = fetch(Path(".services"), "kafka-4.3.1", ["org.apache.kafka:kafka_2.13:4.3.1"])

Needs `mvn` and Java 17 or newer, the first time only.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from headrace.errors import ConfigurationError, MissingDependencyError
from headrace.runtime.spark.java import find_java

FETCHED_WITHIN_S = 400.0

_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>headrace</groupId><artifactId>fetched</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>{}
  </dependencies>
</project>
"""
_DEPENDENCY = """
    <dependency>
      <groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>{}
    </dependency>"""
_ALONE = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"


def fetch(cache: Path, name: str, artifacts: Sequence[str], *, alone: bool = False) -> Path:
    """The directory `<cache>/<name>` with the jars of these artifacts, filled by Maven if it is not there.

    An artifact is `group:name:version`. What it depends on comes along, unless `alone`. Safe to call from several
    processes at once: one fetches and the others wait, and the directory appears with all its jars or not at all.
    Another list needs another name.
    """
    directory = cache.absolute() / name
    if directory.is_dir():
        return directory
    cache.mkdir(parents=True, exist_ok=True)
    # Maven's own repository in the home directory is not made for two that fill it at once.
    with open(cache / ".fetching", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return directory if directory.is_dir() else _fetched(directory, artifacts, alone)


def _fetched(directory: Path, artifacts: Sequence[str], alone: bool) -> Path:
    name, cache = directory.name, directory.parent
    maven = shutil.which("mvn")
    if maven is None:
        raise MissingDependencyError(f"{name} comes from Maven, and no mvn was found. Install Maven.")
    own = Path(tempfile.mkdtemp(prefix=".downloading-", dir=cache))
    try:
        (own / "pom.xml").write_text(_pom(artifacts, alone))
        command = [maven, "-B", "-ntp", "-q", "-f", str(own / "pom.xml"), _COPY]
        command += ["-DincludeScope=runtime", f"-DoutputDirectory={own / 'libs'}"]
        java = {"JAVA_HOME": str(find_java().home)}
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCHED_WITHIN_S, env=os.environ | java)
        if done.returncode != 0:
            raise ConfigurationError(f"Maven could not fetch {name}: {(done.stdout + done.stderr)[-1500:]}")
        os.rename(own / "libs", directory)
        return directory
    finally:
        shutil.rmtree(own, ignore_errors=True)


def _pom(artifacts: Sequence[str], alone: bool) -> str:
    more = f"\n      {_ALONE}" if alone else ""
    return _POM.format("".join(_DEPENDENCY.format(*artifact.split(":"), more) for artifact in artifacts))
