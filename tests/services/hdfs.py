"""A real HDFS of one name node and one data node, in a process of its own: Hadoop's cluster for tests, from Maven."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from headrace.runtime.spark.java import find_java
from headrace.testing.maven import fetch

CACHE = Path(__file__).parents[2] / ".services"
READY_WITHIN_S = 180

_JARS = Path(pyspark.__file__).parent / "jars"
_MAIN = "org.apache.hadoop.test.MiniDFSClusterManager"


def _version() -> str:
    """Of the Hadoop that comes with this Spark: server and client are of one release."""
    (client,) = _JARS.glob("hadoop-client-api-*.jar")
    return client.stem.removeprefix("hadoop-client-api-")


def cluster_jar() -> Path:
    """Downloaded the first time; safe to call from several processes."""
    version = _version()
    artifact = f"org.apache.hadoop:hadoop-client-minicluster:{version}"
    return fetch(CACHE, f"hadoop-{version}", [artifact], alone=True) / f"hadoop-client-minicluster-{version}.jar"


@contextmanager
def running_hdfs() -> Iterator[str]:
    """Start it, wait until its name node and data node are up, and end it. Gives its URI."""
    jars = [cluster_jar(), *_JARS.glob("hadoop-client-*.jar"), *_JARS.glob("slf4j-api-*.jar")]
    jars += [*_JARS.glob("log4j-*.jar"), *_JARS.glob("jcl-over-slf4j-*.jar"), *_JARS.glob("commons-logging-*.jar")]
    jars += _JARS.glob("snappy-java-*.jar")
    with tempfile.TemporaryDirectory(prefix="headrace-hdfs-") as folder:
        home = Path(folder)
        details = home / "details.json"
        command = [str(find_java().home / "bin" / "java"), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        command += ["-cp", os.pathsep.join(map(str, jars)), _MAIN, "-format", "-datanodes", "1", "-nnport", "0"]
        command += ["-writeDetails", str(details), "-D", f"hdfs.minidfs.basedir={home / 'data'}"]
        with open(home / "log", "wb") as log:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=home)
        try:
            yield f"hdfs://127.0.0.1:{_port(process, details, home / 'log')}"
        finally:
            process.kill()
            process.wait(60)


def _port(process: subprocess.Popen[bytes], details: Path, log: Path) -> int:
    deadline = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < deadline:
        # Written when the cluster is up, as a whole or not yet.
        with contextlib.suppress(OSError, ValueError):
            return int(json.loads(details.read_text())["namenode_port"])
        if process.poll() is not None:
            break
        time.sleep(0.1)
    raise AssertionError(f"HDFS did not start: {log.read_text(errors='replace')[-2_000:]}")


@contextmanager
def racing(program: str, racers: list[list[str]]) -> Iterator[Callable[[str], list[str]]]:
    """Processes of one Python program, ready to race: gives a function that hands all of them a line and gives the
    answer of each. The program says `ready` first, then answers line by line until its input ends."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for words in racers
    ]

    def answers() -> list[str]:
        return [process.stdout.readline().strip() for process in processes if process.stdout is not None]

    def race(line: str) -> list[str]:
        for process in processes:
            assert process.stdin is not None
            process.stdin.write(f"{line}\n")
            process.stdin.flush()
        return answers()

    try:
        assert answers() == ["ready"] * len(processes)
        yield race
    finally:
        for process in processes:
            process.communicate(timeout=120)
