"""The spool between a Spark query and a job, on a real server that speaks S3, and with settings no URI can hold."""

from __future__ import annotations

import os
import pickle
import uuid
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from s3 import S3Server, running_s3

from headrace.checkpoint.storage.arrow import ArrowCheckpointStorage
from headrace.checkpoint.storage.base import AlreadyExistsError, CheckpointStorage
from headrace.checkpoint.storage.filesystem import FileSystemCheckpointStorage
from headrace.checkpoint.storage.operations import TransferOptions
from headrace.checkpoint.storage.paths import UnsafePathError
from headrace.checkpoint.storage.s3 import S3CheckpointStorage
from headrace.connectors.dataframe.parts import PartWriter
from headrace.connectors.dataframe.reader import SpoolReader
from headrace.connectors.dataframe.split import SpoolSplit
from headrace.connectors.dataframe.spool import Manifest, Spool, SpoolFile
from headrace.connectors.source import PollStatus, SourceBatch
from headrace.types.information import RowType, Types

NUMBERS = RowType(("n",), (Types.LONG(),))
QUICK = TransferOptions(attempts=3, first_delay_s=0.01)


@pytest.fixture(scope="module")
def s3_server() -> Iterator[S3Server]:
    with running_s3() as server:
        yield server


@pytest.fixture
def bucket(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3CheckpointStorage:
    """Its endpoint is known by the storage alone: the environment has credentials, as that of every process."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in s3_server.environment.items():
        if name != "AWS_ENDPOINT_URL":
            monkeypatch.setenv(name, value)
    uri = s3_server.create_bucket(f"bucket-{uuid.uuid4().hex[:8]}")
    return S3CheckpointStorage(f"{uri}/jobs", options=QUICK, endpoint_url=s3_server.endpoint_url)


def spool_in(storage: CheckpointStorage, run: int = 1) -> Spool:
    place = storage.below(f"job/run-{run:06d}/spool/orders")
    return Spool(place.location, place)


def numbers(first: int, count: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": pa.array(range(first, first + count), pa.int64())})


def write(spool: Spool, batch: int, first: int, this_try: str = "1") -> Manifest:
    """One try of a batch of 100 rows in two files, as tasks elsewhere write it."""
    in_a_task = pickle.loads(pickle.dumps(PartWriter(spool, batch, this_try, NUMBERS, file_bytes=1)))
    told = in_a_task(0, iter([numbers(first, 60), numbers(first + 60, 40)]))
    return Manifest(batch, str(NUMBERS), tuple(msgspec.msgpack.decode(file, type=SpoolFile) for file in told))


def rows(spool: Spool, batch: int, part: int, position: int = 0) -> list[int]:
    reader = SpoolReader(pickle.loads(pickle.dumps(spool)), NUMBERS, None)
    reader.add_splits([SpoolSplit(batch, part, position=position)])
    found: list[int] = []
    while isinstance(read := reader.poll(25), SourceBatch):
        assert read.columns is not None
        found += read.columns.column("n").to_pylist()
    assert read is PollStatus.NEEDS_SPLIT
    reader.close()
    return found


def test_a_batch_goes_into_the_bucket_and_comes_out_from_any_position(bucket: S3CheckpointStorage) -> None:
    spool = spool_in(bucket)
    assert spool.publish(write(spool, 0, 0))
    assert rows(spool, 0, 0) == list(range(60))
    assert rows(spool, 0, 1, position=35) == [95, 96, 97, 98, 99]
    names = bucket.list("job/run-000001/spool/orders/")
    assert len(names) == 3
    assert all(name.split("/")[4].startswith(("batch-", "data")) for name in names)


def test_of_two_tries_the_first_manifest_counts_and_its_own_author_may_publish_it_again(
    bucket: S3CheckpointStorage,
) -> None:
    spool = spool_in(bucket)
    slow, quick = write(spool, 0, 1_000, "slow"), write(spool, 0, 0, "quick")
    assert spool.publish(quick)
    assert not spool.publish(slow)
    assert spool.publish(quick)
    assert rows(spool_in(bucket), 0, 0) == list(range(60))


def test_what_nobody_needs_is_removed_and_what_a_savepoint_needs_is_not(bucket: S3CheckpointStorage) -> None:
    spool = spool_in(bucket)
    for batch in range(4):
        spool.publish(write(spool, batch, 100 * batch))
    spool.end(4)
    assert (spool.query("a"), spool.query("b"), spool.ended()) == ("a", "a", 4)
    spool.pin("saved", 1)
    assert spool.collect(3) == [0]
    spool.unpin("saved")
    assert spool.collect(3) == [1, 2]
    assert spool.batches() == [3]
    assert rows(spool, 3, 0) == list(range(300, 360))
    bucket.below("job/run-000001/spool").delete_tree("orders")
    assert bucket.list("") == []


def test_a_run_may_go_on_in_the_spool_of_another(bucket: S3CheckpointStorage) -> None:
    first, second = spool_in(bucket), spool_in(bucket, run=2)
    assert second.elsewhere() is None
    second.point_to(first.location)
    assert spool_in(bucket, run=2).elsewhere() == first.location == f"{bucket.location}/job/run-000001/spool/orders"


# Storage below a storage


def test_a_directory_of_a_bucket_is_a_storage_with_the_same_settings(bucket: S3CheckpointStorage) -> None:
    below = bucket.below("job/run-000001")
    assert (below.location, below.prefix) == (f"{bucket.location}/job/run-000001", "jobs/job/run-000001")
    assert (below.endpoint_url, below.options) == (bucket.endpoint_url, QUICK)
    below.create_exclusive("_end", b"1")
    with pytest.raises(AlreadyExistsError):
        bucket.create_exclusive("job/run-000001/_end", b"2")
    assert bucket.list("") == ["job/run-000001/_end"]
    file = below.file_store("data").write("part", [bytes(30_000)])
    assert bucket.exists(f"job/run-000001/{file.path}")


def test_a_directory_of_a_directory_is_one_too_and_nothing_leads_out_of_it(tmp_path: Path) -> None:
    storage = FileSystemCheckpointStorage(str(tmp_path / "a b"), 7, write_buffer_size=8192)
    below = storage.below("job/spool")
    assert (below.root, below.inline_threshold, below.write_buffer_size) == (tmp_path / "a b/job/spool", 7, 8192)
    below.replace("x", b"1")
    assert storage.read("job/spool/x") == b"1"
    remote = ArrowCheckpointStorage(f"file://{tmp_path}/arrow").below("job")
    remote.replace("x", b"2")
    assert (tmp_path / "arrow/job/x").read_bytes() == b"2"
    for place in (storage, ArrowCheckpointStorage("hdfs://host/x"), S3CheckpointStorage("s3://bucket/x")):
        with pytest.raises(UnsafePathError):
            place.below("../elsewhere")
