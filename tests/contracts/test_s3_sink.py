"""The file sink on a real server that speaks S3: the contract of sinks, and what a bucket makes different."""

from __future__ import annotations

import itertools
import os
import pickle
from collections.abc import Iterator
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyarrow import fs
from s3 import S3Server, running_s3

from headrace.connectors.files import BucketAssigner, FileSink, RollingPolicy
from headrace.connectors.files import s3_staging as staging
from headrace.connectors.sink import WriterContext
from headrace.errors import CommitFailedError, ConfigurationError, OutputLostError
from headrace.testing.sink_contract import NewSink, SinkContract, SinkUnderTest
from headrace.types.information import Types
from headrace.types.rows import Row

NUMBER = Types.ROW_NAMED(["n"], [Types.LONG()])


class Bucket:
    """A bucket as its readers see it."""

    def __init__(self, server: S3Server, name: str) -> None:
        self.uri = server.create_bucket(name)
        self.name = name
        self.client = boto_client(server)
        self._contents: dict[tuple[str, str], bytes] = {}

    def keys(self, start: str = "") -> list[str]:
        return sorted(self._tags(start))

    def _tags(self, start: str) -> dict[str, str]:
        """Every object with the tag that stands for its content."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.name, Prefix=start)
        return {item["Key"]: item["ETag"] for page in pages for item in page.get("Contents", ())}

    def visible(self, start: str = "") -> list[str]:
        return [key for key in self.keys(start) if ".staging" not in key.split("/")]

    def staged(self, start: str = "") -> list[str]:
        """What waits to be committed; uploads that nobody finished too."""
        keys = [
            key
            for key in self.keys(start)
            if ".staging" in key.split("/") and not key.endswith((".committed", ".owner"))
        ]
        answer = self.client.list_multipart_uploads(Bucket=self.name, Prefix=start)
        return keys + [upload["Key"] for upload in answer.get("Uploads") or ()]

    def lines(self, start: str = "") -> list[str]:
        found: list[str] = []
        for key, tag in sorted(self._tags(start).items()):
            if ".staging" not in key.split("/"):
                if (key, tag) not in self._contents:
                    self._contents[key, tag] = self.client.get_object(Bucket=self.name, Key=key)["Body"].read()
                found += self._contents[key, tag].decode().splitlines()
        return found


def boto_client(server: S3Server) -> Any:
    import boto3

    return boto3.client("s3", endpoint_url=server.endpoint_url, region_name="us-east-1")


@pytest.fixture(scope="module")
def s3_server() -> Iterator[S3Server]:
    with running_s3() as running:
        yield running


@pytest.fixture
def bucket(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Bucket:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    return Bucket(s3_server, f"sink{abs(hash(request.node.name)):x}"[:40])


class TestS3Sink(SinkContract):
    """Text files, each under a prefix of its own."""

    @pytest.fixture
    def new_sink(self, bucket: Bucket) -> NewSink:
        places = itertools.count()

        def make() -> SinkUnderTest:
            start = f"out/{next(places)}/"
            return SinkUnderTest(
                FileSink.text(f"{bucket.uri}/{start}"),
                visible=lambda: [int(line) for line in bucket.lines(start)],
                leftovers=lambda: bucket.staged(start),
                # It may travel (see below), but each copy makes a client of its own, which takes its time.
                travels=False,
            )

        return make


def prepared(sink: FileSink, values: list[Any], *, attempt: int = 1, checkpoint: int = 1) -> list[bytes]:
    writer = sink.create_writer(WriterContext("job", "sink", 0, 1, attempt))
    writer.open()
    writer.write_batch(values, None)
    writer.flush()
    return list(writer.prepare_commit(checkpoint))


def test_it_travels_to_tasks_without_its_client(bucket: Bucket) -> None:
    sink = FileSink.text(f"{bucket.uri}/out")
    sink.preflight()
    in_a_task, in_another = (pickle.loads(pickle.dumps(sink)) for _ in range(2))
    in_another.create_committer().commit(prepared(in_a_task, ["a"]))
    assert bucket.lines() == ["a"]


def test_buckets_parquet_and_rolling_work_as_in_a_folder(bucket: Bucket) -> None:
    sink = FileSink.parquet(f"{bucket.uri}/deep/down", NUMBER)
    sink.with_bucket_assigner(BucketAssigner.field_bucket_assigner("n"))
    sink.with_rolling_policy(RollingPolicy.default_rolling_policy(part_size=1))
    sink.preflight()
    assert bucket.keys() == [], "a check leaves nothing behind"

    sink.create_committer().commit(prepared(sink, [Row(n=n % 3) for n in range(9)]))

    folders = [key.rpartition("/")[0] for key in bucket.visible()]
    assert folders == ["deep/down/n=0", "deep/down/n=1", "deep/down/n=2"]
    where = fs.S3FileSystem(endpoint_override=bucket.client.meta.endpoint_url, access_key="test", secret_key="test")
    table = pq.read_table(f"{bucket.name}/{bucket.visible()[1]}", filesystem=where)
    assert table["n"].to_pylist() == [1, 1, 1]


def test_a_large_file_goes_up_in_parts_and_is_seen_only_as_a_whole(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "PART_BYTES", 5 << 20)
    monkeypatch.setattr(staging, "LARGEST_COPY", 6 << 20)
    sink = FileSink.text(f"{bucket.uri}/large")
    lines = [f"{n:06d}" + "x" * 1_000_000 for n in range(12)]
    writer = sink.create_writer(WriterContext("job", "sink", 0, 1, 1))
    writer.open()
    for line in lines:
        writer.write(line, None)
        assert bucket.visible() == []
    items = list(writer.prepare_commit(1))
    assert bucket.visible() == []

    for _ in range(3):
        sink.create_committer().commit(items)

    assert bucket.lines() == lines
    assert bucket.staged() == []


def test_uploads_of_the_dead_are_ended_and_those_of_the_living_are_not(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "PART_BYTES", 5 << 20)
    sink = FileSink.text(bucket.uri)
    writers = [sink.create_writer(WriterContext("job", "sink", 0, 1, attempt)) for attempt in (1, 2)]
    for writer in writers:
        writer.open()
        writer.write("x" * (6 << 20), None)
    assert len(bucket.staged()) == 2

    sink.create_committer().abort_leftovers("job", "sink", 2, [])

    (left,) = bucket.staged()
    assert "-a2-" in left
    writers[1].close()
    assert bucket.staged() == []


def test_a_visible_object_keeps_its_content_and_date_however_often_it_is_committed(bucket: Bucket) -> None:
    sink = FileSink.text(bucket.uri)
    items = prepared(sink, ["a", "b"])
    sink.create_committer().commit(items)
    (key,) = bucket.visible()
    before = bucket.client.head_object(Bucket=bucket.name, Key=key)

    for _ in range(3):
        sink.create_committer().commit(items)

    after = bucket.client.head_object(Bucket=bucket.name, Key=key)
    assert bucket.visible() == [key]
    assert (after["LastModified"], after["ETag"]) == (before["LastModified"], before["ETag"])


def test_an_object_that_a_reader_took_away_is_not_shown_again_and_one_that_was_never_shown_is_reported(
    bucket: Bucket,
) -> None:
    sink = FileSink.text(bucket.uri)
    items = prepared(sink, ["a"])
    sink.create_committer().commit(items)
    bucket.client.delete_object(Bucket=bucket.name, Key=bucket.visible()[0])
    sink.create_committer().commit(items)
    assert bucket.visible() == []

    lost = prepared(sink, ["b"])
    bucket.client.delete_object(Bucket=bucket.name, Key=bucket.staged()[0])
    with pytest.raises(OutputLostError, match="neither file exists and no ledger says it was ever committed"):
        sink.create_committer().commit(lost)


def test_a_foreign_object_under_the_final_name_is_never_overwritten(bucket: Bucket) -> None:
    sink = FileSink.text(bucket.uri)
    items = prepared(sink, ["a"])
    (txn,) = sink.create_committer().transactions(items)  # type: ignore[attr-defined]
    bucket.client.put_object(Bucket=bucket.name, Key=txn.files[0].final, Body=b"foreign")

    with pytest.raises(CommitFailedError, match="never overwritten"):
        sink.create_committer().commit(items)
    assert bucket.lines() == ["foreign"]
    bucket.client.delete_object(Bucket=bucket.name, Key=txn.files[0].final)
    sink.create_committer().commit(items)
    assert bucket.lines() == ["a"]


def test_a_commit_that_died_after_the_copy_is_finished(bucket: Bucket) -> None:
    sink = FileSink.text(bucket.uri)
    items = prepared(sink, ["a"])
    (txn,) = sink.create_committer().transactions(items)  # type: ignore[attr-defined]
    sink.staging._bucket.copy(txn.files[0])  # type: ignore[attr-defined]
    assert len(bucket.visible()) == len(bucket.staged()) == 1

    sink.create_committer().commit(items)

    assert bucket.lines() == ["a"]
    assert bucket.staged() == []


def test_a_bucket_that_is_not_there_is_refused_before_the_start(bucket: Bucket) -> None:
    with pytest.raises(ConfigurationError, match="FileSink cannot write to s3://no-such-bucket/out"):
        FileSink.text("s3://no-such-bucket/out").preflight()
    with pytest.raises(ConfigurationError, match="names no bucket"):
        FileSink.text("s3://")
    assert FileSink.text(f"{bucket.uri}/out").describe() == f"strings files in {bucket.uri}/out"
