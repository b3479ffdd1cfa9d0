"""Files of Hadoop file systems, created by Spark's JVM: on Hadoop's local one, and in a race on a real HDFS."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from types import MappingProxyType
from typing import Any

import msgspec
import pytest
from golden_jobs import JOB, Publisher, Shape, expected_contents, job, restored
from hadoop_handler import HdfsThroughTheJvm
from hdfs import racing, running_hdfs

from headrace.checkpoint.lease import Lease
from headrace.checkpoint.storage.base import CheckpointStorage
from headrace.errors import ConfigurationError, FencedError, JobOwnedError
from headrace.runtime.job.exclusive_create import offer_exclusive_create
from headrace.runtime.spark import hadoop_files
from headrace.runtime.spark.hadoop_files import create_exclusively, replace_whole
from headrace.testing import CheckpointStorageContract

pytestmark = pytest.mark.spark

ROUNDS = 20
RACERS = 4


@pytest.fixture(params=["moved into place", "whole when it is closed"])
def local_hadoop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """Hadoop's own local file system, by both ways. It cannot decide a race; all the rest is as on the others."""
    monkeypatch.setattr(hadoop_files, "HADOOP_SCHEMES", MappingProxyType({"file": "file"}))
    if request.param == "moved into place":
        monkeypatch.setattr(hadoop_files, "MOVED_INTO_PLACE", ("file",))
    return (tmp_path / "store").as_uri()


def test_a_file_is_created_once_whole_private_and_never_replaced(
    local_hadoop: str, tmp_path: Path, spark_slots: Any
) -> None:
    data = bytes(range(256)) * 500
    create_exclusively(f"{local_hadoop}/job/attempt-000001", data)
    with pytest.raises(FileExistsError):
        create_exclusively(f"{local_hadoop}/job/attempt-000001", b"other")
    create_exclusively(f"{local_hadoop}/job/empty", b"")
    home = tmp_path / "store" / "job"
    assert (home / "attempt-000001").read_bytes() == data
    assert (home / "empty").read_bytes() == b""
    # Hadoop's local file system keeps a sum beside each file.
    assert {path.name for path in home.iterdir() if path.suffix != ".crc"} == {"attempt-000001", "empty"}
    assert home.stat().st_mode & 0o777 == 0o700


def test_a_lease_is_replaced_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark_slots: Any) -> None:
    monkeypatch.setattr(hadoop_files, "HADOOP_SCHEMES", MappingProxyType({"file": "file"}))
    uri = (tmp_path / "store" / "job" / "lease-000001").as_uri()
    for contents in (b"first", b"second, which is longer", b""):
        replace_whole(uri, contents)
        assert (tmp_path / "store" / "job" / "lease-000001").read_bytes() == contents
    names = {path.name for path in (tmp_path / "store" / "job").iterdir() if path.suffix != ".crc"}
    assert names == {"lease-000001"}


def test_a_store_whose_connector_is_missing_is_refused_by_name(spark_slots: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"gcs://bucket/x.*connector.*class path"):
        create_exclusively("gcs://bucket/x", b"")


@pytest.fixture(scope="module")
def hdfs_home() -> Iterator[str]:
    with running_hdfs() as home:
        yield home


def contents(spark_slots: Any, uri: str) -> bytes:
    fs = spark_slots.context._jvm.org.apache.hadoop.fs
    path = fs.Path(uri)
    stream = path.getFileSystem(spark_slots.context._jsc.hadoopConfiguration()).open(path)
    try:
        return bytes(stream.readAllBytes())
    finally:
        stream.close()


