"""Which spool a job reads and with which settings, and where Spark keeps what it writes itself. Without Spark."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from frame_examples import FrameStandIn

from headrace import CheckpointStorage, JobManagerCheckpointStorage, StreamExecutionEnvironment
from headrace.checkpoint.metadata.model import CheckpointMetadata
from headrace.checkpoint.storage.filesystem import FileSystemCheckpointStorage
from headrace.connectors.dataframe.enumerator import SpoolState
from headrace.connectors.dataframe.source import DataFrameSource
from headrace.connectors.dataframe.spool import Spool
from headrace.operators.factories import SourceFactory
from headrace.runtime.job.feeds import Feeds, place_of_spark_checkpoint
from headrace.runtime.job.restoration import Restoration


class Job:
    def __init__(self, storage: CheckpointStorage) -> None:
        env = StreamExecutionEnvironment.get_execution_environment()
        env.enable_checkpointing(1_000).get_checkpoint_config().set_checkpoint_storage(storage)
        env.from_dataframe(FrameStandIn(), source_name="orders").uid("orders").print()
        self.plan, settings = env.build("job")
        self.feeds = Feeds(self.plan, settings)
        self.source = next(
            node.factory.source
            for node in self.plan.graph.nodes
            if isinstance(node.factory, SourceFactory) and isinstance(node.factory.source, DataFrameSource)
        )

    def bound(self, run: int, spool: str | None = None) -> Spool:
        """What the source reads in a run that begins anew, or from a savepoint that refers to `spool`."""
        metadata = None
        if spool is not None:
            metadata = CheckpointMetadata(
                job_id="job",
                job_name="job",
                run=1,
                attempt=1,
                checkpoint_id=7,
                kind="savepoint",
                mode="aligned",
                created_ms=0,
                duration_ms=0,
                operators=(),
                enumerators={"orders": msgspec.msgpack.encode(SpoolState(spool, 3, []))},
            )
        restoration = Restoration.of(self.plan, metadata, allow_non_restored=True)
        self.feeds.bind(run, restoration, outside=spool is not None)
        assert self.source.spool is not None
        return self.source.spool


def test_the_spool_lies_beside_the_checkpoints_by_run_and_source(tmp_path: Path) -> None:
    spool = Job(FileSystemCheckpointStorage(str(tmp_path))).bound(3)
    assert spool.location.startswith(f"{tmp_path.as_uri()}/job/run-000003/spool/orders-")


def test_a_run_from_a_savepoint_reads_the_old_spool_and_stays_with_it(tmp_path: Path) -> None:
    storage = FileSystemCheckpointStorage(str(tmp_path), write_buffer_size=8192)
    old = Job(storage).bound(1).location
    # What it knows of its storage besides the URI comes with it.
    assert Job(storage).bound(2, old).location == old
    later = Job(storage).bound(2)
    assert later.location == old
    assert isinstance(later.storage, FileSystemCheckpointStorage)
    assert (later.storage.root.as_uri(), later.storage.write_buffer_size) == (old, 8192)


def test_a_spool_outside_the_job_s_storage_is_opened_by_its_uri(tmp_path: Path) -> None:
    job = Job(FileSystemCheckpointStorage(str(tmp_path / "new"), write_buffer_size=8192))
    elsewhere = (tmp_path / "old/job/run-000001/spool/orders").as_uri()
    spool = job.bound(1, elsewhere)
    assert spool.location == elsewhere
    assert isinstance(spool.storage, FileSystemCheckpointStorage)
    assert spool.storage.write_buffer_size == -1


def test_without_checkpoint_storage_the_spool_is_temporary() -> None:
    job = Job(JobManagerCheckpointStorage())
    spool = job.bound(1)
    spool.end(0)
    assert Path(spool.location.removeprefix("file://")).exists()
    job.feeds.close()
    assert not Path(spool.location.removeprefix("file://")).exists()


@pytest.mark.parametrize(
    ("spool", "chosen", "place"),
    [
        ("file:///c/job/run-000001/spool/orders", None, "file:///c/job/run-000001/spool/orders/spark"),
        ("s3://b/c/job/run-000001/spool/orders", None, "s3a://b/c/job/run-000001/spool/orders/spark"),
        ("gcs://b/c/job/run-000001/spool/orders", None, "gs://b/c/job/run-000001/spool/orders/spark"),
        ("s3://b/c/job/run-000001/spool/orders", "hdfs://n/x/", "hdfs://n/x/job/run-000001/spool/orders"),
        ("file:///tmp/headrace-spool-7/orders", "file:///x", "file:///x/tmp/headrace-spool-7/orders"),
    ],
)
def test_spark_s_own_checkpoint_belongs_to_the_spool_that_is_read(spool: str, chosen: str | None, place: str) -> None:
    assert place_of_spark_checkpoint(Spool(spool), chosen) == place