@pytest.mark.slow
@pytest.mark.service
@pytest.mark.timeout(400)
def test_of_threads_that_race_for_a_file_of_hdfs_exactly_one_wins(hdfs_home: str, spark_slots: Any) -> None:
    with ThreadPoolExecutor(RACERS) as racers:
        for number in range(ROUNDS):
            uri = f"{hdfs_home}/threads/job-{number}/attempt-000001"
            start = Barrier(RACERS)

            def race(me: int, uri: str = uri, start: Barrier = start) -> bool:
                start.wait(60)
                try:
                    create_exclusively(uri, bytes([me]) * 20_000)
                except FileExistsError:
                    return False
                return True

            won = list(racers.map(race, range(RACERS)))
            assert sum(won) == 1
            assert contents(spark_slots, uri) == bytes([won.index(True)]) * 20_000
    fs = spark_slots.context._jvm.org.apache.hadoop.fs
    root = fs.Path(f"{hdfs_home}/threads")
    store = root.getFileSystem(spark_slots.context._jsc.hadoopConfiguration())
    left = store.listFiles(root, True)
    names = []
    while left.hasNext():
        names.append(left.next().getPath().getName())
    assert names == ["attempt-000001"] * ROUNDS, "losers leave nothing behind"


RACER = """
import sys
from headrace.runtime.spark.hadoop_files import create_exclusively, replace_whole
from headrace.runtime.spark.session import obtain_session

handle = obtain_session(None, 1, 1, "racer", None)
print("ready", flush=True)
for line in sys.stdin:
    try:
        create_exclusively(line.strip(), sys.argv[1].encode())
        print("won", flush=True)
    except FileExistsError:
        print("lost", flush=True)
handle.stop()
"""


@pytest.mark.slow
@pytest.mark.service
@pytest.mark.timeout(400)
def test_of_processes_that_race_for_a_file_of_hdfs_exactly_one_wins(hdfs_home: str, spark_slots: Any) -> None:
    with racing(RACER, [[str(me)] for me in range(2)]) as race:
        for number in range(ROUNDS):
            uri = f"{hdfs_home}/processes/job-{number}/attempt-000001"
            found = race(uri)
            assert sorted(found) == ["lost", "won"]
            assert contents(spark_slots, uri) == str(found.index("won")).encode()


@pytest.mark.slow
@pytest.mark.service
@pytest.mark.timeout(400)
class TestCheckpointsOnHdfs(CheckpointStorageContract):
    """The code of `hdfs:` storage on a real HDFS. Its client is the JVM: libhdfs comes with Hadoop's own package."""

    @pytest.fixture
    def storage(self, hdfs_home: str, spark_slots: Any, monkeypatch: pytest.MonkeyPatch) -> CheckpointStorage:
        monkeypatch.setattr("headrace.checkpoint.storage.arrow._CREATORS", {})
        monkeypatch.setattr("headrace.checkpoint.storage.arrow._REPLACERS", {})
        offer_exclusive_create()
        return HdfsThroughTheJvm(f"{hdfs_home}/contract-{uuid.uuid4().hex[:8]}")


@pytest.mark.slow
@pytest.mark.service
@pytest.mark.timeout(400)
def test_a_job_directory_on_hdfs_has_one_owner_publishes_restores_and_fences(
    hdfs_home: str, spark_slots: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("headrace.checkpoint.storage.arrow._CREATORS", {})
    monkeypatch.setattr("headrace.checkpoint.storage.arrow._REPLACERS", {})
    offer_exclusive_create()
    storage = HdfsThroughTheJvm(f"{hdfs_home}/jobs-{uuid.uuid4().hex[:8]}")
    lease = Lease(storage, JOB)
    lease.acquire()
    with pytest.raises(JobOwnedError):
        Lease(storage, JOB).acquire()
    publisher = Publisher(storage)
    with job(Shape(backend="rocksdb", extra_keys=2_000)) as made:
        publisher.publish(made, 1)
        made.set_count(10_001, 1)
        metadata = publisher.publish(made, 2)
    assert restored(metadata, storage, tmp_path, "heap", 3) == expected_contents(2_000)
    successor = Publisher(storage)
    assert successor.attempt == publisher.attempt + 1
    with pytest.raises(FencedError):
        publisher.directory.publish(msgspec.structs.replace(metadata, checkpoint_id=3))
    newest = successor.directory.newest()
    assert newest is not None
    assert newest.checkpoint_id == 2
    lease.release()
